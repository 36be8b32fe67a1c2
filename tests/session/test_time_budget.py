"""The time budget of a session, shared among tests, with a clock that the tests set."""

import itertools
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from pytest_dtfperf.baselines.store import BaselineStore
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.datamodel.measurement import Run
from pytest_dtfperf.errors import TimeBudgetSpent
from pytest_dtfperf.formats import format_time_budget, parse_time_budget
from pytest_dtfperf.limits.needs import Layout
from pytest_dtfperf.records.arithmetic import flop_per_image
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.records.session import SessionFolder
from pytest_dtfperf.report.time_estimates import ClusterPast
from pytest_dtfperf.session.context import END_S, LEAST_STEPS, SessionContext, TimeBudget, shorten_names
from pytest_dtfperf.session.experiment import Experiment
from pytest_dtfperf.session.resolve import choose_time_budget
from pytest_dtfperf.session.settings import Settings
from pytest_dtfperf.spec import Spec
from tests.baselines.examples import HARDWARE, SYSTEM, entry_of, spec_of
from tests.explain.probed import make_probes, make_reading
from tests.records.samples import measurement
from tests.session.test_experiment import Changing

SPEC = Spec(model="trivial", batch_size=8, warmup_steps=2, steps=100)


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.mark.parametrize(
    ("text", "seconds"), [("6min", 360), ("90s", 90), ("1h", 3600), ("1h30min", 5400), ("2h05min10s", 7510), ("none", None)]
)
def test_time_is_read(text: str, seconds: float | None) -> None:
    """Hours, minutes and seconds in this order; `none` sets no limit."""
    assert parse_time_budget(text) == seconds


@pytest.mark.parametrize("text", ["", "6", "6 min", "min", "0s", "6m", "-1min", "1s1h", "1.5h", "6min ", "٦min", "None"])
def test_other_text_is_refused(text: str) -> None:
    """A text of another form, or of no time, is refused as a whole."""
    with pytest.raises(ValueError, match="not a time, as 6min"):
        parse_time_budget(text)


@pytest.mark.parametrize("seconds", [1.0, 59.0, 60.0, 360.0, 3600.0, 7510.0])
def test_written_time_is_read(seconds: float) -> None:
    """A written time budget is read as the same one."""
    assert parse_time_budget(format_time_budget(seconds)) == seconds


def test_test_gets_even_share_of_the_rest(clock: Clock) -> None:
    """The first of four tests has a quarter; what it leaves is shared by the three after it."""
    budget = TimeBudget(400.0 + END_S, lambda: 4, clock)
    assert budget.begin("a")
    assert budget.get_remaining_s("a") == 100.0
    clock.now_s += 40.0
    assert budget.begin("b")
    assert budget.get_remaining_s("b") == 120.0
    assert budget.begin("a")
    assert budget.get_remaining_s("a") == 60.0


def test_time_is_reserved_for_the_end(clock: Clock) -> None:
    """Measurements end before the session's time does, so that figures and the page are made within it."""
    assert TimeBudget(360.0, lambda: 1, clock).remaining_s == 360.0 - END_S
    assert TimeBudget(60.0, lambda: 1, clock).remaining_s == 54.0


def test_test_without_time_is_left_out(clock: Clock) -> None:
    """Once all time for measurements is spent, no measurement begins, and the summary names the tests without one."""
    budget = TimeBudget(60.0, lambda: 3, clock)
    assert budget.begin("a")
    clock.now_s += 54.0
    assert not budget.begin("perf_tests/t.py::test_b[gpus1]")
    assert not budget.begin("perf_tests/t.py::test_b[gpus1]")
    assert not budget.begin("a"), "its next measurement"
    (line,) = budget.describe()
    assert line.startswith("--time-budget=1min had no time for 2 tests. Left out: t.py::test_b[gpus1], a. ")


def test_cases_of_one_test_are_counted() -> None:
    """Several cases of one test are one name with their number, so that the summary stays short; a single one has its own."""
    left_out = ["perf_tests/a.py::test[gpus1]", "perf_tests/b.py::test[gpus1]", "perf_tests/a.py::test[a/b-gpus2]", "mnist b64"]
    assert shorten_names(left_out) == ["a.py::test (2 cases)", "b.py::test[gpus1]", "mnist b64"]
    assert shorten_names(["perf_tests/a.py::test[a/b]"]) == ["a.py::test[a/b]"]


def test_test_that_would_end_too_late_is_left_out(clock: Clock) -> None:
    """A test begins only if its first runs are expected to end in time; one that fits gets what it leaves."""
    budget = TimeBudget(60.0, lambda: 2, clock)
    with pytest.raises(TimeBudgetSpent, match="left out, for --time-budget=1min has no time for it: give more time"):
        budget.require("long", 54.0)
    budget.require("short", 53.0)
    assert budget.left_out == ["long"]
    assert budget.get_remaining_s("short") == 54.0


def test_verdict_is_analysed_if_there_is_time(clock: Clock) -> None:
    """The analysis of a verdict may take time of later tests, but not of the session's end."""
    budget = TimeBudget(60.0, lambda: 4, clock)
    budget.begin("a")
    assert budget.can_explain("a", 54.0)
    assert not budget.can_explain("a", 55.0)
    assert budget.describe() == ["--time-budget=1min left no time to find all causes for 1 test: give more time"]


def test_runs_end_with_the_share_of_the_test(clock: Clock) -> None:
    """A further run is made if it fits; below the fewest that a verdict needs, it may take the time of later tests."""
    budget = TimeBudget(40.0 / 0.9, lambda: 4, clock)
    budget.begin("a")
    assert budget.has_time("a", runs=2, fewest=2, run_s=10.0)
    assert not budget.has_time("a", runs=2, fewest=2, run_s=11.0)
    assert budget.has_time("what another test measured", runs=5, fewest=2, run_s=10.0)
    clock.now_s += 4.0
    assert budget.has_time("a", runs=1, fewest=2, run_s=9.0)
    assert budget.describe() == ["--time-budget=44s left fewer runs for 1 test: wider intervals"]


def test_later_tests_keep_the_time_of_one_run_each(clock: Clock) -> None:
    """A run below the fewest leaves each of two later tests the time of such a run, so that none is left out for it."""
    budget = TimeBudget(66.0, lambda: 3, clock)
    budget.begin("a")
    clock.now_s += 29.4
    assert budget.has_time("a", runs=1, fewest=4, run_s=10.0)
    assert not budget.has_time("a", runs=1, fewest=4, run_s=10.1)
    budget.begin("b")
    budget.begin("c")
    assert budget.has_time("c", runs=1, fewest=4, run_s=30.0), "no test is later"
    assert not budget.has_time("c", runs=1, fewest=4, run_s=30.1)
    assert budget.describe() == ["--time-budget=1min6s left fewer runs for 2 tests: wider intervals"]


def test_steps_fit_into_half_of_the_share(clock: Clock) -> None:
    """Two runs' steps, with their warm-up, take half of a test's time: at most the spec's steps, and at least three."""
    budget = TimeBudget(80.0 / 0.9, lambda: 2, clock)
    budget.begin("a")
    assert budget.choose_steps(SPEC, 0.001, "a") == 100
    assert budget.choose_steps(SPEC, 0.5, "a") == 18
    assert budget.choose_steps(SPEC, 50.0, "a") == LEAST_STEPS


@pytest.mark.parametrize(
    ("settings", "seconds"),
    [
        (Settings(), 360.0),
        (Settings(time_budget=30.0), 30.0),
        (Settings(time_budget="none"), None),
        (Settings(update_baselines="new"), None),
        (Settings(update_baselines="new", time_budget=30.0), 30.0),
    ],
    ids=["the cluster's", "the command line's", "none", "baselines are accepted", "baselines in a given time"],
)
def test_precedence_of_time_budgets(settings: Settings, seconds: float | None) -> None:
    """The command line's time counts, else the cluster's, unless baselines are accepted."""
    assert choose_time_budget(settings, ClusterConfig(name="local", time_budget="6min")) == seconds
    assert choose_time_budget(Settings(), ClusterConfig(name="daint")) is None


class Host:
    """A session on one host of two cores with a known capacity: a step of SPEC takes a second."""

    settings = Settings()

    def __init__(self, clock: Clock, *, device: str = "cpu", allocation: str = "session") -> None:
        self.time_budget: TimeBudget | None = TimeBudget(80.0 / 0.9, lambda: 2, clock)
        self.cluster = SimpleNamespace(device=device)
        self.config = ClusterConfig(name="c", allocation=allocation)
        layout = Layout({"worker:0": "h"}, {"worker:0": 1})
        self.allocations = SimpleNamespace(get_launcher=lambda spec: SimpleNamespace(layout=lambda spec: layout))
        flop_per_s = float(flop_per_image(TRAINED) or 0) * TRAINED.batch_size / 0.4  # of which 40 % are usual
        self.capacity = make_probes(h={"core.matmul": make_reading(flop_per_s), "cores.matmul": make_reading(flop_per_s)})
        self.has_measured = False
        self.measured: list[Record] = []
        self.folder = SimpleNamespace(measurements=lambda: self.measured)

    def measuring(self, spec: Spec, test: str) -> AbstractContextManager[None]:
        return nullcontext()

    def probe_capacity(self, spec: Spec) -> None:
        """Do nothing: the capacity is known."""

    def _predict_step_s(self, spec: Spec, test: str) -> float | None:
        return SessionContext._predict_step_s(cast("SessionContext", self), spec, test)

    def _find_fitted(self, spec: Spec, test: str) -> Spec | None:
        return SessionContext._find_fitted(cast("SessionContext", self), spec, test)

    def fit(self, *specs: Spec, given: Collection[str] = ()) -> list[int]:
        return [each.steps for each in SessionContext.fit_to_time(cast("SessionContext", self), specs, "a", given)]


TRAINED = Spec(model="lenet", batch_size=8, warmup_steps=2, steps=100, num_ps=0, variable_update="replicated")


def test_steps_are_predicted_from_the_probe(clock: Clock) -> None:
    """A test with 40 s has 8 steps of a second in each of two runs, besides 2 of warm-up, for half of its time."""
    assert Host(clock).fit(TRAINED) == [8]


def test_trainings_in_turn_share_the_steps(clock: Clock) -> None:
    """Two trainings that are measured in turn have half of the steps each, so that both fit into the test's time."""
    assert Host(clock).fit(TRAINED, TRAINED.replace(learning_rate=0.5)) == [3, 3]


def test_training_of_another_test_keeps_its_steps(clock: Clock, tmp_path: Path) -> None:
    """A training that another test has measured with fewer steps is not trained again, and leaves its time to the other one."""
    host = Host(clock)
    folder = SessionFolder.create(tmp_path, cluster="c", command=["pytest"], versions={})
    host.measured = [folder.add("another", measurement(TRAINED.replace(steps=50), [10.0, 10.1]))]
    assert host.fit(TRAINED, TRAINED.replace(learning_rate=0.5)) == [3, 3], "nothing was measured in this session"
    host.has_measured = True
    assert host.fit(TRAINED, TRAINED.replace(learning_rate=0.5)) == [50, 8]
    host.measured = [folder.add("a", measurement(TRAINED.replace(steps=50), [10.0, 10.1]))]
    assert host.fit(TRAINED) == [8], "it measures anew"


@pytest.mark.parametrize(
    "changes",
    [{"device": "gpu"}, {"allocation": "test"}],
    ids=["GPUs", "an allocation for each measurement"],
)
def test_steps_stay_if_they_cannot_be_predicted(clock: Clock, changes: dict[str, str]) -> None:
    """Steps stay on a GPU, which is not predicted, and with one allocation for each measurement."""
    assert Host(clock, **changes).fit(TRAINED) == [100]


def test_steps_stay_if_they_are_set_or_evaluated(clock: Clock) -> None:
    """Steps that a test sets, those of a training that is evaluated, and all without a budget stay."""
    host = Host(clock)
    assert host.fit(TRAINED, given={"steps"}) == [100]
    assert host.fit(TRAINED.replace(model="mnist", data="mnist", data_dir="/digits", evaluate=True)) == [100]
    host.time_budget = None
    assert host.fit(TRAINED) == [100]


@dataclass
class Timed(Changing):
    """A session with a clock that each run advances by its time."""

    clock: Clock = field(default_factory=Clock)
    run_s: float = 10.0
    expected_s: float = 0.0  # of a run, before there is one

    def run(self, spec: Spec, test: str, *, number: int, total: int, explain: bool) -> Run:
        self.clock.now_s += self.run_s
        return replace(super().run(spec, test, number=number, total=total, explain=explain), wall_s=self.run_s)

    def estimate_run_s(self, spec: Spec, test: str) -> float:
        return self.expected_s


def make_timed(tmp_path: Path, *, total_s: float, tests: int = 1, expected_s: float = 0.0) -> tuple[Timed, Experiment]:
    """Return a session with `total_s` for its measurements, and the experiment of its first test."""
    folder = SessionFolder.create(tmp_path / "perf_results", cluster="daint", command=["pytest"], versions={})
    rates = itertools.cycle([(100.0, HARDWARE), (100.5, HARDWARE)])
    session = Timed(folder, BaselineStore(tmp_path / "baselines"), rates, expected_s=expected_s)
    session.time_budget = TimeBudget(total_s / 0.9, lambda: tests, session.clock)
    return session, Experiment(cast("SessionContext", session), "a")


def test_specs_in_turn_share_the_time(tmp_path: Path) -> None:
    """Two trainings in turn have another round only if there is time for a run of each."""
    session, experiment = make_timed(tmp_path, total_s=35.0)
    records = experiment.measure([spec_of(gpus=1), spec_of(gpus=2)])
    assert [len(record.measurement.runs) for record in records] == [1, 1]
    assert session.clock.now_s == 1020.0


def test_measurement_expected_to_end_too_late_makes_no_run(tmp_path: Path) -> None:
    """A test is left out before its first run if a run of each of its trainings does not fit."""
    session, experiment = make_timed(tmp_path, total_s=35.0, expected_s=20.0)
    with pytest.raises(TimeBudgetSpent, match="left out"):
        experiment.measure([spec_of(gpus=1), spec_of(gpus=2)])
    assert session.clock.now_s == 1000.0
    assert not session.folder.measurements()
    experiment.measure([spec_of(gpus=1)])
    assert session.clock.now_s == 1020.0


def test_measurement_is_repeated_for_a_check_if_there_is_time(tmp_path: Path) -> None:
    """An anchor of another test is measured again for a check of efficiency only within the time; else nothing is decided."""
    session, experiment = make_timed(tmp_path, total_s=45.0, tests=2)
    (one,) = experiment.measure([spec_of(gpus=1)])
    later = Experiment(cast("SessionContext", session), "b")
    (many,) = later.measure([spec_of(gpus=2)])
    assert session.clock.now_s == 1040.0
    assert later.check_efficiency(many, anchor=one, at_least=0.7).verdict == "INCONCLUSIVE"
    assert session.clock.now_s == 1040.0


def test_run_is_estimated_from_the_session_before_earlier_ones(tmp_path: Path) -> None:
    """A similar training of this session counts, then one of earlier sessions, then what cores can do with the usual start."""
    session, experiment = make_timed(tmp_path, total_s=1000.0)
    (record,) = experiment.measure([spec_of(gpus=1)])

    def estimate(spec: Spec, *, earlier: Sequence[Record] = ()) -> float:
        context = SimpleNamespace(
            folder=session.folder, past=ClusterPast([earlier], {}), _predict_step_s=lambda spec, test: 0.5
        )
        return SessionContext.estimate_run_s(cast("SessionContext", context), spec, "a")

    other = spec_of(model="lenet", warmup_steps=4, steps=10)
    start_s = 10.0 - record.measurement.runs[0].elapsed_s
    assert estimate(record.spec) == 10.0
    assert estimate(other) == start_s + 14 * 0.5
    slow = replace(record.measurement.runs[0], wall_s=90.0)
    earlier = replace(record, measurement=replace(record.measurement, spec=other, runs=[slow]))
    assert estimate(other, earlier=[earlier]) == pytest.approx(90.0, abs=10.0)
    assert estimate(record.spec, earlier=[replace(earlier, measurement=replace(earlier.measurement, spec=record.spec))]) == 10.0


def test_traced_run_is_left_out_without_time(tmp_path: Path) -> None:
    """A slower rate gets its verdict without the run that would explain it, and the summary counts it."""
    session, experiment = make_timed(tmp_path, total_s=35.0)
    session.settings = Settings(explain="auto")
    session.store.update(SYSTEM, [entry_of([200.0, 201.0, 199.0, 200.0, 200.0])])
    (record,) = experiment.measure([spec_of()])
    assert experiment.check(record).verdict.turns_red
    assert session.clock.now_s == 1030.0
    assert session.time_budget
    assert "left no time to find all causes for 1 test: give more time" in "".join(session.time_budget.describe())


@dataclass
class Occupied(Timed):
    """A session on hosts that another session has from a time on, so that it waits until its own time is spent."""

    occupied_s: float = 0.0

    @contextmanager
    def measuring(self, spec: Spec, test: str) -> Iterator[None]:
        if self.clock.now_s >= self.occupied_s:
            self.clock.now_s += 3600.0
            assert self.time_budget
            self.time_budget.check_wait(test)
        yield


def occupy(tmp_path: Path, occupied_s: float) -> tuple[Occupied, Experiment]:
    """Return a session of 100 s, and the experiment of its first test."""
    plain, _ = make_timed(tmp_path, total_s=100.0)
    session = Occupied(plain.folder, plain.store, plain.rates, occupied_s=occupied_s)
    session.time_budget = TimeBudget(100.0, lambda: 1, session.clock)
    return session, Experiment(cast("SessionContext", session), "a")


def test_wait_for_hosts_ends_with_the_time(tmp_path: Path) -> None:
    """A test that waits for another session until the time is spent is left out and named."""
    session, experiment = occupy(tmp_path, 0.0)
    with pytest.raises(TimeBudgetSpent, match="left out, for --time-budget=1min40s was spent before other sessions released"):
        experiment.measure([spec_of()])
    assert session.time_budget
    assert session.time_budget.left_out == ["a"]
    assert not session.folder.measurements()


@pytest.mark.parametrize(("rates", "verdict", "runs"), [((100.0, 0.001), "INCONCLUSIVE", 2), ((200.0, 0.1), "REGRESSED", 3)])
def test_check_has_a_verdict_while_hosts_are_occupied(
    tmp_path: Path, rates: tuple[float, float], verdict: str, runs: int
) -> None:
    """While another session has the hosts, a check is judged by the runs so far, and a loss is not traced."""
    baseline, margin = rates
    session, experiment = occupy(tmp_path, 1020.0)
    session.settings = Settings(explain="auto")
    session.store.update(SYSTEM, [entry_of([baseline * part for part in (0.99, 1.0, 1.01, 1.0, 1.0)])])
    (record,) = experiment.measure([spec_of()])
    assert experiment.check(record, margin=margin).verdict == verdict
    (record,) = session.folder.measurements()
    assert (len(record.measurement.runs), record.measurement.traced_run) == (runs, None)
    assert session.time_budget
    assert not session.time_budget.left_out


def test_only_tests_of_the_budget_end_their_wait(clock: Clock) -> None:
    """A comparison of stacks, which has no time from the budget, waits for hosts as long as it takes."""
    budget = TimeBudget(60.0, lambda: 1, clock)
    clock.now_s += 61.0
    budget.check_wait("dtfperf ab")
