"""Analyse a measurement after its judgement: probe its hosts, compute their limit, and find the cause of a loss.

The verdict is recorded before it: errors here affect only the analysis. With --diagnose, short runs on hosts that are
still allocated confirm or refute each cause; they are not part of a measurement.

Which steps are traced, for a step breakdown:

always   one run of every measurement traces some more steps
auto     also of measurements that become baselines; after a judgement that is not green, one more short run is made for it
never    nothing is traced
"""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from pytest_dtfperf.baselines.comparability import list_forbidden_differences, list_host_differences
from pytest_dtfperf.baselines.entry import Entry
from pytest_dtfperf.baselines.judgement import Judgement, Kind
from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.clusters.named import make_cluster_options
from pytest_dtfperf.datamodel.explanation import CauseKind, ExperimentResult, Explanation, Limit
from pytest_dtfperf.datamodel.measurement import Measurement, Run
from pytest_dtfperf.datamodel.probes import Probes
from pytest_dtfperf.datamodel.step_times import StepBreakdown
from pytest_dtfperf.errors import InfrastructureError, InvalidMeasurement, RunFailed, SpecError, TimeBudgetSpent, get_first_line
from pytest_dtfperf.explain.experiments import (
    ExperimentSubject,
    PlannedExperiment,
    judge_experiment,
    plan_experiments,
    report_failed_experiment,
)
from pytest_dtfperf.explain.probes import is_disturbed, merge_probes
from pytest_dtfperf.limits.limit import find_limit, list_gpus
from pytest_dtfperf.limits.needs import Layout
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.session.context import SessionContext
from pytest_dtfperf.session.explanation import describe_cause
from pytest_dtfperf.session.resolve import RepeatPlan
from pytest_dtfperf.session.settings import Settings
from pytest_dtfperf.spec import Spec

MEASURED_STEPS = 10  # of a run for a trace: its rate does not count, and fewer would trace a cold start
_OF_RATES = frozenset[Kind]({"baseline", "published", "efficiency", "overhead"})  # checks that slow steps may fail
MOST_EXPERIMENTS = 4  # experiments: causes beyond the fourth are small
PROBE_S = 5.0  # of probes of one host, and of all hosts of a cluster, which are probed in parallel
MOST_TIME = 2.0  # relative to the measurement's runs: afterwards, no further experiment begins
# Without an explanation, each of these is a candidate cause of the whole change.
UNEXPLAINED = (CauseKind.INPUT, CauseKind.WAITING, CauseKind.COMPUTE)


def analyse(session: SessionContext, test: str, record: Record, judgement: Judgement, other: Measurement | None) -> Record:
    """Return the record with its analysis, which is stored in the session's folder.

    Args:
        other: the other record in a check of two measurements.
    """
    if judgement.verdict.asks_why and not record.measurement.probes and session.can_explain(test, PROBE_S):
        record = session.probe(record, again=True)
    if needs_traced_run(session.settings, judgement.kind, judgement.verdict, record.measurement):
        with suppress(TimeBudgetSpent):
            record = _with_traced_run(session, test, record)
    record = note_limit(session, record, judgement.entry)
    return _with_explanation(session, test, record, judgement, other)


def _with_traced_run(session: SessionContext, test: str, record: Record) -> Record:
    """Return the record with one more short run, on hosts that are still allocated, only for its step breakdown."""
    spec, runs = shorten(record.spec), len(record.measurement.runs)
    if not session.can_explain(test, record.measurement.runs[-1].wall_s):
        return record
    with session.measuring(record.spec, test):
        if not session.allocations.has_hosts:
            return record
        try:
            run = session.run(spec, test, number=runs + 1, total=runs + 1, explain=True)
        except (RunFailed, InvalidMeasurement, InfrastructureError):  # the progress display has shown it
            return record
        if list_forbidden_differences(record.measurement.fingerprint, session.cluster.collect_fingerprint(run)):
            return record
    return session.folder.note_traced(record.id, run)


def note_limit(session: SessionContext, record: Record, entry: Entry | None = None) -> Record:
    """Return the record with the limit of its hosts and links, and store it.

    Args:
        entry: the baseline, if the record was compared with one; its probes are used if this session has none.
    """
    found = compute_limit(record.measurement, entry, session.capacity)
    if found is None or found == record.limit:
        return record
    return session.folder.note_limit(record.id, found)


def _with_explanation(
    session: SessionContext, test: str, record: Record, judgement: Judgement, other: Measurement | None
) -> Record:
    """Return the record with the causes of its loss, if it is not green. Of several checks, the verdict's is explained."""
    why = describe_cause(judgement, record.measurement, other, shlex.join(make_cluster_options(session.config)))
    if not why or (record.verdict, record.reason) != (judgement.verdict, judgement.reason):
        return record
    return _with_experiments(session, test, session.folder.explain(record.id, **why), judgement, other)


def _with_experiments(
    session: SessionContext, test: str, record: Record, judgement: Judgement, other: Measurement | None
) -> Record:
    """Return the record with the results of experiments on its causes, with --diagnose."""
    if not session.settings.diagnose or record.explanation is None:
        return record
    entry, before = judgement.entry, other.traced_run if other else None
    baseline = before.step_breakdown if before else entry.step_breakdown if entry else None
    tried: Sequence[ExperimentResult] = ()
    with suppress(TimeBudgetSpent), session.measuring(record.spec, test):
        tried = run_experiments(session, test, record.measurement, record.explanation, baseline)
    return session.folder.note_experiments(record.id, tried) if tried else record


def is_traced(settings: Settings, plan: RepeatPlan, spec: Spec, runs: list[Run]) -> bool:
    """Return whether the run after these traces further steps: once, in what is likely the measurement's last run."""
    if spec.command or settings.explain == "never" or (settings.explain == "auto" and not settings.update_baselines):
        return False
    all_are_made = plan.is_fixed or settings.makes_all_repeats
    last = plan.repeats if all_are_made else plan.fewest
    return len(runs) + 1 >= last and not any(run.step_breakdown or run.unexplained for run in runs)


def needs_traced_run(settings: Settings, kind: Kind, verdict: Verdict, measurement: Measurement) -> bool:
    """Return whether one more run is made for a step breakdown, because the verdict asks for causes."""
    asked = settings.explain != "never" and not measurement.spec.command and measurement.traced_run is None
    return asked and kind in _OF_RATES and not verdict.lacks_baseline and verdict.row.outcome != "pass"


def count_extra_runs(settings: Settings, spec: Spec) -> int:
    """Return how many runs of a spec are made at most only for a trace, each shorter than a measured one."""
    return 0 if settings.explain == "never" or settings.update_baselines or spec.command else 1


def shorten(spec: Spec) -> Spec:
    """Return the same training, warmed up alike, with fewer measured steps and no evaluation."""
    return replace(
        spec,
        steps=min(spec.steps, MEASURED_STEPS),
        evaluate=False,
        stop_at_top_1_accuracy=None,
        eval_during_training_every_n_steps=None,
    )


def compute_limit(measurement: Measurement, entry: Entry | None, capacity: Probes) -> Limit | None:
    """Return the limit of a measurement's hosts and links, by probes of it, of its session, or of its baseline.

    None for an external command. An error makes the limit unknown, with the reason, and does not affect the verdict.

    Args:
        capacity: the session's probes of its hosts and links.
    """
    try:
        return _compute_limit(measurement, entry, capacity)
    except Exception as error:
        return Limit(unknown={"all": f"{type(error).__name__}: {' '.join(str(error).split())}"})


def _compute_limit(measurement: Measurement, entry: Entry | None, capacity: Probes) -> Limit | None:
    """Prefer new probes: hosts may be slower than when the baseline was accepted, and then the limit is lower.

    Probes of an INCOMPARABLE baseline are of other hosts. Data sheets of GPUs need no probes.
    """
    run = measurement.samples[-1]
    if measurement.spec.command or not run.task_hosts:
        return None
    is_of_these = entry is not None and not list_host_differences(entry.fingerprint, measurement.fingerprint)
    known = (entry.probes if entry and is_of_these else None) or Probes()
    known = merge_probes(known, capacity)
    if measurement.probes:
        known = merge_probes(known, _drop_disturbed(measurement.probes, known))
    layout = Layout(run.task_hosts, run.task_threads, run.task_devices)
    return find_limit(measurement.spec, layout, known, list_gpus(measurement.fingerprint))


def _drop_disturbed(probes: Probes, known: Probes) -> Probes:
    """Return the probes without disturbed ones of hosts with undisturbed probes in `known`."""
    kept = {name: probe for name, probe in probes.hosts.items() if name not in known.hosts or not is_disturbed(probe)}
    return replace(probes, hosts=kept)


def run_experiments(
    session: SessionContext, test: str, measurement: Measurement, explanation: Explanation, baseline: StepBreakdown | None
) -> Sequence[ExperimentResult]:
    """Return the results of experiments on an explanation's causes; none if no hosts are allocated any more.

    Args:
        baseline: the step breakdown of the baseline.
    """
    if not session.allocations.has_hosts or measurement.spec.command:
        return []
    launcher = session.allocations.get_launcher()
    spare = len(launcher.hosts) - len(measurement.hosts)
    plans = plan_experiments(
        list_candidate_causes(explanation), measurement.spec.to_json(), spare_hosts=spare, most=MOST_EXPERIMENTS
    )
    return list(_Experiments(session, test, measurement, explanation, baseline).make(plans))


def list_candidate_causes(explanation: Explanation) -> list[ExperimentSubject]:
    """Return the causes; without any, each kind that an experiment can confirm."""
    found = [ExperimentSubject(cause.kind, cause.seconds, cause.location) for cause in explanation.causes if cause.seconds > 0]
    return found or [ExperimentSubject(kind, explanation.change_s) for kind in UNEXPLAINED]


class _Experiments:
    """The experiments on one measurement, one after the other. An error affects only its experiment."""

    def __init__(
        self,
        session: SessionContext,
        test: str,
        measurement: Measurement,
        explanation: Explanation,
        baseline: StepBreakdown | None,
    ) -> None:
        self._session = session
        self._test = test
        self._measurement = measurement
        self._explanation = explanation
        self._baseline = baseline
        self._left_s = MOST_TIME * sum(run.wall_s for run in measurement.runs)

    def make(self, plans: Sequence[PlannedExperiment]) -> Iterator[ExperimentResult]:
        made: dict[tuple[Spec, frozenset[str]], float] = {}  # a run may serve several causes
        for number, plan in enumerate(plans, start=1):
            try:
                spec, without = self._spec(plan), self._get_left_out(plan)
                if (spec, without) not in made:
                    made[spec, without] = self._step_s(spec, without, number, len(plans))
            except (RunFailed, InvalidMeasurement, InfrastructureError, SpecError) as error:
                yield report_failed_experiment(plan, self._explanation.step_s, get_first_line(error))
                continue
            yield judge_experiment(
                plan,
                step_s=made[spec, without],
                instead_of_s=self._explanation.step_s,
                noise_s=self._explanation.noise_s,
                baseline=self._baseline,
            )

    def _spec(self, plan: PlannedExperiment) -> Spec:
        return replace(shorten(self._measurement.spec), **plan.trial.changes)

    def _get_left_out(self, plan: PlannedExperiment) -> frozenset[str]:
        """Return the host that is left out."""
        if not plan.trial.leaves_out or not plan.subject.location:
            return frozenset()
        ends = plan.subject.location.split(">")
        task_hosts = self._measurement.runs[-1].task_hosts
        hosts = [task_hosts.get(end, end) for end in ends]
        found = next((host for host in reversed(hosts) if host in self._measurement.hosts), None)
        if found is None:
            raise SpecError(f"{plan.subject.location} is on no host of this measurement")
        return frozenset([found])

    def _step_s(self, spec: Spec, without: frozenset[str], number: int, total: int) -> float:
        """Return the seconds of a step, computed from the rate, as in explanations."""
        if self._left_s <= 0:
            raise SpecError("no time is left for it: experiments may take twice as long as what they explain")
        if not self._session.can_explain(self._test, self._measurement.runs[-1].wall_s):
            raise SpecError("no time of --time-budget is left for it")
        run = self._session.run(spec, self._test, number=number, total=total, without=without)
        self._left_s -= run.wall_s
        return spec.gpus * spec.batch_size / run.images_per_sec
