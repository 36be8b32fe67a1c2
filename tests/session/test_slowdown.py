"""The values of DTFPERF_SLOWDOWN."""

import pytest

from pytest_dtfperf.errors import UsageError
from pytest_dtfperf.session import resolve


def test_tasks_and_their_seconds() -> None:
    """Several tasks, with blanks or without, each with the seconds that it sleeps."""
    read = resolve.read_slowdowns({"DTFPERF_SLOWDOWN": "worker:1=0.2, worker:10=3,worker:0=.5"})
    assert read == {"worker:1": 0.2, "worker:10": 3.0, "worker:0": 0.5}
    assert resolve.read_slowdowns({}) == {}


@pytest.mark.parametrize(
    "entry",
    ["worker:0=0.0.5", "worker:0=.", "worker:0=-1", "worker:0=1e3", "worker:01=1", "worker:٣=1", f"worker:0={'9' * 400}"],
)
def test_what_is_no_task_or_no_number_is_refused(entry: str) -> None:
    """An invalid value is an error, instead of a traceback or an ignored task."""
    with pytest.raises(UsageError, match=r"takes tasks and seconds per step, as in worker:1=0\.2, not "):
        resolve.read_slowdowns({"DTFPERF_SLOWDOWN": entry})


def test_a_task_stands_there_once() -> None:
    """Two numbers for one task are an error."""
    with pytest.raises(UsageError, match="DTFPERF_SLOWDOWN has worker:1 twice"):
        resolve.read_slowdowns({"DTFPERF_SLOWDOWN": "worker:1=0.2,worker:0=1,worker:1=0.3"})
