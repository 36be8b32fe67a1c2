"""The `train` fixture: from what a test asks for to a recorded measurement."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from pytest_dtfperf.baselines.compare import judge
from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.errors import InvalidMeasurement, MissingModule, SpecError
from pytest_dtfperf.measurement import Measurement, Run, efficiency
from pytest_dtfperf.plugin.parametrise import Marker
from pytest_dtfperf.plugin.planted import VARIABLE
from pytest_dtfperf.plugin.resolve import Plan, plan, resolve
from pytest_dtfperf.report.record import Efficiency, Record, anchor_of
from pytest_dtfperf.spec import Spec

if TYPE_CHECKING:
    from pytest_dtfperf.plugin.state import PerfSession


class Train:
    """Trains for one test. Called once per spec."""

    def __init__(self, perf: "PerfSession", item: pytest.Item, marker: Marker) -> None:
        self._perf = perf
        self._item = item
        self._marker = marker
        self._place: Mapping[str, Any] = {}  # the fingerprint of the hosts that the last run was on

    def __call__(self, model: str | None = None, *, repeats: int | None = None, **wanted: Any) -> Record:
        """Train and measure; see the fixture. Raises `RunFailed`, `InvalidMeasurement`, `InfrastructureError`.

        `model` may be left out with a `command`; `repeats`: how many runs; otherwise the command line's, the cluster's, or as
        many as a verdict needs.
        """
        perf, test = self._perf, self._item.nodeid
        if wanted.get("command"):
            wanted = {"command_dir": str(self._item.path.parent), **wanted}
        place = perf.settings(model or "")
        best = wanted.get("num_ps") == "best"
        spec = resolve({"model": model, **wanted, **({"num_ps": None} if best else {})}, perf.options, place, perf.device)
        if spec.command and perf.planted:
            raise SpecError(f"{VARIABLE} makes our own training sleep; {spec.label} is another's program, which does not")
        planned = plan(perf.options, place, margin=self._marker.margin, repeats=repeats)
        if perf.rehearsal:
            remark = "num_ps=best is looked up once the hosts have said what they are" if best else ""
            return perf.rehearsal.note(self._item, spec, planned, remark=remark)
        with perf.measuring(spec, test):
            if best:
                spec = self._with_best_num_ps(spec)
            known = perf.folder.find(spec, but_not_of=test)
            try:
                return known or self._measure(spec, planned)
            except MissingModule as lacking:
                pytest.skip(str(lacking))

    def _with_best_num_ps(self, spec: Spec) -> Spec:
        if not spec.mode.parameter_servers:
            return spec
        num_ps = self._perf.store.best_num_ps(self._perf.system, spec)
        if num_ps is None:
            raise SpecError(
                f"--num-ps=best: no baseline of {self._perf.system} says how many parameter servers are best for {spec.label}. "
                "Find out with --num-ps=sweep --update-baselines"
            )
        return spec.but(num_ps=num_ps)

    def _measure(self, spec: Spec, planned: Plan) -> Record:
        """Run until the verdict is decided or the repeats are spent. What was measured is recorded whatever comes after it."""
        runs: list[Run] = []
        try:
            while not self._decided(spec, runs, planned):
                runs.append(self._perf.run(spec, self._item.nodeid, number=len(runs) + 1, of=planned.repeats))
                self._place = self._perf.fingerprint_of(runs[-1].hosts)
        except InvalidMeasurement as error:
            if runs:
                self._perf.folder.judge(self._record(spec, runs).id, verdict=Verdict.INVALID, reason=str(error))
            raise
        except BaseException:  # Ctrl-C too: the runs that were made before it have cost their time
            if runs:
                self._record(spec, runs)
            raise
        return self._record(spec, runs)

    def _decided(self, spec: Spec, runs: Sequence[Run], planned: Plan) -> bool:
        """Whether more runs could change nothing. Without a baseline, or to make one, all repeats are spent."""
        if len(runs) >= planned.repeats:
            return True
        if len(runs) < planned.min_repeats or self._perf.options.update_baselines:
            return False
        measurement = self._measurement(spec, runs)
        judgement = judge(measurement, self._perf.store.find_for(measurement), margin=planned.margin)
        return judgement.verdict not in (Verdict.INCONCLUSIVE, Verdict.NO_BASELINE, Verdict.INCOMPARABLE)

    def _measurement(self, spec: Spec, runs: Sequence[Run]) -> Measurement:
        planted = {task: sleep_s for task, sleep_s in self._perf.planted.items() if task in runs[0].step_s}
        hosts = tuple(runs[-1].hosts)
        return Measurement(spec=spec, runs=tuple(runs), hosts=hosts, fingerprint=self._place, planted=planted)

    def _record(self, spec: Spec, runs: Sequence[Run]) -> Record:
        measurement = self._measurement(spec, runs)
        anchor = anchor_of(spec, self._perf.folder.measurements())
        found = Efficiency(value=efficiency(measurement, anchor.measurement), anchor=anchor.id) if anchor else None
        record = self._perf.folder.add(self._item.nodeid, measurement, efficiency=found)
        rates = {"images_per_sec": record.images_per_sec, "runs": len(runs)}
        self._item.user_properties.extend((f"dtfperf {spec.label}: {name}", value) for name, value in rates.items())
        return record
