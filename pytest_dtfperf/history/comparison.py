"""Select two sessions by id, date, commit or version, and compare the rates of the trainings that both measured. Pure."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pytest_dtfperf.baselines.comparability import (
    describe_notes,
    describe_replacements,
    list_forbidden_differences,
    list_hardware_differences,
)
from pytest_dtfperf.baselines.terms import ASSUMED
from pytest_dtfperf.datamodel.fingerprint import Fingerprint
from pytest_dtfperf.errors import UsageError, show_value
from pytest_dtfperf.history.rows import Row
from pytest_dtfperf.stats.comparison import Question, compare_with_stored
from pytest_dtfperf.stats.noise import Noise

Rates = Mapping[tuple[str, str], Sequence[float]]  # images/sec of each run, by session and measurement
Contents = Mapping[str, Fingerprint]  # the properties of each fingerprint, by its digest
ERROR = 0.025  # probability of an error on each side of the interval: it contains the true change in 95 % of all comparisons


@dataclass(frozen=True)
class ComparedTraining:
    """The rates of one training in two sessions."""

    label: str
    spec_key: str
    baseline: float  # images/sec in the earlier session
    current: float  # images/sec in the later session
    change: float  # of the geometric means, as a fraction: -0.02 is 2 % slower
    low: float | None  # lower bound of the change; None: there are too few runs for an interval
    high: float | None
    foreign: Sequence[str]  # differences that forbid the comparison
    noted: Sequence[str]  # other differences
    replaced: Sequence[str] = ()  # differences of software and program on the same hardware, which ended the series

    @property
    def answer(self) -> str:
        """The comparison as a short text."""
        if self.foreign and not self.replaced:
            return "not comparable"
        if self.low is None or self.high is None:
            return "not known"
        found = "slower" if self.high < 0 else "faster" if self.low > 0 else "no difference seen"
        return f"{found}, across a break" if self.replaced else found


def compare_sessions(
    baseline: Iterable[Row],
    current: Iterable[Row],
    runs: Iterable[Row],
    contents: Contents,
    *,
    error: float = ERROR,
    assumed: Noise = ASSUMED,
) -> list[ComparedTraining]:
    """Return a comparison of each training that both sessions measured.

    If a session measured a training several times, the last measurement counts, as in a series.

    Args:
        baseline: Measurements of the earlier session.
        current: Measurements of the later session.
        runs: Runs of both sessions. Disturbed ones do not count.
        contents: The fingerprints.
        error: The probability that the true change is below the interval, and also that it is above.
        assumed: The noise if neither session has calibrated noise.
    """
    rates: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in runs:
        rates[row["session"], row["measurement"]] += [] if row["disturbances"] else [row["images_per_sec"]]
    before, after = _select_latest(baseline), _select_latest(current)
    return [_compare_training(before[key], row, rates, contents, error, assumed) for key, row in after.items() if key in before]


def _select_latest(rows: Iterable[Row]) -> dict[str, Row]:
    """Return the last comparable measurement of each training by spec key, in the order of their first measurements."""
    ordered = sorted(rows, key=lambda row: int(row["position"]))
    return {row["spec_key"]: row for row in ordered if row["in_series"]}


def _compare_training(
    baseline: Row, current: Row, rates: Rates, contents: Contents, error: float, assumed: Noise
) -> ComparedTraining:
    before, after = rates[baseline["session"], baseline["id"]], rates[current["session"], current["id"]]
    question = Question(floor=1.0, ceiling=1.0, false_alarm=error, missed=error, least=len(after), most=len(after))
    estimate = compare_with_stored(after, before, _read_noise(current) or _read_noise(baseline) or assumed, question)
    low, high = estimate.convert_interval(lambda ratio: ratio - 1) or (None, None)
    fingerprints = contents[baseline["fingerprint"]], contents[current["fingerprint"]]
    hosts = [f"hosts: {baseline['hosts']} before, {current['hosts']} after"] if baseline["hosts"] != current["hosts"] else []
    return ComparedTraining(
        label=current["label"],
        spec_key=current["spec_key"],
        baseline=baseline["images_per_sec"],
        current=current["images_per_sec"],
        change=estimate.ratio - 1,
        low=low,
        high=high,
        foreign=list_forbidden_differences(*fingerprints) + hosts,
        noted=describe_notes(*fingerprints),
        replaced=[] if hosts or list_hardware_differences(*fingerprints) else describe_replacements(*fingerprints),
    )


def _read_noise(row: Row) -> Noise | None:
    """Return the calibrated noise; its number of runs is not stored."""
    return Noise(run=row["noise_run"], session=row["noise_session"] or 0.0) if row["noise_run"] else None


LAST = "last"
DATE = re.compile(r"\d{4}-\d{2}(-\d{2}([T ]\d{2}(:\d{2})?)?)?")
LEAST = 4  # characters of an id or a commit: fewer are probably a mistake


def find_session(sessions: Sequence[Row], given: str) -> Row:
    """Return the latest session with the given id, date, commit or version. Raises `UsageError` if there is none."""
    found = find_sessions(sessions, given)
    return found[-1]


def find_sessions(sessions: Sequence[Row], given: str) -> list[Row]:
    """Return all sessions with the given id, date, commit or version, the oldest first. Raises `UsageError` if none has."""
    found = _match(sessions, given)
    if found:
        return found
    if not sessions:
        raise UsageError("there is no session in the history")
    latest = ", ".join(row["id"] for row in sessions[-3:])
    raise UsageError(
        f"no session in the history is {show_value(given)}: neither an id, a date (2026-01-31), a commit, nor a version "
        f"(tensorflow=2.21.0). The latest: {latest}"
    )


def _match(sessions: Sequence[Row], given: str) -> list[Row]:
    if given == LAST:
        return list(sessions[-1:])
    if DATE.fullmatch(given):
        return [row for row in sessions if row["started"].startswith(given.replace(" ", "T"))]
    name, is_version, version = given.partition("=")
    if is_version:
        return [row for row in sessions if row["versions"].get(name) == version]
    if len(given) < LEAST:
        return []
    return [row for row in sessions if row["id"].startswith(given) or (row["commit"] or "").startswith(given)]
