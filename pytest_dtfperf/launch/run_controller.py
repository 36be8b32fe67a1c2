"""One run, as the controller leads it: the orders that it gives, and the events that it waits for."""

import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.errors import HostLost
from pytest_dtfperf.launch import exposure
from pytest_dtfperf.launch.agents import Agents, Event, reserve_order, start_order, task_addresses
from pytest_dtfperf.launch.disturbance import disturbances, taken_s
from pytest_dtfperf.launch.placement import WORKERS_LEAD, HostView, PlacedTask, Roles, place
from pytest_dtfperf.launch.summary import summarise
from pytest_dtfperf.launch.tracing import Scoring, Tracing
from pytest_dtfperf.launch.tunnel import Tunnel
from pytest_dtfperf.launch.watch import Watch
from pytest_dtfperf.measurement import Run, TaskReport
from pytest_dtfperf.node.tunnel import Violation
from pytest_dtfperf.spec import Spec
from pytest_dtfperf.spec.command import needs_addresses
from pytest_dtfperf.training.models.facts import outline_in
from pytest_dtfperf.training.models.outline import remember

OnOutput = Callable[[str, Sequence[str], int], object]  # task, lines that it has printed, how many more it has
OnProgress = Callable[[str, int, int, float | None], object]  # task, step, of how many, images/sec so far if it knows

GRACE_S = 1.0  # between SIGTERM and SIGKILL: nothing that TensorFlow has to say takes longer
_POLL_S = 0.1  # how late a deadline may be noticed; events are heard at once
_BUSY_S = 1.0  # ... by somebody who says so much that there is always more to hear


class RunController:
    """Lead with `carry_out`; end, however it went, with `stop` and `write_logs`."""

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
        stamped: Sequence[bool] = (True,),
        without: Collection[str] = (),
        on_output: OnOutput | None = None,
        roles: Roles = WORKERS_LEAD,
        tunnel: Tunnel | None = None,
    ) -> None:
        """`tunnel` leads to the host of the first task."""
        self.id = uuid.uuid4().hex[:12]
        self._agents = agents
        self._config = config
        self._spec = spec
        self._injected_slowdowns = injected_slowdowns
        self._on_progress = on_progress
        self._on_output = on_output
        self._checkpoint = checkpoint
        self._isolated = exposure.may_be_isolated(spec)
        self._roles = roles
        self._tasks = roles.named(_placed(spec, agents.hosts, config, without))
        self._began = self._last_exit = time.monotonic()
        names = [host.name for host in agents.hosts]
        hosts = {task.name: task.host for task in self._tasks}
        self._tunnel = tunnel
        self._tunnel_to = self._tasks[0].host if tunnel else None
        agents.expect(self.id, hosts, self._tunnel_to)
        self._staying = [task for task in self._tasks if roles.stays(task)]
        self._watch = Watch(hosts, names, config.limits, self._began, staying=[task.name for task in self._staying])
        self._tracing = Tracing(spec, hosts, explain)
        self._stamped = stamped
        self._scoring = Scoring(spec, hosts)
        self._launch_s: dict[str, float] = {}
        self.logs: dict[str, str] = {}  # by task, as far as hosts have handed them over
        self.unwritten: str | None = None  # why they are in no files
        self._state: dict[str, Mapping[str, Any]] = {}  # by host
        self._over = False  # nobody wants to hear of progress any more

    @property
    def all_quiet(self) -> bool:
        """Whether every host has ended what belonged to the run, and can be used for the next one."""
        return all(host.quiet and not host.lost for host in self._watch.hosts)

    def carry_out(self) -> None:
        """From the first order to the last exit. Raises what `Watch` finds."""
        with self._phase("reserve"):
            cluster = self._reserve()
        with self._phase("fork"):
            self._watch.enter("start", time.monotonic())
            self._start(cluster)
            self._until(lambda: self._watch.all_started)
        with self._phase("ready"):
            self._until(lambda: self._watch.all_ready)
        self._watch.enter("train", time.monotonic())
        self._notify("go", self._tasks)
        self._until(lambda: self._watch.workers_done)
        with self._phase("stop"):
            self._watch.enter("leave", time.monotonic())
            self._notify("leave", self._staying)
            self._until(lambda: self._watch.all_done)
        self._last_exit = time.monotonic()

    def stop(self) -> None:
        """End what is left of the run on all hosts that still listen."""
        self._over = True
        with suppress(HostLost):
            self._order("stop", grace_s=GRACE_S)
            self._listen(lambda: all(host.quiet or host.lost for host in self._watch.hosts), self._config.limits.stop_s)

    def write_logs(self, folder: Path) -> None:
        """Fetch the tasks' logs from all hosts that still answer into files of their own.

        Logs that cannot be written must not lose the run: `unwritten` says why, and `logs` has them.
        """
        hosts = self._watch.hosts
        asked = [task for task in self._watch.tasks.values() if task.started and hosts[task.host].quiet]
        with suppress(HostLost):
            self._order("logs")
            self._listen(
                lambda: all(task.name in self.logs or hosts[task.host].lost for task in asked), self._config.limits.stop_s
            )
        for task, text in self.logs.items():
            try:
                folder.mkdir(parents=True, exist_ok=True)
                _write(log_path(folder, task), text)
            except OSError as exc:  # the others may still be
                self.unwritten = f"logs cannot be written to {folder}: {exc.strerror}"

    def write_trace(self, folder: Path) -> None:
        """What was traced, as a file beside the logs."""
        self._tracing.write(folder)

    @property
    def sent(self) -> Mapping[str, Mapping[str, str]]:
        """What tasks have traced and stamped, as they sent it: task -> text."""
        return {"traces": self._tracing.packed, "stamps": self._scoring.packed}

    def summary(self) -> Run:
        """What the run yielded. Raises `InvalidMeasurement`; `HostLost` where a host has sent what cannot be."""
        if self._watch.refusal:
            raise self._watch.refusal
        hosts = {task.name: self._agents.hosts[task.host].name for task in sorted(self._tasks, key=lambda task: task.host)}
        reports = [TaskReport.from_json(report) for report in self._watch.reports]
        for network in (report.network for report in reports if report.network):
            remember(self._spec, outline_in(network))
        wall_s = self._last_exit - self._began
        return summarise(
            self._spec,
            reports,
            hosts=hosts,
            threads={task.name: task.threads for task in self._tasks},
            launch_s=self._launch_s,
            wall_s=wall_s,
            state=self._state,
            disturbances=disturbances(self._state, alone=self._config.alone),
            others_s={} if self._config.alone else taken_s(self._state),
            explained=self._tracing.outcome(),
            scored=self._scoring.outcome(),
        )

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
            peers=exposure.peers(self._config, self._agents.hosts),
        )
        self._order("reserve", **order)
        self._until(lambda: self._watch.ports(hosts) is not None)
        return task_addresses(self._tasks, self._agents.hosts, self._watch.ports(hosts) or {})

    def _start(self, cluster: Mapping[str, Sequence[str]]) -> None:
        order = start_order(
            self._tasks,
            self._agents.hosts,
            run=self.id,
            spec=self._spec,
            cluster=cluster,
            injected_slowdowns=self._injected_slowdowns,
            checkpoint=self._checkpoint,
            cold=self._config.start == "cold",
            isolated=self._isolated,
            traced_steps=self._tracing.steps,
            stamped=self._stamped,
            streams=self._on_output is not None,
            roles=self._roles,
            tunnel=self._tunnel_to,
        )
        self._order("start", **order)
        if self._tunnel:
            self._tunnel.begin(partial(self._order, "tunnel"))

    def _notify(self, word: str, tasks: Iterable[PlacedTask]) -> None:
        self._order("notify", tasks=[task.name for task in tasks], word=word)

    def _order(self, order: str, **data: Any) -> None:
        self._agents.order(order, run=self.id, **data)

    # Events

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self._launch_s[name] = time.monotonic() - began

    def _until(self, done: Callable[[], bool]) -> None:
        """Listen until it is so, or the watch finds that the run has failed."""
        while self._watch.failing or not done():
            self._hear_all(_POLL_S)
            for host in self._watch.silent(time.monotonic()):
                if loss := self._agents.why_silent(host):
                    self._hear(loss)
            self._check_tunnel()
            self._watch.check(time.monotonic())

    def _check_tunnel(self) -> None:
        """Give up its other end where that has said what it may not; raise what else has ended this one."""
        error = self._tunnel.error if self._tunnel else None
        if isinstance(error, Violation) and self._tunnel_to is not None:
            self._hear(self._agents.give_up(self._tunnel_to, str(error)))
        elif error:
            raise error

    def _listen(self, done: Callable[[], bool], within_s: float) -> None:
        """Listen until it is so, but no longer; for when the run is over anyway."""
        deadline = time.monotonic() + within_s
        while not done() and time.monotonic() < deadline:
            self._hear_all(_POLL_S)

    def _hear_all(self, timeout_s: float) -> None:
        """Everything there is to hear, so that nobody is called silent who has spoken."""
        enough = time.monotonic() + _BUSY_S
        while time.monotonic() < enough and (event := self._agents.next_event(timeout_s)) is not None:
            self._hear(event)
            timeout_s = 0.0

    def _hear(self, event: Event) -> None:
        self._watch.hear(event, time.monotonic())
        if event["event"] == "log":
            self.logs[event["task"]] = event["text"]
        elif event["event"] == "tunnel" and self._tunnel:
            self._tunnel.hear(event)
        elif event["event"] == "state":
            self._state[self._agents.hosts[event["host"]].name] = event["state"]
        elif event["event"] == "task" and event["kind"] == "trace":
            self._tracing.hear(event["task"], event.get("data"), event.get("error"))
        elif event["event"] == "task" and event["kind"] == "stamps":
            self._scoring.hear(event["task"], event.get("data"), event.get("error"))
        elif event["event"] == "task" and event["kind"] == "output" and self._on_output:
            self._on_output(event["task"], event["lines"], event["left_out"])
        elif event["event"] == "task" and event["kind"] == "progress" and not self._over:
            self._on_progress(event["task"], event["step"], event["of"], event.get("images_per_sec"))


def _placed(spec: Spec, hosts: Sequence[HostView], config: ClusterConfig, without: Collection[str]) -> Sequence[PlacedTask]:
    """On all hosts but some. Raises `SpecError` if the others are too few."""
    kept = [index for index, host in enumerate(hosts) if host.name not in without]
    return [replace(task, host=kept[task.host]) for task in place(spec, [hosts[index] for index in kept], config)]


def log_path(folder: Path, task: str) -> Path:
    """`worker-0.log`, for a colon is refused by GitHub's artifact upload."""
    return folder / f"{task.replace(':', '-')}.log"


def _write(path: Path, text: str) -> None:
    """All of it or nothing: a part would be taken for the whole."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError:
        with suppress(OSError):
            path.unlink()
        raise
