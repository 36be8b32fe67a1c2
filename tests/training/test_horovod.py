"""horovod: the ranks of its processes, and the report of a task without it.

The suite of all modes tests its training with a replacement: see tests/training/standins.
"""

from typing import cast

import pytest

from pytest_dtfperf.spec import VARIABLE_UPDATES, Spec, VariableUpdate
from pytest_dtfperf.training.variable_update.horovod_slots import compute_slots
from tests.training.conftest import RunTasks, orders_of
from tests.training.table import UNHEARD_OF


def test_processes_know_their_ranks() -> None:
    """Three workers on two hosts: in all, on each host, and among those of equal rank on their hosts."""
    names = ("hostname", "rank", "local_rank", "cross_rank", "size", "local_size", "cross_size")
    assert [tuple(slot[name] for name in names) for slot in compute_slots(["anna", "anna", "bert"])] == [
        ("anna", 0, 0, 0, 3, 2, 2),
        ("anna", 1, 1, 0, 3, 2, 1),
        ("bert", 2, 0, 1, 3, 1, 2),
    ]


def test_task_reports_a_missing_module(run_tasks: RunTasks, tiny: Spec, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task without the module of its mode trains nothing, and reports the module as missing, not as a failure."""
    monkeypatch.setitem(cast("dict[str, VariableUpdate]", VARIABLE_UPDATES), "unheard_of", UNHEARD_OF["unheard_of"])
    with orders_of(tiny.replace(variable_update="unheard_of"), workers=1) as orders:
        (outcome,) = run_tasks(orders)
    assert outcome == {"events": [{"kind": "missing", "what": "module", "name": "no_such_module.tensorflow"}], "code": 0}
