"""Experiments: repeats, checks and records, with invented runs."""

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_dtfperf.baselines.store import BaselineStore
from pytest_dtfperf.baselines.terms import ComparisonPolicy
from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.datamodel.fingerprint import Fingerprint
from pytest_dtfperf.datamodel.host_state import Disturbance
from pytest_dtfperf.datamodel.measurement import Run
from pytest_dtfperf.datamodel.probes import Probes
from pytest_dtfperf.errors import InvalidMeasurement
from pytest_dtfperf.records.again import judge_again
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.records.session import SessionFolder
from pytest_dtfperf.session.context import SessionContext, TimeBudget
from pytest_dtfperf.session.experiment import SPARE_RUNS, Experiment
from pytest_dtfperf.session.resolve import RepeatPlan, plan
from pytest_dtfperf.session.settings import Settings
from pytest_dtfperf.spec import Spec
from tests.baselines.examples import HARDWARE, SOFTWARE, SYSTEM, entry_of, run_of, spec_of
from tests.records.host_states import BUSY

OTHER = {**HARDWARE, "cores": 64}
Rates = Iterable[tuple[float, Mapping[str, Any]]]


@dataclass
class Changing:
    """A session on hosts that change between runs: each run is on the next ones."""

    folder: SessionFolder
    store: BaselineStore
    rates: Iterator[tuple[float, Mapping[str, Any]]]  # of each run, and what its hosts are
    settings: Settings = field(default_factory=lambda: Settings(explain="never"))
    injected_slowdowns: Mapping[str, float] = field(default_factory=dict)
    tests: int = 1
    plans: dict[str, RepeatPlan] = field(default_factory=dict)
    terms: dict[tuple[str, str], ComparisonPolicy] = field(default_factory=dict)
    hardware: Mapping[str, Any] = field(default_factory=dict)
    config: Any = field(default_factory=lambda: ClusterConfig(name="daint"))

    @property
    def cluster(self) -> Any:
        return SimpleNamespace(settings=lambda model: {}, collect_fingerprint=self.collect_fingerprint)

    def collect_fingerprint(self, run: Run) -> Fingerprint:
        return Fingerprint.from_json({"hardware": self.hardware, "software": SOFTWARE, "program": {}})

    def plan(self, spec: Spec, repeats: int | None = None) -> RepeatPlan:
        return self.plan_repeats(spec.model, repeats)

    def plan_repeats(self, model: str, repeats: int | None = None) -> RepeatPlan:
        return plan(self.settings, {}, repeats=repeats)

    def threshold_systems(self, fingerprint: Fingerprint) -> Sequence[str]:
        return []

    @contextmanager
    def measuring(self, spec: Spec, test: str) -> Iterator[None]:
        yield

    def run(self, spec: Spec, test: str, *, number: int, total: int, explain: bool) -> Run:
        rate, self.hardware = next(self.rates)
        return replace(run_of(rate), hosts=["n1"])

    def probe(self, record: Record, *, again: bool = False) -> Record:
        return record

    def probe_capacity(self, spec: Spec) -> None:
        """Keep the capacity: these hosts cannot be probed."""

    capacity = Probes()
    time_budget: TimeBudget | None = None

    def can_explain(self, test: str, least_s: float) -> bool:
        return SessionContext.can_explain(cast("SessionContext", self), test, least_s)


class Busy(Changing):
    """A session that accepts baselines, with some disturbed runs."""

    def __init__(self, disturbed: Collection[int], tmp_path: Path, rates: Rates) -> None:
        folder = SessionFolder.create(tmp_path / "perf_results", cluster="daint", command=["pytest"], versions={})
        settings = Settings(explain="never", update_baselines="all")
        super().__init__(folder, BaselineStore(tmp_path / "baselines"), iter(rates), settings)
        self.disturbed = disturbed
        self.remarks: list[str] = []
        self.progress = SimpleNamespace(show_remark=self.remarks.append)

    def run(self, spec: Spec, test: str, *, number: int, total: int, explain: bool) -> Run:
        run = super().run(spec, test, number=number, total=total, explain=explain)
        return replace(run, disturbances=[Disturbance(message="a compiler")]) if number - 1 in self.disturbed else run


def make_changing_session(tmp_path: Path, rates: Rates) -> Changing:
    folder = SessionFolder.create(tmp_path / "perf_results", cluster="daint", command=["pytest"], versions={})
    return Changing(folder, BaselineStore(tmp_path / "baselines"), iter(rates))


def measure_on(tmp_path: Path, *rates: tuple[float, Mapping[str, Any]]) -> Any:
    (measured,) = Experiment(cast("SessionContext", make_changing_session(tmp_path, rates)), "test").measure([spec_of()])
    return measured


def test_runs_on_earlier_hardware_are_disturbed(tmp_path: Path) -> None:
    """If the hardware changes between runs, the rate is that of the later hardware."""
    measured = measure_on(tmp_path, (100.0, HARDWARE), (800.0, OTHER), (802.0, OTHER), (0.0, OTHER))
    assert measured.measurement.rates == [800.0, 802.0]
    assert measured.measurement.fingerprint.hardware.cores == 64
    assert measured.measurement.runs[0].disturbances == [
        Disturbance(message="it was on other hosts than the runs after it (cores: 2 before, 64 after)")
    ]
    assert not measured.measurement.disturbances


def test_runs_on_other_hosts_of_the_same_kind_count(tmp_path: Path) -> None:
    """Runs on hosts of the same kind count, also with slightly less memory."""
    measured = measure_on(tmp_path, (100.0, HARDWARE), (101.0, {**HARDWARE, "memory_gib": 7}), (0.0, HARDWARE))
    assert measured.measurement.rates == [100.0, 101.0]


def test_check_with_an_invalid_measurement_decides_nothing(tmp_path: Path) -> None:
    """A check against an INVALID anchor is INCONCLUSIVE, and a check of an INVALID measurement is an error."""
    session = make_changing_session(tmp_path, [(50.0, HARDWARE), (98.0, HARDWARE), (98.1, HARDWARE), (50.1, HARDWARE)])
    experiment = Experiment(cast("SessionContext", session), "test")
    one, many = experiment.measure([spec_of(gpus=1), spec_of()])
    assert experiment.check_efficiency(many, anchor=one, at_least=0.7).verdict == "PASSED"
    session.folder.judge(one.id, verdict=Verdict.INVALID, reason="a step took no time")
    judgement = experiment.check_efficiency(many, anchor=one, at_least=0.95)
    assert (judgement.verdict, judgement.value) == ("INCONCLUSIVE", None)
    assert judgement.reason.startswith("efficiency is not known: ")
    checks = session.folder.measurements()[1].checks
    assert [check.verdict for check in checks] == ["INCONCLUSIVE", "INCONCLUSIVE"]
    assert checks[1] == judgement
    with pytest.raises(InvalidMeasurement, match="is INVALID: a step took no time"):
        experiment.check(one)


MADE = [(100.0, HARDWARE), (100.5, HARDWARE)]
FURTHER: dict[str, tuple[Rates, int]] = {
    "of the same hosts": (repeat((100.0, HARDWARE)), 10),
    "of other hosts": ([(800.0, OTHER)], 2),
    "of other hosts at last": ([(100.0, HARDWARE), (800.0, OTHER)], 3),
}


@pytest.mark.parametrize("further, runs", FURTHER.values(), ids=FURTHER)
def test_further_runs_need_the_same_hardware(tmp_path: Path, further: Rates, runs: int) -> None:
    """Further runs of a check are recorded up to the repeats, or until a run is on other hardware."""
    session = make_changing_session(tmp_path, (each for rates in (MADE, further) for each in rates))
    session.store.update(SYSTEM, [entry_of([99.0, 100.0, 101.0, 100.0, 100.0])])
    experiment = Experiment(cast("SessionContext", session), "test")
    (measured,) = experiment.measure([spec_of()])
    assert measured.measurement.rates == [100.0, 100.5]
    judgement = experiment.check(measured, margin=0.001)
    assert (judgement.verdict, judgement.runs) == (Verdict.INCONCLUSIVE, runs)
    (record,) = session.folder.measurements()
    assert record.measurement.rates == [100.0, 100.5, *[100.0] * (runs - 2)]
    assert record.checks == (judgement,)


def yield_rate_until_interrupt() -> Iterator[tuple[float, Mapping[str, Any]]]:
    yield 100.0, HARDWARE
    raise KeyboardInterrupt


def test_runs_before_an_interrupt_are_recorded(tmp_path: Path) -> None:
    """The runs before an interrupt are recorded without a verdict."""
    session = make_changing_session(tmp_path, yield_rate_until_interrupt())
    with pytest.raises(KeyboardInterrupt):
        Experiment(cast("SessionContext", session), "test").measure([spec_of()])
    assert [(record.measurement.rates, record.verdict) for record in session.folder.measurements()] == [([100.0], None)]


OUT_OF_STEP = {"disturbances": [BUSY], "out_of_step": {"worker:1": 3.1}}


@dataclass
class Disturbed(Changing):
    """A session of which each run has the changes of the next item of `made`."""

    made: Iterator[Mapping[str, Any]] = field(default_factory=lambda: iter(()))

    def run(self, spec: Spec, test: str, *, number: int, total: int, explain: bool) -> Run:
        return replace(super().run(spec, test, number=number, total=total, explain=explain), **next(self.made))


def make_disturbed_session(tmp_path: Path, *made: Mapping[str, Any]) -> Disturbed:
    plain = make_changing_session(tmp_path, repeat((100.0, HARDWARE)))
    return Disturbed(plain.folder, plain.store, plain.rates, made=iter(made))


def test_worker_that_is_out_of_step_twice_is_invalid(tmp_path: Path) -> None:
    """Two runs with the same late worker are INVALID; one such run is not."""
    session = make_disturbed_session(tmp_path, OUT_OF_STEP, OUT_OF_STEP)
    with pytest.raises(InvalidMeasurement, match=r"worker:1 was out of step with the chief by 3\.100 s, and by 3\.100 s"):
        Experiment(cast("SessionContext", session), "test").measure([spec_of()])
    (record,) = session.folder.measurements()
    assert (record.verdict, len(record.measurement.runs)) == (Verdict.INVALID, 1)
    session = make_disturbed_session(tmp_path / "once", OUT_OF_STEP, {}, {})
    (measured,) = Experiment(cast("SessionContext", session), "test").measure([spec_of()])
    assert len(measured.measurement.rates) == 2


def test_further_run_can_make_a_measurement_invalid(tmp_path: Path) -> None:
    """A further run with a late worker is compared with the run before it, and makes the measurement INVALID."""
    session = make_disturbed_session(tmp_path, {}, {}, OUT_OF_STEP, OUT_OF_STEP)
    session.store.update(SYSTEM, [entry_of([99.0, 100.0, 101.0, 100.0, 100.0])])
    experiment = Experiment(cast("SessionContext", session), "test")
    (measured,) = experiment.measure([spec_of()])
    with pytest.raises(InvalidMeasurement, match="worker:1 was out of step"):
        experiment.check(measured, margin=0.001)
    (record,) = session.folder.measurements()
    assert record.verdict is Verdict.INVALID


@pytest.mark.parametrize("disturbed, runs", [(range(11), 3), ({0, 1}, 10 + SPARE_RUNS), ((), 10)])
def test_disturbed_baseline_is_given_up_early(tmp_path: Path, disturbed: Collection[int], runs: int) -> None:
    """If the first three runs are disturbed, no more are made, with one remark."""
    session = Busy(disturbed, tmp_path, repeat((100.0, HARDWARE)))
    (measured,) = Experiment(cast("SessionContext", session), "test").measure([spec_of()])
    assert len(measured.measurement.runs) == runs
    remark = f"{spec_of().label}: no baseline: its first 3 runs were disturbed (a compiler)"
    assert session.remarks == [remark] * (runs == 3)


@dataclass
class Drifting(Changing):
    """A session on a machine with a speed that the test sets; its runs differ by at most 0.4 %."""

    speed: float = 1.0
    images_per_sec: Mapping[Any, float] = field(default_factory=dict)  # images/sec by number of devices, or by input
    made: list[Any] = field(default_factory=list)

    def run(self, spec: Spec, test: str, *, number: int, total: int, explain: bool) -> Run:
        what = spec.gpus if spec.gpus in self.images_per_sec else spec.data
        self.hardware = HARDWARE
        self.made.append(what)
        wobble = (0.0, 0.004, 0.002)[len(self.made) % 3]
        return replace(run_of(self.images_per_sec[what] * self.speed * (1 + wobble)), hosts=["n1"])


def make_drifting_session(tmp_path: Path, images_per_sec: Mapping[Any, float]) -> Drifting:
    session = make_changing_session(tmp_path, ())
    return Drifting(session.folder, session.store, session.rates, images_per_sec=images_per_sec)


def judge_session_again(session: Drifting) -> Sequence[tuple[str | None, str | None]]:
    return [(record.verdict, record.reason) for record in judge_again(session.folder.measurements())]


@pytest.mark.parametrize("speed", [1.0, 0.9, 1.1, 0.5])
@pytest.mark.parametrize("efficiency, verdict", [(1.0, "PASSED"), (0.97, "PASSED"), (0.80, "REGRESSED"), (0.85, "REGRESSED")])
def test_efficiency_uses_a_new_anchor(tmp_path: Path, efficiency: float, verdict: str, speed: float) -> None:
    """An anchor from before a change of speed is measured again, and `dtfperf judge` has the same result."""
    session = make_drifting_session(tmp_path, {1: 100.0, 2: 200.0 * efficiency})
    (one,) = Experiment(cast("SessionContext", session), "first").measure([spec_of(gpus=1, num_ps=1)])
    session.speed = speed
    experiment = Experiment(cast("SessionContext", session), "second")
    (many,) = experiment.measure([spec_of(gpus=2, num_ps=1)])
    assert session.made == [1, 1, 2, 2]
    judgement = experiment.check_efficiency(many, anchor=one, at_least=0.90)
    assert judgement.verdict == verdict, judgement.reason
    assert session.made[4:6] == [1, 1]
    assert (verdict, judgement.reason) in judge_session_again(session)


def test_old_anchor_takes_two_runs_without_a_change(tmp_path: Path) -> None:
    """Without a change of speed, two further runs of the anchor are enough, and the reason has them."""
    session = make_drifting_session(tmp_path, {1: 100.0, 2: 190.0})
    (one,) = Experiment(cast("SessionContext", session), "first").measure([spec_of(gpus=1, num_ps=1)])
    experiment = Experiment(cast("SessionContext", session), "second")
    (many,) = experiment.measure([spec_of(gpus=2, num_ps=1)])
    judgement = experiment.check_efficiency(many, anchor=one, at_least=0.70)
    assert session.made == [1, 1, 2, 2, 1, 1]
    assert "; 2 runs against 4; trivial b32 gpus=1 num_ps=1 parameter_server was measured before and after it (" in (
        judgement.reason
    )


def test_rounds_stay_in_order_if_the_clock_is_set_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that is set back by an hour does not turn what was measured before into what was measured after."""
    session = make_drifting_session(tmp_path, {1: 100.0, 2: 190.0})
    began_s, ticks = time.time(), count()
    monkeypatch.setattr(time, "time", lambda: began_s + next(ticks) - (3600 if len(session.made) >= 2 else 0))
    (one,) = Experiment(cast("SessionContext", session), "first").measure([spec_of(gpus=1, num_ps=1)])
    experiment = Experiment(cast("SessionContext", session), "second")
    (many,) = experiment.measure([spec_of(gpus=2, num_ps=1)])
    experiment.check_efficiency(many, anchor=one, at_least=0.70)
    assert session.made == [1, 1, 2, 2, 1, 1]
    (again,) = (record for record in session.folder.measurements() if record.spec.gpus == 1)
    before, after = again.measurement.runs[:2], again.measurement.runs[2:]
    others = [run.round_s or 0.0 for run in many.measurement.runs]
    assert max(run.round_s or 0.0 for run in before) < min(others) < max(others) < min(run.round_s or 0.0 for run in after)


def test_measurements_in_turn_are_not_repeated(tmp_path: Path) -> None:
    """Measurements in turn are compared without further runs, and share their rounds in the record."""
    session = make_drifting_session(tmp_path, {1: 100.0, 2: 190.0})
    experiment = Experiment(cast("SessionContext", session), "test")
    one, many = experiment.measure([spec_of(gpus=1, num_ps=1), spec_of(gpus=2, num_ps=1)])
    judgement = experiment.check_efficiency(many, anchor=one, at_least=0.70)
    assert judgement.verdict == "PASSED"
    assert session.made == [1, 2, 2, 1]
    rounds = [[run.round_s for run in each.measurement.runs] for each in (one, many)]
    assert rounds[0] == rounds[1]
    assert len(set(rounds[0])) == 2


@pytest.mark.parametrize("speed", [0.9, 1.1])
@pytest.mark.parametrize("overhead, verdict", [(0.0, "PASSED"), (0.15, "REGRESSED")])
def test_overhead_uses_new_synthetic_input(tmp_path: Path, overhead: float, verdict: str, speed: float) -> None:
    """Synthetic input from before a change of speed is measured again, and `dtfperf judge` has the same result."""
    session = make_drifting_session(tmp_path, {"synthetic": 100.0, "mnist": 100.0 * (1 - overhead)})
    (synthetic,) = Experiment(cast("SessionContext", session), "first").measure([spec_of(model="mnist", gpus=3)])
    session.speed = speed
    experiment = Experiment(cast("SessionContext", session), "second")
    (real,) = experiment.measure([spec_of(model="mnist", gpus=3, data="mnist", data_dir="/d")])
    judgement = experiment.check_overhead(synthetic=synthetic, real=real, at_most=0.08)
    assert judgement.verdict == verdict, judgement.reason
    assert (verdict, judgement.reason) in judge_session_again(session)


def test_earlier_measurement_is_repeated(tmp_path: Path) -> None:
    """If n devices were measured before their anchor, n devices are measured again."""
    session = make_drifting_session(tmp_path, {1: 100.0, 2: 200.0})
    (many,) = Experiment(cast("SessionContext", session), "first").measure([spec_of(gpus=2, num_ps=1)])
    session.speed = 0.9
    experiment = Experiment(cast("SessionContext", session), "second")
    (one,) = experiment.measure([spec_of(gpus=1, num_ps=1)])
    judgement = experiment.check_efficiency(many, anchor=one, at_least=0.70)
    assert session.made == [2, 2, 1, 1, 2, 2]
    assert judgement.verdict == "PASSED"
