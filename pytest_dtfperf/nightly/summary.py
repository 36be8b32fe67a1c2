"""`summary.md` of a night, with the rates that were lost since earlier nights.

A project has no baseline in its second night, and may have lost half of a rate nevertheless. Two nights do not show how nights
scatter: where that is not calibrated, it is assumed, and the summary reports so. The first night with another graph or another
major version of the framework is compared with the last one before it, on the same hardware.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pytest_dtfperf.baselines import verdict
from pytest_dtfperf.errors import SessionFileError
from pytest_dtfperf.formats import change, minute, percent, rate
from pytest_dtfperf.history.comparison import ComparedTraining, compare_sessions
from pytest_dtfperf.history.enter import describe_changes
from pytest_dtfperf.history.rows import Row, SessionRows, make_session_rows
from pytest_dtfperf.history.where import Address
from pytest_dtfperf.records.session import SessionFolder
from pytest_dtfperf.report.markdown import format_markdown_summary
from pytest_dtfperf.stats.noise import Noise

MIN_LOSS = verdict.MARGIN  # what a baseline's check forgives as well
ERROR_RATE = 0.025  # the most of nights without a loss in which one is reported, if nights scatter as assumed
ASSUMED_NOISE = Noise(run=0.01, session=0.02)  # of a machine that is not calibrated
MAX_NIGHTS = 30  # that are gone back at most


@dataclass(frozen=True)
class Loss:
    """A training that is slower, and the session that it was faster in."""

    found: ComparedTraining
    session: str

    def __str__(self) -> str:
        found = self.found
        between = "" if found.low is None or found.high is None else f" ({change(found.low)} to {change(found.high)})"
        baseline = f"{rate(found.baseline)} images/sec of {self.session}"
        since = f", since {' and '.join(found.replaced)}" if found.replaced else ""
        noted = [each for each in found.noted if each not in found.replaced]
        also = f"; also changed: {'; '.join(noted)}" if noted else ""
        return f"{found.label}: {change(found.change)}{between} against {baseline}{since}{also}"


ABOUT_LOSSES = (
    f"Slower by more than {percent(MIN_LOSS)} than in the last night of the same training on the same hardware, where no "
    f"baseline judges it. At most {percent(ERROR_RATE)} of nights without a loss report any, if nights scatter as calibrated, "
    f"or by {percent(ASSUMED_NOISE.session)} where they are not calibrated"
)


def find_losses(now: SessionFolder, earlier: Sequence[SessionFolder]) -> list[Loss]:
    """Return the losses. `earlier`: sessions of the same cluster, the oldest first; unreadable ones are skipped.

    Raises `SessionFileError` where `now` cannot be read.
    """
    tonight = _load_rows(now)
    waiting = {row["id"]: row for row in tonight.measurements if row["in_series"] and row["baseline"] is None}
    if not waiting:
        return []
    error, found, across = ERROR_RATE / len(waiting), list[Loss](), dict[str, Loss]()
    for folder in reversed(earlier[-MAX_NIGHTS:]):
        with suppress(SessionFileError):
            for each in _compare_sessions(_load_rows(folder), tonight, list(waiting.values()), error):
                if each.replaced:  # an earlier night may still be of the same series
                    across.setdefault(each.spec_key, Loss(each, folder.id))
                    continue
                waiting = {name: row for name, row in waiting.items() if row["spec_key"] != each.spec_key}
                found.append(Loss(each, folder.id))
        if not waiting:
            break
    alone = {row["spec_key"] for row in waiting.values()}
    found += [loss for key, loss in across.items() if key in alone]
    return [loss for loss in found if loss.found.high is not None and loss.found.high < -MIN_LOSS]


def _compare_sessions(
    baseline: SessionRows, current: SessionRows, wanted: Sequence[Row], error: float
) -> list[ComparedTraining]:
    """Compare those of the wanted that were measured on the same hardware."""
    runs = (*baseline.runs, *current.runs)
    contents = {**baseline.fingerprints, **current.fingerprints}
    found = compare_sessions(baseline.measurements, wanted, runs, contents, error=error, assumed=ASSUMED_NOISE)
    return [each for each in found if each.replaced or not each.foreign]


def _load_rows(folder: SessionFolder) -> SessionRows:
    return make_session_rows(folder.session, folder.measurements(), str(folder.path))


def format_session_summary(
    folder: SessionFolder, previous: SessionFolder | None, found: Sequence[Loss], outcome: str, history: Address | None
) -> str:
    """Return the measurements beside those of the night before, the losses, and the changes over time."""
    return _format_measurements(folder, previous, outcome) + _format_losses(found) + _format_changes(folder, history)


def format_empty_summary(cluster: str, outcome: str) -> str:
    return f"# Performance on {cluster}, {minute(datetime.now(UTC).isoformat())} UTC\n\n{outcome} Nothing was measured.\n"


def write_summary(path: Path, text: str, artifact: Path) -> None:
    """Write the summary, and name it to GitHub Actions. `artifact`: what is worth keeping of the night."""
    if _write_text(path, text, "w"):
        print(f"nightly: summary in {path}")
    _notify_github("GITHUB_STEP_SUMMARY", text)
    _notify_github("GITHUB_OUTPUT", f"artifact={artifact}\n")


def _format_measurements(folder: SessionFolder, previous: SessionFolder | None, outcome: str) -> str:
    """Return the measurements and how the night ended, even if a session is damaged."""
    note = ""
    try:
        if previous:
            previous.measurements()
    except SessionFileError as exc:
        previous, note = None, f"\nNot compared with the night before: {exc}\n"
    try:
        return format_markdown_summary(folder, previous, outcome=outcome) + note
    except SessionFileError as exc:
        return f"# Performance, {folder.id}\n\n{outcome} No summary: {exc}\n"


def _format_losses(found: Sequence[Loss]) -> str:
    return _format_section("Slower than in earlier nights", [*map(str, found)], f"{ABOUT_LOSSES}.") if found else ""


def _format_changes(folder: SessionFolder, history: Address | None) -> str:
    """Return the changes of rates that the history reports; empty if there are none."""
    lines = describe_changes(folder, history) if history else []
    return _format_section("Changes over time", lines) if lines else ""


def _format_section(title: str, lines: Sequence[str], *notes: str) -> str:
    return "\n".join(["", f"## {title}", "", *(f"- {line}" for line in lines), "", *(f"{note}\n" for note in notes)])


def _notify_github(variable: str, text: str) -> None:
    """Append to the file that GitHub Actions names in a variable; elsewhere there is none."""
    if name := os.environ.get(variable):
        _write_text(Path(name), text, "a")


def _write_text(path: Path, text: str, mode: Literal["w", "a"]) -> bool:
    """Return whether that was possible. Where it was not, the night ends as it would have: with its exit code."""
    try:
        with path.open(mode, encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        print(f"nightly: the summary cannot be written to {path}: {error.strerror or error}")
        return False
    return True
