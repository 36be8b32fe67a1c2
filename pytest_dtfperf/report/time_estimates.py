"""Estimates of how long trainings and the rest of a session take, from earlier sessions and baselines.

An estimate has one of three bases, the best first. Without any of them there is no estimate.

    MEASURED  earlier sessions on the same cluster measured the same training: its runs take as long again
    SIMILAR   they measured the same network, input and batch on other devices or in another mode: a step takes as long
    BASELINE  an accepted rate gives the time of the steps; start-up takes as long as for other trainings on the cluster

Seconds are those of runs. Time in a queue or spent on waiting for other sessions is not part of them.
"""

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path

from pytest_dtfperf.datamodel.measurement import Run
from pytest_dtfperf.formats import duration
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.records.session import session_folders
from pytest_dtfperf.spec import Spec

MOST_SESSIONS = 3  # the latest on a cluster: enough for a median, and each takes 0.1 s or more to read
MOST_RECORDS = 2000  # with so many, one session is enough, and a thousand takes half a second
ROUGH = 2.0  # an estimate without a measurement may be wrong by this factor; a larger difference means another kind of training
START_S = 20.0  # without any earlier run: import of TensorFlow, building a network of InceptionV3's size, exit
CHIEF, WARM_UP = "worker:0", "warmup"  # as in runs: the first worker, and the phase before the measured steps


class EstimateBasis(StrEnum):
    """The basis of a duration. The value is its description in messages."""

    MEASURED = "measured before"
    SIMILAR = "by similar trainings, roughly"
    BASELINE = "by its baseline, roughly"


@dataclass(frozen=True, kw_only=True)
class Duration:
    """A duration, in seconds of wall time."""

    least_s: float
    likely_s: float
    most_s: float

    def __add__(self, other: "Duration") -> "Duration":
        return Duration(
            least_s=self.least_s + other.least_s, likely_s=self.likely_s + other.likely_s, most_s=self.most_s + other.most_s
        )


@dataclass(frozen=True, kw_only=True)
class DurationEstimate(Duration):
    """A duration and its basis."""

    basis: EstimateBasis


def load_earlier_sessions(results: Path, cluster: str) -> list[list[Record]]:
    """Return the records of the latest sessions on a cluster, session by session, oldest first.

    An unreadable session is skipped.
    """
    found: list[list[Record]] = []
    for folder in reversed(session_folders(results)):
        with suppress(Exception):  # folders of other versions may cause any error, and a missing estimate is no problem
            # Without the schema check, which would take ten times as long as the rest of the start of a large session.
            if folder.session.cluster == cluster and (records := replace(folder, is_ours=True).measurements()):
                _check_times(records)
                found.append(records)
        if len(found) == MOST_SESSIONS or sum(map(len, found)) >= MOST_RECORDS:
            break
    return found[::-1]


def _check_times(records: Iterable[Record]) -> None:
    """Raise the errors of damaged times now instead of at their use."""
    for record in records:
        each = [
            seconds for run in record.measurement.all_runs for seconds in (run.wall_s, run.elapsed_s, _compute_start_s(run))
        ]
        if not (record.is_valid in (True, False) and math.isfinite(math.fsum(each)) and isinstance(record.test, str)):
            raise ValueError(record.id)
        [len(run.step_s.get(CHIEF, ())) for run in record.measurement.all_runs]


@dataclass(frozen=True)
class ClusterPast:
    """The past of one cluster: its earlier sessions, oldest first, and the accepted rates, by `Spec.key`."""

    sessions: Sequence[Sequence[Record]]
    rates: Mapping[str, Sequence[float]]  # images/sec; several if baselines of several systems are kept

    def training(self, spec: Spec, runs: tuple[int, int]) -> DurationEstimate | None:
        """Return the time of the runs of a training; `runs`: the minimum and maximum. None: unknown."""
        if same := self._records_by_training.get(_make_training_key(spec)):
            each = [_estimate_run_s(run, record.spec, spec) for record in same for run in record.measurement.runs]
            usual = statistics.median(len(record.measurement.runs) for record in same)
            return _estimate_runs(EstimateBasis.MEASURED, each, runs, usual=round(usual))
        if similar := self._find_most_similar(spec):
            each = [_estimate_run_s(run, similar.spec, spec) for run in similar.measurement.runs]
            return _estimate_runs(EstimateBasis.SIMILAR, each, runs, usual=len(each))
        images = (spec.warmup_steps + spec.steps) * spec.gpus * spec.batch_size
        start_s = START_S if self.start_s is None else self.start_s
        each = [start_s + images / rate for rate in self.rates.get(spec.key, ())]
        return _estimate_runs(EstimateBasis.BASELINE, each, runs, usual=runs[0]) if each else None

    def test(self, test: str, runs: Callable[[Record], int] | None = None) -> Duration | None:
        """Return the time of the runs of a test (pytest's node id) over the sessions that ran it. None: no session did.

        `runs` returns how many runs of a measurement there will be now; by default as many as there were. A test that only used
        another test's measurements is not recorded.
        """
        took = [
            math.fsum(_estimate_measurement_s(record, runs) for record in records) for records in self._by_test.get(test, ())
        ]
        return Duration(least_s=min(took), likely_s=statistics.median(took), most_s=max(took)) if took else None

    @cached_property
    def _by_test(self) -> Mapping[str, Sequence[Sequence[Record]]]:
        """Test -> its measurements in each session that has some."""
        found: dict[str, list[list[Record]]] = defaultdict(list)
        for session in self.sessions:
            of_session: dict[str, list[Record]] = defaultdict(list)
            for record in session:
                of_session[record.test].append(record)
            for test, records in of_session.items():
                found[test].append(records)
        return found

    @cached_property
    def _records(self) -> list[Record]:
        """Return the records with valid times, oldest first."""
        return [r for session in self.sessions for r in session if r.is_valid and not r.measurement.injected_slowdowns]

    @cached_property
    def _records_by_training(self) -> Mapping[tuple[object, ...], Sequence[Record]]:
        return _group_by_spec(self._records, _make_training_key)

    @cached_property
    def _records_by_network(self) -> Mapping[tuple[object, ...], Sequence[Record]]:
        return _group_by_spec(self._records, _make_network_key)

    def _find_most_similar(self, spec: Spec) -> Record | None:
        """Return the latest of the most similar records: of the same network on the same batches."""
        found = self._records_by_network.get(_make_network_key(spec), ())
        return max(reversed(found), key=lambda record: _rank_likeness(record.spec, spec), default=None)

    @cached_property
    def start_s(self) -> float | None:
        """Return the time of a run on this cluster without its steps; None: unknown."""
        starts = [
            _compute_start_s(run) for record in self._records if not record.spec.command for run in record.measurement.runs
        ]
        return statistics.median(starts) if starts else None


def sum_durations(durations: Iterable[Duration]) -> Duration:
    """Return the duration of all of them, one after the other."""
    return sum(durations, start=Duration(least_s=0.0, likely_s=0.0, most_s=0.0))


def _group_by_spec(
    records: Iterable[Record], key: Callable[[Spec], tuple[object, ...]]
) -> Mapping[tuple[object, ...], Sequence[Record]]:
    """Return the records with each key of their spec, in their order."""
    found: dict[tuple[object, ...], list[Record]] = defaultdict(list)
    for record in records:
        found[key(record.spec)].append(record)
    return found


def _make_training_key(spec: Spec) -> tuple[object, ...]:
    """Return the fields that must be equal for times to be equal; numbers of steps are corrected for."""
    return spec.key, spec.evaluate, spec.stop_at_top_1_accuracy, spec.eval_during_training_every_n_steps


def _make_network_key(spec: Spec) -> tuple[object, ...]:
    """Return the fields that must be equal for two trainings to be similar."""
    return spec.model, spec.batch_size, spec.data, spec.precision, spec.command, spec.forward_only


def _rank_likeness(one: Spec, other: Spec) -> tuple[bool, float]:
    return one.variable_update == other.variable_update, -abs(math.log(one.gpus / other.gpus))


def _estimate_runs(basis: EstimateBasis, each_s: Sequence[float], runs: tuple[int, int], *, usual: int) -> DurationEstimate:
    """Return an estimate. `each_s`: possible times of a run; `usual`: number of runs that a verdict has needed."""
    fewest, most = runs
    factor = 1.0 if basis is EstimateBasis.MEASURED else ROUGH
    return DurationEstimate(
        basis=basis,
        least_s=fewest * min(each_s) / factor,
        likely_s=min(max(usual, fewest), most) * statistics.median(each_s),
        most_s=most * max(each_s) * factor,
    )


def _estimate_measurement_s(record: Record, runs: Callable[[Record], int] | None) -> float:
    """Return how long a measurement takes with another number of runs, each as long as those that it had."""
    if runs is None:
        return math.fsum(run.wall_s for run in record.measurement.all_runs)
    return runs(record) * statistics.fmean(run.wall_s for run in record.measurement.runs)


def _estimate_run_s(run: Run, was: Spec, will_be: Spec) -> float:
    """Return the time of this run with the steps of another spec."""
    steps = len(run.step_s.get(CHIEF, ()))
    if not steps or (was.warmup_steps, was.steps) == (will_be.warmup_steps, will_be.steps):
        return run.wall_s
    return _compute_start_s(run) + (will_be.warmup_steps + will_be.steps) * run.elapsed_s / steps


def _compute_start_s(run: Run) -> float:
    """Return the time of start-up and end of a run."""
    return max(0.0, run.wall_s - run.elapsed_s - run.startup_s.get(WARM_UP, 0.0))


ALLOCATION_S = 10.0  # the first test may include an allocation and the start of agents
MAX_FACTOR = 10.0  # limit of the factor by which this session differs from earlier ones; a larger one comes from a single test


@dataclass(eq=False)
class Outlook:
    """The tests of one session, in all its processes. The cost of an event or an answer does not grow with their number.

    `expected_s` returns the duration of a test in earlier sessions; a common factor corrects it by this session's tests.
    Where it returns None, the estimate is the mean of the ended tests of the same function, or else of all ended tests.
    Without any there is no estimate.
    """

    tests: Sequence[str]  # pytest's node ids
    expected_s: Callable[[str], float | None]
    clock: Callable[[], float]
    workers: int = 1  # processes that run tests in parallel
    _expected_s: dict[str, float | None] = field(init=False)  # by test
    _begun: dict[str, float] = field(default_factory=dict)  # by test: start time
    _positions: dict[str, int] = field(default_factory=dict)  # by test: its number among those that have begun, from 1
    _running: dict[str, None] = field(default_factory=dict)
    _ended: set[str] = field(default_factory=set)
    _unbegun_s: float = 0.0  # expected of all tests that have not begun, without unknown ones
    _unbegun_unknown: Counter[str] = field(default_factory=Counter)  # by function: number of the unknown ones
    _took_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(lambda: [0, 0.0]))  # function -> ended, seconds
    _compared_s: list[float] = field(default_factory=lambda: [0.0, 0.0])  # of all ended tests: expected, actual

    def __post_init__(self) -> None:
        self._expected_s = {test: self.expected_s(test) for test in self.tests}
        for test in self._expected_s:
            self._count_unbegun(test, 1)

    def begin_test(self, test: str) -> None:
        if test not in self._begun:
            self._begun[test] = self.clock()
            self._positions[test] = len(self._begun)
            self._running[test] = None
            self._count_unbegun(test, -1)

    def end_test(self, test: str) -> None:
        if test not in self._running:
            return
        del self._running[test]
        self._ended.add(test)
        seconds = self._elapsed_s(test)
        took = self._took_s[_get_function(test)]
        took[:] = [took[0] + 1, took[1] + seconds]
        if expected_s := self._expected_s.get(test):
            self._compared_s[:] = [self._compared_s[0] + expected_s, self._compared_s[1] + seconds]

    def _count_unbegun(self, test: str, number: int) -> None:
        if test not in self._expected_s:
            return
        expected_s = self._expected_s[test]
        if expected_s is None:
            self._unbegun_unknown[_get_function(test)] += number
        else:
            self._unbegun_s += number * expected_s

    def describe_progress(self, test: str) -> str:
        """Return `test 3 of 25, about 12 min left`, with `more than` once a test takes longer than expected."""
        if test not in self._begun:
            return ""
        position = f"test {self._positions[test]} of {len(self.tests)}"
        left_s, is_overdue = self.left_s(), self._is_overdue()
        if left_s is None or (is_overdue and left_s < 1.0):
            return position
        return f"{position}, {'more than' if is_overdue else 'about'} {duration(max(1.0, left_s))} left"

    def place(self, test: str) -> str:
        """Return `3/25`: the position of a test among all."""
        return f"{self._positions[test]}/{len(self.tests)}" if test in self._positions else ""

    def left_s(self) -> float | None:
        """Return the remaining time; None if it is unknown for some tests."""
        running = [self._get_left_s(test) for test in self._running]
        unknown = {function: number for function, number in self._unbegun_unknown.items() if number > 0}
        if None in running or (unknown and not self._ended):
            return None
        known = [seconds for seconds in running if seconds is not None]
        whole_s = sum(known) + self._unbegun_s * self._factor
        whole_s += sum(number * self._get_usual_s(function) for function, number in unknown.items())
        left = len(self._expected_s) - len(self._ended)
        return max([whole_s / min(self.workers, max(1, left)), *known])

    @property
    def _factor(self) -> float:
        """Return how much longer tests take in this session than expected."""
        expected_s, in_fact_s = self._compared_s
        return min(MAX_FACTOR, max(1 / MAX_FACTOR, in_fact_s / expected_s)) if expected_s else 1.0

    def _is_overdue(self) -> bool:
        """Return whether a test takes longer than expected. Earlier sessions have the time of runs, but not of allocations."""
        slack_s = 0.0 if self._ended else ALLOCATION_S
        return any(self._elapsed_s(test) > whole_s + slack_s for test in self._running if (whole_s := self._get_whole_s(test)))

    def _elapsed_s(self, test: str) -> float:
        return self.clock() - self._begun[test]

    def _get_left_s(self, test: str) -> float | None:
        whole_s = self._get_whole_s(test)
        return None if whole_s is None else max(0.0, whole_s - self._elapsed_s(test))

    def _get_whole_s(self, test: str) -> float | None:
        expected_s = self._expected_s.get(test)
        if expected_s is not None:
            return expected_s * self._factor
        return self._get_usual_s(_get_function(test)) if self._ended else None

    def _get_usual_s(self, function: str) -> float:
        """Return the mean duration of ended tests of a function, or of all ended tests if it has none."""
        alike = [self._took_s[function]] if function in self._took_s else list(self._took_s.values())
        return sum(seconds for _, seconds in alike) / sum(number for number, _ in alike)


def _get_function(test: str) -> str:
    return test.partition("[")[0]
