"""Producers outside of TensorFlow: the failure of one ends the step that waits for it, with the reason."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_dtfperf.spec import Spec
from pytest_dtfperf.spec.checks import ZMQ_PRODUCER
from pytest_dtfperf.testing.backends import wait_until
from tests.training.inputs.conftest import Ask, Deliver, Delivery, Driver

PATIENCE_S = 60.0  # far more than it takes on a busy machine
STEPS = 10_000  # far more than are delivered
FAILING = "tests.training.inputs.failing"
OTHER = [sys.executable, str(Path(__file__).with_name("other_producer.py"))]


def spec(data: str) -> Spec:
    return Spec(model="trivial", batch_size=2, gpus=2, variable_update="replicated", data=data)


def zmq(deliver: Deliver, *command: str, steps: int = STEPS) -> Delivery:
    return deliver(Ask(spec("zmq"), steps, environment={ZMQ_PRODUCER: shlex.join(command)}))


@pytest.mark.campaign
@pytest.mark.parametrize("kind, data", [("Queue", "python-queue"), ("Dataset", "python-dataset")])
@pytest.mark.parametrize("how, cause", [("Raising", "ValueError: the disk is on fire"), ("Ending", "EOFError: it has ended")])
def test_failing_python_producer_ends_the_step(deliver: Deliver, how: str, cause: str, kind: str, data: str) -> None:
    """A step fails with the producer's own error, the number of delivered batches, and the delay."""
    delivery = deliver(Ask(spec(data), STEPS, input=f"{FAILING}:{how}{kind}"))
    assert delivery.error == "InfrastructureError"
    match = re.fullmatch(
        r"the producer of worker:0's images failed after 3 batches, and the next step that wanted one was ended "
        rf"\d+\.\d{{3}} s later: {cause}",
        delivery.message,
    )
    assert match, delivery.message
    assert len(delivery.steps) <= 3


@pytest.mark.campaign(part=2)
@pytest.mark.parametrize(
    "end, cause",
    [
        (
            "killed",
            r"the process \d+ \(.*other_producer\.py killed\) was killed by SIGKILL\. Its output is in this task's log\.",
        ),
        ("exits", r"the process \d+ \(.*\) left with exit code 3\. Its output is in this task's log\."),
        ("wrong shape", r"it sent a batch with the header .*\[2, 1, 1, 1\].* but was asked for .*\[2, 12, 12, 3\].*"),
        ("too few bytes", r"it sent a batch with another number of bytes than in its header: .*"),
        ("wrong label", r"it sent labels from 65535 to 65535, outside 0 to 1000"),
        ("no header", r"it sent a message that is not a header, images and labels: .*"),
    ],
)
def test_failing_producer_process_ends_the_step(deliver: Deliver, end: str, cause: str) -> None:
    """A producer that dies or sends invalid messages ends the waiting step with the reason."""
    delivery = zmq(deliver, *OTHER, end)
    assert delivery.error == "InfrastructureError"
    assert re.fullmatch(
        r"the producer of worker:0's images failed after \d batches, and the next step that wanted one was ended "
        rf"\d+\.\d{{3}} s later: {cause}",
        delivery.message,
    ), delivery.message
    assert len(delivery.steps) <= 2


def test_a_producer_may_be_any_program_and_ends_with_its_worker(deliver: Deliver, tmp_path: Path) -> None:
    """One that knows the wire format alone feeds the towers, and is gone with the worker, which it does not look after."""
    delivery = zmq(deliver, *OTHER, "lives", str(tmp_path / "pid"), steps=5)
    assert [len(step) for step in delivery.steps] == [2] * 5
    assert delivery.steps[4][1].range == [-1.0, -1.0]
    wait_until("the producer has left", lambda: not _runs(int((tmp_path / "pid").read_text())), PATIENCE_S)


@pytest.mark.parametrize("data", ["python-queue", "python-dataset", "zmq"])
def test_task_starts_its_producers(driver: Driver, data: str) -> None:
    """A task starts its producers itself, and trains on their batches from the first step on."""
    ask = Ask(spec(data).replace(warmup_steps=1, steps=3))
    answer = driver.ask({**ask.to_json(), "train": True})
    assert len(answer["loss"]) == 3, answer


def test_a_task_ends_when_its_producer_dies(driver: Driver) -> None:
    """The error that a run's culprit is quoted with is the producer's end, not TensorFlow's closed queue."""
    ask = Ask(spec("zmq").replace(steps=STEPS), environment={ZMQ_PRODUCER: shlex.join([*OTHER, "killed"])})
    data = driver.ask({**ask.to_json(), "train": True})
    assert data["error"] == "InfrastructureError"
    assert re.match(r"the producer of worker:0's images failed after \d batches, and .* was killed by SIGKILL", data["message"])


def test_a_producer_that_cannot_be_started_is_named(deliver: Deliver) -> None:
    """The message has the program, and the variable that names it."""
    delivery = zmq(deliver, "/nowhere/producer", "--fast")
    assert "there is no program /nowhere/producer" in delivery.message
    assert f"{ZMQ_PRODUCER}=/nowhere/producer --fast names" in delivery.message


def test_missing_pyzmq_is_named(deliver: Deliver) -> None:
    """The error of a missing pyzmq names the package and the Python that lacks it."""
    delivery = deliver(Ask(spec("zmq"), missing=("zmq",)))
    assert delivery.error == "InfrastructureError"
    assert delivery.message.startswith(f"data=zmq needs pyzmq on every host, and the Python of worker:0, {sys.executable}, has")


def test_producer_without_its_worker_exits() -> None:
    """A producer exits at once if the process that started it has ended."""
    command = [sys.executable, "-m", "pytest_dtfperf.training.inputs.zmq_producer", "1"]
    assert subprocess.run(command, stdin=subprocess.DEVNULL, timeout=PATIENCE_S, check=False).returncode == 1


def _runs(pid: int) -> bool:
    """Return whether a process runs and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
