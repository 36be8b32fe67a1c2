"""The end of a session: what it measured goes into the history. Nothing that goes wrong there costs anything else."""

from pytest_dtfperf.history.enter import Remembered
from pytest_dtfperf.history.enter import remember as enter
from pytest_dtfperf.session.bench import Bench


def remember(bench: Bench) -> Remembered:
    """Enter the session in the history, where one is kept; returns what there is to say of it."""
    address = bench.history()
    return enter(bench.folder, address) if address else Remembered()
