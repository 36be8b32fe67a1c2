"""The `baseline` fixture: from a recorded measurement to a verdict, and from a verdict to the test's outcome."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_dtfperf.baselines import references
from pytest_dtfperf.baselines.accept import refusal
from pytest_dtfperf.baselines.checks import Check, Kind, Side, ask
from pytest_dtfperf.baselines.entry import Entry
from pytest_dtfperf.baselines.published_rate import PublishedRate
from pytest_dtfperf.baselines.terms import Terms
from pytest_dtfperf.baselines.verdict import Judgement
from pytest_dtfperf.plugin.measuring import SPARE_RUNS, Measuring
from pytest_dtfperf.plugin.outcome import ACCEPTED, VERDICT
from pytest_dtfperf.plugin.parametrise import Marker
from pytest_dtfperf.plugin.resolve import plan
from pytest_dtfperf.plugin.strictness import Strictness
from pytest_dtfperf.report.record import Record, compared, efficiency_of
from pytest_dtfperf.report.terminal import explain

if TYPE_CHECKING:
    from pytest_dtfperf.plugin.state import PerfSession


class Baseline:
    """Judges for one test. Every method writes its verdict down, then fails the test if the verdict does."""

    def __init__(self, perf: "PerfSession", item: pytest.Item, marker: Marker) -> None:
        self._perf = perf
        self._item = item
        self._strictness = Strictness(perf, item, marker)
        self._measuring = Measuring(perf, item)
        self._checks = 0

    def check(self, measurement: Record, *, margin: float | None = None) -> Judgement:
        """Compare with the stored baseline. `margin`: largest loss, as a part of it."""
        return self._ask("baseline", measurement, said=margin)

    def check_published(self, measurement: Record, *, system: str, margin: float | None = None, **wanted: Any) -> Judgement:
        """Compare with a published rate of the same training on the same hardware: `system="dgx1"`.

        `wanted`: further fields of the published row, where several are of the same model, batch, precision, data and size.
        Raises `BaselineFileError` if there is not exactly one.
        """
        spec = measurement.spec
        alike = {name: getattr(spec, name) for name in ("model", "batch_size", "data", "precision", "xla")}
        reference = references.find(system, spec.gpus, **{**alike, "mode": "training", **wanted})
        return self._ask("published", measurement, said=margin, published=PublishedRate.of(reference))

    def check_efficiency(self, measurement: Record, *, anchor: Record, at_least: float | None = None) -> Judgement:
        """Hold rate(n) / (n x rate(1)) against a threshold. `anchor` is the 1-device measurement of this session."""
        least = self._strictness.least_efficiency(measurement.measurement, at_least)
        return self._ask("efficiency", measurement, anchor, threshold=least)

    def check_overhead(self, *, synthetic: Record, real: Record, at_most: float) -> Judgement:
        """Hold (synthetic - real) / synthetic against a threshold."""
        return self._ask("overhead", real, synthetic, threshold=at_most)

    def check_accuracy(self, measurement: Record, *, at_least: float) -> Judgement:
        """Hold accuracy on the test set, 0 to 1, against a threshold. The spec needs evaluate=True."""
        return self._ask("accuracy", measurement, threshold=at_least)

    def check_learning(self, measurement: Record, *, anchor: Record, at_most: float) -> Judgement:
        """Hold the steps to the specs' stop_at_top_1_accuracy, over the anchor's, against a threshold."""
        return self._ask("learning", measurement, anchor, threshold=at_most)

    def _ask(
        self,
        kind: Kind,
        record: Record,
        other: Record | None = None,
        *,
        said: float | None = None,
        threshold: float | None = None,
        published: PublishedRate | None = None,
    ) -> Judgement:
        """Judge, with further runs as long as they may decide what these have not."""
        planned = plan(self._perf.options, self._perf.settings(record.spec.model))
        terms = self._strictness.terms(
            record.spec, planned, record.measurement.fingerprint, said=said, threshold=threshold, check=self._checks
        )
        self._checks += 1
        entry, other_entry = self._entry(record), self._entry(other)
        while True:
            second = other.measurement if other else None
            judgement = ask(kind, terms, record.measurement, second, entry=entry, other_entry=other_entry, published=published)
            if not judgement.needs_runs or not self._may_have_more(record, other, terms):
                break
            before = [each for each in (record, other) if each]
            after = self._measuring.one_more(before, terms.most)
            if [len(each.measurement.runs) for each in after] == [len(each.measurement.runs) for each in before]:
                break  # other hosts were lent: no more runs can be had of what was measured
            record, other = after[0], after[1] if other else None
        other_side = Side(record=other.id, runs=len(other.measurement.runs), entry=other_entry) if other else None
        side = Side(record=record.id, runs=len(record.measurement.runs), entry=entry)
        check = Check(
            kind=kind,
            terms=terms,
            side=side,
            other=other_side,
            published=published,
            verdict=judgement.verdict,
            reason=judgement.reason,
        )
        return self._conclude(record, judgement, check)

    def _entry(self, record: Record | None) -> Entry | None:
        return self._perf.store.find_for(record.measurement) if record else None

    def _may_have_more(self, record: Record, other: Record | None, terms: Terms) -> bool:
        """Where the test has said how many runs it wants, or the repeats are spent, there are no more."""
        known = [record, *([other] if other else [])]
        if any(each.id in self._perf.fixed for each in known):
            return False
        clean = min(len(each.measurement.rates) for each in known)
        return clean < terms.most and max(len(each.measurement.runs) for each in known) < terms.most + SPARE_RUNS

    def _conclude(self, record: Record, judgement: Judgement, check: Check) -> Judgement:
        perf = self._perf
        self._item.user_properties.append((VERDICT, str(judgement.verdict)))
        accepted = check.kind == "baseline" and self._accepted(record, judgement)
        if accepted:
            self._item.user_properties.append((ACCEPTED, True))
        fails = judgement.verdict.fails(perf.options.strict_verdicts) and not accepted
        judged = perf.folder.judge(
            record.id,
            verdict=judgement.verdict,
            reason=judgement.reason,
            baseline=compared(judgement, check),
            efficiency=efficiency_of(judgement, check),
            check=check,
        )
        if fails:
            shown = replace(judged, test=self._item.nodeid, verdict=judgement.verdict, reason=judgement.reason)
            pytest.fail(explain(shown, logs=perf.folder.logs_of(record.test), options=perf.rerun_options), pytrace=False)
        return judgement

    def _accepted(self, record: Record, judgement: Judgement) -> bool:
        """Whether this session makes the measurement the new baseline, so that there is nothing left to fail."""
        options = self._perf.options
        verdict = judgement.verdict
        if options.update_baselines is None or not (verdict.needs_reason or verdict.lacks_baseline):
            return False
        return refusal(judgement, record.measurement, options.update_baselines, options.allow_regression) is None
