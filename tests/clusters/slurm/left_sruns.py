"""sruns of several owners, and `dtfperf slurm reap` beside them: `python -m tests.clusters.slurm.left_sruns [ARGUMENT ...]`.

To be run in a PID namespace of its own, so that nobody else on this machine can tell whose they are, and end one meanwhile. The
command finds REAP_CONF as its SLURM_CONF, where that is set. Prints one line of JSON: how it ended, what it printed, and of
each owner's srun its process id and whether it is still there.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from pytest_dtfperf.node import sweep
from pytest_dtfperf.node.owner import Owner
from pytest_dtfperf.testing.backends import wait_until

ME = Owner.me()
OWNERS = {"gone": ME._replace(pid=4194304), "at work": ME, "elsewhere": ME._replace(namespace="1")}
STEP = ["srun", "--nodes=1", "--overcommit", "--mem=0", "--input=none", "sleep", "1000"]


def main() -> None:
    sruns = {
        name: subprocess.Popen(STEP, env={**os.environ, sweep.OWNER: owner.text}, stderr=subprocess.DEVNULL)
        for name, owner in OWNERS.items()
    }
    wait_until("they are srun", lambda: all(Path(f"/proc/{each.pid}/comm").read_text() == "srun\n" for each in sruns.values()))
    argv = [sys.executable, "-m", "pytest_dtfperf.cli", "slurm", "reap", *sys.argv[1:]]
    environment = {**os.environ, "SLURM_CONF": os.environ.get("REAP_CONF", os.environ["SLURM_CONF"])}
    ended = subprocess.run(argv, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    told = {name: {"process": srun.pid, "is_there": srun.poll() is None} for name, srun in sruns.items()}
    print(json.dumps({"code": ended.returncode, "out": ended.stdout, "err": ended.stderr, "sruns": told}))
    for srun in sruns.values():
        srun.terminate()  # which ends its job, too
        srun.wait()


if __name__ == "__main__":
    main()
