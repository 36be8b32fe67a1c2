"""Traced runs: which runs are traced, and which are made for it."""

from dataclasses import replace

import pytest

from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.datamodel.fingerprint import Fingerprint
from pytest_dtfperf.datamodel.measurement import Measurement, Run
from pytest_dtfperf.datamodel.step_times import StepBreakdown
from pytest_dtfperf.session.post_analysis import count_extra_runs, is_traced, needs_traced_run, shorten
from pytest_dtfperf.session.resolve import RepeatPlan
from pytest_dtfperf.session.settings import ExplainWord, Settings
from pytest_dtfperf.spec import Spec

SPEC = Spec(model="mnist", batch_size=32, gpus=2, num_ps=1, steps=100, data="mnist", data_dir="/data", evaluate=True)
COMMAND = Spec(model="mnist", batch_size=32, command=("python", "train.py"))
RUN = Run(
    images_per_sec=100.0, elapsed_s=1.0, step_s={}, loss=[], startup_s={}, bytes_sent=0, bytes_received=0,
    peak_rss_bytes={}, cpu_s={}, wall_s=2.0,
)  # fmt: skip
BREAKDOWN = StepBreakdown(steps=5, wall_s=0.1, path=[], tasks={}, links=[], clock_error_s={})
PLAN = RepeatPlan(repeats=5, min_repeats=3)


@pytest.mark.parametrize(
    "settings, plan, runs_before, traced",
    [
        (Settings(), PLAN, 2, False),  # auto, and nothing is accepted
        (Settings(update_baselines="all"), PLAN, 2, False),
        (Settings(update_baselines="new"), PLAN, 4, True),  # the last of all
        (Settings(explain="always"), PLAN, 1, False),
        (Settings(explain="always"), PLAN, 2, True),  # where most measurements end
        (Settings(explain="always"), PLAN, 3, True),  # its third failed to be the traced one: nothing says why
        (Settings(explain="always", all_repeats=True), PLAN, 2, False),
        (Settings(explain="always"), RepeatPlan(repeats=1, is_fixed=True), 0, True),
        (Settings(explain="always"), RepeatPlan(repeats=3, is_fixed=True), 1, False),  # all that the test wants are made
        (Settings(explain="never", update_baselines="all"), PLAN, 4, False),
    ],
)
def test_one_run_of_a_measurement_is_traced(settings: Settings, plan: RepeatPlan, runs_before: int, traced: bool) -> None:
    """The probably last run is traced once; runs of an external command never are."""
    assert is_traced(settings, plan, SPEC, [RUN] * runs_before) is traced
    assert not is_traced(settings, plan, COMMAND, [RUN] * runs_before)
    for was_traced in (replace(RUN, unexplained="why"), replace(RUN, step_breakdown=BREAKDOWN)):
        assert not is_traced(settings, plan, SPEC, [was_traced, *[RUN] * runs_before])


@pytest.mark.parametrize("word, made", [("always", True), ("auto", True), ("never", False)])
def test_bad_verdict_has_a_traced_run(word: ExplainWord, made: bool) -> None:
    """A bad verdict has a further traced run, unless a run is traced or the check is not about time."""
    settings, measurement = Settings(explain=word), Measurement(spec=SPEC, runs=[RUN], hosts=["n1"], fingerprint=Fingerprint())
    for verdict in (Verdict.REGRESSED, Verdict.INCONCLUSIVE, Verdict.TAINTED):
        assert needs_traced_run(settings, "baseline", verdict, measurement) is made
        assert not needs_traced_run(settings, "accuracy", verdict, measurement)
    for verdict in (Verdict.PASSED, Verdict.IMPROVED, Verdict.NO_BASELINE, Verdict.INCOMPARABLE):
        assert not needs_traced_run(settings, "baseline", verdict, measurement)
    traced = replace(measurement, runs=[replace(RUN, step_breakdown=BREAKDOWN)])
    assert not needs_traced_run(settings, "baseline", Verdict.REGRESSED, traced)
    assert not needs_traced_run(settings, "baseline", Verdict.REGRESSED, replace(measurement, spec=COMMAND))
    assert count_extra_runs(settings, SPEC) == int(made)


def test_traced_run_is_short() -> None:
    """A traced run has at most 10 steps and no evaluation."""
    assert shorten(SPEC) == SPEC.replace(steps=10, evaluate=False)
    assert shorten(SPEC.replace(steps=3, evaluate=False)).steps == 3


def test_traced_run_does_not_count() -> None:
    """A traced run is read again as it was written, and changes neither rates nor the number of runs."""
    measurement = Measurement(
        spec=SPEC, runs=[RUN], hosts=["n1"], fingerprint=Fingerprint(), traced=replace(RUN, images_per_sec=1.0)
    )
    again = Measurement.from_json(measurement.to_json())
    assert again.traced == measurement.traced
    assert (again.rates, len(again.runs), len(again.all_runs)) == ([100.0], 1, 2)
