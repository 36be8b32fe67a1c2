"""Hosts and links that can be slowed down, one thing at a time: what explanations are held against.

Every task of a training has a machine of its own: a network namespace with an sshd, an agent and a link of a known rate, and a
control group for its processors' time. As root on Linux, with the packages that the tests of SSH need.
"""

import math
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pytest_dtfperf.clusters import named
from pytest_dtfperf.clusters.protocol import Resources
from pytest_dtfperf.datamodel.measurement import Run
from pytest_dtfperf.datamodel.step_times import StepBreakdown
from pytest_dtfperf.launch.launcher import Launcher, OnSent
from pytest_dtfperf.spec import VARIABLE_UPDATES, Spec
from tests.clusters.ssh.lab import Lab
from tests.machines.machine import Machine, bit_per_s

LINK = "2gbit"  # of every machine: the bytes of a small network then take about as long as its arithmetic
_GROUPS = Path("/sys/fs/cgroup")  # version 1: a folder for each controller
_PERIOD_US = 20_000  # a fraction of a step: a quota is then felt within each step, and not in some
_STOP_PERIOD_S = 0.02
_SHARES = 1024  # of the CPU, that a control group has where nobody says anything else
_MOST_STOPPED = 0.9  # of the time
_LEAST_QUOTA_US = 1000
_FEEDER = Path(__file__).with_name("feeder.py")
_PERIOD_FILE = Path(tempfile.gettempdir(), f"injected-feeder-{os.getuid()}")  # that all feeders read
_PICTURES = Path(tempfile.gettempdir(), f"injected-pictures-{os.getuid()}")  # data sets by their pictures' width, and a link
_WIDTH, _MOST_WIDTH = 400, 4000  # pixels, of pictures of 8:7
_WIDER = 1.2  # times: widths between are not made, for each takes most of a minute
_LARGER = 20  # times as many pixels make a step longer by about the strength
_MOST_SHARE = 0.9  # of a core, beside others
_LEAST_SHARE = 0.05  # of a processor's time: whoever has less is soon taken for dead


@dataclass(frozen=True)
class Changes:
    """What an injected cause changes of a run, besides of its hosts."""

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
    def step_breakdown(self) -> StepBreakdown:
        assert self.run.step_breakdown, self.run.unexplained
        return self.run.step_breakdown

    def bits(self, source: str, destination: str) -> float:
        """Of a step, over the links from the one to the other; an empty name is anybody."""
        links = self.step_breakdown.links
        if not links:
            return 8 * self._estimate_bytes(source, destination)
        return 8 * sum(
            link.size_bytes for link in links if link.source.startswith(source) and link.destination.startswith(destination)
        )

    def _estimate_bytes(self, source: str, destination: str) -> float:
        """By what all hosts have sent, where no trace tells of links: each worker has as much with each server, both ways."""
        each = self.run.bytes_sent / len(self.run.step_s["worker:0"]) / (2 * self.spec.gpus * self.spec.num_ps)
        if source and destination:
            return each
        return each * (self.spec.gpus if (source or destination).startswith("ps") else self.spec.num_ps)

    def cpu_s(self, task: str) -> float:
        """Of a step. A parameter server's is over its life, in which it does little else."""
        return self.run.cpu_s[task] / len(self.run.step_s["worker:0"])


def tasks_of(num_ps: int, workers: int) -> list[str]:
    """In the order of their machines."""
    return [*(f"ps:{i}" for i in range(num_ps)), *(f"worker:{i}" for i in range(workers))]


class Rig:
    """Machines for so many parameter servers and workers, up within the `with` block, and runs of training on them."""

    def __init__(self, num_ps: int, workers: int, logs: Path) -> None:
        self.num_ps, self.workers, self.logs = num_ps, workers, logs
        self.tasks = tasks_of(num_ps, workers)
        cores = sorted(os.sched_getaffinity(0))
        at = {f"m{number}": self._core(task, cores, workers) for number, task in enumerate(self.tasks, start=1)}
        each = {name: {"cpus": core, "rate": LINK} for name, core in at.items()}
        self._lab = Lab(len(self.tasks), namespaces=True, each=each)
        self._stack = ExitStack()
        self.machines: dict[str, Machine] = dict(zip(self.tasks, self._lab.machines, strict=True))
        self.cores = {task: at[machine.name] for task, machine in self.machines.items()}

    @staticmethod
    def _core(task: str, cores: list[int], workers: int) -> list[int]:
        """Each worker has a core, as far as there are any, or all; a parameter server takes what workers leave."""
        is_one_of_several = task.startswith("worker") and workers > 1
        return [cores[int(task.partition(":")[2]) % len(cores)]] if is_one_of_several else cores

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

    def run(
        self, spec: Spec, changes: Changes | None = None, *, explain: bool = True, on_sent: OnSent = lambda sent: None
    ) -> Run:
        """Train, and trace some steps afterwards."""
        changes = changes or Changes()
        sleeps = changes.sleeps
        spec = spec.replace(**changes.spec)
        return self.launcher.run(spec, log_dir=self.logs, injected_slowdowns=sleeps, explain=explain, on_sent=on_sent)

    # -- what can be slowed down

    @contextmanager
    def slow_link(self, task: str, rate_bit_per_s: float, *, inwards: bool = True, outwards: bool = True) -> Iterator[None]:
        """A machine's link, to everybody: into it, out of it, or both."""
        machine = self.machines[task]
        try:
            machine.shape(rate_bit_per_s, inwards=inwards, outwards=outwards)
            yield
        finally:
            machine.shape(LINK)

    @contextmanager
    def slow_pair(self, source: str, destination: str, rate_bit_per_s: float) -> Iterator[None]:
        """What one machine sends to one other, and nothing else of either."""
        machine, other = self.machines[source], self.machines[destination]
        try:
            machine.shape_towards(other.address, rate_bit_per_s, LINK)
            yield
        finally:
            machine.shape(LINK)

    @contextmanager
    def limit_cpu_time(self, task: str, share: float) -> Iterator[None]:
        """A quota of a core's time for everything on a machine."""
        group = self._groups[task]
        try:
            _limit(group, share)
            yield
        finally:
            (group / "cpu.cfs_quota_us").write_text("-1")

    @contextmanager
    def stop_repeatedly(self, task: str, share: float) -> Iterator[None]:
        """A machine that stands still for a part of the time, as a guest does whose host is busy."""
        state = self._freezers[task] / "freezer.state"

        def stop() -> None:
            state.write_text("FROZEN")
            time.sleep(share * _STOP_PERIOD_S)
            state.write_text("THAWED")

        with _repeat_beside((1 - share) * _STOP_PERIOD_S, stop):
            yield

    @contextmanager
    def busy_cores(self, task: str, program: str, weight: float) -> Iterator[None]:
        """Other people's programs on the cores of a machine, one on each, that all together weigh so much of what it does: with
        1 they have half of each core, if they are not kept waiting for anything."""
        group = _GROUPS / "cpu" / f"injected-{os.getpid()}-busy"
        group.mkdir()
        (group / "cpu.shares").write_text(str(round(_SHARES * weight)))
        busy = [
            subprocess.Popen(["taskset", "--cpu-list", str(core), sys.executable, "-c", program]) for core in self.cores[task]
        ]
        try:
            for each in busy:
                (group / "cgroup.procs").write_text(str(each.pid))
            yield
        finally:
            for each in busy:
                each.kill()
                each.wait()
            group.rmdir()


BURN = "while True: pass"
STREAM = "import numpy; a = numpy.ones(2**24); b = a.copy()\nwhile True: numpy.copyto(b, a); numpy.copyto(a, b)"


@contextmanager
def _repeat_beside(again_s: float, do: Callable[[], None]) -> Iterator[None]:
    """Do something again and again, beside what goes on within the block."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(again_s):
            do()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def _group(machine: Machine, controller: str) -> Iterator[Path]:
    """A control group in which all of a machine's processes are, those to come included."""
    root = _GROUPS / controller
    group = root / f"injected-{os.getpid()}-{machine.name}"
    group.mkdir()
    try:
        for pid in [machine.first, *machine.processes()]:
            with suppress(ProcessLookupError):  # it has just ended
                (group / "cgroup.procs").write_text(str(pid))
        yield group
    finally:
        _remove(group)


def _limit(group: Path, share: float) -> None:
    """Of one core's time; the kernel gives no less than 1 ms of each period."""
    share = max(share, _LEAST_SHARE)
    (group / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
    (group / "cpu.cfs_quota_us").write_text(str(max(_LEAST_QUOTA_US, round(share * _PERIOD_US))))


def _remove(group: Path) -> None:
    """A group whose processes are to go on, in the group above it."""
    while pids := (group / "cgroup.procs").read_text().split():
        with suppress(OSError):  # it has just ended
            (group.parent / "cgroup.procs").write_text(pids[0])
    group.rmdir()


# -- what is injected: `strength` is the part of a step by which it is to become longer

Slowing = Callable[[Rig, Good, float], AbstractContextManager[None]]  # of hosts and links, while it lasts
Changing = Callable[[Good, float], Changes]  # of the run itself


@dataclass(frozen=True)
class Injected:
    """A cause, and what it may be called."""

    kinds: frozenset[str]  # the first is the right one; a host's own numbers cannot distinguish it from the others
    where: tuple[str, ...]  # the tasks that the location may be, or a link of; () is anywhere
    slow: Slowing = lambda rig, good, strength: nullcontext()
    change: Changing = lambda good, strength: Changes()
    servers: bool = False  # whether it needs parameter servers
    training: Mapping[str, Any] = field(default_factory=dict)  # what it needs the training to be, with or without it
    ready: Callable[[], None] = lambda: None  # before anything is trained
    is_graded: bool = True  # whether there is more and less of it
    busy: Sequence[str] = ()  # the tasks on whose cores it works itself
    modes: Sequence[str] = ()  # modes; empty: all
    needs_all_cores: bool = False  # whether it needs a worker that has all cores

    def is_possible(self, mode: str, num_ps: int, workers: int) -> bool:
        if self.needs_all_cores != (workers == 1) and (self.needs_all_cores or "worker:1" in self.where):
            return False
        inputs = VARIABLE_UPDATES[mode].inputs
        is_fed = inputs is None or self.training.get("data", "synthetic") in inputs
        return (num_ps > 0 or not self.servers) and (not self.modes or mode in self.modes) and is_fed


def _rate(good: Good, bits: float, strength: float) -> float:
    """That makes so many bits take longer by so much of a step than at the full rate."""
    return bits / (bits / bit_per_s(LINK) + strength * good.step_s)


def _link(task: str, *, inwards: bool = True, outwards: bool = True) -> Slowing:
    """Between a task's machine and all others."""

    def slow(rig: Rig, good: Good, strength: float) -> AbstractContextManager[None]:
        bits = inwards * good.bits("", task) + outwards * good.bits(task, "")
        return rig.slow_link(task, _rate(good, bits, strength), inwards=inwards, outwards=outwards)

    return slow


def _pair(rig: Rig, good: Good, strength: float) -> AbstractContextManager[None]:
    return rig.slow_pair("ps:0", "worker:1", _rate(good, good.bits("ps:0", "worker:1"), strength))


def _quota(task: str, factor: float = 1.0) -> Slowing:
    """Of a core's time, for all that a task's machine does: as much as it used, over what the step is to become."""

    def slow(rig: Rig, good: Good, strength: float) -> AbstractContextManager[None]:
        return rig.limit_cpu_time(task, good.cpu_s(task) / good.step_s / (1 + factor * strength))

    return slow


@contextmanager
def _slow_feeder(rig: Rig, good: Good, strength: float) -> Iterator[None]:
    """The programs that make images take longer for a batch than a step did."""
    try:
        _PERIOD_FILE.write_text(str((1 + strength) * good.step_s))
        yield
    finally:
        _PERIOD_FILE.unlink()


@contextmanager
def _larger_pictures(rig: Rig, good: Good, strength: float) -> Iterator[None]:
    """The files have pictures of more pixels, which are decoded to the same images."""
    try:
        wider = round(math.log(1 + _LARGER * strength, _WIDER) / 2)
        _show_pictures(min(_MOST_WIDTH, round(_WIDTH * _WIDER**wider)))
        yield
    finally:
        _show_pictures(_WIDTH)


def _show_pictures(width: int) -> None:
    """Where a training reads them. They are made where there are none yet."""
    _PICTURES.mkdir(exist_ok=True)
    made = _PICTURES / str(width)
    if not made.exists():
        arguments = ("imagenet", "--images=64", "--test-images=1", f"--size={width}x{width * 7 // 8}", f"--out={made}")
        subprocess.run([sys.executable, "-m", "pytest_dtfperf.cli", "make-data", *arguments], check=True, capture_output=True)
    link = _PICTURES / "next"
    link.unlink(missing_ok=True)
    link.symlink_to(made.name)
    link.replace(_PICTURES / "now")


def _busy(program: str) -> Slowing:
    """That leave a worker's machine as much of its core as it used, over what the step is to become."""

    def slow(rig: Rig, good: Good, strength: float) -> AbstractContextManager[None]:
        share = min(_MOST_SHARE, max(_LEAST_SHARE, good.cpu_s("worker:1") / good.step_s / (1 + strength)))
        return rig.busy_cores("worker:1", program, 1 / share - 1)

    return slow


def _stop_server(rig: Rig, good: Good, strength: float) -> AbstractContextManager[None]:
    return rig.stop_repeatedly("ps:0", min(_MOST_STOPPED, 0.5 + strength / 4))


LINKS, OTHERS, SERVER = frozenset({"link"}), frozenset({"others", "compute"}), frozenset({"server"})
WORKER, PS = ("worker:1",), ("ps:0",)
# Modes in which each worker has steps of its own, in which it can sleep; in others only the chief has steps.
OWN_STEPS = tuple(name for name, mode in VARIABLE_UPDATES.items() if not mode.single_session and name != "parameter_server_v2")
FED = {  # by a program that can be slowed down; what is queued before it is used up in more steps of warm-up
    "data": "zmq",
    "warmup_steps": 40,
    "environment": (f"DTFPERF_ZMQ_PRODUCER={shlex.join((sys.executable, str(_FEEDER), str(_PERIOD_FILE)))}",),
}
PACKS = tuple(name for name, mode in VARIABLE_UPDATES.items() if "agg_small_grads_max_bytes" in mode.knows)


def _program(modes: Sequence[str] = (), **spec: Any) -> Injected:
    return Injected(frozenset({"program"}), (), change=lambda *_: Changes(spec=spec), is_graded=False, modes=modes)


INJECTED: Mapping[str, Injected] = {
    "nothing": Injected(frozenset(), (), is_graded=False),
    "worker's link": Injected(LINKS, WORKER, _link("worker:1")),
    "into a worker": Injected(LINKS, WORKER, _link("worker:1", outwards=False)),
    "out of a worker": Injected(LINKS, WORKER, _link("worker:1", inwards=False)),
    "server's link": Injected(LINKS, PS, _link("ps:0"), servers=True),
    "one pair": Injected(LINKS, (*PS, *WORKER), _pair, servers=True),
    "worker's quota": Injected(OTHERS, WORKER, _quota("worker:1")),
    "busy neighbour": Injected(OTHERS, WORKER, _busy(BURN), busy=WORKER),
    "memory neighbour": Injected(OTHERS | {"memory"}, WORKER, _busy(STREAM), busy=WORKER),
    "server's quota": Injected(SERVER, PS, _quota("ps:0", factor=2), servers=True),
    "server stopped": Injected(SERVER, PS, _stop_server, servers=True),
    "slow feeder": Injected(frozenset({"input"}), (), _slow_feeder, training=FED),
    "larger pictures": Injected(
        frozenset({"input"}),
        (),
        _larger_pictures,
        training={"model": "trivial", "data": "imagenet", "data_dir": str(_PICTURES / "now"), "distortions": False},
        ready=lambda: _show_pictures(_WIDTH),
    ),
    "sleeping worker": Injected(
        frozenset({"straggler"}),
        WORKER,
        change=lambda good, strength: Changes(sleeps={"worker:1": strength * good.step_s}),
        modes=OWN_STEPS,
    ),
    "oneDNN off": _program(onednn=False),
    "packing off": _program(modes=PACKS, agg_small_grads_max_bytes=0),
    "other convolution": _program(data_format="NCHW"),
    "fewer threads": replace(_program(num_intra_threads=1), needs_all_cores=True, training={"batch_size": 64}),
}
