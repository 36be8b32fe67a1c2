"""A controller that dies without closing anything. A program, with a pickled cluster on stdin.

It starts a parrot that daemonises something. Then it kills the parrot, says the daemon's process id and is gone; or, called
"with-all-its-processes", it says the session and kills its process group: itself, and what it has started on this machine.
"""

import os
import pickle
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from pytest_dtfperf.clusters.protocol import Cluster, Resources
from pytest_dtfperf.node import sweep
from pytest_dtfperf.testing.backends import PARROT, Parrots
from pytest_dtfperf.testing.waiting import wait_until


def orphan(kill: Callable[[Parrots, str], object]) -> NoReturn:
    """Die once `kill` has ended all of the session, which it is told, but the daemon, whose process id is printed."""
    cluster: Cluster = pickle.load(sys.stdin.buffer)
    with cluster.allocate(Resources(devices=1)) as allocation:
        parrots = Parrots(allocation.start(PARROT), 1)
        session = parrots.session
        assert parrots.answers("daemon") == [b"daemon"]
        kill(parrots, session)
        wait_until("the daemon alone is left", lambda: len(sweep.left_by([session])) == 1)
        print(*sweep.left_by([session]), flush=True)
        os._exit(0)


def _kill(parrots: Parrots, session: str) -> None:
    if sys.argv[1:] == ["with-all-its-processes"]:
        print(session, flush=True)
        os.killpg(0, signal.SIGKILL)
    parrots.channel.send(b"kill 0")


if __name__ == "__main__":
    orphan(_kill)
