"""A controller that dies together with its supervisor, while a daemon that its task started lives on.

It reads a pickled cluster from stdin, and prints the daemon's process id.
"""

from pytest_dtfperf.node import processes, sweep
from pytest_dtfperf.testing.backends import ParrotChannel, leave_orphan


def kill_supervisor(parrots: ParrotChannel, session: str) -> None:
    ours = {pid: processes.inspect(pid) for pid in sweep.find_left_processes([session])}
    (supervisor,) = {each.parent for each in ours.values() if each and each.parent not in ours}
    processes.kill(supervisor)


if __name__ == "__main__":
    leave_orphan(kill_supervisor)
