"""Runs of real tasks, for the tests of training: this process itself imports no TensorFlow."""

import fcntl
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from perf_tests import digits
from pytest_dtfperf.datamodel.task_report import TaskReport
from pytest_dtfperf.spec import MODELS, Model, Spec, TaskOrder
from tests.training.programs import run_with_requests
from tests.training.table import TINY

HERE = Path(__file__).parent
STANDINS = HERE / "standins"  # for packages that are not installed: tasks import what is there
MOST_SHOWN = 4000  # characters of what tasks have written, where one of them failed

Outcome = dict[str, Any]  # {"events": [...], "code": ...} of one task
RunTasks = Callable[[Sequence[TaskOrder]], list[Outcome]]
RunTraining = Callable[..., list[TaskReport]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Group tests of the same run, because otherwise two of xdist's workers would each make it."""
    first: dict[Any, int] = {}

    def position(number: int, item: pytest.Item) -> int:
        run = getattr(getattr(item, "callspec", None), "params", {}).get("run")
        return number if run is None or HERE not in item.path.parents else first.setdefault((item.path, run), number)

    positions = {item: position(number, item) for number, item in enumerate(items)}
    items.sort(key=positions.__getitem__)


@pytest.fixture(scope="session")
def run_tasks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunTasks]:
    """Run the tasks of these orders together, and return the outcome of each."""
    with driver(tmp_path_factory.mktemp("driver") / "log") as run:
        yield run


@contextmanager
def driver(log: Path, **more: str) -> Iterator[RunTasks]:
    """Run tasks in an environment with these additional variables."""
    environment = {
        "PYTHONPATH": os.pathsep.join([str(STANDINS), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "OPENBLAS_NUM_THREADS": "1",
        "TF_GRPC_REUSE_PORT": "1",
        **more,
    }
    with run_with_requests("tests.training.driver", log, environment) as (to_driver, from_driver):

        def run(orders: Sequence[TaskOrder]) -> list[Outcome]:
            to_driver.write(json.dumps([order.to_json() for order in orders]) + "\n")
            to_driver.flush()
            answer = from_driver.readline()
            assert answer, f"the driver ended: {log.read_text()[-2000:]}"
            outcomes: list[Outcome] | str = json.loads(answer)
            assert not isinstance(outcomes, str), outcomes
            if any(outcome["code"] for outcome in outcomes):  # pytest shows it where that was not expected
                print(log.read_text(errors="replace")[-MOST_SHOWN:])
            return outcomes

        yield run


@pytest.fixture(scope="session")
def run_training(run_tasks: RunTasks) -> RunTraining:
    """Train a spec with so many workers, and return every task's report: parameter servers first, then workers."""

    def run(spec: Spec, *, workers: int = 1, **order: Any) -> list[TaskReport]:
        with orders_of(spec, workers=workers, **order) as orders:
            outcomes = run_tasks(orders)
        assert [outcome["code"] for outcome in outcomes] == [0] * len(outcomes), [o["events"][-1:] for o in outcomes]
        return [report_of(outcome) for outcome in outcomes]

    return run


@pytest.fixture(scope="session")
def state_after_import() -> dict[str, Any]:
    """Return the output of tests/training/anew.py, a process with its own hash seed."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.training.anew"], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONHASHSEED": "77", "KERAS_BACKEND": "no_such_backend"},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-3000:]
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


@pytest.fixture(scope="session")
def digit_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the digits' idx files, the same for all of xdist's workers: to make them each would import scikit-learn."""
    folder = tmp_path_factory.getbasetemp()
    shared = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    with (shared / "digits.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return digits.make(shared / "digits")


@pytest.fixture(scope="module")
def tiny(digit_files: Path) -> Iterator[Spec]:
    """Three steps of a network without batch norm and dropout on the digits: what it learns depends on nothing else."""
    with pytest.MonkeyPatch.context() as patch:
        for name, row in TINY.items():
            patch.setitem(cast("dict[str, Model]", MODELS), name, row)
        yield Spec(
            model="tiny", batch_size=8, data="mnist", data_dir=str(digit_files), learning_rate=0.05, warmup_steps=0, steps=3
        )


@contextmanager
def orders_of(
    spec: Spec, *, workers: int, sleep_s: float | Mapping[str, float] = 0.0, servers_host: str = "127.0.0.1", **order: Any
) -> Iterator[list[TaskOrder]]:
    """The orders of a run on this machine, one thread a task; its ports are held until the end of the `with` block.

    `sleep_s` is injected into all workers, or by a task's name. `servers_host`: a name of this machine as parameter servers'
    host; with another one than workers have, there are links between tasks.
    """
    jobs = [("ps", i) for i in range(spec.num_ps)] + [("worker", i) for i in range(workers)]
    with ExitStack() as held:
        addresses = [(job, _hold_port(held)) for job, _ in jobs] if len(jobs) > 1 else []
        cluster = {job: tuple(at for whose, at in addresses if whose == job) for job in ("ps", "worker") if addresses}
        if "ps" in cluster:
            cluster["ps"] = tuple(at.replace("127.0.0.1", servers_host) for at in cluster["ps"])
        yield [
            TaskOrder(
                run="test", job=job, index=index, spec=spec, cluster=cluster,
                num_devices=1 if job == "ps" else _devices_of(index, spec.gpus, workers),
                sleep_s=sleep_s if isinstance(sleep_s, float) else sleep_s.get(f"{job}:{index}", 0.0), **order,
            )
            for job, index in jobs
        ]  # fmt: skip


def _devices_of(worker: int, gpus: int, workers: int) -> int:
    """Return the number of a worker's devices, as on a cluster: all have the same, except for the last."""
    each = -(-gpus // workers)
    return min(each, gpus - worker * each)


def _hold_port(held: ExitStack) -> str:
    """Bind a port that a second socket with SO_REUSEPORT can bind, too: the task's."""
    holder = held.enter_context(socket.socket())
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    holder.bind(("127.0.0.1", 0))
    return f"127.0.0.1:{holder.getsockname()[1]}"


def report_of(outcome: Outcome) -> TaskReport:
    """A task's account of its run."""
    *_, report = (event for event in outcome["events"] if event["kind"] == "report")
    return TaskReport.from_json({key: value for key, value in report.items() if key != "kind"})


def assert_same_variables(one: Path, other: Path, *, rtol: float = 1e-4, atol: float = 1e-6) -> None:
    """Two checkpoints hold the same variables, to the tolerance of float32 sums in another order."""
    with np.load(one) as values, np.load(other) as expected:
        assert set(values) == set(expected)
        for name in expected:
            np.testing.assert_allclose(values[name], expected[name], rtol=rtol, atol=atol, err_msg=name)
