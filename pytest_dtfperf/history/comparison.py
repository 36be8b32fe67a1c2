"""Choose two sessions by id, date, commit or version, and compare the rates of each training that both measured. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_dtfperf.baselines.comparability import describe_notes, describe_replacements, must_match, other_hardware
from pytest_dtfperf.baselines.terms import ASSUMED
from pytest_dtfperf.errors import UsageError, show_value
from pytest_dtfperf.history.rows import Row
from pytest_dtfperf.stats.comparison import Question, against_stored
from pytest_dtfperf.stats.noise import Noise

Rates = Mapping[tuple[str, str], Sequence[float]]  # images/sec of each run, by session and measurement
Contents = Mapping[str, Mapping[str, Any]]  # of fingerprints, by their digests
ERROR = 0.025  # on either side: the interval holds in 95 % of all comparisons


@dataclass(frozen=True)
class ComparedTraining:
    """One training, in both sessions."""

    label: str
    spec_key: str
    then: float  # images/sec
    now: float
    change: float  # of the geometric means, as a fraction
    low: float | None  # the interval; None: a single run on either side gives none
    high: float | None
    foreign: Sequence[str]  # what forbids the comparison; empty: nothing
    noted: Sequence[str]  # what else was another
    replaced: Sequence[str] = ()  # on the same hardware: what of software and program ended one series and began another

    @property
    def answer(self) -> str:
        """Return the comparison as a short text."""
        if self.foreign and not self.replaced:
            return "not comparable"
        if self.low is None or self.high is None:
            return "not known"
        found = "slower" if self.high < 0 else "faster" if self.low > 0 else "no difference seen"
        return f"{found}, across a break" if self.replaced else found


def compare_sessions(
    then: Iterable[Row],
    now: Iterable[Row],
    rates: Rates,
    contents: Contents,
    *,
    error: float = ERROR,
    assumed: Noise = ASSUMED,
) -> list[ComparedTraining]:
    """Rows of measurements; of what a session has measured again the last counts, as in a series.

    What only one has is left out. `assumed`: where neither side was calibrated.
    """
    before, after = _latest(then), _latest(now)
    return [_compare_training(before[key], row, rates, contents, error, assumed) for key, row in after.items() if key in before]


def _latest(rows: Iterable[Row]) -> dict[str, Row]:
    """By what was trained; in the order in which that was first measured."""
    ordered = sorted(rows, key=lambda row: int(row["position"]))
    return {row["spec_key"]: row for row in ordered if row["in_series"]}


def _compare_training(then: Row, now: Row, rates: Rates, contents: Contents, error: float, assumed: Noise) -> ComparedTraining:
    one, two = rates[then["session"], then["id"]], rates[now["session"], now["id"]]
    question = Question(floor=1.0, ceiling=1.0, false_alarm=error, missed=error, least=len(two), most=len(two))
    estimate = against_stored(two, one, _noise(now) or _noise(then) or assumed, question)
    is_known = estimate.degrees_of_freedom > 0 and estimate.low > 0
    fingerprints = contents[then["fingerprint"]], contents[now["fingerprint"]]
    hosts = [f"hosts: {then['hosts']} then, {now['hosts']} now"] if then["hosts"] != now["hosts"] else []
    return ComparedTraining(
        label=now["label"],
        spec_key=now["spec_key"],
        then=then["images_per_sec"],
        now=now["images_per_sec"],
        change=estimate.ratio - 1,
        low=estimate.low - 1 if is_known else None,
        high=estimate.high - 1 if is_known else None,
        foreign=must_match(*fingerprints) + hosts,
        noted=describe_notes(*fingerprints),
        replaced=[] if hosts or other_hardware(*fingerprints) else describe_replacements(*fingerprints),
    )


def _noise(row: Row) -> Noise | None:
    """As it was calibrated. How many runs that rested on is not kept: it is taken as no more than a least."""
    return Noise(run=row["noise_run"], session=row["noise_session"] or 0.0) if row["noise_run"] else None


LAST = "last"
DATE = re.compile(r"\d{4}-\d{2}(-\d{2}([T ]\d{2}(:\d{2})?)?)?")
LEAST = 4  # signs of an id or a commit: fewer are likely a slip


def chosen(sessions: Sequence[Row], given: str) -> Row:
    """Return the session that is meant; of several of a date, a commit or a version, the latest. Raises `UsageError`."""
    found = all_chosen(sessions, given)
    return found[-1]


def all_chosen(sessions: Sequence[Row], given: str) -> list[Row]:
    """Return all sessions that are meant, the oldest first. Raises `UsageError` where there is none."""
    found = _of(sessions, given)
    if found:
        return found
    if not sessions:
        raise UsageError("there is no session in the history")
    latest = ", ".join(row["id"] for row in sessions[-3:])
    raise UsageError(
        f"no session in the history is {show_value(given)}: neither an id, a date (2026-01-31), a commit, nor a version "
        f"(tensorflow=2.21.0). The latest: {latest}"
    )


def _of(sessions: Sequence[Row], given: str) -> list[Row]:
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
