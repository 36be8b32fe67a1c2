"""Runs on the hosts of one allocation: one after the other, whether or not one fails."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pytest_dtfperf.clusters import placement
from pytest_dtfperf.clusters.capacity import count_hosts_for
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.clusters.placement import WORKERS_LEAD, Roles, place
from pytest_dtfperf.clusters.protocol import Allocation, Resources
from pytest_dtfperf.codec import JsonData
from pytest_dtfperf.datamodel.fingerprint import MAX_GPUS, MAX_NAME, AllocationCheck, Fingerprint
from pytest_dtfperf.datamodel.measurement import Run
from pytest_dtfperf.datamodel.probes import Probes
from pytest_dtfperf.errors import Culprit, DataError, RunFailed
from pytest_dtfperf.explain.probes import merge_probes, select_missing_probes
from pytest_dtfperf.launch.agents import Agents
from pytest_dtfperf.launch.link_rounds import Round
from pytest_dtfperf.launch.probing import (
    ALL_FAMILIES,
    CAPACITY_FAMILIES,
    USUAL,
    Deadlines,
    Probing,
    load_probes,
    store_probes,
)
from pytest_dtfperf.launch.program_run import OnOutput, ProgramRun, Tunnel
from pytest_dtfperf.launch.run_controller import MeasuredRun, OnProgress, RunController, log_path
from pytest_dtfperf.limits.needs import Layout
from pytest_dtfperf.spec import Spec
from pytest_dtfperf.staging.stage import Staging

OnSent = Callable[[Mapping[str, Mapping[str, str]]], object]  # "traces", "timestamps" -> task -> text

_LAST_LINES = 20


class Launcher:
    """The agents on an allocation's hosts, for the length of a `with` block, and the runs they carry out.

    Raises `AllocationError` if an agent does not start. A run that fails ends all its processes on all hosts, and
    leaves the launcher ready for the next one.
    """

    def __init__(self, allocation: Allocation, config: ClusterConfig, resources: Resources | None = None) -> None:
        """Note the allocation; `resources` is what was requested, to be compared with what was allocated."""
        self._allocation = allocation
        self._config = config
        self._wanted_nodes = count_hosts_for(config, resources) if resources else None
        self._staging = Staging(allocation, config, resources.on_status if resources else lambda status: None)
        self._agents: Agents | None = None
        self._probes = Probes()  # of this allocation's hosts, measured while it is held
        self.probed = Probes()  # what the last call of `probe` or `probe_capacity` measured
        self._capacity: Probes | None = None  # also what other sessions measured; None: not read yet

    def __enter__(self) -> Self:
        agents = self._get_agents()
        self._views = agents.hosts
        self._fingerprints = agents.fingerprints
        self.hosts: Sequence[str] = [host.name for host in agents.hosts]
        self._numbers = {name: at for at, name in enumerate(self.hosts)}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._close_agents()

    @property
    def placement(self) -> AllocationCheck:
        """Describe what was requested and what was allocated: see `describe_allocation`."""
        return placement.describe_allocation(self._config, self._views, wanted_nodes=self._wanted_nodes)

    @property
    def fingerprint(self) -> Fingerprint:
        """The properties that all hosts share, or all values."""
        return merge_fingerprints(self._fingerprints)

    def collect_fingerprint(self, hosts: Sequence[str]) -> Fingerprint:
        """Return the properties of a run's hosts, and whether they match the request."""
        used = sorted(self._numbers[name] for name in hosts if name in self._numbers)
        placed = placement.describe_allocation(self._config, [self._views[at] for at in used], wanted_nodes=len(used))
        return replace(merge_fingerprints([self._fingerprints[at] for at in used]), placement=placed)

    def run(
        self,
        spec: Spec,
        *,
        log_dir: Path,
        injected_slowdowns: Mapping[str, float] | None = None,
        on_progress: OnProgress = lambda task, step, total_steps, images_per_sec: None,
        checkpoint: str | None = None,
        explain: bool = False,
        timestamped: Sequence[bool] = (True,),
        without: Collection[str] = (),
        on_sent: OnSent = lambda sent: None,
        is_cancelled: Callable[[], bool] = lambda: False,
        is_aborted: Callable[[], bool] = lambda: False,
    ) -> Run:
        """Train once. The data is staged to the hosts if necessary.

        Args:
            log_dir: where the tasks' logs are written in any case, `worker:0`'s as worker-0.log.
            injected_slowdowns: task -> seconds that it sleeps in every step.
            checkpoint: where the chief saves its model.
            explain: trace some more steps after the measured ones; the file with all of them is beside the logs.
            timestamped: see `TaskOrder`.
            without: hosts that are not used.
            on_sent: called with the traces and timestamps of tasks, as received.
            is_cancelled: checked all the time, in a run of another thread than the main one; the run ends like that of Ctrl-C.
            is_aborted: checked while a run ends; then its agents end at once, without a wait for tasks and logs.

        Raises:
            SpecError, RunFailed, InfrastructureError, InvalidMeasurement: what has failed.
        """
        if self._staging.is_needed(spec):
            self._close_agents()  # an allocation has one channel at a time
        spec = self._staging.stage_spec(spec)
        controller = MeasuredRun(
            self._get_agents(),
            self._config,
            spec,
            injected_slowdowns=injected_slowdowns or {},
            on_progress=on_progress,
            checkpoint=checkpoint,
            explain=explain,
            timestamped=timestamped,
            without=without,
            is_cancelled=is_cancelled,
            is_aborted=is_aborted,
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
        """Start an external command's tasks, and wait until its leading tasks have ended well; nothing is measured or limited.

        Args:
            on_output: called with the tasks' output as it comes.
            roles: which of the spec's workers are a chief and an evaluator.
            tunnel: leads to the first task's host.

        Returns:
            Why the logs could not be written, or None.

        Raises:
            SpecError, RunFailed, InfrastructureError: what has failed.
        """
        controller = ProgramRun(self._get_agents(), self._config, spec, roles=roles, on_output=on_output, tunnel=tunnel)
        self._carry_out(controller, log_dir)
        return controller.unwritten

    def layout(self, spec: Spec) -> Layout:
        """Return the placement of a spec's tasks. Raises `SpecError` if hosts have no room for them."""
        tasks = place(spec, self._views, self._config)
        return Layout(
            {t.name: self._views[t.host].name for t in tasks},
            {t.name: t.threads for t in tasks},
            {t.name: t.num_devices for t in tasks if t.num_devices},
        )

    def probe(
        self,
        spec: Spec,
        *,
        pairs: bool = False,
        rounds: Sequence[Round] | None = None,
        again: bool = False,
        cold_input: bool = False,
        families: Sequence[str] = ALL_FAMILIES,
        deadlines: Deadlines = USUAL,
    ) -> Probes:
        """Probe the hosts of a training and its links.

        Args:
            pairs: measure each link by itself, too.
            rounds: of links; by default those that the training uses.
            again: measure what was measured before on this allocation, too.
            cold_input: read the training's data from the disk: its files are dropped from the page cache before.
            families: of readings that are measured of hosts.

        Raises:
            SpecError, InfrastructureError: what has failed.
        """
        if not self._staging.is_needed(spec):  # otherwise its files are missing, as the probe of the input then reports
            with suppress(DataError):
                spec = self._staging.stage_spec(spec)
        known = None if again else self._probes
        return self._carry_out_probe(
            Probing(
                self._get_agents(),
                self._config,
                spec,
                known=known,
                pairs=pairs,
                rounds=rounds,
                cold_input=cold_input,
                families=families,
                deadlines=deadlines,
            )
        )

    def probe_capacity(self, spec: Spec, *, on_begin: Callable[[], object] = lambda: None) -> Probes:
        """Return the arithmetic, memory and links of a training's hosts, for its limit; probe only what is unknown.

        Results on this allocation, and of any session within the last hour, are used again: `probing.load_probes`.

        Args:
            on_begin: called if something is measured, before that.

        Raises:
            SpecError, InfrastructureError: what has failed.
        """
        agents = self._get_agents()
        if self._capacity is None:
            self._capacity = load_probes(self._config, self._views)
        known, self.probed = merge_probes(self._capacity, self._probes), Probes()
        probing = Probing(agents, self._config, spec, known=known, families=CAPACITY_FAMILIES)
        if not probing.is_needed:
            return probing.collect_probes()
        on_begin()
        found = self._carry_out_probe(probing)
        store_probes(self._config, self._views, self.probed)  # older readings keep their age
        self._capacity = merge_probes(self._capacity, replace(found, unknown={}))
        return found

    def _carry_out_probe(self, probing: Probing) -> Probes:
        if probing.is_needed:
            try:
                probing.carry_out()
            finally:  # Ctrl-C too: no probe runs beside a training
                probing.stop()
                if not probing.all_quiet:
                    self._close_agents()
        found = probing.collect_probes()
        self.probed = select_missing_probes(found, merge_probes(self._capacity or Probes(), self._probes))
        self._probes = merge_probes(self._probes, replace(found, unknown={}))  # failed probes are repeated
        return found

    def _carry_out(self, controller: RunController, log_dir: Path) -> None:
        """Carry a run out, end all its processes, and write the logs, however it ends."""
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
            self._close_agents()  # the next run starts with new agents

    def _get_agents(self) -> Agents:
        if self._agents and not self._agents.are_well():
            self._close_agents()
        if self._agents is None:
            self._agents = Agents(self._allocation, self._config)
        return self._agents

    def _close_agents(self) -> None:
        if self._agents:
            self._agents.close()
            self._agents = None


def _with_log(culprit: Culprit, controller: RunController, log_dir: Path) -> Culprit:
    """Return the culprit with its log, if its host could send it, and the last lines of it, unless there are others."""
    text = controller.logs.get(culprit.task)
    if text is None:
        return culprit
    last_lines = culprit.last_lines or text.splitlines()[-_LAST_LINES:]
    log = None if controller.unwritten else str(log_path(log_dir, culprit.task))
    return replace(culprit, last_lines=last_lines, log=log, unwritten=controller.unwritten)


def merge_fingerprints(fingerprints: Sequence[Fingerprint]) -> Fingerprint:
    """Return one fingerprint for all hosts; where they differ it has all values: mixed hosts compare with mixed ones alone."""
    merged: Fingerprint = _merge_values(fingerprints)
    return merged


def _merge_values(values: Sequence[Any]) -> Any:
    """Return the common value, or the smallest number of cores (None if a host has none), every name, every kind of GPU."""
    if all(value == values[0] for value in values):
        return values[0]
    if all(isinstance(value, int | float | None) for value in values):
        return None if None in values else min(values)
    if all(isinstance(value, list | tuple) for value in values):
        found = [each for i, value in enumerate(values) for each in value if not any(each in other for other in values[:i])]
        return found[:MAX_GPUS]
    if all(isinstance(value, Mapping) for value in values):
        return {key: _merge_values([value.get(key) for value in values]) for key in dict.fromkeys(chain(*values))}
    if all(isinstance(value, JsonData) for value in values):
        names = [each.name for each in fields(values[0])]
        return replace(values[0], **{name: _merge_values([getattr(value, name) for value in values]) for name in names})
    return " | ".join(sorted({str(value) for value in values}))[:MAX_NAME]
