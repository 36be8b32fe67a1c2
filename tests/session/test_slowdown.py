"""The values of DTFPERF_SLOWDOWN."""

import pytest

from pytest_dtfperf.errors import UsageError
from pytest_dtfperf.session import resolve


def test_slowdowns_are_read() -> None:
    """Several tasks, with or without blanks, are read with their seconds."""
    read = resolve.read_slowdowns({"DTFPERF_SLOWDOWN": "worker:1=0.2, worker:10=3,worker:0=.5"})
    assert read == {"worker:1": 0.2, "worker:10": 3.0, "worker:0": 0.5}
    assert resolve.read_slowdowns({}) == {}


@pytest.mark.parametrize(
    "entry",
    ["worker:0=0.0.5", "worker:0=.", "worker:0=-1", "worker:0=1e3", "worker:01=1", "worker:٣=1", f"worker:0={'9' * 400}"],
)
def test_invalid_slowdown_is_refused(entry: str) -> None:
    """An invalid task or number is a UsageError."""
    with pytest.raises(UsageError, match=r"takes tasks and seconds per step, as in worker:1=0\.2, not "):
        resolve.read_slowdowns({"DTFPERF_SLOWDOWN": entry})


def test_repeated_task_is_refused() -> None:
    """A repeated task is a UsageError."""
    with pytest.raises(UsageError, match="DTFPERF_SLOWDOWN has worker:1 twice"):
        resolve.read_slowdowns({"DTFPERF_SLOWDOWN": "worker:1=0.2,worker:0=1,worker:1=0.3"})
