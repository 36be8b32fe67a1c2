"""Find what is slower than in the last night that it may be compared with, of all that no baseline has judged.

The second night of a project has no baseline yet, and may have lost half of a rate all the same. Two nights cannot tell how
nights scatter: where it was not calibrated, it is assumed, and the summary says so. The first night with another graph or
another major version of the framework is compared with the last one before it, on the same hardware.
"""

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from pytest_dtfperf.baselines import verdict
from pytest_dtfperf.errors import SessionFileError
from pytest_dtfperf.formats import change, percent, rate
from pytest_dtfperf.history.comparison import Compared, compared
from pytest_dtfperf.history.rows import Row, SessionRows, rows_of
from pytest_dtfperf.records.session import SessionFolder
from pytest_dtfperf.stats.noise import Noise

LEAST = verdict.MARGIN  # what a baseline's check forgives as well
ERROR = 0.025  # at most in so many nights without a loss any is told, if nights scatter as they are taken to
ASSUMED = Noise(run=0.01, session=0.02)  # of a machine that nobody has calibrated
NIGHTS = 30  # that are gone back at most


@dataclass(frozen=True)
class Loss:
    """A training that is slower, and the session that it was faster in."""

    found: Compared
    session: str

    def __str__(self) -> str:
        found = self.found
        between = "" if found.low is None or found.high is None else f" ({change(found.low)} to {change(found.high)})"
        then = f"{rate(found.then)} images/sec of {self.session}"
        since = f", since {' and '.join(found.replaced)}" if found.replaced else ""
        noted = [each for each in found.noted if each not in found.replaced]
        return "; meanwhile ".join([f"{found.label}: {change(found.change)}{between} against {then}{since}", *noted])


ABOUT = (
    f"Slower by more than {percent(LEAST)} than in the last night of the same training on the same hardware, where no baseline "
    f"judges it. At most {percent(ERROR)} of nights without a loss tell any, if nights scatter as calibrated, or by "
    f"{percent(ASSUMED.session)} where nobody has calibrated that"
)


def losses(now: SessionFolder, earlier: Sequence[SessionFolder]) -> list[Loss]:
    """`earlier`: sessions of the same cluster, the oldest first; those that cannot be read tell nothing.

    Raises `SessionFileError` where `now` cannot be read.
    """
    tonight = _rows(now)
    waiting = {row["id"]: row for row in tonight.measurements if row["in_series"] and row["baseline"] is None}
    if not waiting:
        return []
    error, found, across = ERROR / len(waiting), list[Loss](), dict[str, Loss]()
    for folder in reversed(earlier[-NIGHTS:]):
        with suppress(SessionFileError):
            for each in _compared(_rows(folder), tonight, list(waiting.values()), error):
                if each.replaced:  # an earlier night may still be of the same series
                    across.setdefault(each.spec_key, Loss(each, folder.id))
                    continue
                waiting = {name: row for name, row in waiting.items() if row["spec_key"] != each.spec_key}
                found.append(Loss(each, folder.id))
        if not waiting:
            break
    alone = {row["spec_key"] for row in waiting.values()}
    found += [loss for key, loss in across.items() if key in alone]
    return [loss for loss in found if loss.found.high is not None and loss.found.high < -LEAST]


def _compared(then: SessionRows, now: SessionRows, wanted: Sequence[Row], error: float) -> list[Compared]:
    """Compare those of the wanted that were measured on the same hardware."""
    rates: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in (*then.runs, *now.runs):
        rates[row["session"], row["measurement"]] += [] if row["disturbances"] else [row["images_per_sec"]]
    contents = {**then.fingerprints, **now.fingerprints}
    found = compared(then.measurements, wanted, rates, contents, error=error, assumed=ASSUMED)
    return [each for each in found if each.replaced or not each.foreign]


def _rows(folder: SessionFolder) -> SessionRows:
    return rows_of(folder.session, folder.measurements(), str(folder.path))
