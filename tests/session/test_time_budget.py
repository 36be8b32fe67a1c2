"""The time that a session may take: shared among tests, by a clock that the tests set."""

from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import cast

import pytest

from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.formats import format_time_budget, parse_time_budget
from pytest_dtfperf.limits.needs import Layout
from pytest_dtfperf.records.arithmetic import flop_per_image
from pytest_dtfperf.session.context import LEAST_STEPS, SessionContext, TimeBudget
from pytest_dtfperf.session.resolve import choose_time_budget
from pytest_dtfperf.session.settings import Settings
from pytest_dtfperf.spec import Spec
from tests.explain.probed import of_hosts, reading

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
def test_time_is_written_as_it_is_read(seconds: float) -> None:
    """What is shown of a time budget can be given again."""
    assert parse_time_budget(format_time_budget(seconds)) == seconds


def test_test_gets_even_share_of_the_rest(clock: Clock) -> None:
    """The first of four tests has a quarter; what it leaves is shared by the three after it."""
    budget = TimeBudget(400.0, lambda: 4, clock)
    assert budget.begin("a")
    assert budget.get_remaining_s("a") == 100.0
    clock.now_s += 40.0
    assert budget.begin("b")
    assert budget.get_remaining_s("b") == 120.0
    assert budget.begin("a")
    assert budget.get_remaining_s("a") == 60.0


def test_test_without_time_is_left_out(clock: Clock) -> None:
    """Once all time is spent, a test that has not begun is left out and named; one that has begun goes on."""
    budget = TimeBudget(60.0, lambda: 2, clock)
    assert budget.begin("a")
    clock.now_s += 61.0
    assert not budget.begin("perf_tests/t.py::test_b[gpus1]")
    assert not budget.begin("perf_tests/t.py::test_b[gpus1]")
    assert budget.begin("a")
    (line,) = budget.describe()
    assert line.startswith("--time-budget=1min was spent after 61 s. Left out: test_b[gpus1]. ")


def test_runs_end_with_the_share_of_the_test(clock: Clock) -> None:
    """A further run is made if it fits; below the fewest that a verdict needs, it may take the time of later tests."""
    budget = TimeBudget(40.0, lambda: 4, clock)
    budget.begin("a")
    assert budget.has_time("a", runs=2, fewest=2, run_s=10.0)
    assert not budget.has_time("a", runs=2, fewest=2, run_s=11.0)
    assert budget.has_time("what another test measured", runs=5, fewest=2, run_s=10.0)
    clock.now_s += 4.0
    assert budget.has_time("a", runs=1, fewest=2, run_s=9.0)
    assert budget.describe() == ["--time-budget=40s left fewer runs for 1 test: wider intervals"]


def test_later_tests_keep_the_time_of_one_run_each(clock: Clock) -> None:
    """A run below the fewest leaves each of two later tests the time of such a run, so that none is left out for it."""
    budget = TimeBudget(60.0, lambda: 3, clock)
    budget.begin("a")
    clock.now_s += 30.0
    assert budget.has_time("a", runs=1, fewest=4, run_s=10.0)
    assert not budget.has_time("a", runs=1, fewest=4, run_s=10.1)
    budget.begin("b")
    budget.begin("c")
    assert budget.has_time("c", runs=1, fewest=4, run_s=30.0), "no test is later"
    assert not budget.has_time("c", runs=1, fewest=4, run_s=30.1)
    assert budget.describe() == ["--time-budget=1min left fewer runs for 2 tests: wider intervals"]


def test_steps_fit_into_half_of_the_share(clock: Clock) -> None:
    """Two runs' steps, with their warm-up, take half of a test's time: at most the spec's steps, and at least three."""
    budget = TimeBudget(80.0, lambda: 2, clock)
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
def test_command_line_decides_before_the_cluster(settings: Settings, seconds: float | None) -> None:
    """The command line's time counts; else the cluster's, unless what is measured becomes baselines."""
    assert choose_time_budget(settings, ClusterConfig(name="local", time_budget="6min")) == seconds
    assert choose_time_budget(Settings(), ClusterConfig(name="daint")) is None


class Host:
    """A session on one host of two cores whose hour is known: a step of SPEC takes a second there."""

    settings = Settings()

    def __init__(self, clock: Clock, *, device: str = "cpu", allocation: str = "session") -> None:
        self.time_budget: TimeBudget | None = TimeBudget(80.0, lambda: 2, clock)
        self.cluster = SimpleNamespace(device=device)
        self.config = ClusterConfig(name="c", allocation=allocation)
        layout = Layout({"worker:0": "h"}, {"worker:0": 1})
        self.allocations = SimpleNamespace(get_launcher=lambda spec: SimpleNamespace(layout=lambda spec: layout))
        flop_per_s = float(flop_per_image(TRAINED) or 0) * TRAINED.batch_size / 0.4  # of which 40 % are usual
        self.capacity = of_hosts(h={"core.matmul": reading(flop_per_s), "cores.matmul": reading(flop_per_s)})

    def measuring(self, spec: Spec, test: str) -> AbstractContextManager[None]:
        return nullcontext()

    def probe_capacity(self, spec: Spec) -> None:
        """All is known."""

    def fit(self, spec: Spec, given: Collection[str] = ()) -> int:
        return SessionContext.fit_to_time(cast("SessionContext", self), spec, "a", given).steps


TRAINED = Spec(model="lenet", batch_size=8, warmup_steps=2, steps=100, num_ps=0, variable_update="replicated")


def test_steps_are_predicted_from_the_probe(clock: Clock) -> None:
    """A test with 40 s has 8 steps of a second in each of two runs, besides 2 of warm-up, for half of its time."""
    assert Host(clock).fit(TRAINED) == 8


@pytest.mark.parametrize(
    "changes",
    [{"device": "gpu"}, {"allocation": "test"}],
    ids=["GPUs", "an allocation for each measurement"],
)
def test_steps_stay_where_they_cannot_be_predicted(clock: Clock, changes: dict[str, str]) -> None:
    """What cores can do predicts no step on a GPU; a probe would end an allocation that is made for one measurement."""
    assert Host(clock, **changes).fit(TRAINED) == 100


def test_steps_stay_where_they_are_set_or_learnt_by(clock: Clock) -> None:
    """Steps that a test sets, those of a training that is evaluated, and all without a budget stay."""
    host = Host(clock)
    assert host.fit(TRAINED, given={"steps"}) == 100
    assert host.fit(TRAINED.but(model="mnist", data="mnist", data_dir="/digits", evaluate=True)) == 100
    host.time_budget = None
    assert host.fit(TRAINED) == 100
