"""The end of a session: what it measured goes into the history. Nothing that goes wrong there costs anything else."""

from pytest_dtfperf.history.enter import enter
from pytest_dtfperf.session.bench import Bench


def remember(bench: Bench) -> list[str]:
    """Enter the session in the history; returns what there is to say, in lines."""
    address = bench.history()
    warning = enter(bench.folder, address) if address else None
    return [warning] if warning else []
