"""End what a session left on this host: `python -m pytest_dtfperf.node.sweep [--abandoned] [--grace S] [SESSION ...]`.

An agent that ends by itself leaves nothing behind. If it is killed, daemons of its tasks remain. They are found by the id of
their session, which is in the environment of every descendant of an agent. `--abandoned` searches for processes with an owner
that can be seen from here and has ended: the owner of an agent, or of a batch system's client that connects to hosts. A session
that may be alive is never touched. Folders of ended runs are removed, too.
"""

import os
from collections.abc import Collection, Mapping

from pytest_dtfperf.node import processes, run_folder
from pytest_dtfperf.node.owner import Fate, Owner

SESSION = "DTFPERF_SESSION"
OWNER = "DTFPERF_OWNER"  # as `Owner.text` writes it


def main() -> None:
    import argparse

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sessions", nargs="*", metavar="SESSION")
    parser.add_argument("--abandoned", action="store_true", help="also end this user's processes with an owner that has ended")
    parser.add_argument("--grace", type=float, default=0.0, metavar="S", help="seconds between SIGTERM and SIGKILL")
    options = parser.parse_args()
    if survivors := sweep(options.sessions, abandoned=options.abandoned, grace_s=options.grace):
        raise SystemExit(f"processes survived SIGKILL: {survivors}")


def sweep(sessions: Collection[str] = (), *, abandoned: bool = False, grace_s: float = 0.0) -> list[int]:
    """End the processes and remove the folders of these sessions. Returns the ids of processes that survived SIGKILL."""
    survivors = processes.end_processes(lambda: find_left_processes(sessions, abandoned=abandoned), grace_s=grace_s)
    run_folder.remove_abandoned()
    return survivors


def find_left_processes(sessions: Collection[str], *, abandoned: bool = False) -> list[int]:
    """Return this user's processes that belong to one of these sessions, or to an owner that has ended."""
    found = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        seen = {} if pid == os.getpid() else read_environment(pid)  # that of the dead is empty
        if seen.get(SESSION) in sessions or (abandoned and is_abandoned(seen)):
            found.append(pid)
    return found


def is_abandoned(environment: Mapping[str, str]) -> bool:
    """Return whether the owner in this environment has certainly ended."""
    owner = Owner.parse(environment.get(OWNER, ""))
    return owner is not None and owner.fate is Fate.GONE


def read_environment(pid: int) -> dict[str, str]:
    """Return the environment that a process of this user was started with; empty if it is another user's, or has ended."""
    try:
        if os.stat(f"/proc/{pid}").st_uid != os.getuid():
            return {}
        with open(f"/proc/{pid}/environ", "rb") as file:
            entries = file.read().decode(errors="replace").split("\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return {}
    return {name: value for name, _, value in (entry.partition("=") for entry in entries)}


if __name__ == "__main__":
    main()
