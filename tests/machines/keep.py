"""Runs a command until stdin ends, then ends all that it has started, daemons included."""

import os
import subprocess
import sys

from pytest_dtfperf.node import processes


def main(*argv: str) -> None:
    processes.adopt_orphans()
    kept = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
    os.read(0, 1)
    processes.end_descendants()
    kept.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
