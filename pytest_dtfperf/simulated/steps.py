"""The steps of a simulated training: the event model's step, with noise, and with hosts and links that are slow. Pure.

    receive     half of what links add to a step where workers fetch values first
    compute     of the slowest of a worker's devices, with noise
    finish      the rest of what links add, and in lockstep the wait for the slowest worker

A slow link is as if all links had the rate at which the busiest link would take as long as that one takes.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from pytest_dtfperf.limits.needs import Layout, compute_traffic
from pytest_dtfperf.predict.event_model import NetworkRates, StepModel
from pytest_dtfperf.simulated.hardware import SimulatedHardware
from pytest_dtfperf.spec import Spec
from pytest_dtfperf.traces import StepTimestamps

PYTHON_SHARE, MOST_PYTHON_S = 0.01, 0.002  # of a step's computing that is Python

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class SimulatedSteps:
    """The measured steps of all workers in seconds; each array has a row for each worker and a column for each step."""

    workers: Sequence[str]
    python_s: Floats
    receive_s: Floats  # until all values are there
    compute_s: Floats  # from then until the last gradient is there
    step_s: Floats

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
        """Return the step timestamps of a worker."""
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

    def draw_steps(self, random: np.random.Generator, begin_s: float) -> SimulatedSteps:
        """Return the measured steps; `begin_s` is their begin since the allocation of the hosts."""
        level = 1 + self._hardware.run_noise * float(random.standard_normal())
        parts, done, now_s = [], 0, begin_s
        while done < self._spec.steps:
            part = self._draw_part(random, level, now_s, self._spec.steps - done)
            ends = now_s + part.step_s.cumsum(axis=1).max(axis=0)
            changes = [each.after_s for each in self._hardware.faults if each.after_s > now_s]
            count = max(1, int(np.searchsorted(ends, min(changes, default=math.inf), side="right")))
            parts.append([each[:, :count] for each in (part.python_s, part.receive_s, part.compute_s, part.step_s)])
            done, now_s = done + count, float(ends[min(count, len(ends)) - 1])
        columns = [np.concatenate(each, axis=1)[:, : self._spec.steps] for each in zip(*parts, strict=True)]
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
        finish = (1 - fetched) * common
        if not self._spec.in_lockstep:
            step = ready + finish + (1 - fetched) * own
        else:
            step = np.broadcast_to(np.max(ready + (1 - fetched) * own, axis=0) + finish, shape)
        return SimulatedSteps(self.workers, python, receive, compute, step)

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
