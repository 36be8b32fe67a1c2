"""What a test's measurements are judged by: what it says itself, then what the baselines' file and clusters.toml say."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Self

from pytest_dtfperf.baselines.terms import Terms, share
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.session.bench import Bench
from pytest_dtfperf.session.resolve import RepeatPlan, least_efficiency, margin, plan
from pytest_dtfperf.spec import Spec


@dataclass(frozen=True, kw_only=True)
class Measured(Record):
    """A record as it was when it was handed out; whoever judges it may make further runs, which the session folder has."""

    plan: RepeatPlan
    terms: Terms  # of a first comparison with its baseline
    asked_by: str  # the test that it was handed to: one that another test has measured is judged on that one's own terms

    @classmethod
    def of(cls, record: Record, *, plan: RepeatPlan, terms: Terms, asked_by: str) -> Self:
        known = {field.name: getattr(record, field.name) for field in fields(Record)}
        return cls(**known, plan=plan, terms=terms, asked_by=asked_by)


class Asked:
    """The terms of one test, `name`, with the margin, the efficiency and the number of checks that it declares, if any."""

    def __init__(
        self, bench: Bench, name: str, *, margin: float | None, efficiency: float | None, checks: int | None = None
    ) -> None:
        self._bench = bench
        self._name = name
        self._margin = margin
        self._efficiency = efficiency
        self._declared = checks
        self._checks = 0  # that were made

    def of_comparison(self, spec: Spec, fingerprint: Mapping[str, Any]) -> Terms:
        """Of a comparison with the baseline, on hosts with this fingerprint: the test's first check."""
        bench = self._bench
        cluster_settings = bench.cluster.settings(spec.model)
        planned = plan(bench.settings, cluster_settings)
        asked = (bench.store.margin(system) for system in bench.thresholds(fingerprint))
        stored = next((found for found in asked if found is not None), None)
        return Terms(
            margin=margin(bench.settings, self._margin, stored, cluster_settings),
            false_alarm=self._share(0),
            least=planned.min_repeats,
            most=planned.repeats,
        )

    def of_check(self, measured: Measured, margin: float | None, threshold: float | None) -> Terms:
        """Those that the measurement carries, with what the check says itself, and its share of the false alarms."""
        terms = measured.terms
        if measured.asked_by != self._name:
            terms = self.of_comparison(measured.spec, measured.measurement.fingerprint)
        if margin is not None and self._bench.settings.margin is None:
            terms = replace(terms, margin=margin)
        terms = replace(terms, threshold=threshold, false_alarm=self._share(self._checks))
        self._checks += 1
        return terms

    def efficiency(self, measured: Measured, at_least: float | None) -> float:
        """The least that is enough; `at_least`: as the check says itself."""
        own = at_least if at_least is not None else self._efficiency
        asked = (
            self._bench.store.least_efficiency(system, measured.spec.model, measured.spec.gpus)
            for system in self._bench.thresholds(measured.measurement.fingerprint)
        )
        stored = next((found for found in asked if found is not None), None)
        return least_efficiency(self._bench.settings, own, stored)

    def _share(self, check: int) -> float:
        bench = self._bench
        return share(
            bench.settings.false_alarms, tests=bench.tests, red=self._others_that_are_red, check=check, checks=self._declared
        )

    @cached_property
    def _others_that_are_red(self) -> int:
        records = self._bench.folder.measurements()
        return len({record.test for record in records if record.verdict and record.verdict.turns_red} - {self._name})
