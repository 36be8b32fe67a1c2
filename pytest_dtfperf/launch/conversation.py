"""One run, as the controller leads it: the orders that it gives, and the events that it waits for."""

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.errors import HostLost
from pytest_dtfperf.launch.agents import Agents, Event
from pytest_dtfperf.launch.placement import PlacedTask, place
from pytest_dtfperf.launch.watch import Watch
from pytest_dtfperf.measurement import Run, TaskReport, summarise
from pytest_dtfperf.spec import Spec, TaskOrder

OnProgress = Callable[[str, int, int, float | None], object]  # task, step, of how many, images/sec so far if it knows

CHIEF = "worker:0"
GRACE_S = 1.0  # between SIGTERM and SIGKILL: nothing that TensorFlow has to say takes longer
_POLL_S = 0.1  # how late a deadline may be noticed; events are heard at once


class Conversation:
    """Lead with `carry_out`; end, however it went, with `stop` and `write_logs`."""

    def __init__(
        self,
        agents: Agents,
        config: ClusterConfig,
        spec: Spec,
        *,
        planted: Mapping[str, float],
        on_progress: OnProgress,
        checkpoint: str | None,
    ) -> None:
        self.id = uuid.uuid4().hex[:12]
        self._agents = agents
        self._config = config
        self._spec = spec
        self._planted = planted
        self._on_progress = on_progress
        self._checkpoint = checkpoint
        self._tasks = place(spec, agents.hosts, config)
        self._began = self._last_exit = time.monotonic()
        names = [host.name for host in agents.hosts]
        self._watch = Watch({task.name: task.host for task in self._tasks}, names, config.limits, self._began)
        self._launch_s: dict[str, float] = {}
        self._logs: dict[str, str] = {}
        self._over = False  # nobody wants to hear of progress any more

    @property
    def all_quiet(self) -> bool:
        """Whether every host has ended what belonged to the run, and can be used for the next one."""
        return all(host.quiet and not host.lost for host in self._watch.hosts)

    def carry_out(self) -> None:
        """From the first order to the last exit. Raises what `Watch` finds."""
        with self._phase("reserve"):
            addresses = self._reserve()
        with self._phase("fork"):
            self._watch.enter("start", time.monotonic())
            self._start(addresses)
            self._until(lambda: self._watch.all_started)
        with self._phase("ready"):
            self._until(lambda: self._watch.all_ready)
        self._watch.enter("train", time.monotonic())
        self._tell("go", self._tasks)
        self._until(lambda: self._watch.workers_done)
        with self._phase("stop"):
            self._watch.enter("leave", time.monotonic())
            self._tell("leave", [task for task in self._tasks if task.job == "ps"])
            self._until(lambda: self._watch.all_done)
        self._last_exit = time.monotonic()

    def stop(self) -> None:
        """End what is left of the run on all hosts that still listen."""
        self._over = True
        with suppress(HostLost):
            self._agents.order("stop", run=self.id, grace_s=GRACE_S)
            self._listen(lambda: all(host.quiet or host.lost for host in self._watch.hosts), self._config.limits.stop_s)

    def write_logs(self, folder: Path) -> None:
        """Fetch the tasks' logs from all hosts that still answer into files of their own."""
        folder.mkdir(parents=True, exist_ok=True)
        asked = {task.name for task in self._watch.tasks.values() if task.started and self._watch.hosts[task.host].quiet}
        with suppress(HostLost):
            self._agents.order("logs", run=self.id)
            self._listen(lambda: asked <= self._logs.keys(), self._config.limits.stop_s)
        for task, text in self._logs.items():
            log_path(folder, task).write_text(text, encoding="utf-8")

    def summary(self) -> Run:
        """What the run yielded. Raises `InvalidMeasurement`."""
        hosts = {task.name: self._agents.hosts[task.host].name for task in self._tasks}
        reports = [TaskReport.from_json(report) for report in self._watch.reports]
        wall_s = self._last_exit - self._began
        return summarise(self._spec, reports, hosts=hosts, launch_s=self._launch_s, wall_s=wall_s)

    # Orders

    def _reserve(self) -> dict[str, str]:
        """Each task's address; none for a lone process, which talks to nobody."""
        if len(self._tasks) == 1:
            return {}
        on_host: dict[int, list[PlacedTask]] = {}
        for task in self._tasks:
            on_host.setdefault(task.host, []).append(task)
        for host, tasks in on_host.items():
            wanted = {"ports": [task.fixed_port for task in tasks]} if self._config.fixed_ports else {"count": len(tasks)}
            self._agents.order("reserve", run=self.id, host=host, **wanted)
        self._until(lambda: self._watch.ports(on_host) is not None)
        ports = self._watch.ports(on_host) or {}
        return {
            task.name: f"{self._agents.hosts[host].address}:{port}"
            for host, tasks in on_host.items()
            for task, port in zip(tasks, ports[host], strict=True)
        }

    def _start(self, addresses: Mapping[str, str]) -> None:
        jobs = dict.fromkeys(task.job for task in self._tasks) if addresses else {}
        cluster = {job: tuple(addresses[task.name] for task in self._tasks if task.job == job) for job in jobs}
        for host in sorted({task.host for task in self._tasks}):
            tasks = [
                {
                    "task": task.name,
                    "order": self._order_for(task, cluster).to_json(),
                    "env": {"CUDA_VISIBLE_DEVICES": ",".join(task.gpus)},  # empty, not absent: absent means all of them
                    "cpus": list(task.cpus),
                }
                for task in self._tasks
                if task.host == host
            ]
            self._agents.order("start", run=self.id, host=host, cold=self._config.start == "cold", tasks=tasks)

    def _order_for(self, task: PlacedTask, cluster: Mapping[str, tuple[str, ...]]) -> TaskOrder:
        return TaskOrder(
            run=self.id,
            job=task.job,
            index=task.index,
            spec=self._spec,
            cluster=cluster,
            device=task.device,
            num_devices=task.num_devices,
            threads=task.threads,
            sleep_s=self._planted.get(task.name, 0.0),
            checkpoint=self._checkpoint if task.name == CHIEF else None,
        )

    def _tell(self, word: str, tasks: Iterable[PlacedTask]) -> None:
        for task in tasks:
            self._agents.order("tell", run=self.id, host=task.host, task=task.name, word=word)

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
            self._watch.check(time.monotonic())

    def _listen(self, done: Callable[[], bool], within_s: float) -> None:
        """Listen until it is so, but no longer; for when the run is over anyway."""
        deadline = time.monotonic() + within_s
        while not done() and time.monotonic() < deadline:
            self._hear_all(_POLL_S)

    def _hear_all(self, timeout_s: float) -> None:
        """Everything there is to hear, so that nobody is called silent who has spoken."""
        while (event := self._agents.next_event(timeout_s)) is not None:
            self._hear(event)
            timeout_s = 0.0

    def _hear(self, event: Event) -> None:
        if event.get("run") != self.id and event["event"] != "lost":
            return  # a late word of an earlier run
        self._watch.hear(event, time.monotonic())
        if event["event"] == "log":
            self._logs[event["task"]] = event["text"]
        elif event["event"] == "task" and event["kind"] == "progress" and not self._over:
            self._on_progress(event["task"], event["step"], event["of"], event.get("images_per_sec"))


def log_path(folder: Path, task: str) -> Path:
    return folder / f"{task.replace(':', '-')}.log"
