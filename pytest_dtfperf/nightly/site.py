"""The site of the history, made anew after a night. What keeps it from being made changes nothing of how the night ended."""

from pathlib import Path

from pytest_dtfperf.errors import DtfPerfError
from pytest_dtfperf.formats import counted
from pytest_dtfperf.history.where import Address


def publish(out: Path, history: Address | None, results: Path) -> str:
    """Returns what became of it, in a line."""
    from pytest_dtfperf.history import whole
    from pytest_dtfperf.history.database import Database
    from pytest_dtfperf.report.site.build import build_site

    if history is None:
        return "no site: no history is kept"
    try:
        built = build_site(whole.read(Database.open(history)), out, results=results)
    except (DtfPerfError, OSError) as error:
        return f"no site: {error}"
    return f"site in {out / 'index.html'}: {counted(len(built.written), 'page')} written"
