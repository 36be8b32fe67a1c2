"""End what a session left on this host: `python -m pytest_dtfperf.node.sweep [--abandoned] [--grace S] [SESSION ...]`.

An agent leaves nothing behind while it lives. Should it be killed, a process that had daemonised before is still somewhere, and
is found by the id of its session, which every process below an agent carries in its environment. `--abandoned` looks for
processes with an owner that can be seen from here and has ended: an agent's and, where a batch system's client is the
line to its hosts, that client. A session that may be alive is never touched. Folders of runs with no agent left go, too.
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
    parser.add_argument("--abandoned", action="store_true", help="also all of this user without a living owner")
    parser.add_argument(
        "--grace", type=float, default=0.0, metavar="S", help="how long they have to end by themselves after the signal"
    )
    options = parser.parse_args()
    if survivors := sweep(options.sessions, abandoned=options.abandoned, grace_s=options.grace):
        raise SystemExit(f"still alive in spite of SIGKILL: {survivors}")


def sweep(sessions: Collection[str] = (), *, abandoned: bool = False, grace_s: float = 0.0) -> list[int]:
    """End and remove what these sessions have left. Returns the process ids of what even SIGKILL does not end."""
    survivors = processes.end(lambda: left_by(sessions, abandoned=abandoned), grace_s=grace_s)
    run_folder.remove_abandoned()
    return survivors


def left_by(sessions: Collection[str], *, abandoned: bool = False) -> list[int]:
    """Return the process ids of this user that carry one of these sessions, or an owner that is gone."""
    found = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        seen = {} if pid == os.getpid() else environment(pid)  # that of the dead is empty
        if seen.get(SESSION) in sessions or (abandoned and is_abandoned(seen)):
            found.append(pid)
    return found


def is_abandoned(environment: Mapping[str, str]) -> bool:
    """Return whether the owner named there is surely gone."""
    owner = Owner.parse(environment.get(OWNER, ""))
    return owner is not None and owner.fate is Fate.GONE


def environment(pid: int) -> dict[str, str]:
    """Return what a process of this user was started with; empty if it is another's, or gone."""
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
