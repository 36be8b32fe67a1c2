"""--diagnose: short runs on hosts that are still lent, each of which confirms or refutes one cause of what is not green.

They are no part of any measurement: nobody's rate, verdict or baseline has anything to do with them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pytest_dtfperf.errors import InfrastructureError, InvalidMeasurement, RunFailed, SpecError, first_line
from pytest_dtfperf.explain.anatomy import Anatomy
from pytest_dtfperf.explain.causes import Explanation
from pytest_dtfperf.explain.experiments import Planned, Suspect, Tried, failed, planned, read
from pytest_dtfperf.measurement import Measurement
from pytest_dtfperf.session.bench import Bench
from pytest_dtfperf.session.tracing import short
from pytest_dtfperf.spec import Spec

MOST = 4  # experiments: causes beyond the fourth are small
PATIENCE = 2.0  # times what the measurement's runs took: when so long is spent, no further experiment is begun
# Where nothing has been explained, the whole change is suspected to be each of these.
UNEXPLAINED = ("input", "waiting", "compute")


def diagnosed(
    bench: Bench, test: str, measurement: Measurement, explanation: Explanation, then: Mapping[str, Any] | None
) -> Sequence[Tried]:
    """What experiments say of an explanation's causes; none where no hosts are lent any more. `then`: the good step's anatomy.

    Whatever goes wrong costs an experiment, and no verdict.
    """
    if not bench.lending.holds or measurement.spec.command:
        return []
    launcher = bench.lending.launcher
    spare = len(launcher.hosts) - len(measurement.hosts)
    plans = planned(suspects(explanation), measurement.spec.to_json(), spare_hosts=spare, most=MOST)
    before = Anatomy.from_json(then) if then else None
    return list(_Round(bench, test, measurement, explanation, before).of(plans))


def suspects(explanation: Explanation) -> list[Suspect]:
    """The causes; where there are none, whatever an experiment can tell of."""
    found = [Suspect(cause.kind, cause.seconds, cause.location) for cause in explanation.causes if cause.seconds > 0]
    return found or [Suspect(kind, explanation.change_s) for kind in UNEXPLAINED]


class _Round:
    """The experiments on one measurement, one after the other."""

    def __init__(
        self, bench: Bench, test: str, measurement: Measurement, explanation: Explanation, then: Anatomy | None
    ) -> None:
        self._bench = bench
        self._test = test
        self._measurement = measurement
        self._explanation = explanation
        self._then = then
        self._left_s = PATIENCE * sum(run.wall_s for run in measurement.runs)

    def of(self, plans: Sequence[Planned]) -> Iterator[Tried]:
        made: dict[tuple[Spec, frozenset[str]], float] = {}  # that serve several causes
        for number, plan in enumerate(plans, start=1):
            try:
                spec, without = self._spec(plan), self._without(plan)
                if (spec, without) not in made:
                    made[spec, without] = self._step_s(spec, without, number, len(plans))
            except (RunFailed, InvalidMeasurement, InfrastructureError, SpecError) as error:
                yield failed(plan, self._explanation.step_s, first_line(error))
                continue
            yield read(
                plan,
                step_s=made[spec, without],
                instead_of_s=self._explanation.step_s,
                noise_s=self._explanation.noise_s,
                then=self._then,
            )

    def _spec(self, plan: Planned) -> Spec:
        return replace(short(self._measurement.spec), **plan.trial.changes)

    def _without(self, plan: Planned) -> frozenset[str]:
        """The host that is left out."""
        if not plan.trial.leaves_out or not plan.suspect.location:
            return frozenset()
        ends = plan.suspect.location.split(">")
        task_hosts = self._measurement.runs[-1].task_hosts
        hosts = [task_hosts.get(end, end) for end in ends]
        found = next((host for host in reversed(hosts) if host in self._measurement.hosts), None)
        if found is None:
            raise SpecError(f"{plan.suspect.location} is on no host of this measurement")
        return frozenset([found])

    def _step_s(self, spec: Spec, without: frozenset[str], number: int, of: int) -> float:
        """Seconds of a step, as rates tell: the same as that which is explained is."""
        if self._left_s <= 0:
            raise SpecError("no time is left for it: experiments may take twice as long as what they explain")
        run = self._bench.run(spec, self._test, number=number, of=of, without=without)
        self._left_s -= run.wall_s
        return spec.gpus * spec.batch_size / run.images_per_sec
