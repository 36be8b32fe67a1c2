"""The bytes that training sends, counted by the tasks in a network of their own, are those of the theory."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

from pytest_dtfperf.spec import VARIABLE_UPDATES, Spec, VariableUpdate
from tests.training.conftest import RunTraining
from tests.training.programs import NETWORK_APART

pytestmark = pytest.mark.skipif(
    not NETWORK_APART, reason=f"needs a network of its own: unshare --net, as root (this is user {os.geteuid()})"
)

VARIABLES = 784 * 512 + 512 + 512 * 512 + 512 + 512 * 10 + 10  # of the network "wide"
BYTES = 4 * VARIABLES
MANY_STEPS = 50
STEPS = 15  # at the window's ends others may be a step ahead or behind: of so many, that is little


def crossings(row: VariableUpdate, workers: int) -> int:
    """Return how often all variables, or gradients of all, cross the wire in a step.

    Each worker fetches the variables and sends the gradients once, independent of its devices. A ring sends 2 (n - 1) / n of
    them from each of n workers (Patarasu and Yuan, 2009), and so does a sum that one worker makes and sends to all others.
    """
    if row.parameter_servers:
        return 2 * workers
    return 2 * (workers - 1) if row.workers_communicate and row.lockstep else 0


def cases() -> Iterator[Any]:
    for mode, row in VARIABLE_UPDATES.items():
        if not (row.one_process or row.requires):  # the replacement of a package sends in its own way
            yield pytest.param(mode, 2, 2, {}, id=mode)
    yield pytest.param("parameter_server", 2, 4, {}, id="parameter_server, two devices each")
    yield pytest.param("parameter_server", 1, 2, {"local_parameter_device": "gpu"}, id="parameter_server, on devices")
    yield pytest.param("parameter_server", 2, 2, {"staged_vars": True}, id="parameter_server, staged")
    yield pytest.param("distributed_replicated", 2, 4, {}, id="distributed_replicated, two devices each")
    yield pytest.param("collective_all_reduce", 3, 3, {}, id="collective_all_reduce, three workers")


@pytest.mark.campaign
@pytest.mark.parametrize("mode, workers, gpus, option", [*cases()])
def test_bytes_on_the_wire_agree_with_the_theory(
    run_training: RunTraining, tiny: Spec, mode: str, workers: int, gpus: int, option: dict[str, Any]
) -> None:
    """The chief's host has sent as much as all its tasks had to, within 5 % of the variables' size per step."""
    row = VARIABLE_UPDATES[mode]
    spec = tiny.replace(
        model="wide", batch_size=1, gpus=gpus, num_ps=1 if row.parameter_servers else 0, variable_update=mode,
        data="synthetic", data_dir=None, cross_replica_sync=row.synchronous, warmup_steps=2, steps=STEPS, **option,
    )  # fmt: skip
    reports = run_training(spec, workers=workers)
    sent = reports[spec.num_ps].bytes_sent / STEPS / BYTES
    expected = crossings(row, workers)
    assert sent == pytest.approx(expected, rel=0.05, abs=0.05), f"{sent:.3f} times all variables, not {expected}"


@pytest.mark.campaign(part=4)  # that numbers are rounded in each mode is tested in test_conformance.py
@pytest.mark.parametrize("mode", [mode for mode, row in VARIABLE_UPDATES.items() if "wire_precision" in row.knows])
def test_bf16_halves_the_bytes(run_training: RunTraining, tiny: Spec, mode: str) -> None:
    """The chief's host sends half of the bytes of fp32 in a step, within 2 %."""
    row = VARIABLE_UPDATES[mode]
    spec = tiny.replace(
        model="wide", batch_size=1, gpus=2, num_ps=1 if row.parameter_servers else 0, variable_update=mode, data="synthetic",
        data_dir=None, warmup_steps=2, steps=MANY_STEPS, wire_precision="bf16",
    )  # fmt: skip
    reports = run_training(spec, workers=2)
    sent = reports[spec.num_ps].bytes_sent / MANY_STEPS / BYTES
    assert sent == pytest.approx(crossings(row, 2) / 2, rel=0.02), sent


def test_one_process_puts_nothing_on_the_wire(run_training: RunTraining, tiny: Spec) -> None:
    """Copies on two devices exchange their gradients in memory."""
    (report,) = run_training(tiny.replace(model="wide", data="synthetic", data_dir=None, gpus=2, variable_update="replicated"))
    assert report.bytes_sent == report.bytes_received == 0
