"""The `train` fixture: from what a test asks for to recorded measurements."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from pytest_dtfperf.errors import MissingModule
from pytest_dtfperf.plugin.dry_run import DryRun
from pytest_dtfperf.plugin.options import NUM_PS_WORDS
from pytest_dtfperf.plugin.outcome import TRAINED
from pytest_dtfperf.plugin.parametrise import Marker
from pytest_dtfperf.plugin.search_path import installed_first
from pytest_dtfperf.plugin.state import PerfSession
from pytest_dtfperf.session import programs, slowdown
from pytest_dtfperf.session.measured import Measured
from pytest_dtfperf.session.own_models import with_name
from pytest_dtfperf.session.resolve import plan, resolve
from pytest_dtfperf.spec import Spec


class Train:
    """Trains for one test. Called once per spec."""

    def __init__(self, perf: PerfSession, item: pytest.Item, marker: Marker, dry_run: DryRun | None) -> None:
        self._perf = perf
        self._item = item
        self._dry_run = dry_run
        self._experiment = perf.experiment(item, marker)

    def __call__(self, model: Any = None, *, repeats: int | None = None, **wanted: Any) -> Measured:
        """Train and measure; see the fixture. Raises `RunFailed`, `InvalidMeasurement`, `InfrastructureError`.

        `model` is a name, or a model of your own (docs/own-models.md), and may be left out with a `command`; `repeats`: how
        many runs; otherwise as many as the verdict needs, up to what the command line or the cluster says.
        """
        (record,) = self.in_turn({"model": model, **wanted}, repeats=repeats)
        return record

    def in_turn(self, *each: Mapping[str, Any], repeats: int | None = None, **common: Any) -> list[Measured]:
        """Train several specs that are to be compared, a run of each in turn, so that a machine's drift is no difference.

        `each` is what they differ in, `common` what they have in common. What this session has measured is not trained again.
        """
        self._item.stash[TRAINED] = True
        wanted = [self._resolved({**common, **own}) for own in each]
        if self._dry_run:
            return [self._noted(self._dry_run, spec, repeats, word) for spec, word in wanted]
        try:
            with installed_first():
                found = self._measured(wanted, repeats)
        except MissingModule as lacking:
            pytest.skip(str(lacking))
        for measured in found:
            self._item.config.hook.pytest_dtfperf_measured(item=self._item, measured=measured)
        return found

    def _measured(self, wanted: Sequence[tuple[Spec, str]], repeats: int | None) -> list[Measured]:
        if [word for _, word in wanted] == ["sweep"]:
            return [self._experiment.sweep(wanted[0][0], repeats)]
        return self._experiment.measure([self._with_num_ps(spec, word) for spec, word in wanted], repeats)

    def _resolved(self, wanted: dict[str, Any]) -> tuple[Spec, str]:
        """The spec, and "best" or "sweep" where its number of parameter servers is still to be found."""
        perf = self._perf
        wanted = with_name(wanted)
        if wanted.get("command"):
            wanted = {"command_dir": str(self._item.path.parent), **wanted}
        cluster_settings = perf.cluster.settings(wanted.get("model") or "")
        word = found if (found := wanted.get("num_ps")) in NUM_PS_WORDS else ""
        spec = resolve(
            {**wanted, **({"num_ps": None} if word else {})},
            perf.options,
            cluster_settings,
            perf.cluster.device,
            between_hosts=perf.cluster.between_hosts,
        )
        slowdown.check(spec, perf.injected_slowdowns)
        programs.check(spec, perf.config)
        return spec, word if spec.mode.parameter_servers else ""

    def _noted(self, dry_run: DryRun, spec: Spec, repeats: int | None, word: str) -> Measured:
        planned = plan(self._perf.options, self._perf.cluster.settings(spec.model), repeats=repeats)
        return dry_run.note(self._item, spec, planned, remark=_REMARKS.get(word, ""))

    def _with_num_ps(self, spec: Spec, word: str) -> Spec:
        if word == "sweep":
            return self._experiment.with_swept_num_ps(spec)
        return self._experiment.with_best_num_ps(spec) if word == "best" else spec


_REMARKS = {
    "best": "num_ps=best is looked up once the hosts have said what they are",
    "sweep": "num_ps=sweep tries several numbers of parameter servers by short runs, and measures the two fastest",
}
