"""Measure and check the specs of one test: run them until each verdict is decided, and record and judge them."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_dtfperf.baselines import references
from pytest_dtfperf.baselines.checks import ask
from pytest_dtfperf.baselines.comparability import list_forbidden_differences, list_host_differences
from pytest_dtfperf.baselines.compare import get_noise, judge
from pytest_dtfperf.baselines.judgement import Judgement, Kind, PublishedRate
from pytest_dtfperf.baselines.terms import ComparisonPolicy, share
from pytest_dtfperf.baselines.thresholds import are_in_turn, runs_around, shared_rounds, to_measure_again
from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.datamodel.fingerprint import Fingerprint
from pytest_dtfperf.datamodel.host_state import Disturbance
from pytest_dtfperf.datamodel.measurement import Measurement, Run
from pytest_dtfperf.errors import InvalidMeasurement, SpecError, TimeBudgetSpent
from pytest_dtfperf.launch.summary import check_repetition
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.session.context import SessionContext
from pytest_dtfperf.session.post_analysis import analyse, is_traced, note_limit
from pytest_dtfperf.session.resolve import RepeatPlan, choose_margin, choose_min_efficiency
from pytest_dtfperf.session.sweep import Sweep, select_fastest
from pytest_dtfperf.spec import Spec

IN_TURN: Sequence[Kind] = ("efficiency", "overhead")  # checks of two rates, which a change of the machine would bias
SPARE_RUNS = 1  # beyond the repeats, to replace disturbed runs: more would only wait for a quieter machine

UNIX_S = time.time() - time.monotonic()  # rounds stay in order even if the system's clock is set back between them

HOPELESS_RUNS = 3  # if all are disturbed, the measurement cannot become a baseline, and more would only cost time


def has_enough_runs(clean: int, made: int, limit: int, *, spare: int = SPARE_RUNS) -> bool:
    """Return whether no more runs are made: `limit` are undisturbed, or as many were made, including the spare ones."""
    return clean >= limit or made >= limit + spare


@dataclass(eq=False)
class _SpecRuns:
    """The runs of one spec, for a new measurement, or for one that has a record already."""

    spec: Spec
    plan: RepeatPlan
    runs: list[Run] = field(default_factory=list)
    fingerprint: Fingerprint = field(default_factory=Fingerprint)  # of the last run's hosts
    terms: ComparisonPolicy | None = None  # None until the hosts are known
    record: Record | None = None  # to which each further run is written immediately
    invalid: str = ""  # why its last run is invalid

    @property
    def recorded(self) -> Measurement:
        assert self.record
        return self.record.measurement

    @property
    def is_void(self) -> bool:
        """Whether its measurement has become INVALID by a further run for another check."""
        return self.record is not None and self.record.is_void


class Experiment:
    """The measurements and checks of one test. Its checks share the test's part of the false alarms."""

    def __init__(
        self,
        session: SessionContext,
        name: str,
        *,
        margin: float | None = None,
        efficiency: float | None = None,
        checks: int | None = None,
        on_record: Callable[[Record], object] = lambda record: None,
        attempt: int = 1,
    ) -> None:
        """Note the declarations of the test.

        Args:
            name: the test's name in records.
            margin: largest loss of rate, as a part of the baseline's.
            efficiency: least scaling efficiency, as a fraction.
            checks: how many checks the test makes, if it declares that.
            on_record: called with every measurement as it is written, before any other use.
            attempt: 2 if the test is run for the second time.
        """
        self._session = session
        self._name = name
        self._margin = margin
        self._efficiency = efficiency
        self._declared_checks = checks
        self._checks_made = 0
        self._red_tests: int | None = None  # number of other tests that had failed before the first check
        self._on_record = on_record
        self._attempt = attempt
        self._sweeps: list[Sweep] = []  # with specs that remain to be measured

    # -- measuring

    def measure(self, specs: Sequence[Spec], repeats: int | None = None) -> list[Record]:
        """Measure each spec, with a run of each in turn. Specs that this session has measured are not trained again.

        Args:
            repeats: the number of runs; None: as many as the verdicts need.

        Raises:
            SpecError, RunFailed, InvalidMeasurement, InfrastructureError: of a run; earlier measurements are recorded.
            TimeBudgetSpent: the session has no time for a run of each.
        """
        plans = {spec: self._session.plan(spec, repeats) for spec in specs}
        known = {spec: self._session.folder.find(spec, but_not_of=self._name) for spec in plans}
        cases = {spec: _SpecRuns(spec, plans[spec], record=found) for spec, found in known.items()}
        if new := [case for case in cases.values() if case.record is None]:
            if budget := self._session.time_budget:
                budget.require(self._name, 0.0)
                budget.require(self._name, sum(self._session.estimate_run_s(case.spec, self._name) for case in new))
            try:
                self._measure(new)
            except TimeBudgetSpent:  # while it waited for hosts
                if budget:
                    budget.begin(self._name)  # notes the test as left out
                raise
        while self._sweeps:
            self._sweeps.pop().forget()
        return [self._note_terms(cases[spec]) for spec in specs]

    def sweep(self, spec: Spec, repeats: int | None = None) -> Record:
        """Return the measurement with the fastest number of parameter servers, of the two that remain after short runs.

        Raises what `measure` raises.
        """
        sweep, left = self._run_sweep(spec, finalists=2, repeats=repeats)
        best = select_fastest(self.measure(left, repeats))
        self._session.folder.note_sweep(best.id, sweep.found)
        return best

    def with_swept_num_ps(self, spec: Spec) -> Spec:
        """Return the spec with the number of parameter servers that short runs find fastest, to be measured with others.

        For an external command, which has no short runs, all remaining numbers are measured in full.
        """
        _, left = self._run_sweep(spec, finalists=1)
        return left[0] if len(left) == 1 else select_fastest(self.measure(left)).spec

    def _run_sweep(self, spec: Spec, finalists: int, repeats: int | None = None) -> tuple[Sweep, list[Spec]]:
        """Return the sweep and its remaining specs; it keeps its short runs until these are measured."""
        self._session.plan(spec, repeats)  # impossible specs are refused before the short runs
        sweep = Sweep(self._session, self._name, spec)
        left = sweep.carry_out(finalists)
        self._sweeps.append(sweep)
        return sweep, left

    def with_best_num_ps(self, spec: Spec) -> Spec:
        """Return the spec with the fastest number of parameter servers that has a baseline. Raises `SpecError` if none has."""
        self._session.plan(spec)
        system = self.system(spec)
        num_ps = self._session.store.best_num_ps(system, spec)
        if num_ps is None:
            raise SpecError(
                f"num_ps=best: no baseline of {system} has the best number of parameter servers for {spec.label}. "
                "Find out with --num-ps=sweep --update-baselines"
            )
        return spec.replace(num_ps=num_ps)

    def system(self, spec: Spec) -> str:
        """Return the name of the hardware that a spec would be measured on."""
        with self._session.measuring(spec, self._name):
            return self._session.cluster.system

    def _note_terms(self, case: _SpecRuns) -> Record:
        """Store the policy of the record's measurement, for its checks."""
        assert case.record
        terms = case.terms or self._comparison_terms(case.spec, case.record.measurement.fingerprint)
        self._session.plans[case.record.id] = case.plan
        self._session.terms[case.record.id, self._name] = terms
        return case.record

    def _measure(self, cases: Sequence[_SpecRuns]) -> None:
        """Make runs until all are decided, and record them before the hosts are released, which may take long."""
        with self._measuring(*(case.spec for case in cases)):
            self._session.probe_capacity(max((case.spec for case in cases), key=_size))
            try:
                self._run_until(cases, lambda left: [case for case in left if not self._is_decided(case)])
            except BaseException:  # Ctrl-C too: earlier runs have cost their time
                self._record(cases)
                self._judge_invalid(cases)
                raise
            self._record(cases)
            if self._session.settings.update_baselines:
                self._probe(cases)

    def _judge_invalid(self, cases: Sequence[_SpecRuns]) -> None:
        """Judge only the measurement with the inconsistent run as INVALID; the others stay unchanged."""
        for case in cases:
            if case.invalid and case.record:
                self._session.folder.judge(case.record.id, verdict=Verdict.INVALID, reason=case.invalid)

    def _measuring(self, *specs: Spec) -> AbstractContextManager[None]:
        return self._session.measuring(max(specs, key=_size), self._name)

    def _has_time(self, cases: Sequence[_SpecRuns]) -> bool:
        """Return whether the time budget allows another run of each, like the last ones."""
        budget = self._session.time_budget
        made = [case for case in cases if case.runs]
        if budget is None or not made:
            return True
        least = min(made, key=lambda case: len(case.runs) - _count_fewest(case.plan))
        run_s = sum(case.runs[-1].wall_s for case in made)
        return budget.has_time(self._name, runs=len(least.runs), fewest=_count_fewest(least.plan), run_s=run_s)

    def _run_until(self, left: Sequence[_SpecRuns], still_open: Callable[[Sequence[_SpecRuns]], Sequence[_SpecRuns]]) -> None:
        """Make a run of each in turn, until `still_open` leaves none or the time is spent. Only this loop makes runs.

        Machine drift affects all of them; the order is reversed in each round, which favours none.
        """
        while left and self._has_time(left):
            round_s = UNIX_S + time.monotonic()
            kept = [self._run(case, round_s) for case in left]
            left = still_open(left[::-1]) if any(kept) else ()  # after another allocation, these get no more runs

    def _run(self, case: _SpecRuns, round_s: float) -> bool:
        """Make a run, and return whether it counts, and was on the hosts of its record."""
        number = len(case.runs) + 1
        explain = is_traced(self._session.settings, case.plan, case.spec, case.runs)
        try:
            run = self._session.run(case.spec, self._name, number=number, total=max(number, case.plan.repeats), explain=explain)
            run = replace(run, round_s=round_s)
            if case.runs:
                check_repetition(case.spec, case.runs[-1], run)
        except InvalidMeasurement as error:
            case.invalid = str(error)
            raise
        fingerprint = self._session.cluster.collect_fingerprint(run)
        if case.record:
            if list_forbidden_differences(case.fingerprint, fingerprint):
                return False
            case.record = self._session.folder.extend(case.record.id, [run])
            case.runs = list(case.record.measurement.runs)
            return True
        case.runs = [*_mark_other_hosts(case.runs, list_host_differences(case.fingerprint, fingerprint)), run]
        if fingerprint != case.fingerprint:
            case.fingerprint, case.terms = fingerprint, None
        return True

    def _is_decided(self, case: _SpecRuns) -> bool:
        """Return whether no further run is needed. Without a baseline, two are enough; a new baseline takes all repeats."""
        clean, made = sum(not run.disturbances for run in case.runs), len(case.runs)
        if has_enough_runs(clean, made, case.plan.repeats, spare=0 if case.plan.is_fixed else SPARE_RUNS):
            return True
        settings = self._session.settings
        if settings.update_baselines and not clean and made >= HOPELESS_RUNS and not case.plan.is_fixed:
            why = "; ".join(dict.fromkeys(str(each) for run in case.runs for each in run.disturbances))
            self._session.progress.show_remark(f"{case.spec.label}: no baseline: its first {made} runs were disturbed ({why})")
            return True
        if case.plan.is_fixed or settings.makes_all_repeats:
            return False
        measurement = self._measurement(case)
        case.terms = case.terms or self._comparison_terms(case.spec, case.fingerprint)
        judgement = judge(measurement, self._session.store.find_for(measurement), case.terms)
        if judgement.change is None:  # no baseline, or only disturbed runs
            return has_enough_runs(clean, made, case.plan.fewest)
        return not judgement.needs_runs

    def _measurement(self, case: _SpecRuns) -> Measurement:
        slowed = {task: sleep_s for task, sleep_s in self._session.injected_slowdowns.items() if task in case.runs[0].step_s}
        runs, hosts = tuple(case.runs), tuple(case.runs[-1].hosts)
        return Measurement(spec=case.spec, runs=runs, hosts=hosts, fingerprint=case.fingerprint, injected_slowdowns=slowed)

    def _record(self, cases: Sequence[_SpecRuns]) -> None:
        """Record the measurement of each spec with a run, anchors first."""
        for case in sorted((case for case in cases if case.runs), key=lambda case: case.spec.gpus):
            case.record = self._session.folder.add(self._name, self._measurement(case), attempt=self._attempt)
            self._on_record(case.record)
            case.record = note_limit(self._session, case.record)

    def _probe(self, cases: Sequence[_SpecRuns]) -> None:
        """Store the probes of the hosts with each record, for future baselines."""
        for case in cases:
            if case.record:
                case.record = self._session.probe(case.record)

    # -- comparison policies

    def _comparison_terms(self, spec: Spec, fingerprint: Fingerprint) -> ComparisonPolicy:
        """Return the policy of the test's first comparison with a baseline, on hosts with this fingerprint."""
        session = self._session
        cluster_settings, planned = session.cluster.settings(spec.model), session.plan_repeats(spec.model)
        margins = (session.store.margin(system) for system in session.threshold_systems(fingerprint))
        stored = next((margin for margin in margins if margin is not None), None)
        return ComparisonPolicy(
            margin=choose_margin(session.settings, self._margin, stored, cluster_settings),
            false_alarm=self._false_alarm_share(0),
            least=planned.min_repeats,
            most=planned.repeats,
        )

    def _check_terms(self, record: Record, margin: float | None, threshold: float | None) -> ComparisonPolicy:
        """Return the policy of the record's measurement, with the check's own margin and its share of false alarms."""
        terms = self._session.terms.get((record.id, self._name))
        if terms is None:  # measured by another test
            terms = self._comparison_terms(record.spec, record.measurement.fingerprint)
        if margin is not None and self._session.settings.margin is None:
            terms = replace(terms, margin=margin)
        terms = replace(terms, threshold=threshold, false_alarm=self._false_alarm_share(self._checks_made))
        self._checks_made += 1
        return terms

    def _min_efficiency(self, record: Record, at_least: float | None) -> float:
        """Return the least efficiency that passes; `at_least` is the check's own."""
        session = self._session
        given = at_least if at_least is not None else self._efficiency
        thresholds = (
            session.store.get_least_efficiency(system, record.spec.model, record.spec.gpus)
            for system in session.threshold_systems(record.measurement.fingerprint)
        )
        stored = next((threshold for threshold in thresholds if threshold is not None), None)
        return choose_min_efficiency(session.settings, given, stored)

    def _false_alarm_share(self, check: int) -> float:
        session = self._session
        if self._red_tests is None:
            red = {record.test for record in session.folder.measurements() if record.verdict and record.verdict.turns_red}
            self._red_tests = len(red - {self._name})
        return share(
            session.settings.false_alarms, tests=session.tests, red=self._red_tests, check=check, checks=self._declared_checks
        )

    # -- judging

    def check(self, measured: Record, *, margin: float | None = None) -> Judgement:
        """Compare with the stored baseline. `margin` is the largest loss that passes, as a part of the baseline."""
        return self._judge("baseline", measured, margin=margin)

    def check_published(self, measured: Record, *, system: str, margin: float | None = None, **wanted: Any) -> Judgement:
        """Compare with a published rate of the same training on the same hardware: `system="dgx1"`.

        `wanted`: further fields of the published row, where several are of the same model, batch, precision, data and size.
        Raises `BaselineFileError` if there is not exactly one.
        """
        spec = measured.spec
        alike = {name: getattr(spec, name) for name in ("model", "batch_size", "data", "precision", "xla")}
        reference = references.find(system, spec.gpus, **{**alike, "mode": "training", **wanted})
        return self._judge("published", measured, margin=margin, published=PublishedRate.from_reference(reference))

    def check_efficiency(self, measured: Record, *, anchor: Record, at_least: float | None = None) -> Judgement:
        """Compare rate(n) / (n x rate(1)) with a threshold. `anchor` is the 1-device measurement of this session."""
        return self._judge("efficiency", measured, anchor, threshold=self._min_efficiency(measured, at_least))

    def check_overhead(self, *, synthetic: Record, real: Record, at_most: float) -> Judgement:
        """Compare (synthetic - real) / synthetic with a threshold."""
        return self._judge("overhead", real, synthetic, threshold=at_most)

    def check_accuracy(self, measured: Record, *, at_least: float) -> Judgement:
        """Compare the accuracy on the test set, 0 to 1, with a threshold. The spec needs evaluate=True."""
        return self._judge("accuracy", measured, threshold=at_least)

    def check_learning(self, measured: Record, *, anchor: Record, at_most: float) -> Judgement:
        """Compare the steps to the specs' stop_at_top_1_accuracy, relative to the anchor's, with a threshold."""
        return self._judge("learning", measured, anchor, threshold=at_most)

    def _judge(
        self,
        kind: Kind,
        measured: Record,
        other: Record | None = None,
        *,
        margin: float | None = None,
        threshold: float | None = None,
        published: PublishedRate | None = None,
    ) -> Judgement:
        """Judge, with further runs as long as they may be decisive, and record the judgement.

        If the other measurement has become INVALID, the verdict is INCONCLUSIVE.

        Raises:
            InvalidMeasurement: the measurement has become INVALID since it was made.
        """
        terms = self._check_terms(measured, margin, threshold)
        case, *others = cases = [self._reopen(each) for each in (measured, other) if each]
        if case.is_void:
            assert case.record
            raise InvalidMeasurement(f"{case.spec.label} is {case.record.verdict}: {case.record.reason}")
        entry = self._session.store.find_for(measured.measurement)
        other_entry = self._session.store.find_for(other.measurement) if other else None

        def judge_now() -> Judgement:
            return ask(
                kind,
                terms,
                case.recorded,
                others[0].recorded if others else None,
                other_id=other.id if other else None,
                entry=entry,
                other_entry=other_entry,
                published=published,
            )

        judgement = judge_now()
        if kind in IN_TURN and judgement.needs_runs and not others[0].is_void:
            noises = get_noise(case.recorded, entry), get_noise(others[0].recorded, other_entry)
            self._bracket(case, others[0], runs_around(noises))
            judgement = judge_now()

        def list_open(left: Sequence[_SpecRuns]) -> Sequence[_SpecRuns]:
            nonlocal judgement
            judgement = judge_now()
            return left if judgement.needs_runs and _may_have_more(left, terms) else ()

        if judgement.needs_runs and _may_have_more(cases, terms) and not any(each.is_void for each in others):
            self._make_further_runs(cases, list_open)
        record = self._session.folder.add_judgement(measured.id, judgement)
        if (found := record.checks[-1]) == judgement:  # otherwise the other measurement is void
            analyse(self._session, self._name, record, judgement, others[0].recorded if others else None)
        return found

    def _make_further_runs(
        self, cases: Sequence[_SpecRuns], still_open: Callable[[Sequence[_SpecRuns]], Sequence[_SpecRuns]]
    ) -> None:
        """Make further runs of recorded measurements for a check, unless other sessions have the hosts for too long."""
        with suppress(TimeBudgetSpent), self._measuring(*(case.spec for case in cases)):
            try:
                self._run_until(cases, still_open)
            finally:
                self._judge_invalid(cases)

    def _reopen(self, record: Record) -> _SpecRuns:
        """Return the runs of a record as they are now, with those that other checks have added."""
        record = self._session.folder.measurement(record.id) or record
        measurement = record.measurement
        plan = self._session.plans.get(record.id) or self._session.plan(record.spec)
        return _SpecRuns(record.spec, plan, list(measurement.runs), measurement.fingerprint, record=record)

    def _bracket(self, case: _SpecRuns, other: _SpecRuns, least: int) -> None:
        """Repeat the first measurement, up to `least` times and once for a disturbed run, unless it was in turn.

        So the drift of the machine since then is known: `baselines.thresholds.py`.
        """
        made = 0
        while not has_enough_runs(0, made, least):
            made += 1
            again = to_measure_again(case.recorded, other.recorded, least)
            if again is None:
                return
            first = case if again is case.recorded else other
            runs = len(first.runs)
            self._make_further_runs([first], lambda left: ())
            if len(first.runs) == runs:
                return  # other hosts were allocated


def _count_fewest(plan: RepeatPlan) -> int:
    return plan.repeats if plan.is_fixed else plan.fewest


def _size(spec: Spec) -> tuple[int, int]:
    return spec.gpus, spec.num_ps


def _mark_other_hosts(runs: Sequence[Run], other: Sequence[str]) -> list[Run]:
    """Return the runs on other hosts as disturbed, so that they do not count for the rate."""
    reason = Disturbance(message=f"it was on other hosts than the runs after it ({'; '.join(other)})")
    return [replace(run, disturbances=[*run.disturbances, reason]) for run in runs] if other else list(runs)


def _may_have_more(cases: Sequence[_SpecRuns], terms: ComparisonPolicy) -> bool:
    """Return whether further runs are allowed: the test has set no number of runs, and repeats are left."""
    if any(case.plan.is_fixed for case in cases):
        return False
    one, other = (case.recorded for case in (cases[0], cases[-1]))
    if are_in_turn(one, other):
        clean, made = min(len(case.recorded.rates) for case in cases), max(len(case.runs) for case in cases)
        return not has_enough_runs(clean, made, terms.most)
    rounds = shared_rounds(one, other)  # earlier runs for other checks do not count here
    disturbed = {run.round_s for each in (one, other) for run in each.runs if run.disturbances}
    return not has_enough_runs(len(rounds - disturbed), len(rounds), terms.most)
