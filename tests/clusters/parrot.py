"""What the conformance suite starts on every host: says hello, and answers lines. `python -m tests.clusters.parrot`."""

import os
import signal
import subprocess
import sys
import time

from pytest_dtfperf.node import processes
from tests.node.toy_task import DAEMONISE


def main() -> None:
    processes.adopt_orphans()
    print("hello", flush=True)
    for line in sys.stdin:
        word, _, rest = line.rstrip("\n").partition(" ")
        match word:
            case "say":
                print(rest, flush=True)
            case "shout":
                print("x" * int(rest), flush=True)
            case "environment":
                print(os.environ.get(rest, "(unset)"), flush=True)
            case "cores":
                print(*sorted(os.sched_getaffinity(0)), sep=",", flush=True)
            case "exit" if rest == os.environ["DTFPERF_HOST_INDEX"]:
                print("bye", file=sys.stderr, flush=True)
                os._exit(3)
            case "kill" if rest == os.environ["DTFPERF_HOST_INDEX"]:
                os.kill(os.getpid(), signal.SIGKILL)
            case "deaf":
                print("deaf", flush=True)
                time.sleep(3600)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "daemon":
                subprocess.run(DAEMONISE, check=True)
                print("daemon", flush=True)
    processes.end_below()


if __name__ == "__main__":
    main()
