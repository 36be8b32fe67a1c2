"""The `train` fixture: from what a test asks for to recorded measurements."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest

from pytest_dtfperf.errors import MissingModule, SpecError
from pytest_dtfperf.plugin.measuring import Case, Measuring
from pytest_dtfperf.plugin.parametrise import Marker
from pytest_dtfperf.plugin.planted import VARIABLE
from pytest_dtfperf.plugin.resolve import Plan, plan, resolve
from pytest_dtfperf.plugin.strictness import Strictness
from pytest_dtfperf.report.record import Record
from pytest_dtfperf.spec import Spec

if TYPE_CHECKING:
    from pytest_dtfperf.plugin.state import PerfSession


class Train:
    """Trains for one test. Called once per spec."""

    def __init__(self, perf: "PerfSession", item: pytest.Item, marker: Marker) -> None:
        self._perf = perf
        self._item = item
        self._strictness = Strictness(perf, item, marker)
        self._measuring = Measuring(perf, item)

    def __call__(self, model: str | None = None, *, repeats: int | None = None, **wanted: Any) -> Record:
        """Train and measure; see the fixture. Raises `RunFailed`, `InvalidMeasurement`, `InfrastructureError`.

        `model` may be left out with a `command`; `repeats`: how many runs; otherwise as many as the verdict needs, up to what
        the command line or the cluster says.
        """
        (record,) = self.in_turn({"model": model, **wanted}, repeats=repeats)
        return record

    def in_turn(self, *each: Mapping[str, Any], repeats: int | None = None, **common: Any) -> list[Record]:
        """Train several specs that are to be compared, a run of each in turn, so that a machine's drift is no difference.

        `each` is what they differ in, `common` what they have in common. What this session has measured is not trained again.
        """
        wanted = [self._resolved({**common, **own}, repeats) for own in each]
        if self._perf.rehearsal:
            return [
                self._perf.rehearsal.note(self._item, spec, planned, remark=_REMARK if best else "")
                for spec, planned, best in wanted
            ]
        specs = [self._with_best_num_ps(spec) if best else spec for spec, _, best in wanted]
        known = {spec: self._perf.folder.find(spec, but_not_of=self._item.nodeid) for spec in specs}
        new = {spec: planned for spec, (_, planned, _) in zip(specs, wanted, strict=True) if known[spec] is None}
        try:
            measured = self._measuring.measure([self._case(spec, planned) for spec, planned in new.items()]) if new else []
        except MissingModule as lacking:
            pytest.skip(str(lacking))
        made = dict(zip(new, measured, strict=True))
        return [known[spec] or made[spec] for spec in specs]

    def _resolved(self, wanted: dict[str, Any], repeats: int | None) -> tuple[Spec, Plan, bool]:
        """The spec, how often it is run, and whether its number of parameter servers is still to be looked up."""
        perf = self._perf
        if wanted.get("command"):
            wanted = {"command_dir": str(self._item.path.parent), **wanted}
        place = perf.settings(wanted.get("model") or "")
        best = wanted.get("num_ps") == "best"
        spec = resolve({**wanted, **({"num_ps": None} if best else {})}, perf.options, place, perf.device)
        if spec.command and perf.planted:
            raise SpecError(f"{VARIABLE} makes our own training sleep; {spec.label} is another's program, which does not")
        return spec, plan(perf.options, place, repeats=repeats), best

    def _case(self, spec: Spec, planned: Plan) -> Case:
        return Case(spec, planned, terms=lambda place: self._strictness.terms(spec, planned, place))

    def _with_best_num_ps(self, spec: Spec) -> Spec:
        if not spec.mode.parameter_servers:
            return spec
        with self._perf.measuring(spec, self._item.nodeid):
            system = self._perf.system
        num_ps = self._perf.store.best_num_ps(system, spec)
        if num_ps is None:
            raise SpecError(
                f"--num-ps=best: no baseline of {system} says how many parameter servers are best for {spec.label}. "
                "Find out with --num-ps=sweep --update-baselines"
            )
        return spec.but(num_ps=num_ps)


_REMARK = "num_ps=best is looked up once the hosts have said what they are"
