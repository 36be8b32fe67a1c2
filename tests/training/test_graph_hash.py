"""The hash of what a graph computes: what it does not see, and what it does."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from pytest_dtfperf.spec import VARIABLE_UPDATES, Spec
from tests.training.conftest import Trained
from tests.training.programs import told
from tests.training.test_conformance import layouts

Graphs = dict[str, Any]  # name -> {"hash": ..., "operations": ...}


MODULE = "tests.training.graphs"


def of_a_new_python(seed: str) -> Graphs:
    done = subprocess.run(
        [sys.executable, "-m", MODULE],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: Graphs = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Graphs:
    found: Graphs = json.loads(told(tmp_path_factory.mktemp("graphs") / "log", "-m", MODULE))
    return found


SAME = [
    ("mnist", "mnist again"),
    ("mnist", "mnist, another seed"),
    ("mnist", "mnist, another learning rate"),
    ("small", "small, other names"),
    ("small", "small, within another scope"),
    ("small", "small, built in another order"),
    ("small", "small, another seed"),
    ("on a CPU", "on the second CPU"),
    ("on a CPU", "on a CPU, placed"),
    ("a function", "a function, other names"),
    ("a collective", "a later collective"),
]
OTHER = [
    ("mnist", "mnist, momentum"),
    ("mnist", "mnist, bf16"),
    ("mnist", "mnist, NCHW"),
    ("mnist", "mnist, another batch size"),
    ("mnist", "mnist, on servers"),
    ("mnist, on servers", "mnist, on servers, not packed"),
    ("mnist, on servers", "mnist, on servers, the other worker"),
    ("small", "small, another stride"),
    ("small", "small, another padding"),
    ("small", "small, another kernel"),
    ("on a CPU", "on a GPU"),
    ("on a CPU", "on a server"),
    ("a function", "a function, another stride"),
    ("a function", "a function that calls three times"),
]


@pytest.mark.parametrize("one, other", SAME)
def test_what_computes_the_same_has_the_same_hash(made: Graphs, one: str, other: str) -> None:
    """Names, the order of building, seeds, a device's number and values that are only calculated with make no other program."""
    assert made[one] == made[other]


@pytest.mark.parametrize("one, other", OTHER)
def test_what_computes_otherwise_has_another_hash(made: Graphs, one: str, other: str) -> None:
    """Kernels, shapes, paddings, precision, the optimizer, packing, placement and modes each make another program."""
    assert made[one]["hash"] != made[other]["hash"]


def test_another_process_finds_the_same(made: Graphs) -> None:
    """Python's own hashes, which differ from process to process, decide nothing."""
    assert of_a_new_python("77") == made


def test_operations_are_counted(made: Graphs) -> None:
    """Of what a step needs alone, each kind; those in a function as often as it is called."""
    assert made["small"]["operations"]["Conv2D"] == 1
    assert "Conv2D" not in made["small, another kernel"]["operations"]
    assert made["small, another kernel"]["operations"]["MatMul"] == 1
    assert [made[name]["operations"]["Exp"] for name in ("a function", "a function that calls three times")] == [2, 6]
    assert made["mnist"]["operations"]["ResourceApplyGradientDescent"] > 0
    assert "TruncatedNormal" not in made["mnist"]["operations"]  # first values are no part of a step


@pytest.mark.parametrize("mode", [mode for mode, row in VARIABLE_UPDATES.items() if row.requires is None])
def test_every_mode_tells_what_it_computes(trained: Trained, tiny: Spec, mode: str) -> None:
    """Each worker that computes tells its graph, the same in two runs, with stamps and without; one that lends its devices has
    none; all tell how.
    """
    row = VARIABLE_UPDATES[mode]
    layout = layouts(row)[-1]
    servers = layout.num_ps or int(row.parameter_servers and not row.local)
    spec = tiny.but(
        data="synthetic", data_dir=None, variable_update=mode, cross_replica_sync=row.synchronous,
        gpus=layout.gpus, num_ps=servers, steps=1, warmup_steps=1,
    )  # fmt: skip
    one, again = (trained(spec, workers=layout.workers, stamp_every=every) for every in (1, 0))
    graphs_of = {report.name: report.graph.get("hash") for report in one}
    assert {report.name: report.graph for report in one} == {report.name: report.graph for report in again}
    lending = {f"worker:{i}" for i in range(1, layout.workers)} if row.single_session else set()
    assert {name for name, found in graphs_of.items() if found is None} == {f"ps:{i}" for i in range(servers)} | lending
    (chief,) = (report for report in one if report.name == "worker:0")
    assert chief.graph["operations"]["Conv2D"] >= 2
    assert all(report.settings["intra_op_parallelism_threads"] == "1" for report in one)
