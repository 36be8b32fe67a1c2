"""The `baseline` fixture: has measurements judged, and fails the test where the verdict does."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pytest_dtfperf.baselines.verdict import Judgement
from pytest_dtfperf.errors import UsageError, shown
from pytest_dtfperf.plugin import properties
from pytest_dtfperf.plugin.outcome import ACCEPTED, VERDICT, WHY
from pytest_dtfperf.plugin.parametrise import Marker
from pytest_dtfperf.plugin.search_path import installed_first
from pytest_dtfperf.plugin.state import PerfSession
from pytest_dtfperf.report.explanations import list_explanation
from pytest_dtfperf.report.terminal import format_failure
from pytest_dtfperf.session.acceptance import will_accept
from pytest_dtfperf.session.experiment import Judged
from pytest_dtfperf.session.measured import Measured


class Baseline:
    """Judges for one test, as `session.experiment.Experiment` does. Every verdict is written down before it fails the test."""

    def __init__(self, perf: PerfSession, item: pytest.Item, marker: Marker) -> None:
        self._perf = perf
        self._item = item
        self._experiment = perf.experiment(item, marker)

    def check(self, measurement: Measured, *, margin: float | None = None) -> Judgement:
        """Compare with the stored baseline. `margin`: largest loss, as a part of it."""
        _check("check", measurement=measurement, margin=margin)
        return self._conclude(self._experiment.check, measurement, margin=margin)

    def check_published(self, measurement: Measured, *, system: str, margin: float | None = None, **wanted: Any) -> Judgement:
        """Compare with a published rate of the same training on the same hardware: `system="dgx1"`.

        `wanted`: further fields of the published row, where several are of the same model, batch, precision, data and size.
        Raises `BaselineFileError` if there is not exactly one.
        """
        _check("check_published", measurement=measurement, margin=margin)
        return self._conclude(self._experiment.check_published, measurement, system=system, margin=margin, **wanted)

    def check_efficiency(self, measurement: Measured, *, anchor: Measured, at_least: float | None = None) -> Judgement:
        """Hold rate(n) / (n x rate(1)) against a threshold. `anchor` is the 1-device measurement of this session."""
        _check("check_efficiency", measurement=measurement, anchor=anchor, at_least=at_least)
        return self._conclude(self._experiment.check_efficiency, measurement, anchor=anchor, at_least=at_least)

    def check_overhead(self, *, synthetic: Measured, real: Measured, at_most: float) -> Judgement:
        """Hold (synthetic - real) / synthetic against a threshold."""
        _check("check_overhead", synthetic=synthetic, real=real, at_most=at_most)
        return self._conclude(self._experiment.check_overhead, synthetic=synthetic, real=real, at_most=at_most)

    def check_accuracy(self, measurement: Measured, *, at_least: float) -> Judgement:
        """Hold accuracy on the test set, 0 to 1, against a threshold. The spec needs evaluate=True."""
        _check("check_accuracy", measurement=measurement, at_least=at_least)
        return self._conclude(self._experiment.check_accuracy, measurement, at_least=at_least)

    def check_learning(self, measurement: Measured, *, anchor: Measured, at_most: float) -> Judgement:
        """Hold the steps to the specs' stop_at_top_1_accuracy, over the anchor's, against a threshold."""
        _check("check_learning", measurement=measurement, anchor=anchor, at_most=at_most)
        return self._conclude(self._experiment.check_learning, measurement, anchor=anchor, at_most=at_most)

    def _conclude(self, check: Callable[..., Judged], *arguments: Measured, **named: Any) -> Judgement:
        with installed_first():
            judged = check(*arguments, **named)
        perf, judgement = self._perf, judged.judgement
        for record in judged.records:
            if properties.is_noted(self._item, record):  # by another test measured, it is that one's
                properties.note(self._item, record)
        self._item.user_properties.append((VERDICT, str(judgement.verdict)))
        if known := list_explanation(judged.record):
            self._item.user_properties.append((WHY, "\n".join(known)))
        self._item.config.hook.pytest_dtfperf_judged(item=self._item, measured=judged.record, judgement=judgement)
        if accepted := will_accept(judged, perf.options):
            self._item.user_properties.append((ACCEPTED, True))
        if judgement.verdict.fails(perf.options.strict_verdicts) and not accepted:
            shown = replace(judged.record, test=self._item.nodeid, verdict=judgement.verdict, reason=judgement.reason)
            logs = perf.bench.folder.logs_of(judged.record.test)
            session = perf.bench.folder.path
            pytest.fail(format_failure(shown, logs=logs, options=perf.rerun_options, session=session), pytrace=False)
        return judgement


_THRESHOLDS = {"margin", "at_least", "at_most"}


def _check(method: str, **given: object) -> None:
    """Raise `UsageError` where an argument is no measurement, or a threshold no number."""
    for name, value in given.items():
        if name in _THRESHOLDS:
            if value is not None and (
                isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value)
            ):
                raise UsageError(f"baseline.{method}(): {name} must be a number, not {shown(value)}")
        elif not isinstance(value, Measured):
            each = ", which is several: check each of them" if isinstance(value, list | tuple) else ""
            raise UsageError(f"baseline.{method}(): {name} must be what train() returns, not {shown(value)}{each}")
