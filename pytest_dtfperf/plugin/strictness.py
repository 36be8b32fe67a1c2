"""How strictly a test is judged: who says what may be lost, and what of the session's false alarms it may spend."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest

from pytest_dtfperf.baselines.terms import Terms, share
from pytest_dtfperf.measurement import Measurement
from pytest_dtfperf.plugin.parametrise import Marker
from pytest_dtfperf.plugin.resolve import Plan, least_efficiency, margin
from pytest_dtfperf.spec import Spec

if TYPE_CHECKING:
    from pytest_dtfperf.plugin.state import PerfSession


class Strictness:
    """Of one test."""

    def __init__(self, perf: "PerfSession", item: pytest.Item, marker: Marker) -> None:
        self._perf = perf
        self._item = item
        self._marker = marker

    def terms(
        self,
        spec: Spec,
        planned: Plan,
        place: Mapping[str, Any],
        *,
        said: float | None = None,
        threshold: float | None = None,
        check: int = 0,
    ) -> Terms:
        """Of the test's check number `check` (0, 1, ...). `place`: the fingerprint of the hosts it was measured on; `said`: the
        margin that the check names itself.
        """
        perf = self._perf
        own = said if said is not None else self._marker.margin
        return Terms(
            margin=margin(perf.options, own, perf.stored_margin(place), perf.settings(spec.model)),
            threshold=threshold,
            false_alarm=share(
                perf.options.false_alarms, tests=len(perf.collected), red=self._others_that_are_red(), check=check
            ),
            least=planned.min_repeats,
            most=planned.repeats,
        )

    def least_efficiency(self, measurement: Measurement, said: float | None) -> float:
        """Asked of what was measured. `said`: by the check itself."""
        own = said if said is not None else self._marker.efficiency
        return least_efficiency(
            self._perf.options, own, self._perf.stored_efficiency(measurement.fingerprint, measurement.spec)
        )

    def _others_that_are_red(self) -> int:
        records = self._perf.folder.measurements()
        return len({record.test for record in records if record.verdict and record.verdict.turns_red} - {self._item.nodeid})
