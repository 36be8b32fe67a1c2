"""The `baseline` fixture: from a recorded measurement to a verdict, and from a verdict to the test's outcome."""

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pytest_dtfperf.baselines import compare
from pytest_dtfperf.baselines.accept import refusal
from pytest_dtfperf.baselines.learning import judge_learning
from pytest_dtfperf.baselines.verdict import Judgement, Verdict
from pytest_dtfperf.plugin.outcome import VERDICT
from pytest_dtfperf.plugin.parametrise import Marker
from pytest_dtfperf.plugin.resolve import plan
from pytest_dtfperf.report.record import Compared, Efficiency, Record
from pytest_dtfperf.report.terminal import explain

if TYPE_CHECKING:
    from pytest_dtfperf.plugin.state import PerfSession


class Baseline:
    """Judges for one test. Every method writes its verdict down, then fails the test if the verdict does."""

    def __init__(self, perf: "PerfSession", item: pytest.Item, marker: Marker) -> None:
        self._perf = perf
        self._item = item
        self._marker = marker

    def check(self, measurement: Record, *, margin: float | None = None) -> Judgement:
        """Compare with the stored baseline. `margin`: largest loss, as a part of it; else the marker's or the cluster's."""
        said = margin if margin is not None else self._marker.margin
        allowed = plan(self._perf.options, self._perf.settings(measurement.spec.model), margin=said).margin
        judgement = compare.judge(measurement.measurement, self._perf.store.find_for(measurement.measurement), margin=allowed)
        compared = None
        if judgement.baseline_rate is not None and judgement.change is not None:
            compared = Compared(images_per_sec=judgement.baseline_rate, change=judgement.change, margin=allowed)
        return self._conclude(measurement, judgement, baseline=compared)

    def check_efficiency(self, measurement: Record, *, anchor: Record, at_least: float) -> Judgement:
        """Hold rate(n) / (n x rate(1)) against a threshold. `anchor` is the 1-device measurement of this session."""
        judgement = compare.judge_efficiency(measurement.measurement, anchor.measurement, at_least=at_least)
        found = None
        if judgement.value is not None:
            found = Efficiency(value=judgement.value, anchor=anchor.id)
        return self._conclude(measurement, judgement, efficiency=found)

    def check_overhead(self, *, synthetic: Record, real: Record, at_most: float) -> Judgement:
        """Hold (synthetic - real) / synthetic against a threshold."""
        return self._conclude(real, compare.judge_overhead(synthetic.measurement, real.measurement, at_most=at_most))

    def check_accuracy(self, measurement: Record, *, at_least: float) -> Judgement:
        """Hold accuracy on the test set, 0 to 1, against a threshold. The spec needs evaluate=True."""
        return self._conclude(measurement, compare.judge_accuracy(measurement.measurement, at_least=at_least))

    def check_learning(self, measurement: Record, *, anchor: Record, at_most: float) -> Judgement:
        """Hold the steps to the specs' stop_at_top_1_accuracy, over the anchor's, against a threshold."""
        return self._conclude(measurement, judge_learning(measurement.measurement, anchor.measurement, at_most=at_most))

    def _conclude(
        self,
        record: Record,
        judgement: Judgement,
        *,
        baseline: Compared | None = None,
        efficiency: Efficiency | None = None,
    ) -> Judgement:
        perf = self._perf
        self._item.user_properties.append((VERDICT, str(judgement.verdict)))
        fails = judgement.verdict.fails(perf.options.strict_verdicts) and not self._accepted(record, judgement)
        judged = perf.folder.judge(
            record.id, verdict=judgement.verdict, reason=judgement.reason, baseline=baseline, efficiency=efficiency
        )
        if fails:
            shown = replace(judged, test=self._item.nodeid, verdict=str(judgement.verdict), reason=judgement.reason)
            pytest.fail(explain(shown, logs=perf.folder.logs_of(record.test), options=perf.rerun_options), pytrace=False)
        return judgement

    def _accepted(self, record: Record, judgement: Judgement) -> bool:
        """Whether this session makes the measurement the new baseline, so that there is nothing left to fail."""
        options = self._perf.options
        if options.update_baselines is None or judgement.verdict not in (
            Verdict.REGRESSED,
            Verdict.NO_BASELINE,
            Verdict.INCOMPARABLE,
        ):
            return False
        return refusal(judgement, record.measurement, options.update_baselines, options.update_reason) is None
