"""The agents of simulated hosts: they answer the controller's orders in virtual time, without processes and TensorFlow.

The virtual clock stands still while the controller computes, and goes on when it waits: to the next event, or to the end of
its wait. So deadlines, silence and the times in reports are on one clock, and an hour passes in seconds.
"""

import heapq
import itertools
import math
import threading
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from pytest_dtfperf.clusters.protocol import AllocationClock, Host, LossReason, Lost
from pytest_dtfperf.datamodel.measurement import SIMULATED
from pytest_dtfperf.errors import HostLost, SpecError
from pytest_dtfperf.node import wire
from pytest_dtfperf.simulated.hardware import HostDeath, SimulatedHardware, share_links
from pytest_dtfperf.simulated.steps import SimulatedSteps, SimulatedTraining
from pytest_dtfperf.spec import Spec
from pytest_dtfperf.traces import InvalidTimestamps, InvalidTrace, StepTimestamps, pack_timestamps, pack_trace

AGENT = "pytest_dtfperf.node.agent"  # the module that a real host would run

# Seconds of what a host does beside training, as seen on real ones.
HELLO_S, RESERVE_S, FORK_S, COLD_S, READY_S, BUILD_S, LEAVE_S, STOP_S = 2.0, 0.01, 0.1, 5.0, 0.5, 4.0, 0.1, 0.1
PROBE_S: Mapping[str, float] = {"compute": 4.0, "listen": 0.1, "round": 0.8}
READING_NOISE = 0.003
FIRST_PORT, PID = 2222, 1000
PEAK_RSS_BYTES = 2 << 30
FIRST_LOSS = 7.0  # about ln(1,000): that of a network that knows nothing of 1,000 classes

_COUNTING = threading.Lock()  # of no session: a state is copied to other processes with its cluster

Sent = tuple[int, bytes | Lost]
Message = Mapping[str, Any]


@dataclass
class VirtualClock(AllocationClock):
    """The clock of one allocation, in seconds from its request on."""

    is_virtual = True
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class SessionState:
    """What has happened in one session: allocations come and go in it, and groups of hosts may train at the same time."""

    deaths: set[tuple[str, int, int]] = field(default_factory=set)  # of hosts by name, in a step of a run
    _counts: Counter[tuple[str, Sequence[str]]] = field(default_factory=Counter)  # of trainings

    def count_training(self, spec: Spec, hosts: Sequence[str]) -> tuple[int, int]:
        """Count a training, and return its number among those of the spec on these hosts, and among all."""
        with _COUNTING:
            self._counts[spec.key, tuple(hosts)] += 1
            return self._counts[spec.key, tuple(hosts)], self._counts.total()


@dataclass
class _Task:
    """A task of a run."""

    name: str
    host: int
    order: Message
    is_over: bool = False


class _Run:
    """One run: of a training, or of probes."""

    def __init__(self, run_id: str) -> None:
        self.id = run_id
        self.tasks: dict[str, _Task] = {}
        self.common: Message = {}
        self.training: SimulatedTraining | None = None
        self.steps: SimulatedSteps | None = None
        self.traced: SimulatedSteps | None = None  # the steps after the measured ones
        self.measured_at_s = math.inf  # when the measured steps begin
        self.is_over = False
        self.is_stalled = False  # a host has died, and no step ends any more

    @property
    def hosts(self) -> list[int]:
        return sorted({task.host for task in self.tasks.values()})


class SimulatedChannel:
    """The agents of all hosts of an allocation. Called from two threads, as every channel."""

    def __init__(
        self,
        hosts: Sequence[Host],
        hardware: SimulatedHardware,
        *,
        clock: VirtualClock,
        state: SessionState,
        dead: set[str],
        allocated_s: float,
        unix_s: float,
        beat_s: float,
    ) -> None:
        """Start the agents.

        Args:
            dead: names of hosts that have died, to which this adds.
            allocated_s: when the hosts were allocated, on the clock.
            unix_s: the time of day at the clock's zero.
            beat_s: the interval of signs of life.
        """
        self._hosts, self._hardware, self._clock, self._state, self._dead = hosts, hardware, clock, state, dead
        self._allocated_s, self._unix_s, self._beat_s = allocated_s, unix_s, beat_s
        self._lock = threading.Lock()
        self._due: list[tuple[float, int, Callable[[], Iterable[Sent]]]] = []
        self._numbers = itertools.count()
        self._sent: deque[Sent] = deque()
        self._run: _Run | None = None
        seeds = [hardware.seed] if hardware.seed is not None else None
        self._random = np.random.default_rng(seeds)
        self._schedule(HELLO_S, self._say_hello)

    def send(self, line: bytes) -> None:
        order = wire.decode(line)
        with self._lock:
            if self._dead.issuperset(host.name for host in self._hosts):
                raise HostLost(f"no agent is left on {SIMULATED} hosts: all of them have died")
            obey = _ORDERS.get(order["order"])
            if obey:
                obey(self, order)

    def receive(self, timeout_s: float) -> Sent | None:
        with self._lock:
            until_s = self._clock.now_s + max(0.0, timeout_s)
            while not self._sent:
                if not self._due or self._due[0][0] > until_s:
                    self._clock.now_s = max(self._clock.now_s, until_s)
                    return None
                at_s, _, happen = heapq.heappop(self._due)
                self._clock.now_s = max(self._clock.now_s, at_s)
                self._sent.extend(sent for sent in happen() if isinstance(sent[1], Lost) or not self._is_dead(sent[0]))
            return self._sent.popleft()

    def _is_dead(self, host: int) -> bool:
        return bool(self._dead) and self._hosts[host].name in self._dead

    def explain_silence(self, host: int) -> Lost | None:
        return None

    def close(self) -> None:
        with self._lock:
            self._due.clear()
            self._sent.clear()

    # Events

    def _schedule(self, seconds: float, happen: Callable[[], Iterable[Sent]]) -> None:
        heapq.heappush(self._due, (self._clock.now_s + seconds, next(self._numbers), happen))

    def _schedule_in_run(self, run: _Run, seconds: float, happen: Callable[[], Iterable[Sent]]) -> None:
        """Let something happen, unless the run is over by then."""
        self._schedule(seconds, lambda: () if run.is_over else happen())

    def _message(self, host: int, event: str, **data: Any) -> Sent:
        return host, wire.encode({"event": event, "host": host, **data})

    def _make_task_message(self, run: _Run, task: _Task, kind: str, **data: Any) -> Sent:
        return self._message(task.host, "task", run=run.id, task=task.name, kind=kind, **data)

    def _say_hello(self) -> Iterator[Sent]:
        fingerprint, cores = self._hardware.fingerprint.to_json(), list(range(self._hardware.cores))
        gpus = [str(gpu) for gpu in range(self._hardware.devices_per_host)] if self._hardware.has_gpus else []
        gbps = round(8 * self._hardware.link_bytes_per_s / 1e9, 3)
        for host, each in enumerate(self._hosts):
            yield self._message(
                host,
                "hello",
                fingerprint=fingerprint,
                pid=PID,
                cpus=cores,
                gpus=gpus,
                addresses=[each.address],
                interfaces=[{"name": "sim0", "addresses": [each.address], "kind": "Ethernet", "gbps": gbps}],
                unguarded=f"{SIMULATED} hosts have no ports",
                boot="",
            )

    def _begin(self, run_id: str) -> _Run:
        if self._run is None or self._run.id != run_id:
            if self._run:
                self._run.is_over = True
            self._run = _Run(run_id)
            self._schedule_in_run(self._run, self._beat_s, partial(self._beat, self._run))
        return self._run

    def _beat(self, run: _Run) -> Iterator[Sent]:
        """Send a sign of life of each host, and the progress of each worker."""
        by_host: dict[int, dict[str, Message]] = {}
        for task in run.tasks.values():
            if not task.is_over:
                by_host.setdefault(task.host, {})[task.name] = {"pid": PID, "state": "S", "cpu_s": 0.0}
        for host in range(len(self._hosts)):
            yield self._message(host, "beat", run=run.id, tasks=by_host.get(host, {}), zygote_state="S", load=0.0)
        if run.steps and not run.is_stalled:
            yield from self._report_progress(run, run.steps)
        self._schedule_in_run(run, self._beat_s, partial(self._beat, run))

    def _report_progress(self, run: _Run, steps: SimulatedSteps) -> Iterator[Sent]:
        since_s = self._clock.now_s - run.measured_at_s
        spec: Spec = run.common["spec"]
        for number, worker in enumerate(steps.workers):
            task = run.tasks[worker]
            done = int(np.searchsorted(steps.ends_s[number], since_s, side="right"))
            if done and not task.is_over:
                rate = round(spec.gpus * spec.batch_size * done / since_s, 3)
                yield self._make_task_message(run, task, "progress", step=done, total_steps=spec.steps, images_per_sec=rate)

    # Orders

    def _reserve(self, order: Message) -> None:
        run = self._begin(order["run"])
        wanted = {int(host): ports for host, ports in order["hosts"].items()}

        def answer() -> Iterator[Sent]:
            for host, given in wanted.items():
                ports = given.get("ports") or [FIRST_PORT + number for number in range(given["count"])]
                yield self._message(host, "reserved", run=run.id, ports=ports)

        self._schedule_in_run(run, RESERVE_S, answer)

    def _start(self, order: Message) -> None:
        run = self._begin(order["run"])
        run.common = {**order["common"]}
        if "spec" in run.common:
            run.common = {**run.common, "spec": Spec.from_json(run.common["spec"])}
        run.tasks = {each["task"]: _Task(each["task"], each["host"], each["order"]) for each in order["tasks"]}

        def fork() -> Iterator[Sent]:
            for task in run.tasks.values():
                yield self._message(task.host, "started", run=run.id, task=task.name, pid=PID)

        def get_ready() -> Iterator[Sent]:
            for task in run.tasks.values():
                yield self._make_task_message(run, task, "ready")

        forked_s = COLD_S if order["cold"] else FORK_S
        self._schedule_in_run(run, forked_s, fork)
        self._schedule_in_run(run, forked_s + READY_S, get_ready)

    def _notify(self, order: Message) -> None:
        run = self._run
        if run is None or run.id != order["run"] or run.is_over:
            return
        tasks = [run.tasks[name] for name in order["tasks"] if name in run.tasks]
        word = order["word"]
        if "probe" in run.common:
            seconds = PROBE_S[word.partition(" ")[0]]
            self._schedule_in_run(run, seconds, partial(self._probe, run, tasks, word))
        elif word == "go":
            self._train(run)
        elif word == "leave":
            self._schedule_in_run(run, LEAVE_S, partial(self._leave, run, tasks))

    def _stop(self, order: Message) -> None:
        run = self._run
        hosts = []
        if run and run.id == order["run"]:
            run.is_over = True
            hosts = run.hosts
        window_s = run.steps.elapsed_s if run and run.steps else 0.0

        def answer() -> Iterator[Sent]:
            for host in hosts:
                yield self._message(
                    host, "state", run=order["run"], state=self._hardware.describe_state(self._hosts[host].name, window_s)
                )
            for host in range(len(self._hosts)):
                yield self._message(host, "stopped", run=order["run"], survivors=[])

        self._schedule(STOP_S, answer)

    def _logs(self, order: Message) -> None:
        run = self._run
        if run and run.id == order["run"]:
            for task in run.tasks.values():
                text = f"{SIMULATED}: {task.name} on {self._hosts[task.host].name}: no program has run\n"
                self._schedule(STOP_S, partial(self._list_one, task.host, run.id, task.name, text))

    def _list_one(self, host: int, run: str, task: str, text: str) -> Iterator[Sent]:
        yield self._message(host, "log", run=run, task=task, text=text)

    # Training

    def _train(self, run: _Run) -> None:
        """Draw all steps, and note when each of their events comes."""
        spec: Spec = run.common["spec"]
        try:
            run.training = training = self._prepare(run, spec)
        except SpecError as exc:
            self._schedule_in_run(run, BUILD_S, partial(self._fail, run, str(exc)))
            return
        names = [self._hosts[host].name for host in run.hosts]
        of_spec, trainings = self._state.count_training(spec, names)
        if self._hardware.seed is not None:
            seeds = [self._hardware.seed, zlib.crc32(spec.key.encode()), of_spec, zlib.crc32(" ".join(names).encode())]
            self._random = np.random.default_rng(seeds)
        warmed_s = BUILD_S + (1 + spec.warmup_steps) * training.usual_step_s
        run.measured_at_s = self._clock.now_s + warmed_s
        begin_s = run.measured_at_s - self._allocated_s
        run.steps = steps = training.draw_steps(self._random, begin_s, spec.steps)
        ends_s = steps.ends_s[:, -1]
        if run.common["traced_steps"]:
            run.traced = training.draw_steps(self._random, begin_s + steps.elapsed_s, run.common["traced_steps"])
            ends_s = ends_s + run.traced.ends_s[:, -1]
        ends: dict[float, list[int]] = {}
        for number, each_s in enumerate(ends_s.tolist()):
            ends.setdefault(each_s, []).append(number)
        for end_s, numbers in ends.items():
            self._schedule_in_run(run, warmed_s + end_s, partial(self._end_workers, run, steps, numbers))
        for death in self._hardware.deaths:
            is_due = trainings >= death.run and death.host in run.hosts and self._name_death(death) not in self._state.deaths
            if is_due and death.step <= spec.steps:
                at_s = warmed_s + float(steps.ends_s[:, death.step - 1].min()) * (1 - 1e-9)
                self._schedule_in_run(run, at_s, partial(self._die, run, death))

    def _prepare(self, run: _Run, spec: Spec) -> SimulatedTraining:
        """Return the training. Raises `SpecError` for what is not simulated."""
        if spec.command or spec.own_model:
            what = "external commands" if spec.command else "own models"
            raise SpecError(f"{SIMULATED} hosts run no {what}: they train the models of the table, as in docs/models.md")
        orders = {name: task.order for name, task in run.tasks.items()}
        return SimulatedTraining(
            spec,
            {name: task.host for name, task in run.tasks.items()},
            {name: order["num_devices"] for name, order in orders.items() if order["job"] == "worker"},
            {name: order["sleep_s"] for name, order in orders.items()},
            self._hardware,
        )

    def _fail(self, run: _Run, why: str) -> Iterator[Sent]:
        for task in run.tasks.values():
            task.is_over = True
            yield self._message(task.host, "exit", run=run.id, task=task.name, code=1, signal=None, last_lines=[why])

    def _end_workers(self, run: _Run, steps: SimulatedSteps, numbers: Sequence[int]) -> Iterator[Sent]:
        """Send what workers report when their last step has ended."""
        if run.is_stalled:
            return
        for number in numbers:
            task = run.tasks[steps.workers[number]]
            serves_devices = bool(number) and run.common["spec"].mode.single_session
            if not serves_devices:
                yield from self._send_timestamps(run, steps, number)
            if run.traced and not serves_devices:
                yield self._make_task_message(run, task, "trace", **self._make_trace(run, run.traced, number))
            report = self._make_report(run, steps, number, has_steps=not serves_devices)
            yield self._make_task_message(run, task, "report", **report)
            task.is_over = True
            yield self._message(task.host, "exit", run=run.id, task=task.name, code=0, signal=None, last_lines=[])

    def _send_timestamps(self, run: _Run, steps: SimulatedSteps, number: int) -> Iterator[Sent]:
        """Send a worker's step timestamps; of a session that computes on all workers, the chief's are those of all."""
        if not any(run.common["timestamped"]):
            return
        numbers = range(len(steps.workers)) if run.common["spec"].mode.single_session else [number]
        timestamps: list[StepTimestamps] = [steps.timestamps(each) for each in numbers]
        task = run.tasks[steps.workers[number]]
        try:
            yield self._make_task_message(run, task, "timestamps", data=pack_timestamps(timestamps))
        except InvalidTimestamps as exc:
            yield self._make_task_message(run, task, "timestamps", error=f"they {exc}")

    def _make_trace(self, run: _Run, traced: SimulatedSteps, number: int) -> Mapping[str, str]:
        """Return what a worker sends of the steps after the measured ones, or why it sends nothing."""
        mode, training, steps = run.common["spec"].mode, run.training, run.steps
        if mode.single_session:
            return {"error": f"{SIMULATED} hosts trace no steps of one session on all workers"}
        assert training
        assert steps
        begin_s = run.measured_at_s + float(steps.ends_s[number, -1])
        trace = training.make_trace(
            traced, number, begin_us=round(1e6 * (self._unix_s + begin_s)), now_s=begin_s - self._allocated_s
        )
        try:
            return {"data": pack_trace(trace)}
        except InvalidTrace as exc:
            return {"error": f"it {exc}"}

    def _make_report(self, run: _Run, steps: SimulatedSteps, number: int, *, has_steps: bool) -> dict[str, Any]:
        spec, training = run.common["spec"], run.training
        assert training
        task = run.tasks[steps.workers[number]]
        count = spec.steps
        step_s = np.round(steps.step_s[number], 9)
        loss = FIRST_LOSS * np.exp(-np.arange(count) / (20 * count))
        is_chief, usual_s = number == 0, training.usual_step_s
        elapsed_s = float(step_s.sum()) if spec.in_lockstep or not is_chief else steps.elapsed_s
        sent = round(training.sent_bytes.get(task.host, 0.0) * count)
        return {
            "job": task.order["job"],
            "index": task.order["index"],
            "num_devices": task.order["num_devices"],
            "step_s": step_s.tolist() if has_steps else [],
            "elapsed_s": elapsed_s,
            "loss": np.round(loss, 6).tolist() if has_steps else [],
            "startup_s": {"build": BUILD_S, "first_step": usual_s, "warmup": spec.warmup_steps * usual_s},
            "bytes_sent": sent,
            "bytes_received": sent,
            "peak_rss_bytes": PEAK_RSS_BYTES,
            "cpu_s": round(0.1 * elapsed_s, 6),
        }

    def _die(self, run: _Run, death: HostDeath) -> Iterator[Sent]:
        """Lose a host for the rest of the allocation. Steps of the others do not end any more."""
        self._state.deaths.add(self._name_death(death))
        self._dead.add(self._hosts[death.host].name)
        run.is_stalled = True
        yield death.host, Lost(LossReason.CUT_OFF, f"{SIMULATED}: the host has died in measured step {death.step}")

    def _name_death(self, death: HostDeath) -> tuple[str, int, int]:
        return self._hosts[death.host].name, death.step, death.run

    def _leave(self, run: _Run, tasks: Sequence[_Task]) -> Iterator[Sent]:
        for task in tasks:
            if not task.is_over:
                task.is_over = True
                report = {"job": task.order["job"], "index": task.order["index"], "peak_rss_bytes": PEAK_RSS_BYTES}
                yield self._make_task_message(run, task, "report", **report)
                yield self._message(task.host, "exit", run=run.id, task=task.name, code=0, signal=None, last_lines=[])

    # Probes

    def _probe(self, run: _Run, tasks: Sequence[_Task], word: str) -> Iterator[Sent]:
        phase, _, number = word.partition(" ")
        now_s = self._clock.now_s - self._allocated_s
        rates: Mapping[tuple[int, int], float] = {}
        if phase == "round":
            round_: Mapping[str, Mapping[str, int]] = run.common["probe"]["rounds"][int(number)]
            streams = {(int(source), int(to)): count for source, targets in round_.items() for to, count in targets.items()}
            rates = share_links(streams, partial(self._hardware.link_of, now_s=now_s))
        for task in tasks:
            if phase == "compute":
                order = task.order
                for name, per_s in self._hardware.list_readings(task.host, now_s, order["families"], order["gpus"]):
                    noisy = per_s * (1 + READING_NOISE * float(self._random.standard_normal()))
                    reading = {"per_s": noisy, "spread": READING_NOISE, "repeats": 5, "how": {SIMULATED: "yes"}}
                    yield self._make_task_message(run, task, "reading", name=name, reading=reading, error=None)
                state = self._hardware.describe_state(self._hosts[task.host].name, 0.0)
                facts = {"limits": {}, "clock_hz": None, "most_clock_hz": None, "state": state}
                yield self._make_task_message(run, task, "facts", **facts)
            elif phase == "round":
                yield from self._send_streams(run, task, int(number), rates)
            yield self._make_task_message(run, task, "done", phase=word)

    def _send_streams(self, run: _Run, task: _Task, number: int, rates: Mapping[tuple[int, int], float]) -> Iterator[Sent]:
        """Send the result of each stream from a host."""
        probe = run.common["probe"]
        for target in map(int, probe["rounds"][number].get(str(task.host), ())):
            parts = [
                {"bytes": round(rates[task.host, target] * probe["part_s"] * self._vary()), "counted_s": probe["part_s"]}
                for _ in range(probe["parts"])
            ]
            yield self._make_task_message(run, task, "stream", round=number, to=target, parts=parts, error=None)

    def _vary(self) -> float:
        return 1 + READING_NOISE * float(self._random.standard_normal())


_ORDERS: Mapping[str, Callable[[SimulatedChannel, Message], None]] = {
    "reserve": SimulatedChannel._reserve,
    "start": SimulatedChannel._start,
    "notify": SimulatedChannel._notify,
    "stop": SimulatedChannel._stop,
    "logs": SimulatedChannel._logs,
}
