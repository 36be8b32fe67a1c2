"""What is found out about a measurement once it is judged: what its hosts can do, what they allow, and why it is not green.

Whatever goes wrong here costs that alone: the verdict is written down already, and stays.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pytest_dtfperf.baselines.checks import Check, Kind
from pytest_dtfperf.baselines.comparability import must_match, other_hosts
from pytest_dtfperf.baselines.entry import Entry
from pytest_dtfperf.baselines.verdict import Judgement, Verdict
from pytest_dtfperf.errors import InfrastructureError, InvalidMeasurement, RunFailed, SpecError, first_line
from pytest_dtfperf.explain.anatomy import Anatomy
from pytest_dtfperf.explain.causes import Explanation
from pytest_dtfperf.explain.experiments import Planned, Suspect, Tried, failed, planned, read
from pytest_dtfperf.explain.probes import Probes
from pytest_dtfperf.limits.limit import Limit, limit
from pytest_dtfperf.limits.needs import Layout
from pytest_dtfperf.measurement import Measurement, Run
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.session.bench import Bench
from pytest_dtfperf.session.explanation import told
from pytest_dtfperf.session.resolve import RepeatPlan
from pytest_dtfperf.session.settings import Settings
from pytest_dtfperf.spec import Spec

MOST = 4  # experiments: causes beyond the fourth are small
PATIENCE = 2.0  # times what the measurement's runs took: when so long is spent, no further experiment is begun
# Where nothing has been explained, the whole change is suspected to be each of these.
UNEXPLAINED = ("input", "waiting", "compute")


def diagnosed(
    bench: Bench, test: str, measurement: Measurement, explanation: Explanation, then: Mapping[str, Any] | None
) -> Sequence[Tried]:
    """What experiments say of an explanation's causes; none where no hosts are lent any more. `then`: the good step's anatomy.

    Whatever goes wrong costs an experiment, and no verdict.
    """
    if not bench.lending.holds or measurement.spec.command:
        return []
    launcher = bench.lending.launcher
    spare = len(launcher.hosts) - len(measurement.hosts)
    plans = planned(suspects(explanation), measurement.spec.to_json(), spare_hosts=spare, most=MOST)
    before = Anatomy.from_json(then) if then else None
    return list(_Round(bench, test, measurement, explanation, before).of(plans))


def suspects(explanation: Explanation) -> list[Suspect]:
    """The causes; where there are none, whatever an experiment can tell of."""
    found = [Suspect(cause.kind, cause.seconds, cause.location) for cause in explanation.causes if cause.seconds > 0]
    return found or [Suspect(kind, explanation.change_s) for kind in UNEXPLAINED]


class _Round:
    """The experiments on one measurement, one after the other."""

    def __init__(
        self, bench: Bench, test: str, measurement: Measurement, explanation: Explanation, then: Anatomy | None
    ) -> None:
        self._bench = bench
        self._test = test
        self._measurement = measurement
        self._explanation = explanation
        self._then = then
        self._left_s = PATIENCE * sum(run.wall_s for run in measurement.runs)

    def of(self, plans: Sequence[Planned]) -> Iterator[Tried]:
        made: dict[tuple[Spec, frozenset[str]], float] = {}  # that serve several causes
        for number, plan in enumerate(plans, start=1):
            try:
                spec, without = self._spec(plan), self._without(plan)
                if (spec, without) not in made:
                    made[spec, without] = self._step_s(spec, without, number, len(plans))
            except (RunFailed, InvalidMeasurement, InfrastructureError, SpecError) as error:
                yield failed(plan, self._explanation.step_s, first_line(error))
                continue
            yield read(
                plan,
                step_s=made[spec, without],
                instead_of_s=self._explanation.step_s,
                noise_s=self._explanation.noise_s,
                then=self._then,
            )

    def _spec(self, plan: Planned) -> Spec:
        return replace(short(self._measurement.spec), **plan.trial.changes)

    def _without(self, plan: Planned) -> frozenset[str]:
        """The host that is left out."""
        if not plan.trial.leaves_out or not plan.suspect.location:
            return frozenset()
        ends = plan.suspect.location.split(">")
        task_hosts = self._measurement.runs[-1].task_hosts
        hosts = [task_hosts.get(end, end) for end in ends]
        found = next((host for host in reversed(hosts) if host in self._measurement.hosts), None)
        if found is None:
            raise SpecError(f"{plan.suspect.location} is on no host of this measurement")
        return frozenset([found])

    def _step_s(self, spec: Spec, without: frozenset[str], number: int, of: int) -> float:
        """Seconds of a step, as rates tell: the same as that which is explained is."""
        if self._left_s <= 0:
            raise SpecError("no time is left for it: experiments may take twice as long as what they explain")
        run = self._bench.run(spec, self._test, number=number, of=of, without=without)
        self._left_s -= run.wall_s
        return spec.gpus * spec.batch_size / run.images_per_sec


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


def limit_of(measurement: Measurement, entry: Entry | None) -> Limit | None:
    """As `_limit_of` has it; whatever goes wrong there costs the limit alone, and no verdict."""
    try:
        return _limit_of(measurement, entry)
    except Exception as error:
        return Limit(unknown={"all": f"{type(error).__name__}: {' '.join(str(error).split())}"})


def _limit_of(measurement: Measurement, entry: Entry | None) -> Limit | None:
    """None of what an external command trains, and of what was measured before it was recorded where tasks were.

    What was probed in this session counts first: hosts may do less than when the baseline was accepted, and then less is what
    they allow. An INCOMPARABLE baseline's are of other hosts, and say nothing of these. Data sheets of GPUs need no probes.
    """
    run = measurement.samples[-1]
    if measurement.spec.command or not run.task_hosts:
        return None
    is_of_these = entry is not None and not other_hosts(entry.fingerprint, measurement.fingerprint)
    found = measurement.probes or (entry.probes if entry and is_of_these else None)
    probes = Probes.from_json(found) if found else Probes()
    layout = Layout(run.task_hosts, run.task_threads, run.task_devices)
    return limit(measurement.spec, layout, probes, _gpus(measurement.fingerprint))


def _gpus(fingerprint: Mapping[str, Any]) -> list[str]:
    """The names; none where cores compute: hosts without GPUs, or with GPUs that are not to be used."""
    hardware = fingerprint.get("hardware") or {}
    names = [gpu["name"] for gpu in hardware.get("gpus") or ()]
    return [] if hardware.get("cpu_devices") else names


def follow_up(bench: Bench, test: str, record: Record, check: Check, judgement: Judgement, other: Measurement | None) -> Record:
    """Return the record with that, which is kept in the session's folder. `other`: what a check of two compares it with."""
    if check.verdict.asks_why and not record.measurement.probes:
        record = bench.probe(record)
    if needs_a_run(bench.settings, check.kind, check.verdict, record.measurement):
        record = _traced(bench, test, record)
    record = _limited(bench, record, check.side.entry)
    return _explained(bench, test, record, check, judgement, other)


def _traced(bench: Bench, test: str, record: Record) -> Record:
    """One more short run, on hosts that are still lent, for its anatomy alone."""
    spec, runs = short(record.spec), len(record.measurement.runs)
    with bench.measuring(record.spec, test):
        if not bench.lending.holds:
            return record
        try:
            run = bench.run(spec, test, number=runs + 1, of=runs + 1, explain=True)
        except (RunFailed, InvalidMeasurement, InfrastructureError):  # the progress has said so
            return record
        if must_match(record.measurement.fingerprint, bench.cluster.fingerprint_of(run)):
            return record
    return bench.folder.note_traced(record.id, run)


def _limited(bench: Bench, record: Record, entry: Entry | None) -> Record:
    """With the rate that its hosts and links would allow."""
    found = limit_of(record.measurement, entry)
    if found is None or found.to_json() == record.limit:
        return record
    return bench.folder.note_limit(record.id, found.to_json())


def _explained(
    bench: Bench, test: str, record: Record, check: Check, judgement: Judgement, other: Measurement | None
) -> Record:
    """Return it with what makes it slower, if it is not green. Of several judgements, the one of the verdict is explained."""
    why = told(check, record.measurement, other, bench.config.name, judgement)
    if not why or (record.verdict, record.reason) != (check.verdict, check.reason):
        return record
    return _diagnosed(bench, test, bench.folder.explain(record.id, **why), check, other)


def _diagnosed(bench: Bench, test: str, record: Record, check: Check, other: Measurement | None) -> Record:
    """With what experiments say of that, if somebody asked for them."""
    if not bench.settings.diagnose or record.explanation is None:
        return record
    entry, before = check.side.entry, other.traced_run if other else None
    then = before.anatomy if before else entry.anatomy if entry else None
    with bench.measuring(record.spec, test):
        tried = diagnosed(bench, test, record.measurement, Explanation.from_json(record.explanation), then)
    return bench.folder.note_experiments(record.id, [each.to_json() for each in tried]) if tried else record
