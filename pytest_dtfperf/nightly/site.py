"""The site of the history, made anew after a night. What keeps it from being made changes nothing of how the night ended."""

import os
from pathlib import Path

from pytest_dtfperf.errors import DtfPerfError
from pytest_dtfperf.formats import counted
from pytest_dtfperf.history.where import VARIABLE, address_of


def publish(out: Path, history: str | None, results: Path) -> str:
    """Returns what became of it, in a line."""
    from pytest_dtfperf.history import whole
    from pytest_dtfperf.history.database import Database
    from pytest_dtfperf.report.site.build import build

    try:
        address = address_of(history or os.environ.get(VARIABLE), results)
        if address is None:
            return "no site: no history is kept"
        built = build(whole.read(Database.open(address)), out, results=results)
    except (DtfPerfError, OSError) as error:
        return f"no site: {error}"
    return f"site in {out / 'index.html'}: {counted(len(built.written), 'page')} written"
