"""After a kill of any process at any time, the session reports it or continues, and leaves no job and no process.

DTFPERF_KILLS sets the number of kills, DTFPERF_SEED the selection. Some happen while the job waits or its agents start.
`pytest -rP` shows each killed process and the outcome.
"""

import os
import random
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from pytest_dtfperf.node import processes
from pytest_dtfperf.testing.backends import PATIENCE_S, wait_until
from tests.clusters.slurm.scene import Driver, children, command, driver, environment, slurm
from tests.clusters.slurm.site import Site

KILLS = int(os.environ.get("DTFPERF_KILLS", "8"))
SEED = int(os.environ.get("DTFPERF_SEED", "1"))
GONE_S = 10.0  # a session's last process and job are gone so soon after pytest
GOES_ON_S = 0.7
CONFIG = slurm(heartbeat_timeout_s=5, backend_keys={"max_pending": 20})

Find = Callable[[Site, Driver], Sequence[int]]


def in_site(word: str) -> Find:
    return lambda site, driver: [pid for pid in site.processes() if word in command(pid)]


def below_driver(word: str) -> Find:
    return lambda site, driver: children(driver.process.pid, word)


def tasks(site: Site, driver: Driver) -> list[int]:
    """The zygotes' children."""
    return [pid for zygote in zygotes(site, driver) for pid in children(zygote, "")]


def zygotes(site: Site, driver: Driver) -> list[int]:
    return [pid for agent in agents(site, driver) for pid in children(agent, "")]


def agents(site: Site, driver: Driver) -> list[int]:
    """Python below a shell: zygotes and tasks have the same command line, but are below Python."""
    of_agents = [pid for pid in in_site("node.agent")(site, driver) if is_python(pid)]
    return [pid for pid in of_agents if not is_python(parent_of(pid))]


def is_python(pid: int) -> bool:
    return "python" in command(pid).partition(" ")[0]


def parent_of(pid: int) -> int:
    process = processes.inspect(pid)
    return process.parent if process else 0


def shells(site: Site, driver: Driver) -> list[int]:
    return [parent_of(agent) for agent in agents(site, driver)]


VICTIMS: Mapping[str, Find] = {
    "pytest": lambda site, driver: [driver.process.pid],
    "pytest's group": lambda site, driver: [driver.process.pid],
    "srun of the agents": below_driver("--job-name=agents"),
    "srun of the keep-alive step": below_driver("--job-name=keepalive"),
    "sbatch": below_driver("sbatch"),
    "watchdog": below_driver("dtfperf-watchdog"),
    "agent": agents,
    "agent's shell": shells,
    "zygote": zygotes,
    "task": tasks,
    "holder": in_site("slurm_script"),
    "keepalive": in_site("dtfperf-keepalive"),
    "slurmstepd": in_site("slurmstepd: "),
    "slurmd": in_site("slurmd -N"),
}


def kill_at_random(site: Site, driver: Driver, dice: random.Random) -> str:
    """Kill one of those that are there, of a kind that is there."""
    kinds = {kind: found for kind, find in VICTIMS.items() if (found := find(site, driver))}
    kind = dice.choice(sorted(kinds))
    victim = dice.choice(sorted(kinds[kind]))
    with suppress(ProcessLookupError):
        (os.killpg if "group" in kind else os.kill)(victim, signal.SIGKILL)
    return kind


def wait_for_outcome(driver: Driver) -> str | None:
    """Wait until the process has ended, and return its message, or until it has run for a while after the kill."""
    killed = time.monotonic()
    while driver.has_output(PATIENCE_S) and (saying := driver.next()):
        if saying["what"] == "failed":
            driver.process.wait(PATIENCE_S)
            return saying["words"]
        if saying["what"] == "ran" and time.monotonic() - killed > GOES_ON_S:
            return None
    assert driver.process.wait(PATIENCE_S) == -signal.SIGKILL, "it has ended without a message"
    return None


def list_leftovers(site: Site) -> list[str]:
    """Return jobs that wait or run, and processes of a session, in the site or outside. Watchdogs may stay for minutes."""
    found = site.run("squeue", "--noheader", "--states=PENDING,RUNNING,SUSPENDED", "--format=%i %T").splitlines()
    for process in processes.iterate_processes():
        variables = environment(process.pid)
        if variables.get("SLURM_CONF") == site.environment["SLURM_CONF"] and (
            "DTFPERF_SESSION" in variables or command(process.pid).startswith("srun")
        ):
            found.append(command(process.pid))
    return found


def repair(site: Site) -> None:
    """Bring the nodes back for the next one."""
    running = {command(pid).split()[-1] for pid in site.processes("slurmd -N") if command(pid).startswith("slurmd")}
    for node in set(site.nodes) - running:
        site.start_slurmd(node)
    for node in site.nodes:
        site.run("scontrol", "update", f"nodename={node}", "state=resume", check=False)


def all_idle(site: Site) -> bool:
    return set(site.run("sinfo", "--noheader", "--format=%T").split()) == {"idle"}


@pytest.mark.campaign(part=3)
@pytest.mark.parametrize("number", range(KILLS))
def test_killed_session_leaves_nothing(two_nodes: Site, tmp_path: Path, number: int) -> None:
    """A session continues or ends with a message after one kill; after pytest's end, all is gone within seconds."""
    dice = random.Random(SEED * 1000 + number)
    with driver(tmp_path, CONFIG, two_nodes.environment) as session:
        if dice.random() < 0.6:
            session.wait_for("ran")
        time.sleep(dice.uniform(0.0, 0.8))
        kind = kill_at_random(two_nodes, session, dice)
        words = wait_for_outcome(session)
    assert words != "", kind
    ended = time.monotonic()
    wait_until(f"nothing is left after {kind} was killed: {words}", lambda: list_leftovers(two_nodes) == [], GONE_S)
    outcome = words or ("ended" if session.process.returncode == 0 or "pytest" in kind else "went on")
    print(f"KILLED {kind}; {time.monotonic() - ended:.1f} s until nothing was left; {outcome.splitlines()[0]}")
    repair(two_nodes)
    wait_until("the nodes are ready for the next", lambda: all_idle(two_nodes), 90)
