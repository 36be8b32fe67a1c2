"""From specs to records: runs, of several specs in turn, until each has as many as its verdict needs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from pytest_dtfperf.baselines.comparability import must_match
from pytest_dtfperf.baselines.compare import judge
from pytest_dtfperf.baselines.terms import Terms
from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.errors import InvalidMeasurement
from pytest_dtfperf.measurement import Measurement, Run
from pytest_dtfperf.plugin.resolve import Plan
from pytest_dtfperf.report.record import Record
from pytest_dtfperf.spec import Spec

if TYPE_CHECKING:
    from pytest_dtfperf.plugin.state import PerfSession

SPARE_RUNS = 1  # beyond the repeats, in place of what was disturbed: more would only wait for a quieter machine


@dataclass(eq=False)
class Case:
    """One spec to be measured."""

    spec: Spec
    plan: Plan
    terms: Callable[[Mapping[str, Any]], Terms]  # on which it will be judged, by the fingerprint of its hosts
    runs: list[Run] = field(default_factory=list)
    place: Mapping[str, Any] = field(default_factory=dict)  # the fingerprint of the hosts that the last run was on


class Measuring:
    """Makes the runs of one test."""

    def __init__(self, perf: "PerfSession", item: pytest.Item) -> None:
        self._perf = perf
        self._item = item

    def measure(self, cases: Sequence[Case]) -> list[Record]:
        """Run until each verdict is decided or the repeats are spent, in turn: a machine that drifts does so for all of them.

        What was measured is recorded whatever comes after it.
        """
        largest = max(cases, key=lambda case: case.spec.gpus).spec
        with self._perf.measuring(largest, self._item.nodeid):
            try:
                self._take_turns(cases)
            except InvalidMeasurement as error:
                for record in self._record(cases):
                    self._perf.folder.judge(record.id, verdict=Verdict.INVALID, reason=str(error))
                raise
            except BaseException:  # Ctrl-C too: the runs that were made before it have cost their time
                self._record(cases)
                raise
            return self._record(cases)

    def one_more(self, records: Sequence[Record], most: int) -> list[Record]:
        """A further run of each; returns the records as they are then: as they were where that run was on other hosts."""
        largest = max(records, key=lambda record: record.spec.gpus).spec
        found = []
        with self._perf.measuring(largest, self._item.nodeid):
            for record in records:
                run = self._run(record.spec, len(record.measurement.runs) + 1, most)
                place = self._perf.fingerprint_of(run)
                same = not must_match(record.measurement.fingerprint, place)
                found.append(self._perf.folder.extend(record.id, [run]) if same else record)
        return found

    def _take_turns(self, cases: Sequence[Case]) -> None:
        left = list(cases)
        while left:
            for case in left:
                case.runs.append(self._run(case.spec, len(case.runs) + 1, case.plan.repeats))
                case.place = self._perf.fingerprint_of(case.runs[-1])
            # Who went first goes last in the next round: a drift then favours neither.
            left = [case for case in reversed(left) if not self._is_decided(case)]

    def _run(self, spec: Spec, number: int, of: int) -> Run:
        return self._perf.run(spec, self._item.nodeid, number=number, of=max(number, of))

    def _is_decided(self, case: Case) -> bool:
        """Whether more runs could change nothing. Without a baseline, two are enough; to make one, all repeats are spent."""
        clean = sum(not run.disturbances for run in case.runs)
        if clean >= case.plan.repeats or len(case.runs) >= case.plan.repeats + (0 if case.plan.is_fixed else SPARE_RUNS):
            return True
        options = self._perf.options
        if case.plan.is_fixed or options.update_baselines or options.all_repeats:
            return False
        measurement = self._measurement(case)
        judgement = judge(measurement, self._perf.store.find_for(measurement), case.terms(case.place))
        if judgement.estimate is None:  # nothing to compare with, or every run was disturbed
            return clean >= case.plan.fewest or len(case.runs) >= case.plan.fewest + SPARE_RUNS
        return not judgement.needs_runs

    def _measurement(self, case: Case) -> Measurement:
        planted = {task: sleep_s for task, sleep_s in self._perf.planted.items() if task in case.runs[0].step_s}
        runs, hosts = tuple(case.runs), tuple(case.runs[-1].hosts)
        return Measurement(spec=case.spec, runs=runs, hosts=hosts, fingerprint=case.place, planted=planted)

    def _record(self, cases: Sequence[Case]) -> list[Record]:
        """Write down what was measured of each; nothing of those that have no run."""
        found = []
        for case in sorted((case for case in cases if case.runs), key=lambda case: case.spec.gpus):  # anchors first
            measurement = self._measurement(case)
            record = self._perf.folder.add(self._item.nodeid, measurement)
            if case.plan.is_fixed:
                self._perf.fixed.add(record.id)
            rates = {"images_per_sec": record.images_per_sec, "runs": len(case.runs)}
            self._item.user_properties.extend((f"dtfperf {case.spec.label}: {name}", value) for name, value in rates.items())
            found.append((cases.index(case), record))
        return [record for _, record in sorted(found, key=lambda pair: pair[0])]
