"""The steps of a simulated training: the event model's step, with noise, and with hosts and links that are slow. Pure.

    receive     half of what links add to a step where workers fetch values first
    compute     of the slowest of a worker's devices, with noise
    send        the rest of what links add
    wait        in lockstep, for the slowest worker

A slow link is as if all links had the rate at which the busiest link would take as long as that one takes.

Traces have the same times. A transfer lasts as long as its bytes take on the slower of the two links that it shares: it begins
with the step, or ends with `send`. What does not fit into `receive` or `send` is beside the computing.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from pytest_dtfperf.limits.limit import FORWARD
from pytest_dtfperf.limits.needs import Flow, Layout, Phase, compute_server_traffic, compute_traffic
from pytest_dtfperf.predict.event_model import NetworkRates, StepModel
from pytest_dtfperf.simulated.hardware import SimulatedHardware
from pytest_dtfperf.spec import Spec
from pytest_dtfperf.traces import Operation, OperationRun, StepTimestamps, TaskTrace, Tensor, TensorArrival, TracedStep
from pytest_dtfperf.training.exchange_plan import bytes_on_servers

PYTHON_SHARE, MOST_PYTHON_S = 0.01, 0.002  # of a step's computing that is Python

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class SimulatedSteps:
    """The measured steps of all workers in seconds; each array has a row for each worker and a column for each step."""

    workers: Sequence[str]
    python_s: Floats
    receive_s: Floats  # until all values are there
    compute_s: Floats  # from then until the last gradient is there
    send_s: Floats  # from then until its gradients are where they are needed
    step_s: Floats

    @property
    def columns(self) -> tuple[Floats, ...]:
        """All times, in the order of the fields."""
        return self.python_s, self.receive_s, self.compute_s, self.send_s, self.step_s

    @cached_property
    def ends_s(self) -> Floats:
        """When each step of each worker has ended, from the common start."""
        found: Floats = np.cumsum(self.step_s, axis=1)
        return found

    @property
    def elapsed_s(self) -> float:
        """The end of the last step of any worker."""
        return float(self.ends_s[:, -1].max())

    def timestamps(self, worker: int) -> StepTimestamps:
        python, receive, compute, step = (
            np.rint(1e6 * each[worker]).astype(int) for each in (self.python_s, self.receive_s, self.compute_s, self.step_s)
        )
        end = np.maximum(step - python, receive + compute)
        columns = [python, receive, receive + compute, end, python + (receive + compute) // 10]
        names = ("python_us", "variables_us", "gradients_us", "end_us", "cpu_us")
        return StepTimestamps(worker=self.workers[worker], **{n: each.tolist() for n, each in zip(names, columns, strict=True)})


class SimulatedTraining:
    """The steps of one training on placed tasks."""

    def __init__(
        self,
        spec: Spec,
        tasks: Mapping[str, int],
        devices: Mapping[str, int],
        sleep_s: Mapping[str, float],
        hardware: SimulatedHardware,
    ) -> None:
        """Prepare the model of a step.

        Args:
            tasks: the number of each task's host.
            devices: of each worker.
            sleep_s: of each worker that is slowed on purpose, in each step.

        Raises:
            SpecError: the model is not known here.
        """
        self._spec, self._hardware, self._tasks = spec, hardware, tasks
        layout = Layout({task: str(host) for task, host in tasks.items()}, devices=devices)
        self.workers = layout.workers
        self._hosts = [tasks[worker] for worker in self.workers]
        self._servers = {tasks[server] for server in layout.servers}
        self._devices = [max(1, devices[worker]) for worker in self.workers]
        self._sleep_s = np.array([[sleep_s.get(worker, 0.0)] for worker in self.workers])
        self._model = StepModel(spec, layout)
        self.compute_s = hardware.compute_s(spec)
        self._python_s = min(PYTHON_SHARE * self.compute_s, MOST_PYTHON_S)
        self._bytes: dict[int, float] = defaultdict(float)
        self.sent_bytes: dict[int, float] = defaultdict(float)  # by host, in a step
        for phase in compute_traffic(spec, layout):
            for host, flow in phase.items():
                self._bytes[int(host)] += max(flow.sent, flow.received)
                self.sent_bytes[int(host)] += flow.sent
        self._link_s: dict[float, float] = {}

    @property
    def usual_step_s(self) -> float:
        """A step without noise and faults."""
        return self._expected_s + self._find_link_s(self._hardware.link_bytes_per_s)

    def draw_steps(self, random: np.random.Generator, begin_s: float, count: int) -> SimulatedSteps:
        """Return so many steps; `begin_s` is their begin since the allocation of the hosts."""
        level = 1 + self._hardware.run_noise * float(random.standard_normal())
        parts, done, now_s = [], 0, begin_s
        while done < count:
            part = self._draw_part(random, level, now_s, count - done)
            ends = now_s + part.step_s.cumsum(axis=1).max(axis=0)
            changes = [each.after_s for each in self._hardware.faults if each.after_s > now_s]
            unchanged = max(1, int(np.searchsorted(ends, min(changes, default=math.inf), side="right")))
            parts.append([each[:, :unchanged] for each in part.columns])
            done, now_s = done + unchanged, float(ends[min(unchanged, len(ends)) - 1])
        columns = [np.concatenate(each, axis=1)[:, :count] for each in zip(*parts, strict=True)]
        return SimulatedSteps(self.workers, *columns)

    def _draw_part(self, random: np.random.Generator, level: float, now_s: float, steps: int) -> SimulatedSteps:
        """Return steps in which no host or link changes."""
        shape, hardware = (len(self.workers), steps), self._hardware
        slow = {host: hardware.slowdown(host, now_s) for host in set(self._hosts)}
        noise = random.standard_normal((sum(self._devices), steps))
        slowest = np.maximum.reduceat(noise, np.cumsum([0, *self._devices[:-1]]), axis=0)
        factor = level * np.array([[slow[host]] for host in self._hosts])
        compute = self.compute_s * factor * np.maximum(1 + hardware.noise * slowest, 0.1) - self._python_s
        python = np.broadcast_to(self._python_s + self._sleep_s, shape)
        link = {host: self._find_host_link_s(host, now_s) for host in {*self._hosts, *self._servers}}
        usual = self._find_link_s(hardware.link_bytes_per_s)
        common = max([usual, *(link[host] for host in self._servers)])  # all wait for a server
        if not self._servers:
            common = max([usual, *link.values()])  # ... and for the slowest link of an all-reduce
        fetched = 0.5 if self._servers else 0.0
        own = np.array([[max(0.0, link[host] - common)] for host in self._hosts])
        receive = np.broadcast_to(fetched * (common + own), shape)
        ready = python + receive + compute
        send = np.broadcast_to((1 - fetched) * (common + own), shape)
        step = ready + send
        if self._spec.in_lockstep:
            step = np.broadcast_to(np.max(step, axis=0), shape)
        return SimulatedSteps(self.workers, python, receive, compute, send, step)

    def make_trace(self, steps: SimulatedSteps, worker: int, *, begin_us: int, now_s: float) -> TaskTrace:
        """Return the trace of these steps of a worker.

        Args:
            begin_us: the begin of the first of them since 1970.
            now_s: the same since the allocation of the hosts. Links are as they are then.
        """
        trace = _TracedWorker(self.workers[worker], "GPU:0" if self._hardware.has_gpus else "CPU:0")
        waits = self._spec.in_lockstep and len(self.workers) > 1  # for other workers
        sends = not self._spec.forward_only
        transfers = self._list_transfers(self._hosts[worker], now_s)
        rows = (np.rint(1e6 * np.cumsum(np.stack([each[worker] for each in steps.columns[:4]]), axis=0)).astype(int)).T.tolist()
        ends = np.rint(1e6 * steps.step_s[worker]).astype(int).tolist()
        for (called, there, computed, sent), end in zip(rows, ends, strict=True):
            trace.begin_step(begin_us, called, max(end, sent), cpu_us=called + (computed - called) // 10)
            forward_end = round(there + FORWARD * (computed - there)) if sends else computed
            values = [trace.fetch_values(each, called, max(there, called + each.us(down=True))) for each in transfers]
            trace.run("tower0/forward", "Conv2D", there, forward_end, *values)
            trace.run("tower0/gradients/backward", "Conv2DBackpropFilter", forward_end, computed, "tower0/forward")
            for each in transfers if sends else ():
                trace.push_gradients(
                    each, min(computed, max(there, sent - each.us(down=False))), sent, max(end, sent), waits=waits
                )
            if waits and sends and not transfers:
                trace.run("all_reduce", "CollectiveReduceV2", computed, max(end, sent), "tower0/gradients/backward")
            begin_us = trace.end_step()
        return trace.finish()

    def _list_transfers(self, host: int, now_s: float) -> list["_Transfer"]:
        """Return what a worker on a host exchanges with each parameter server."""
        down, up = self._server_traffic
        link = self._hardware.link_of

        def compute_transfer_s(phase: Phase, source: int, target: int) -> float:
            if source == target:
                return 0.0
            out, into = phase.get(str(source), Flow()).sent, phase.get(str(target), Flow()).received
            return max(out / link(source, now_s), into / link(target, now_s))

        return [
            _Transfer(
                server,
                0 if at == host else round(size * self._model.wire),
                compute_transfer_s(down, at, host),
                compute_transfer_s(up, host, at),
            )
            for server, size in self._held.items()
            for at in [self._tasks[server]]
        ]

    @cached_property
    def _held(self) -> Mapping[str, int]:
        """The bytes on each parameter server that holds variables."""
        servers = self._model.layout.servers
        held = zip(servers, bytes_on_servers(self._spec), strict=True) if servers else ()
        return {server: size for server, size in held if size}

    @cached_property
    def _server_traffic(self) -> tuple[Phase, Phase]:
        return compute_server_traffic(self._spec, self._model.layout) if self._held else ({}, {})

    @property
    def _expected_s(self) -> float:
        """The time of computing of the slowest device, if none is slow (Blom, 1958, as in predict/)."""
        count = self._model.devices
        if count == 1 or not self._spec.in_lockstep:
            return self.compute_s
        return self.compute_s * (1 + self._hardware.noise * NormalDist().inv_cdf((count - 0.375) / (count + 0.25)))

    def _find_host_link_s(self, host: int, now_s: float) -> float:
        """Return what links add to a step if this host's link is as it is now, and all others as usual."""
        rate, usual = self._hardware.link_of(host, now_s), self._hardware.link_bytes_per_s
        own = self._bytes.get(host, 0.0)
        if rate >= usual or not own:
            return self._find_link_s(usual)
        return self._find_link_s(min(usual, rate * max(self._bytes.values()) / own))

    def _find_link_s(self, bytes_per_s: float) -> float:
        """Return what links of this rate add to a step."""
        if bytes_per_s not in self._link_s:
            step_s = self._model.step_s(self._expected_s, NetworkRates(link_bytes_per_s=bytes_per_s))
            self._link_s[bytes_per_s] = max(0.0, step_s - self._expected_s)
        return self._link_s[bytes_per_s]


@dataclass(frozen=True)
class _Transfer:
    """What a worker exchanges with one parameter server in a step."""

    server: str
    size_bytes: int  # in each direction; 0: both are on one host
    down_s: float  # for which values occupy the links, which other workers share
    up_s: float  # ... and gradients

    def us(self, *, down: bool) -> int:
        return round(1e6 * (self.down_s if down else self.up_s))


class _TracedWorker:
    """The trace of one worker, step by step. Each name is one operation or tensor of all steps."""

    def __init__(self, worker: str, device: str) -> None:
        self._worker, self._device = worker, f"{worker}/{device}"
        self._operations: dict[str, Operation] = {}
        self._tensors: dict[str, Tensor] = {}
        self._numbers: dict[str, int] = {}  # of operations
        self._tensor_numbers: dict[str, int] = {}
        self._queues: dict[str, str] = {}
        self._steps: list[TracedStep] = []

    def begin_step(self, begin_us: int, called: int, end: int, cpu_us: int) -> None:
        """Begin a step. All other times are microseconds from its begin on."""
        self._begin_us, self._called, self._end, self._cpu_us = begin_us, called, end, cpu_us
        self._ran: list[OperationRun] = []
        self._received: list[TensorArrival] = []

    def run(self, name: str, type_: str, start: int, end: int, *inputs: str, on: str = "") -> str:
        """Add an operation, and return its name."""
        if name not in self._numbers:
            self._numbers[name] = len(self._operations)
            self._operations[name] = Operation(name, type_, f"{on}/CPU:0" if on else self._device, inputs)
        begin_us = self._begin_us + start
        self._ran.append(OperationRun(self._numbers[name], begin_us, begin_us, self._begin_us + end))
        return name

    def fetch_values(self, transfer: _Transfer, called: int, there: int) -> str:
        """Add the values of a parameter server, and return the name of the operation that reads them."""
        read = self.run(f"values of {transfer.server}/ReadVariableOp", "ReadVariableOp", called, called, on=transfer.server)
        self._send(read, f"{transfer.server}/CPU:0", self._device, transfer.size_bytes, called, there)
        return read

    def push_gradients(self, transfer: _Transfer, start: int, there: int, end: int, *, waits: bool) -> None:
        """Add the gradients for a parameter server, and with `waits` the wait for those of all workers."""
        server = transfer.server
        if waits:
            taken = self._add_queue("all gradients", server)
            self.run(f"{server}/wait for all", "QueueDequeueV2", there, end, taken, on=server)
        made = self.run(f"tower0/gradients/for {server}", "Conv2DBackpropFilter", start, start, "tower0/gradients/backward")
        self._send(made, self._device, f"{server}/CPU:0", transfer.size_bytes, start, there)
        put = self._add_queue("own gradients", server)
        self.run(f"{server}/push", "QueueEnqueueV2", there, there, put, made, on=server)

    def _send(self, name: str, source: str, destination: str, size_bytes: int, start: int, end: int) -> None:
        if size_bytes:
            number = self._tensor_numbers.setdefault(name, len(self._tensors))
            self._tensors.setdefault(name, Tensor(name, source, destination, size_bytes))
            self._received.append(TensorArrival(number, self._begin_us + start, self._begin_us + end))

    def _add_queue(self, name: str, server: str) -> str:
        """Return a name of the queue in which all workers put their gradients for a parameter server."""
        name = f"{name} of {server}"
        self._queues[name] = f"gradients for {server}"
        return name

    def end_step(self) -> int:
        """End the step, and return the time of its end since 1970."""
        times = (self._begin_us, self._begin_us + self._called, self._begin_us + self._end)
        self._steps.append(TracedStep(*times, self._cpu_us, self._ran, self._received))
        return times[-1]

    def finish(self) -> TaskTrace:
        operations, tensors = list(self._operations.values()), list(self._tensors.values())
        return TaskTrace(self._worker, operations, tensors, self._steps, self._queues)
