"""A controller that dies, and its supervisor with it, while something that has daemonised lives on.

A program, with a pickled cluster on stdin; it says the daemon's process id.
"""

import os
import pickle
import sys

from pytest_dtfperf.clusters.protocol import Cluster, Resources
from pytest_dtfperf.node import processes, sweep
from pytest_dtfperf.testing.backends import PARROT, Parrots
from pytest_dtfperf.testing.waiting import wait_until


def main() -> None:
    cluster: Cluster = pickle.load(sys.stdin.buffer)
    with cluster.allocate(Resources(devices=1)) as allocation:
        parrots = Parrots(allocation.start(PARROT), 1)
        session = parrots.session
        assert parrots.answers("daemon") == [b"daemon"]
        ours = {pid: processes.inspect(pid) for pid in sweep.left_by([session])}
        (supervisor,) = {each.parent for each in ours.values() if each and each.parent not in ours}
        processes.kill(supervisor)
        wait_until("the daemon alone is left", lambda: len(sweep.left_by([session])) == 1)
        print(*sweep.left_by([session]), flush=True)
        os._exit(0)


if __name__ == "__main__":
    main()
