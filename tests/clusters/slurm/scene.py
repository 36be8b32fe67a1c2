"""Launchers over toy tasks on the nodes of a real Slurm, the processes that tests can kill there, and checks for leftovers."""

import json
import os
import pickle
import select
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from pytest_dtfperf.clusters.named import ClusterConfig, Limits
from pytest_dtfperf.clusters.slurm import client
from pytest_dtfperf.node import processes, sweep
from pytest_dtfperf.testing.backends import wait_until
from tests.clusters.slurm.site import Site
from tests.launch.stage import Stage, read_pid, start_stage
from tests.node.handheld import TOY
from tests.plugin import zygote

# A node that is silent is given up soon; the other limits only catch what hangs.
LIMITS = Limits(hello_s=60, ready_s=60, first_step_s=60, progress_s=60, silence_s=3, stop_s=3)
ENDLESS = 1_000_000  # steps


def slurm(**changes: Any) -> ClusterConfig:
    """Return a cluster of two nodes with one device each; `backend_keys` adds keys of Slurm."""
    backend_keys = {"nodes": 2, "time_limit": 5, **changes.pop("backend_keys", {})}
    settings: dict[str, Any] = {"entry": TOY, "devices_per_host": 1, "limits": LIMITS, **changes}
    return ClusterConfig(name="stage", backend="slurm", backend_keys=backend_keys, **settings)


def hurry() -> None:
    """Read the queue more often than is acceptable on a site that others use."""
    client.FIRST_PAUSE_S = 0.1


@dataclass
class Scene:
    """A stage on a site."""

    site: Site
    stage: Stage

    @property
    def session(self) -> str:
        """The session's id, which all processes of its agents carry."""
        return session_in(self.site)

    @property
    def job(self) -> str:
        (job,) = self.site.jobs()
        return job

    def task(self, name: str) -> int:
        """A task's process id as this process sees it: the one that the task knows is its own namespace's."""
        inner = read_pid(self.stage.folder, name)
        (task,) = (pid for pid in sweep.find_left_processes([self.session]) if inner_pid(pid) == inner)
        return task

    def srun(self, step: str) -> int:
        """This machine's end of a step."""
        return next(pid for pid in children(os.getpid(), "srun") if f"--job-name={step}" in command(pid))

    def holder(self) -> int:
        return next(pid for pid in self.site.processes("slurm_script") if command(pid).startswith("/bin/sh"))


@contextmanager
def scene(site: Site, folder: Path, config: ClusterConfig | None = None) -> Iterator[Scene]:
    with start_stage(folder, config or slurm()) as stage:
        yield Scene(site, stage)


@dataclass
class Driver:
    """A process that trains toys, observed by the lines that it prints."""

    process: zygote.Started
    pipe: IO[bytes]  # its stdout, not buffered
    output: list[Mapping[str, str]] = field(default_factory=list)

    def next(self) -> Mapping[str, str] | None:
        """Return its next event, or None after its end."""
        line = self.pipe.readline()
        if line:
            self.output.append(json.loads(line))
        return self.output[-1] if line else None

    def has_output(self, within_s: float) -> bool:
        """Return whether it prints a line, or ends, within the time."""
        return bool(select.select([self.pipe], [], [], within_s)[0])

    def wait_for(self, what: str) -> Mapping[str, str]:
        while saying := self.next():
            if saying["what"] == what:
                return saying
        raise AssertionError(f"it ended before the event {what!r}:  {self.output[-3:]}")


@contextmanager
def driver(folder: Path, config: ClusterConfig, environment: Mapping[str, str], steps: int = 20) -> Iterator[Driver]:
    """Run a driver in a process group of its own."""
    argv = ["-c", "from tests.clusters.slurm.driver import main; main()", str(folder), str(steps), pickle.dumps(config).hex()]
    env = {**os.environ, **environment, **zygote.SEARCH_PATH}
    reader, writer = os.pipe()
    with (
        open(reader, "rb", buffering=0) as pipe,
        zygote.start(argv, Path.cwd(), env, stdout=writer, leads=True) as process,
    ):
        os.close(writer)
        try:
            yield Driver(process, pipe)
        finally:
            process.kill()


def agents(site: Site) -> list[int]:
    """The agents themselves: the shells around them carry the name, too."""
    return [pid for pid in site.processes() if command(pid).startswith(sys.executable) and "node.agent" in command(pid)]


def session_in(site: Site) -> str:
    found = [environment(pid) for pid in agents(site)]
    (session,) = {variables[sweep.SESSION] for variables in found if sweep.SESSION in variables}  # a child may be gone by now
    return session


def children(parent: int, word: str) -> list[int]:
    """Return a process's own children with the word in their command lines."""
    return [each.pid for each in processes.list_descendants(parent) if each.parent == parent and word in command(each.pid)]


def command(pid: int) -> str:
    return _text(f"/proc/{pid}/cmdline").replace("\0", " ")


def environment(pid: int) -> Mapping[str, str]:
    entries = _text(f"/proc/{pid}/environ").split("\0")
    return {name: value for name, _, value in (entry.partition("=") for entry in entries if entry)}


def inner_pid(pid: int) -> int | None:
    """Return a process's id in its own namespace."""
    lines = [line for line in _text(f"/proc/{pid}/status").splitlines() if line.startswith("NSpid:")]
    return int(lines[0].split()[-1]) if lines else None


def wait_until_all_is_gone(site: Site, sessions: Sequence[str] = (), parent: int | None = None) -> None:
    """Wait until no job, no process of a session, no srun and no watchdog of `parent` (by default this process) exists."""
    wait_until("no job is left", lambda: site.jobs() == [])
    wait_until("no process of the session is left", lambda: sweep.find_left_processes(sessions) == [])
    wait_until("no srun is left", lambda: children(parent or os.getpid(), "srun --jobid") == [])
    wait_until("no watchdog is left", lambda: children(parent or os.getpid(), "dtfperf-watchdog") == [])


def _text(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:  # it has just ended
        return ""
