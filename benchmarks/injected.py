"""Hosts and links that can be slowed down, one thing at a time: what explanations are held against.

Every task of a training has a machine of its own: a network namespace with an sshd, an agent and a link of a known rate, and a
control group for its processors' time. As root on Linux, with the packages that the tests of SSH need.
"""

import os
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pytest_dtfperf.clusters import named
from pytest_dtfperf.clusters.protocol import Resources
from pytest_dtfperf.explain.anatomy import Anatomy
from pytest_dtfperf.launch.run import Launcher
from pytest_dtfperf.measurement import Run
from pytest_dtfperf.spec import Spec
from tests.clusters.ssh.lab import Lab
from tests.machines.machine import Machine, bit_per_s

LINK = "2gbit"  # of every machine: the bytes of a small network then take about as long as its arithmetic
_GROUPS = Path("/sys/fs/cgroup")  # version 1: a folder for each controller
_PERIOD_US = 20_000  # a fraction of a step: a quota is then felt within each step, and not in some
_LEAST_BURST = 16_000
_BURST_S = 0.002  # of a link's full rate, as the machines of the tests have it
_STOP_PERIOD_S = 0.02
_POLL_S = 0.05  # how soon a new process is found
_LEAST_SHARE = 0.05  # of a processor's time: whoever has less is soon taken for dead


@dataclass(frozen=True)
class Changes:
    """What a injected cause changes of a run, besides of its hosts."""

    spec: Mapping[str, Any] = field(default_factory=dict)
    sleeps: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Good:
    """The training as it was before anything was injected."""

    runs: Sequence[Run]
    spec: Spec

    @property
    def run(self) -> Run:
        return self.runs[-1]

    @property
    def step_s(self) -> float:
        images = self.spec.gpus * (self.spec.batch_size or 0)
        return statistics.median(images / run.images_per_sec for run in self.runs)

    @property
    def anatomy(self) -> Anatomy:
        assert self.run.anatomy, self.run.unexplained
        return Anatomy.from_json(self.run.anatomy)

    def bits(self, source: str, destination: str) -> float:
        """Of a step, over the links from the one to the other; an empty name is anybody."""
        links = self.anatomy.links
        return 8 * sum(
            link.size_bytes for link in links if link.source.startswith(source) and link.destination.startswith(destination)
        )

    def cpu_s(self, task: str) -> float:
        """Of a step. A parameter server's is over its life, in which it does little else."""
        return self.run.cpu_s[task] / len(self.run.step_s["worker:0"])


def tasks_of(num_ps: int, workers: int) -> list[str]:
    """In the order of their machines."""
    return [*(f"ps:{i}" for i in range(num_ps)), *(f"worker:{i}" for i in range(workers))]


class Rig:
    """Machines for so many parameter servers and workers, up within the `with` block, and runs of training on them."""

    def __init__(self, num_ps: int, workers: int, logs: Path) -> None:
        self.num_ps, self.workers, self._logs = num_ps, workers, logs
        self.tasks = tasks_of(num_ps, workers)
        cores = sorted(os.sched_getaffinity(0))
        at = {f"m{number}": self._core(task, cores) for number, task in enumerate(self.tasks, start=1)}
        each = {name: {"cpus": core, "rate": LINK} for name, core in at.items()}
        self._lab = Lab(len(self.tasks), namespaces=True, each=each)
        self._stack = ExitStack()
        self.machines: dict[str, Machine] = dict(zip(self.tasks, self._lab.machines, strict=True))
        self.cores = {task: at[machine.name] for task, machine in self.machines.items()}

    @staticmethod
    def _core(task: str, cores: list[int]) -> list[int]:
        """Each worker has a core, as far as there are any; a parameter server takes what workers leave."""
        return [cores[int(task.partition(":")[2]) % len(cores)]] if task.startswith("worker") else cores

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._lab)
            self._groups = {task: stack.enter_context(_group(machine, "cpu")) for task, machine in self.machines.items()}
            self._freezers = {task: stack.enter_context(_group(machine, "freezer")) for task, machine in self.machines.items()}
            config = self._lab.config(ps_on_worker_hosts=False)
            resources = Resources(devices=self.workers, separate_ps_hosts=self.num_ps)
            allocation = stack.enter_context(named.open_cluster(config).allocate(resources))
            self.launcher = stack.enter_context(Launcher(allocation, config, resources))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.__exit__(kind, error, trace)

    def run(self, spec: Spec, changes: Changes | None = None) -> Run:
        """Train, and trace some steps afterwards."""
        changes = changes or Changes()
        return self.launcher.run(
            spec.but(**changes.spec), log_dir=self._logs, injected_slowdowns=changes.sleeps, explain=True
        )  # fmt: skip

    # -- what can be slowed down

    @contextmanager
    def slow_link(self, task: str, rate_bit_per_s: float, *, inwards: bool = True, outwards: bool = True) -> Iterator[None]:
        """A machine's link, to everybody: into it, out of it, or both."""
        machine = self.machines[task]
        shape = _tbf(rate_bit_per_s)
        try:
            if inwards:
                machine.network.tc(f"qdisc replace dev {machine.link} {shape}")
            if outwards:
                machine.tc(f"qdisc replace dev eth0 {shape}")
            yield
        finally:
            machine.shape(LINK)

    @contextmanager
    def slow_pair(self, source: str, destination: str, rate_bit_per_s: float) -> Iterator[None]:
        """What one machine sends to one other, and nothing else of either."""
        machine, other = self.machines[source], self.machines[destination]
        try:
            machine.tc("qdisc replace dev eth0 root handle 1: htb default 10")
            for name, rate in (("10", bit_per_s(LINK)), ("20", rate_bit_per_s)):
                burst = max(_LEAST_BURST, round(rate * _BURST_S / 8))
                machine.tc(f"class add dev eth0 parent 1: classid 1:{name} htb rate {rate:.0f}bit burst {burst} cburst {burst}")
            machine.tc(f"filter add dev eth0 parent 1: protocol ip prio 1 u32 match ip dst {other.address}/32 flowid 1:20")
            yield
        finally:
            machine.shape(LINK)

    @contextmanager
    def less_time(self, task: str, share: float) -> Iterator[None]:
        """A quota of a core's time for everything on a machine."""
        group = self._groups[task]
        try:
            _limit(group, share)
            yield
        finally:
            (group / "cpu.cfs_quota_us").write_text("-1")

    @contextmanager
    def stopped(self, task: str, share: float) -> Iterator[None]:
        """A machine that stands still for a part of the time, as a guest does whose host is busy."""
        state = self._freezers[task] / "freezer.state"
        over = threading.Event()

        def disturb() -> None:
            while not over.wait((1 - share) * _STOP_PERIOD_S):
                state.write_text("FROZEN")
                over.wait(share * _STOP_PERIOD_S)
                state.write_text("THAWED")

        thread = threading.Thread(target=disturb)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    @contextmanager
    def slow_feeder(self, task: str, share: float) -> Iterator[None]:
        """A quota for the program alone that makes a worker's images, which comes and goes with each run."""
        group = self._groups[task] / "feeder"
        group.mkdir()
        over = threading.Event()

        def move() -> None:
            while not over.wait(_POLL_S):
                for pid in self.machines[task].processes("zmq_producer"):
                    with suppress(OSError):  # it has just ended
                        (group / "cgroup.procs").write_text(str(pid))

        thread = threading.Thread(target=move)
        try:
            _limit(group, share)
            thread.start()
            yield
        finally:
            over.set()
            thread.join()
            _remove(group)

    @contextmanager
    def busy_cores(self, task: str, program: str, count: int = 1) -> Iterator[None]:
        """Other people's programs on the cores of a machine."""
        command = ["taskset", "--cpu-list", ",".join(map(str, self.cores[task])), sys.executable, "-c", program]
        burners = [subprocess.Popen(command) for _ in range(count)]
        try:
            yield
        finally:
            for burner in burners:
                burner.kill()
                burner.wait()


BURN = "while True: pass"
STREAM = "import numpy; a = numpy.ones(2**25); b = a.copy()\nwhile True: numpy.copyto(b, a); numpy.copyto(a, b)"


def _tbf(rate_bit_per_s: float) -> str:
    return f"root tbf rate {rate_bit_per_s:.0f}bit burst {max(_LEAST_BURST, round(rate_bit_per_s * _BURST_S / 8))} latency 20ms"


@contextmanager
def _group(machine: Machine, controller: str) -> Iterator[Path]:
    """A control group in which all of a machine's processes are, those to come included."""
    root = _GROUPS / controller
    group = root / f"injected-{os.getpid()}-{machine.name}"
    group.mkdir()
    try:
        for pid in [machine.first, *machine.processes()]:
            (group / "cgroup.procs").write_text(str(pid))
        yield group
    finally:
        _remove(group)


def _limit(group: Path, share: float) -> None:
    """Of one core's time."""
    (group / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
    (group / "cpu.cfs_quota_us").write_text(str(round(max(share, _LEAST_SHARE) * _PERIOD_US)))


def _remove(group: Path) -> None:
    """A group whose processes are to go on, in the group above it."""
    while pids := (group / "cgroup.procs").read_text().split():
        with suppress(OSError):  # it has just ended
            (group.parent / "cgroup.procs").write_text(pids[0])
    group.rmdir()


# -- what is injected: `strength` is the part of a step by which it is to become longer

Injection = Callable[[Rig, Good, float], AbstractContextManager[Changes]]


@dataclass(frozen=True)
class Injected:
    """A cause, and what it may be called."""

    kinds: frozenset[str]  # the first is what it is; what stands beside it cannot be told apart from a host's own numbers
    where: tuple[str, ...]  # the tasks that the location may be, or a link of; () is anywhere
    inject: Injection
    servers: bool = False  # whether it needs parameter servers
    training: Mapping[str, Any] = field(default_factory=dict)  # what it needs the training to be, with or without it


def _rate(good: Good, bits: float, strength: float) -> float:
    """That makes so many bits take longer by so much of a step than at the full rate."""
    return bits / (bits / bit_per_s(LINK) + strength * good.step_s)


@contextmanager
def _nothing(rig: Rig, good: Good, strength: float) -> Iterator[Changes]:
    yield Changes()


@contextmanager
def _worker_link(rig: Rig, good: Good, strength: float) -> Iterator[Changes]:
    bits = good.bits("", "worker:1") + good.bits("worker:1", "")
    with rig.slow_link("worker:1", _rate(good, bits, strength)):
        yield Changes()


@contextmanager
def _worker_link_in(rig: Rig, good: Good, strength: float) -> Iterator[Changes]:
    with rig.slow_link("worker:1", _rate(good, good.bits("", "worker:1"), strength), outwards=False):
        yield Changes()


@contextmanager
def _worker_link_out(rig: Rig, good: Good, strength: float) -> Iterator[Changes]:
    with rig.slow_link("worker:1", _rate(good, good.bits("worker:1", ""), strength), inwards=False):
        yield Changes()


@contextmanager
def _server_link(rig: Rig, good: Good, strength: float) -> Iterator[Changes]:
    bits = good.bits("ps:0", "") + good.bits("", "ps:0")
    with rig.slow_link("ps:0", _rate(good, bits, strength)):
        yield Changes()


@contextmanager
def _pair(rig: Rig, good: Good, strength: float) -> Iterator[Changes]:
    with rig.slow_pair("ps:0", "worker:1", _rate(good, good.bits("ps:0", "worker:1"), strength)):
        yield Changes()


@contextmanager
def _worker_quota(rig: Rig, good: Good, strength: float) -> Iterator[Changes]:
    busy = good.cpu_s("worker:1") / good.step_s
    with rig.less_time("worker:1", busy / (1 + strength)):
        yield Changes()


@contextmanager
def _worker_neighbour(rig: Rig, good: Good, strength: float) -> Iterator[Changes]:
    with rig.busy_cores("worker:1", BURN):
        yield Changes()


@contextmanager
def _memory_neighbour(rig: Rig, good: Good, strength: float) -> Iterator[Changes]:
    with rig.busy_cores("worker:1", STREAM):
        yield Changes()


@contextmanager
def _server_quota(rig: Rig, good: Good, strength: float) -> Iterator[Changes]:
    busy = good.cpu_s("ps:0") / good.step_s
    with rig.less_time("ps:0", busy / (1 + 2 * strength)):
        yield Changes()


@contextmanager
def _stopped_server(rig: Rig, good: Good, strength: float) -> Iterator[Changes]:
    with rig.stopped("ps:0", 0.5 + strength / 4):
        yield Changes()


@contextmanager
def _slow_feeder(rig: Rig, good: Good, strength: float) -> Iterator[Changes]:
    """The programs that make images have less of a core than they need."""
    with ExitStack() as stack:
        for worker in range(rig.workers):
            stack.enter_context(rig.slow_feeder(f"worker:{worker}", 0.1 / strength))
        yield Changes()


@contextmanager
def _sleeper(rig: Rig, good: Good, strength: float) -> Iterator[Changes]:
    yield Changes(sleeps={"worker:1": strength * good.step_s})


@contextmanager
def _onednn_off(rig: Rig, good: Good, strength: float) -> Iterator[Changes]:
    yield Changes(spec={"onednn": False})


@contextmanager
def _unpacked(rig: Rig, good: Good, strength: float) -> Iterator[Changes]:
    yield Changes(spec={"agg_small_grads_max_bytes": 0})


INJECTED: Mapping[str, Injected] = {
    "nothing": Injected(frozenset(), (), _nothing),
    "worker's link": Injected(frozenset({"link"}), ("worker:1",), _worker_link),
    "into a worker": Injected(frozenset({"link"}), ("worker:1",), _worker_link_in),
    "out of a worker": Injected(frozenset({"link"}), ("worker:1",), _worker_link_out),
    "server's link": Injected(frozenset({"link"}), ("ps:0",), _server_link, servers=True),
    "one pair": Injected(frozenset({"link"}), ("ps:0", "worker:1"), _pair, servers=True),
    "worker's quota": Injected(frozenset({"others", "compute"}), ("worker:1",), _worker_quota),
    "busy neighbour": Injected(frozenset({"others", "compute"}), ("worker:1",), _worker_neighbour),
    "memory neighbour": Injected(frozenset({"others", "memory", "compute"}), ("worker:1",), _memory_neighbour),
    "server's quota": Injected(frozenset({"server"}), ("ps:0",), _server_quota, servers=True),
    "server stopped": Injected(frozenset({"server"}), ("ps:0",), _stopped_server, servers=True),
    "slow feeder": Injected(frozenset({"input"}), (), _slow_feeder, training={"data": "zmq"}),
    "sleeping worker": Injected(frozenset({"straggler"}), ("worker:1",), _sleeper),
    "oneDNN off": Injected(frozenset({"program"}), (), _onednn_off),
    "packing off": Injected(frozenset({"program"}), (), _unpacked),
}
