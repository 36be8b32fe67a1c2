"""Print hello, and answer lines: the program that the contract of backends starts on each host.

Its text is passed to the Python of a host (`python -c`), which finds `pytest_dtfperf.node` there and needs no other module.
"""

import os
import signal
import subprocess
import sys
import time

from pytest_dtfperf.node import processes

# Returns when what it leaves behind has left its group, its session and its parent for good.
DAEMONISE = (sys.executable, "-P", "-S", "-c", """
import os, time
reading, writing = os.pipe()
os.fork() and (os.read(reading, 1), os._exit(0))
os.setsid()
between = os.getpid()
os.fork() and os._exit(0)
while os.getppid() == between:
    time.sleep(0.001)
os.write(writing, b"x")
time.sleep(3600)
""")  # fmt: skip


def main() -> None:
    processes.adopt_orphans()
    print("hello", flush=True)
    for line in sys.stdin:
        word, _, rest = line.rstrip("\n").partition(" ")
        match word:
            case "echo":
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
    processes.end_descendants()


if __name__ == "__main__":
    main()
