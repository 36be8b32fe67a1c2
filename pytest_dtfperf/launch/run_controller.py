"""One run from the controller's side: its orders, and the events that it waits for."""

import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.clusters.placement import WORKERS_LEAD, HostView, PlacedTask, Roles, place
from pytest_dtfperf.datamodel.host_state import HostState
from pytest_dtfperf.datamodel.measurement import Run
from pytest_dtfperf.errors import HostLost
from pytest_dtfperf.launch import exposure
from pytest_dtfperf.launch.agents import Agents, make_task_addresses, reserve_order, start_order
from pytest_dtfperf.launch.disturbance import compute_taken_s, find_disturbances
from pytest_dtfperf.launch.summary import summarise
from pytest_dtfperf.launch.tracing import TimestampCollector, TraceCollector
from pytest_dtfperf.launch.watch import Event, Watch
from pytest_dtfperf.messages.agent import LogMessage, ProgressMessage, StateMessage, TimestampsMessage, TraceMessage
from pytest_dtfperf.spec import Spec
from pytest_dtfperf.spec.command import needs_addresses
from pytest_dtfperf.training.models.outline import keep_outline, outline_in

OnProgress = Callable[[str, int, int, float | None], object]  # task, step, number of steps, images/sec so far if known

GRACE_S = 1.0  # between SIGTERM and SIGKILL: no message of TensorFlow takes longer
_BUSY_S = 1.0  # delay in noticing a deadline while a host sends without pause


class RunController:
    """Leads one run with `carry_out`, and ends it with `stop` and `write_logs` in any case.

    `MeasuredRun` adds measurements, `ProgramRun` a program's output.

    Attributes:
        logs: text of the tasks' logs, by task, as far as hosts have sent them.
        unwritten: why the logs could not be written to files, or None.
    """

    def __init__(
        self,
        agents: Agents,
        config: ClusterConfig,
        spec: Spec,
        tasks: Sequence[PlacedTask],
        *,
        roles: Roles = WORKERS_LEAD,
        tunnel_host: int | None = None,
    ) -> None:
        """Prepare a run of placed tasks; `tunnel_host` is the number of the host that a tunnel leads to."""
        self.id = uuid.uuid4().hex[:12]
        self._agents = agents
        self._config = config
        self._spec = spec
        self._tasks = tasks
        self._roles = roles
        self._tunnel_host = tunnel_host
        self._isolated = exposure.may_be_isolated(spec)
        self._clock = agents.clock
        self._began = self._last_exit = self._clock()
        self._task_hosts = {task.name: task.host for task in tasks}
        agents.expect(self.id, self._task_hosts, tunnel_host)
        self._staying = [task for task in tasks if roles.is_kept(task)]
        names, staying = [host.name for host in agents.hosts], [task.name for task in self._staying]
        self._watch = Watch(self._task_hosts, names, config.limits, self._began, staying=staying)
        self._launch_s: dict[str, float] = {}
        self.logs: dict[str, str] = {}
        self.unwritten: str | None = None

    @property
    def all_quiet(self) -> bool:
        """Whether every host has ended the run's processes, and can be used for the next one."""
        return all(host.quiet and not host.loss for host in self._watch.hosts)

    def carry_out(self) -> None:
        """Carry the run out, from the first order to the last exit. Raises what `Watch` finds."""
        with self._phase("reserve"):
            cluster = self._reserve()
        with self._phase("fork"):
            self._watch.enter("start", self._clock())
            self._start(cluster)
            self._run_until(lambda: self._watch.all_started)
        with self._phase("ready"):
            self._run_until(lambda: self._watch.all_ready)
        self._watch.enter("train", self._clock())
        self._notify("go", self._tasks)
        self._run_until(lambda: self._watch.workers_done)
        with self._phase("stop"):
            self._watch.enter("leave", self._clock())
            self._notify("leave", self._staying)
            self._run_until(lambda: self._watch.all_done)
        self._last_exit = self._clock()

    def stop(self) -> None:
        """End what is left of the run on all hosts that still listen."""
        with suppress(HostLost):
            self._order("stop", grace_s=GRACE_S)
            self._receive_until(lambda: all(host.quiet or host.loss for host in self._watch.hosts), self._config.limits.stop_s)

    def write_logs(self, folder: Path) -> None:
        """Fetch the tasks' logs from all hosts that still answer into files of their own.

        Logs that cannot be written must not lose the run: `unwritten` has the reason, and `logs` the logs.
        """
        hosts = self._watch.hosts
        asked = [task for task in self._watch.tasks.values() if task.started and hosts[task.host].quiet]
        with suppress(HostLost):
            self._order("logs")
            self._receive_until(
                lambda: all(task.name in self.logs or hosts[task.host].loss for task in asked), self._config.limits.stop_s
            )
        for task, text in self.logs.items():
            try:
                folder.mkdir(parents=True, exist_ok=True)
                _write(log_path(folder, task), text)
            except OSError as exc:  # the others may be possible
                self.unwritten = f"logs cannot be written to {folder}: {exc.strerror}"

    # Orders

    def _reserve(self) -> dict[str, list[str]]:
        """Return each task's address; none for a lone process, unless its command asks for one."""
        if len(self._tasks) == 1 and not needs_addresses(self._spec):
            return {}
        hosts = {task.host for task in self._tasks}
        exposure.check(self._config, [self._agents.hosts[host] for host in hosts])
        order = reserve_order(
            self._tasks,
            fixed_ports=self._config.fixed_ports,
            isolated=self._isolated,
            peers=exposure.find_peers(self._config, self._agents.hosts),
        )
        self._order("reserve", **order)
        self._run_until(lambda: self._watch.ports(hosts) is not None)
        return make_task_addresses(self._tasks, self._agents.hosts, self._watch.ports(hosts) or {})

    def _start(self, cluster: Mapping[str, Sequence[str]]) -> None:
        order = start_order(
            self._tasks,
            self._agents.hosts,
            run=self.id,
            spec=self._spec,
            cluster=cluster,
            cold=self._config.start == "cold",
            isolated=self._isolated,
            roles=self._roles,
            tunnel=self._tunnel_host,
            **self._start_options(),
        )
        self._order("start", **order)

    def _start_options(self) -> dict[str, Any]:
        """Return further arguments of `start_order`."""
        return {}

    def _notify(self, word: str, tasks: Iterable[PlacedTask]) -> None:
        self._order("notify", tasks=[task.name for task in tasks], word=word)

    def _order(self, order: str, **data: Any) -> None:
        self._agents.order(order, run=self.id, **data)

    # Events

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        began = self._clock()
        yield
        self._launch_s[name] = self._clock() - began

    def _run_until(self, done: Callable[[], bool]) -> None:
        """Receive events until it is done, or the watch finds that the run has failed."""
        while self._watch.has_failed or not done():
            self._receive_all(self._agents.poll_s)
            for host in self._watch.list_silent_hosts(self._clock()):
                if loss := self._agents.explain_silence(host):
                    self._receive(loss)
            self._check_connection()
            self._watch.check(self._clock())

    def _check_connection(self) -> None:
        """Raise the error of another connection that the run needs, besides those of the agents."""

    def _receive_until(self, done: Callable[[], bool], within_s: float) -> None:
        """Receive events until it is done, but not longer; for use after the end of the run."""
        deadline = self._clock() + within_s
        while not done() and self._clock() < deadline:
            self._receive_all(self._agents.poll_s)

    def _receive_all(self, timeout_s: float) -> None:
        """Receive all pending events, so that no host with some of them counts as silent."""
        enough = self._clock() + _BUSY_S
        while self._clock() < enough and (event := self._agents.wait_for_event(timeout_s)) is not None:
            self._receive(event)
            timeout_s = 0.0

    def _receive(self, event: Event) -> None:
        self._watch.receive(event, self._clock())
        if isinstance(event, LogMessage):
            self.logs[event.task] = event.text


class MeasuredRun(RunController):
    """A measured run: its hosts' state, and its tasks' reports, traces and timestamps, become a `Run`."""

    def __init__(
        self,
        agents: Agents,
        config: ClusterConfig,
        spec: Spec,
        *,
        injected_slowdowns: Mapping[str, float],
        on_progress: OnProgress,
        checkpoint: str | None,
        explain: bool,
        timestamped: Sequence[bool],
        without: Collection[str],
        is_cancelled: Callable[[], bool],
        is_aborted: Callable[[], bool] = lambda: False,
    ) -> None:
        """Place the tasks; see `Launcher.run` for the arguments. Raises `SpecError`."""
        super().__init__(agents, config, spec, _assign_without(spec, agents.hosts, config, without))
        self._injected_slowdowns = injected_slowdowns
        self._on_progress = on_progress
        self._checkpoint = checkpoint
        self._timestamped = timestamped
        self._tracing = TraceCollector(spec, self._task_hosts, explain)
        self._scoring = TimestampCollector(spec, self._task_hosts)
        self._state: dict[str, HostState] = {}  # by host
        self._is_cancelled, self._is_aborted = is_cancelled, is_aborted
        self._is_over = False  # further progress is not reported

    def stop(self) -> None:
        self._is_over = True
        super().stop()

    def write_trace(self, folder: Path) -> None:
        """Write the traces to a file beside the logs."""
        self._tracing.write(folder)

    @property
    def sent(self) -> Mapping[str, Mapping[str, str]]:
        """The traces and timestamps of tasks, as received: task -> text."""
        return {"traces": self._tracing.packed, "timestamps": self._scoring.packed}

    def summary(self) -> Run:
        """Return the results of the run.

        Raises:
            InvalidMeasurement: the reports cannot all be true.
            HostLost: a host has sent invalid data.
        """
        if self._watch.refusal:
            raise self._watch.refusal
        hosts = {task.name: self._agents.hosts[task.host].name for task in sorted(self._tasks, key=lambda task: task.host)}
        reports = self._watch.reports
        for network in (report.network for report in reports if report.network):
            keep_outline(self._spec, outline_in(network))
        return summarise(
            self._spec,
            reports,
            hosts=hosts,
            threads={task.name: task.threads for task in self._tasks},
            launch_s=self._launch_s,
            wall_s=self._last_exit - self._began,
            state=self._state,
            disturbances=find_disturbances(self._state, dedicated=self._config.dedicated),
            others_s={} if self._config.dedicated else compute_taken_s(self._state),
            explained=self._tracing.outcome(),
            scored=self._scoring.outcome(),
        )

    def _start_options(self) -> dict[str, Any]:
        return {
            "injected_slowdowns": self._injected_slowdowns,
            "checkpoint": self._checkpoint,
            "traced_steps": self._tracing.steps,
            "timestamped": self._timestamped,
        }

    def _receive_until(self, done: Callable[[], bool], within_s: float) -> None:
        super()._receive_until(lambda: self._is_aborted() or done(), within_s)

    def _check_connection(self) -> None:
        if self._is_cancelled():
            raise KeyboardInterrupt("the run was cancelled")

    def _receive(self, event: Event) -> None:
        super()._receive(event)
        match event:
            case StateMessage():
                self._state[self._agents.hosts[event.host].name] = event.state
            case TraceMessage():
                self._tracing.receive(event.task, event.data, event.error)
            case TimestampsMessage():
                self._scoring.receive(event.task, event.data, event.error)
            case ProgressMessage() if not self._is_over:
                self._on_progress(event.task, event.step, event.total_steps, event.images_per_sec)


def _assign_without(
    spec: Spec, hosts: Sequence[HostView], config: ClusterConfig, without: Collection[str]
) -> Sequence[PlacedTask]:
    """Place tasks on the remaining hosts. Raises `SpecError` if these are too few."""
    kept = [index for index, host in enumerate(hosts) if host.name not in without]
    return [replace(task, host=kept[task.host]) for task in place(spec, [hosts[index] for index in kept], config)]


def log_path(folder: Path, task: str) -> Path:
    """Return the path of `worker-0.log`: GitHub's artifact upload refuses a colon."""
    return folder / f"{task.replace(':', '-')}.log"


def _write(path: Path, text: str) -> None:
    """Write all of it or nothing, because a part would look complete."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError:
        with suppress(OSError):
            path.unlink()
        raise
