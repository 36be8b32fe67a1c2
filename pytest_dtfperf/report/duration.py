"""How long trainings will take, from what earlier sessions and baselines tell. Values in, seconds out.

There are three grounds, the surest first. Where there is none of them, nothing is said: no time is ever taken to be 0.

    MEASURED  earlier sessions on the same cluster have measured this very training: so long its runs took
    SIMILAR   they have measured the same network, input and batch on other devices or in another mode: a step may take as long
    BASELINE  an accepted rate says how long the steps take; getting ready takes as long as it does for other trainings there

Seconds are those of runs. Waiting for hosts, in a queue or for other sessions, is nothing that can be foreseen.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path

from pytest_dtfperf.measurement import Run
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.records.session import session_folders
from pytest_dtfperf.spec import Spec

MOST_SESSIONS = 3  # the latest on a cluster: enough for a median, and each takes 0.1 s and more to be read
MOST_RECORDS = 2000  # of sessions of so many one is enough, and a thousand takes half a second
ROUGH = 2.0  # what is not measured itself may be wrong by this factor; what differs by more is another kind of training
START_S = 20.0  # where nothing was ever run: to import TensorFlow, to build a network of InceptionV3's size, to end again
CHIEF, WARM_UP = "worker:0", "warmup"  # as runs name their first worker and the phase before their measured steps


class EstimateBasis(StrEnum):
    """What a duration rests on. The value is how people are told of it."""

    MEASURED = "measured before"
    SIMILAR = "by similar trainings, roughly"
    BASELINE = "by its baseline, roughly"


@dataclass(frozen=True, kw_only=True)
class Duration:
    """How long something takes, in seconds of wall time."""

    least_s: float
    likely_s: float
    most_s: float

    def __add__(self, other: "Duration") -> "Duration":
        return Duration(
            least_s=self.least_s + other.least_s, likely_s=self.likely_s + other.likely_s, most_s=self.most_s + other.most_s
        )


@dataclass(frozen=True, kw_only=True)
class Estimate(Duration):
    """A duration, and what it rests on."""

    basis: EstimateBasis


def load_earlier_sessions(results: Path, cluster: str) -> list[list[Record]]:
    """What the latest sessions on a cluster have measured, session by session, oldest first.

    A session that cannot be read tells nothing, and keeps nobody from anything.
    """
    found: list[list[Record]] = []
    for folder in reversed(session_folders(results)):
        with suppress(Exception):  # what a folder may hold of other versions has no end, and no time depends on it alone
            # Without the schema, which would take ten times as long as all else that thousands of tests need to begin.
            if folder.session.get("cluster") == cluster and (records := replace(folder, is_ours=True).measurements()):
                _check_times(records)
                found.append(records)
        if len(found) == MOST_SESSIONS or sum(map(len, found)) >= MOST_RECORDS:
            break
    return found[::-1]


def _check_times(records: Iterable[Record]) -> None:
    """Raise what using the times of damaged records would raise."""
    for record in records:
        each = [
            seconds for run in record.measurement.all_runs for seconds in (run.wall_s, run.elapsed_s, _compute_start_s(run))
        ]
        if not (record.is_valid in (True, False) and math.isfinite(math.fsum(each)) and isinstance(record.test, str)):
            raise ValueError(record.id)
        [len(run.step_s.get(CHIEF, ())) for run in record.measurement.all_runs]


@dataclass(frozen=True)
class ClusterPast:
    """What is known of one cluster: its earlier sessions, oldest first, and the rates that were accepted, by `Spec.key`."""

    sessions: Sequence[Sequence[Record]]
    rates: Mapping[str, Sequence[float]]  # images/sec; several where baselines of several systems are kept

    def training(self, spec: Spec, runs: tuple[int, int]) -> Estimate | None:
        """How long the runs of a training take; `runs`: the fewest and the most there can be. None: nobody can tell."""
        if same := self._records_by_training.get(_make_training_key(spec)):
            each = [_estimate_run_s(run, record.spec, spec) for record in same for run in record.measurement.runs]
            usual = statistics.median(len(record.measurement.runs) for record in same)
            return _estimate_runs(EstimateBasis.MEASURED, each, runs, usual=round(usual))
        if similar := self._most_similar(spec):
            each = [_estimate_run_s(run, similar.spec, spec) for run in similar.measurement.runs]
            return _estimate_runs(EstimateBasis.SIMILAR, each, runs, usual=len(each))
        images = (spec.warmup_steps + spec.steps) * spec.gpus * spec.batch_size
        each = [self._start_s + images / rate for rate in self.rates.get(spec.key, ())]
        return _estimate_runs(EstimateBasis.BASELINE, each, runs, usual=runs[0]) if each else None

    def test(self, test: str, runs: Callable[[Record], int] | None = None) -> Duration | None:
        """How long the runs of a test (pytest's node id) took in each of the sessions that made some. None: none did.

        `runs` returns how many runs of a measurement there will be now; by default as many as there were. A test that found all
        it needed in another's measurements has left no trace of its own.
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
        """Those whose times mean something, oldest first."""
        return [r for session in self.sessions for r in session if r.is_valid and not r.measurement.injected_slowdowns]

    @cached_property
    def _records_by_training(self) -> Mapping[tuple[object, ...], Sequence[Record]]:
        return _group_by_spec(self._records, _make_training_key)

    @cached_property
    def _records_by_network(self) -> Mapping[tuple[object, ...], Sequence[Record]]:
        return _group_by_spec(self._records, _make_network_key)

    def _most_similar(self, spec: Spec) -> Record | None:
        """The latest of those that are most like it, if any is: it trains the same network on the same batches."""
        found = self._records_by_network.get(_make_network_key(spec), ())
        return max(reversed(found), key=lambda record: _rank_likeness(record.spec, spec), default=None)

    @cached_property
    def _start_s(self) -> float:
        """How long a run takes here that makes no step."""
        starts = [
            _compute_start_s(run) for record in self._records if not record.spec.command for run in record.measurement.runs
        ]
        return statistics.median(starts) if starts else START_S


def sum_durations(durations: Iterable[Duration]) -> Duration:
    """Of all of them, one after the other."""
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
    """What must be the same for times to be the same; the numbers of steps can be made up for."""
    return spec.key, spec.evaluate, spec.stop_at_top_1_accuracy, spec.eval_during_training_every_n_steps


def _make_network_key(spec: Spec) -> tuple[object, ...]:
    """Return what must be the same for two trainings to be similar."""
    return spec.model, spec.batch_size, spec.data, spec.precision, spec.command, spec.forward_only


def _rank_likeness(one: Spec, other: Spec) -> tuple[bool, float]:
    return one.variable_update == other.variable_update, -abs(math.log(one.gpus / other.gpus))


def _estimate_runs(basis: EstimateBasis, each_s: Sequence[float], runs: tuple[int, int], *, usual: int) -> Estimate:
    """`each_s`: how long a run may take; `usual`: how many runs a verdict has needed."""
    fewest, most = runs
    factor = 1.0 if basis is EstimateBasis.MEASURED else ROUGH
    return Estimate(
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
    """How long this run would have taken with the steps of another spec."""
    steps = len(run.step_s.get(CHIEF, ()))
    if not steps or (was.warmup_steps, was.steps) == (will_be.warmup_steps, will_be.steps):
        return run.wall_s
    return _compute_start_s(run) + (will_be.warmup_steps + will_be.steps) * run.elapsed_s / steps


def _compute_start_s(run: Run) -> float:
    """How long it took to get ready and to end."""
    return max(0.0, run.wall_s - run.elapsed_s - run.startup_s.get(WARM_UP, 0.0))
