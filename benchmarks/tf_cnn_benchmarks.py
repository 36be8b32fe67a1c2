"""The other program, as its users run it: one process per task with flags, and its rate as the chief prints it.

Its `total images/sec` is workers x devices x batch x measured steps / the time of the measured loop on the chief's own clock,
start and warm-up not included: what this package calls a rate, too. Both fetch the loss in every step.
"""

import os
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from benchmarks.cells import tasks_of
from benchmarks.trainers import TrainingFailed, TrainingResult
from pytest_dtfperf.clusters.placement import PlacedTask
from pytest_dtfperf.spec import Spec

SCRIPT = "tf_cnn_benchmarks.py"
HOW_TO_GET_IT = """\
tf_cnn_benchmarks is not part of this project. To compare with it, give it an environment of its own, with the same TensorFlow
and the legacy Keras, without which every model with batch norm fails:

    git clone https://github.com/tensorflow/benchmarks /tmp/benchmarks
    uv venv --python 3.11 /tmp/tf_cnn
    uv pip install --python /tmp/tf_cnn/bin/python tensorflow-cpu==2.21.0
    uv pip install --python /tmp/tf_cnn/bin/python --no-deps tf-keras==2.21.0
    python benchmarks/training.py --tf-cnn-benchmarks /tmp/benchmarks/scripts/tf_cnn_benchmarks --python /tmp/tf_cnn/bin/python
"""

ENVIRONMENT = {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
CHIEF = "worker:0"
DEADLINE_S = 600.0  # of a whole training. Start-up alone may sleep 30 s: workers look for the chief's initialisation so often
WATCH_S = 0.5  # how late a dead task is noticed
LAST_LINES = 15

MEASURING = re.compile(r"Step\tImg/sec\t")  # printed at the beginning of the measured loop
STEP = re.compile(r"(\d+)\timages/sec: ")  # (step, ) of the measured ones
TOTAL = re.compile(r"total images/sec: ([\d.]+)")


class Host(Protocol):
    """Where a task runs."""

    @property
    def address(self) -> str:
        """By which the other tasks find it."""

    def popen(self, *argv: str, **options: Any) -> subprocess.Popen[Any]:
        """Start a command there; the options are `subprocess.Popen`'s. Called once for each task."""


class ThisMachine:
    """All tasks side by side, on the loopback."""

    address = "127.0.0.1"

    def popen(self, *argv: str, **options: Any) -> subprocess.Popen[Any]:
        return subprocess.Popen(argv, **options)


@dataclass(frozen=True)
class TfCnnBenchmarks:
    """Where it is, and what runs it."""

    folder: Path
    python: str

    def __call__(self, spec: Spec) -> TrainingResult:
        """On this machine. Raises `TrainingFailed` with the last words of the tasks."""
        tasks = tasks_of(spec, tuple(sorted(os.sched_getaffinity(0))))
        began = time.monotonic()
        printed = self.train(spec, tasks, dict.fromkeys((task.name for task in tasks), ThisMachine()))
        start_s = printed.measuring_at - began
        # It keeps nothing from one run to the next.
        return TrainingResult(printed.images_per_sec, start_s, warm_start_s=start_s)

    def train(
        self,
        spec: Spec,
        tasks: Sequence[PlacedTask],
        hosts: Mapping[str, Host],
        *,
        each_step: bool = False,
        deadline_s: float = DEADLINE_S,
    ) -> "ChiefOutput":
        """On these hosts, by task. With `each_step` the chief tells of every step when it ends, else of the last one alone.

        Raises `TrainingFailed` with the last words of the tasks.
        """
        flags = flags_of(
            spec, tasks, {name: host.address for name, host in hosts.items()}, display_every=1 if each_step else None
        )
        with tempfile.TemporaryDirectory() as logs, self._start(flags, hosts, Path(logs)) as processes:
            with _watch(processes, deadline_s):
                printed = ChiefOutput.read_from(processes[CHIEF])
            if not printed.is_whole(spec.steps):
                raise TrainingFailed(f"{SCRIPT} did not get to its end.\n{_last_words(Path(logs))}")
        return printed

    @contextmanager
    def _start(
        self, flags: Mapping[str, Sequence[str]], hosts: Mapping[str, Host], logs: Path
    ) -> Iterator[dict[str, subprocess.Popen[str]]]:
        processes: dict[str, subprocess.Popen[str]] = {}
        try:
            for name, own in flags.items():
                with (logs / name).open("w") as log:
                    processes[name] = hosts[name].popen(
                        self.python, "-u", str(self.folder / SCRIPT), *own,
                        env={**os.environ, **ENVIRONMENT},
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.PIPE if name == CHIEF else log,
                        stderr=log,
                        text=True,
                        start_new_session=True,
                    )  # fmt: skip
            yield processes
        finally:
            _kill(processes.values())  # its parameter servers never leave by themselves
            for process in processes.values():
                process.communicate()


def flags_of(
    spec: Spec, tasks: Sequence[PlacedTask], addresses: Mapping[str, str], *, display_every: int | None = None
) -> dict[str, list[str]]:
    """Return the flags of each task. Both programs get the same work, tasks and threads; other flags have their defaults."""
    together: dict[str, object] = {
        "device": "cpu",
        "data_format": spec.data_format,
        "local_parameter_device": "cpu",
        "variable_update": spec.variable_update,
        "model": spec.model,
        "batch_size": spec.batch_size,
        "optimizer": spec.optimizer,
        "init_learning_rate": spec.learning_rate,
        "num_warmup_batches": spec.warmup_steps,
        "num_batches": spec.steps,
        "display_every": display_every or spec.steps,
        "use_fp16": spec.precision == "fp16",
    }
    if spec.variable_update == "collective_all_reduce":
        together["all_reduce_spec"] = "collective"  # nothing else is allowed, but it must be said
    together |= _hosts(tasks, addresses)
    return {
        task.name: [f"--{name}={value}" for name, value in {**together, **_own(task, alone=len(tasks) == 1)}.items()]
        for task in tasks
    }


def _hosts(tasks: Sequence[PlacedTask], addresses: Mapping[str, str]) -> dict[str, str]:
    if len(tasks) == 1:
        return {}
    ports = iter(_free_ports(len(tasks)))
    at = {task.name: f"{addresses[task.name]}:{next(ports)}" for task in tasks}
    jobs = dict.fromkeys(task.job for task in tasks)
    return {f"{job}_hosts": ",".join(at[task.name] for task in tasks if task.job == job) for job in jobs}


def _own(task: PlacedTask, *, alone: bool) -> dict[str, str | int]:
    flags: dict[str, str | int] = {
        "num_gpus": max(1, task.num_devices),
        "num_intra_threads": task.threads,
        "num_inter_threads": task.threads,
    }
    return flags if alone else {**flags, "job_name": task.job, "task_index": task.index}


def _free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@dataclass
class ChiefOutput:
    """The values that the chief has printed so far. Times are seconds on this process's monotonic clock."""

    measuring_at: float = 0.0
    steps_at: list[float] = field(default_factory=list)  # the ends of the printed steps
    last_step: int = 0
    images_per_sec: float = 0.0

    @property
    def step_s(self) -> list[float]:
        """The seconds of each step, if each was printed."""
        return [end - begin for begin, end in pairwise([self.measuring_at, *self.steps_at])]

    @classmethod
    def read_from(cls, chief: subprocess.Popen[str]) -> "ChiefOutput":
        """Read the chief's output until it ends."""
        printed = cls()
        assert chief.stdout is not None
        for line in chief.stdout:
            printed.read_line(line)
        return printed

    def read_line(self, line: str) -> None:
        if MEASURING.match(line):
            self.measuring_at = time.monotonic()
        elif step := STEP.match(line):
            self.steps_at.append(time.monotonic())
            self.last_step = int(step[1])
        elif total := TOTAL.match(line):
            self.images_per_sec = float(total[1])

    def is_whole(self, steps: int) -> bool:
        """Return whether it has measured all steps and printed the rate."""
        return self.last_step == steps and self.images_per_sec > 0


@contextmanager
def _watch(processes: Mapping[str, subprocess.Popen[str]], deadline_s: float) -> Iterator[None]:
    """End all processes during the block once one of them dies or the deadline passes: the others would wait for ever."""
    over = threading.Event()
    deadline = time.monotonic() + deadline_s

    def watch() -> None:
        while not over.wait(WATCH_S):
            if time.monotonic() > deadline or any(process.poll() for process in processes.values()):
                _kill(processes.values())
                return

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _kill(processes: Iterable[subprocess.Popen[str]]) -> None:
    for process in processes:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _last_words(logs: Path) -> str:
    lines_of = [(log.name, log.read_text(encoding="utf-8", errors="replace").splitlines()) for log in sorted(logs.iterdir())]
    return "\n".join(line for task, lines in lines_of if lines for line in [f"{task}:", *lines[-LAST_LINES:]])
