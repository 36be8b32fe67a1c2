"""Search the fastest number of parameter servers of a training by few runs.

A short run with one server measures how long a step computes, a probe the capacity of links. A prediction of both for every
other count (limits/limit.py) leaves a few that are worth a run. Short runs halve these, each round twice as long as the one
before; the caller measures the remaining ones in full.

Results of short runs are stored beside the sessions until the remaining counts are measured in full, which takes longer than
all of them: a sweep that is ended early continues where it stopped.
"""

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from pytest_dtfperf.datamodel.explanation import SweepState
from pytest_dtfperf.datamodel.probes import Probes
from pytest_dtfperf.errors import InfrastructureError, InvalidMeasurement, RunFailed, SpecError, get_first_line
from pytest_dtfperf.launch.summary import check_repetition
from pytest_dtfperf.limits import limit
from pytest_dtfperf.limits.limit import Links
from pytest_dtfperf.limits.needs import Layout
from pytest_dtfperf.node.files import read_file, replace_file
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.session import allocation_manager, post_analysis
from pytest_dtfperf.session.context import SessionContext
from pytest_dtfperf.spec import Spec, tables

SHORT_STEPS = 10  # measured steps of the first round
FOLDER = "sweeps"  # beside the sessions' folders


class Sweep:
    """The sweep of one spec, for one test. The spec's own number of servers does not count."""

    def __init__(self, session: SessionContext, test: str, spec: Spec) -> None:
        self._session, self._test, self._spec = session, test, spec
        self._most = allocation_manager.get_most_servers(spec.gpus, session.config)
        self._path: Path | None = None  # file of intermediate results
        self.found = SweepState(most=self._most)
        self._run_s = 0.0  # seconds that the last short run took

    def carry_out(self, finalists: int) -> list[Spec]:
        """Return the remaining specs, the most promising first: at most `finalists`. `found` has the results.

        For an external command, which has no prediction, 1, 2, 4, ... servers remain.

        Raises:
            SpecError: no count trains.
            InfrastructureError: the cluster has failed.
        """
        if self._spec.command:
            return [self._replace_num_ps(count) for count in allocation_manager.powers_of_two(self._most)]
        with self._session.measuring(self._replace_num_ps(self._most), self._test):
            self._path = self._session.results / FOLDER / f"{self._name(self._session.cluster.system)}.json"
            self.found = replace(load_sweep(self._path) or self.found, most=self._most)
            left, steps = self._list_worth_trying(), min(SHORT_STEPS, self._spec.steps)
            while len(left) > finalists:
                left = self._select_faster_half([count for count in left if self._try(count, steps)], steps, finalists)
                steps = min(2 * steps, self._spec.steps)
        return [self._replace_num_ps(count) for count in left]

    def forget(self) -> None:
        """Delete the stored results after the remaining specs are measured."""
        if self._path:
            with suppress(OSError):
                self._path.unlink()

    def _list_worth_trying(self) -> list[int]:
        layouts = self._layouts()
        steps, possible = min(SHORT_STEPS, self._spec.steps), list(layouts)
        firsts = (possible[0], possible[len(possible) // 2], possible[-1])  # if not even these train, the others will not
        first = next((count for count in firsts if self._try(count, steps)), None)
        if first is None:
            raise self._make_no_servers_error()
        links = Links(self._probes(possible[-1]))
        compute_s = limit.estimate_compute_s(self._replace_num_ps(first), layouts[first], links, self._step_s(first, steps))
        rates = limit.predict_rates(self._spec, layouts, links, compute_s)
        self.found.predicted = {str(count): rate for count, rate in rates.items()}
        return limit.choose_counts({count: rate for count, rate in rates.items() if str(count) not in self.found.failed})

    def _layouts(self) -> dict[int, Layout]:
        """Return the layout of each count for which the hosts have room. Raises `SpecError` if there is none."""
        launcher = self._session.allocations.get_launcher()
        layouts = {1: launcher.layout(self._replace_num_ps(1))}
        for count in limit.list_server_counts(self._most):
            with suppress(SpecError):
                layouts[count] = launcher.layout(self._replace_num_ps(count))
        return layouts

    def _probes(self, count: int) -> Probes:
        """Return the probes of the links; without any, counts far from each other are tried."""
        launcher = self._session.allocations.get_launcher()
        if self._session.settings.explain == "never" or len(launcher.hosts) == 1:
            return Probes()
        self._session.progress.waiting("measuring the capacity of the links")
        try:
            return launcher.probe(self._replace_num_ps(count))
        except InfrastructureError:  # the run that follows fails, too, if the error persists
            return Probes()

    def _step_s(self, count: int, steps: int) -> float:
        return self._spec.gpus * self._spec.batch_size / self.found.tried[_name_of(count, steps)]

    def _try(self, count: int, steps: int) -> bool:
        """Return whether a run with this number of servers and steps succeeded. It is made if there is none yet."""
        name, number = _name_of(count, steps), len(self.found.tried) + 1
        if name not in self.found.tried and str(count) not in self.found.failed:
            spec = replace(post_analysis.shorten(self._replace_num_ps(count)), steps=steps)
            try:
                self.found.tried[name] = self._images_per_sec(spec, number)
            except (RunFailed, InvalidMeasurement) as error:
                self.found.failed[str(count)] = get_first_line(error)
            self._keep()
        return name in self.found.tried

    def _images_per_sec(self, spec: Spec, number: int) -> float:
        """Return the rate of a run, or of the faster of two if the first one was disturbed.

        Raises:
            TimeBudgetSpent: the session has no time for it. The next session continues the sweep.
        """
        if budget := self._session.time_budget:
            budget.require(self._test, self._run_s)
        run = self._session.run(spec, self._test, number=number, total=number)
        self._run_s = run.wall_s
        if not run.disturbances:
            return run.images_per_sec
        again = self._session.run(spec, self._test, number=number, total=number)
        check_repetition(spec, run, again)
        return max(run.images_per_sec, again.images_per_sec)

    def _select_faster_half(self, counts: Sequence[int], steps: int, finalists: int) -> list[int]:
        if not counts:
            raise self._make_no_servers_error()
        shortest_first = sorted(counts, key=lambda count: (self._step_s(count, steps), count))
        return shortest_first[: max(finalists, -(-len(counts) // 2))]

    def _make_no_servers_error(self) -> SpecError:
        reasons = "; ".join(f"num_ps={count}: {why}" for count, why in self.found.failed.items())
        return SpecError(f"--num-ps=sweep: {self._spec.label} trains with no number of servers. {reasons}")

    def _replace_num_ps(self, count: int) -> Spec:
        return self._spec.replace(num_ps=count)

    def _name(self, system: str) -> str:
        """Return a name that the same training on the same hardware has in every session."""
        mine = tables.find_own_model(self._spec.model)
        identity = json.dumps([system, self._replace_num_ps(1).to_json(), *([mine.digest] if mine else [])], sort_keys=True)
        return hashlib.sha256(identity.encode()).hexdigest()[:16]

    def _keep(self) -> None:
        """Write the intermediate results. If the disk is full, a sweep that is ended early begins again."""
        assert self._path
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with replace_file(self._path) as file:
                file.write(json.dumps(self.found.to_json(), indent=2).encode())


def _name_of(count: int, steps: int) -> str:
    return f"{count} servers, {steps} steps"


def load_sweep(path: Path) -> SweepState | None:
    """Return the stored results of a sweep that was ended early; None if they are missing or cannot be used."""
    try:
        return SweepState.from_json(json.loads(read_file(path)))
    except (OSError, ValueError):
        return None


def select_fastest(measured: Sequence[Record]) -> Record:
    """Return the fastest measurement; of equally fast ones that with the fewest servers."""
    return max(measured, key=lambda each: (each.images_per_sec, -each.spec.num_ps))
