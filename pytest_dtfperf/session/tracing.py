"""Which steps of a session are traced, so that its causes have an anatomy. Values in, answers out.

always   one run of every measurement trains some more steps, traced
auto     of what becomes a baseline likewise; where a judgement is not green, one more short run is made for it
never    nothing is traced
"""

from dataclasses import replace

from pytest_dtfperf.baselines.checks import Kind
from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.measurement import Measurement, Run
from pytest_dtfperf.session.resolve import RepeatPlan
from pytest_dtfperf.session.settings import Settings
from pytest_dtfperf.spec import Spec

MEASURED_STEPS = 10  # of a run that is made to be traced: nobody counts them, and fewer would trace a cold start
_OF_RATES = frozenset[Kind]({"baseline", "published", "efficiency", "overhead"})  # checks that slow steps may fail


def is_traced(settings: Settings, plan: RepeatPlan, spec: Spec, runs: list[Run]) -> bool:
    """Whether the run that follows these has further steps: the one that is likely to be the measurement's last, once."""
    if spec.command or settings.explain == "never" or (settings.explain == "auto" and not settings.update_baselines):
        return False
    all_are_made = plan.is_fixed or settings.update_baselines or settings.all_repeats
    last = plan.repeats if all_are_made else plan.fewest
    return len(runs) + 1 >= last and not any(run.anatomy or run.unexplained for run in runs)


def needs_a_run(settings: Settings, kind: Kind, verdict: Verdict, measurement: Measurement) -> bool:
    """Whether one more run is made for it, because what was found asks for causes."""
    asked = settings.explain != "never" and not measurement.spec.command and measurement.traced_run is None
    return asked and kind in _OF_RATES and not verdict.lacks_baseline and verdict.row.outcome != "pass"


def most_runs(settings: Settings, spec: Spec) -> int:
    """How many runs of a spec there may be for being traced alone, each shorter than a measured one."""
    return 0 if settings.explain == "never" or settings.update_baselines or spec.command else 1


def short(spec: Spec) -> Spec:
    """The same training, warmed up as ever, with fewer measured steps and no evaluation."""
    return replace(
        spec,
        steps=min(spec.steps, MEASURED_STEPS),
        evaluate=False,
        stop_at_top_1_accuracy=None,
        eval_during_training_every_n_steps=None,
    )
