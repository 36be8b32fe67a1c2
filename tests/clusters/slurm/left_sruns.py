"""sruns of several owners, and `dtfperf slurm reap` beside them: `python -m tests.clusters.slurm.left_sruns [ARGUMENT ...]`.

It needs a PID namespace of its own, so that no other session on this machine finds these sruns and ends one. REAP_CONF, where
it is set, is the command's SLURM_CONF. It prints one line of JSON: the command's exit code and output, and for each owner's
srun its process id and whether it still exists.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from pytest_dtfperf.node import sweep
from pytest_dtfperf.node.owner import Owner
from pytest_dtfperf.testing.backends import wait_until

ME = Owner.read_own()
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
    states = {name: {"process": srun.pid, "is_there": srun.poll() is None} for name, srun in sruns.items()}
    print(json.dumps({"code": ended.returncode, "out": ended.stdout, "err": ended.stderr, "sruns": states}))
    for srun in sruns.values():
        srun.terminate()  # which ends its job, too
        srun.wait()


if __name__ == "__main__":
    main()
