"""Runs of training on lent hosts: one after the other, whatever becomes of each."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pytest_dtfperf.clusters.capacity import count_hosts_for
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.clusters.protocol import Allocation, Resources
from pytest_dtfperf.errors import Culprit, DataError, RunFailed
from pytest_dtfperf.explain.probes import Probes, merged
from pytest_dtfperf.launch import placement
from pytest_dtfperf.launch.agents import Agents
from pytest_dtfperf.launch.placement import WORKERS_LEAD, Roles, place
from pytest_dtfperf.launch.probing import USUAL, Deadlines, Probing
from pytest_dtfperf.launch.run_controller import OnOutput, OnProgress, RunController, log_path
from pytest_dtfperf.launch.tunnel import Tunnel
from pytest_dtfperf.limits.needs import Layout
from pytest_dtfperf.measurement import Run
from pytest_dtfperf.spec import Spec
from pytest_dtfperf.staging.stage import Staging

OnSent = Callable[[Mapping[str, Mapping[str, str]]], object]  # "traces", "stamps" -> task -> text

_LAST_LINES = 20


def _quiet(task: str, step: int, of: int, images_per_sec: float | None) -> None:
    """Nobody is watching."""


def _quiet_sent(sent: Mapping[str, Mapping[str, str]]) -> None:
    """Nobody keeps it."""


class Launcher:
    """The agents on an allocation's hosts, for the length of a `with` block, and the runs they carry out.

    Raises `AllocationError` where an agent does not start. A run that fails ends everything that belonged to it on all hosts,
    and leaves the launcher ready for the next one.
    """

    def __init__(self, allocation: Allocation, config: ClusterConfig, resources: Resources | None = None) -> None:
        """`resources` is what the allocation was asked for, to be compared with what it is."""
        self._allocation = allocation
        self._config = config
        self._wanted_nodes = count_hosts_for(config, resources) if resources else None
        self._staging = Staging(allocation, config, resources.on_status if resources else lambda words: None)
        self._agents: Agents | None = None
        self._probes = Probes()  # of all hosts that were probed

    def __enter__(self) -> Self:
        agents = self._living_agents()
        self._views = agents.hosts
        self._fingerprints = agents.fingerprints
        self.hosts: Sequence[str] = [host.name for host in agents.hosts]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._let_go()

    @property
    def placement(self) -> Mapping[str, Any]:
        """Describe what was requested and what was allocated: see `describe_allocation`."""
        return placement.describe_allocation(self._config, self._views, wanted_nodes=self._wanted_nodes)

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """What all hosts are."""
        return _common(self._fingerprints)

    def fingerprint_of(self, hosts: Sequence[str]) -> Mapping[str, Any]:
        """What those hosts are that a run was on, and whether they are what was asked for."""
        used = [at for at, name in enumerate(self.hosts) if name in hosts]
        placed = placement.describe_allocation(self._config, [self._views[at] for at in used], wanted_nodes=len(used))
        return {**_common([self._fingerprints[at] for at in used]), "placement": placed}

    def run(
        self,
        spec: Spec,
        *,
        log_dir: Path,
        injected_slowdowns: Mapping[str, float] | None = None,
        on_progress: OnProgress = _quiet,
        checkpoint: str | None = None,
        explain: bool = False,
        stamped: Sequence[bool] = (True,),
        without: Collection[str] = (),
        on_sent: OnSent = _quiet_sent,
    ) -> Run:
        """Train once, on data that is brought to the hosts if need be. The tasks' logs are in `log_dir` in any case,
        `worker:0`'s as worker-0.log.

        `without`: hosts that it may not use. `injected_slowdowns` makes tasks sleep so many seconds in every step; `checkpoint`
        is where the chief saves what was learnt. To `explain` the run, some more steps are traced after the measured ones; the
        file with all of it is beside the logs. `stamped`: see `TaskOrder`;
        `on_sent` is given what tasks have traced and stamped, as they sent it, for what is to be taken apart again later.
        Raises `SpecError`, `RunFailed`, `InfrastructureError`, `InvalidMeasurement`.
        """
        if self._staging.is_needed(spec):
            self._let_go()  # an allocation has one channel at a time
        spec = self._staging.on_hosts(spec)
        controller = RunController(
            self._living_agents(),
            self._config,
            spec,
            injected_slowdowns=injected_slowdowns or {},
            on_progress=on_progress,
            checkpoint=checkpoint,
            explain=explain,
            stamped=stamped,
            without=without,
        )
        self._carry_out(controller, log_dir)
        controller.write_trace(log_dir)
        on_sent(controller.sent)
        return controller.summary()

    def launch(
        self,
        spec: Spec,
        *,
        log_dir: Path,
        on_output: OnOutput | None,
        roles: Roles = WORKERS_LEAD,
        tunnel: Tunnel | None = None,
    ) -> str | None:
        """Start an external command's tasks, and wait until who leads has ended well; nothing is measured or limited.

        Returns why its logs could not be written, or None.

        `on_output` is given what they print as it comes. Of the spec's workers some may be a chief and an evaluator. A `tunnel`
        leads to the first task's host.
        Raises `SpecError`, `RunFailed`, `InfrastructureError`.
        """
        own = self._config.limits
        leave_s = own.leave_s + roles.grace_s
        limits = replace(own, first_step_s=math.inf, progress_s=math.inf, run_s=math.inf, leave_s=leave_s)
        config = replace(self._config, limits=limits)
        controller = RunController(
            self._living_agents(),
            config,
            spec,
            injected_slowdowns={},
            on_progress=_quiet,
            checkpoint=None,
            explain=False,
            on_output=on_output,
            roles=roles,
            tunnel=tunnel,
        )
        self._carry_out(controller, log_dir)
        return controller.unwritten

    def layout(self, spec: Spec) -> Layout:
        """Where its tasks would be. Raises `SpecError` where hosts have no room for them."""
        tasks = place(spec, self._views, self._config)
        return Layout(
            {t.name: self._views[t.host].name for t in tasks},
            {t.name: t.threads for t in tasks},
            {t.name: t.num_devices for t in tasks if t.num_devices},
        )

    def probe(self, spec: Spec, *, pairs: bool = False, again: bool = False, deadlines: Deadlines = USUAL) -> Probes:
        """What the hosts that a training would be on can do, and the links it would use; with `pairs`, each link alone, too.

        What was probed before is not probed again on the same allocation, unless `again`. Raises `SpecError`,
        `InfrastructureError`.
        """
        if not self._staging.is_needed(spec):  # else its files are not there, as the probe of the input then says
            with suppress(DataError):
                spec = self._staging.on_hosts(spec)
        known = None if again else self._probes
        probing = Probing(self._living_agents(), self._config, spec, known=known, pairs=pairs, deadlines=deadlines)
        if probing.is_needed:
            try:
                probing.carry_out()
            finally:  # Ctrl-C too: nothing goes on while something trains
                probing.stop()
                if not probing.all_quiet:
                    self._let_go()
        found = probing.found()
        self._probes = merged(self._probes, replace(found, unknown={}))  # what could not be measured is tried again
        return found

    def _carry_out(self, controller: RunController, log_dir: Path) -> None:
        """With everything ended and all logs written, however it ends."""
        try:
            controller.carry_out()
        except RunFailed as failure:
            self._clean_up(controller, log_dir)
            raise type(failure)(_with_log(failure.culprit, controller, log_dir)) from None
        except BaseException:  # Ctrl-C too: no task outlives its run
            self._clean_up(controller, log_dir)
            raise
        self._clean_up(controller, log_dir)

    def _clean_up(self, controller: RunController, log_dir: Path) -> None:
        controller.stop()
        controller.write_logs(log_dir)
        if not controller.all_quiet:
            self._let_go()  # the next run starts with new agents

    def _living_agents(self) -> Agents:
        if self._agents and not self._agents.are_well():
            self._let_go()
        if self._agents is None:
            self._agents = Agents(self._allocation, self._config)
        return self._agents

    def _let_go(self) -> None:
        if self._agents:
            self._agents.close()
            self._agents = None


def _with_log(culprit: Culprit, controller: RunController, log_dir: Path) -> Culprit:
    """The culprit with its last words, where its host could still hand them over; and unless it told the reason, its log's."""
    text = controller.logs.get(culprit.task)
    if text is None:
        return culprit
    last_lines = culprit.last_lines or text.splitlines()[-_LAST_LINES:]
    log = None if controller.unwritten else str(log_path(log_dir, culprit.task))
    return replace(culprit, last_lines=last_lines, log=log, unwritten=controller.unwritten)


def _common(fingerprints: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One fingerprint for all hosts. Where they differ it names all there is: mixed hosts compare with mixed ones alone."""
    return {
        part: {key: _one_of([fingerprint[part][key] for fingerprint in fingerprints]) for key in fingerprints[0][part]}
        for part in fingerprints[0]
    }


def _one_of(values: Sequence[Any]) -> Any:
    """What all hosts say, or: the smallest number of cores, every name, every kind of GPU."""
    if all(value == values[0] for value in values):
        return values[0]
    if all(isinstance(value, (int, float)) for value in values):
        return min(values)
    if all(isinstance(value, list) for value in values):
        return [each for i, value in enumerate(values) for each in value if not any(each in other for other in values[:i])]
    return " | ".join(sorted({str(value) for value in values}))
