"""`summary.md` of a night: in its session's folder, or beside all folders where nothing was measured; and for GitHub."""

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pytest_dtfperf.errors import SessionFileError
from pytest_dtfperf.formats import minute
from pytest_dtfperf.history.enter import changes_known
from pytest_dtfperf.history.where import Address
from pytest_dtfperf.nightly import losses
from pytest_dtfperf.nightly.losses import Loss
from pytest_dtfperf.records.session import SessionFolder
from pytest_dtfperf.report.markdown import summary


def of_session(
    folder: SessionFolder, previous: SessionFolder | None, found: Sequence[Loss], outcome: str, history: Address | None
) -> str:
    """What was measured, beside the night before, with what that has lost, and what has changed over time."""
    return _measured(folder, previous, outcome) + _losses(found) + _changes(folder, history)


def of_nothing(cluster: str, outcome: str) -> str:
    return f"# Performance on {cluster}, {minute(datetime.now(UTC).isoformat())} UTC\n\n{outcome} Nothing was measured.\n"


def leave(path: Path, text: str, artifact: Path) -> None:
    """Write the summary, and tell GitHub Actions of it. `artifact`: what is worth keeping of the night."""
    if _written(path, text, "w"):
        print(f"nightly: summary in {path}")
    _notify_github("GITHUB_STEP_SUMMARY", text)
    _notify_github("GITHUB_OUTPUT", f"artifact={artifact}\n")


def _measured(folder: SessionFolder, previous: SessionFolder | None, outcome: str) -> str:
    """Nothing damaged hides how the night ended, and no old night what this one has measured."""
    note = ""
    try:
        if previous:
            previous.measurements()
    except SessionFileError as exc:
        previous, note = None, f"\nNot compared with the night before: {exc}\n"
    try:
        return summary(folder, previous, outcome=outcome) + note
    except SessionFileError as exc:
        return f"# Performance, {folder.id}\n\n{outcome} No summary: {exc}\n"


def _losses(found: Sequence[Loss]) -> str:
    return _section("Slower than in earlier nights", [*map(str, found)], f"{losses.ABOUT}.") if found else ""


def _changes(folder: SessionFolder, history: Address | None) -> str:
    """What the history says of rates over time; nothing where it says nothing."""
    lines = changes_known(folder, history) if history else []
    return _section("Changes over time", lines) if lines else ""


def _section(title: str, lines: Sequence[str], *notes: str) -> str:
    return "\n".join(["", f"## {title}", "", *(f"- {line}" for line in lines), "", *(f"{note}\n" for note in notes)])


def _notify_github(variable: str, text: str) -> None:
    """Append to the file that GitHub Actions names in a variable; elsewhere there is none."""
    if name := os.environ.get(variable):
        _written(Path(name), text, "a")


def _written(path: Path, text: str, mode: Literal["w", "a"]) -> bool:
    """Whether that was possible. Where it was not, the night ends as it would have: with its exit code."""
    try:
        with path.open(mode, encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        print(f"nightly: the summary cannot be written to {path}: {error.strerror or error}")
        return False
    return True
