"""A folder in which every command has some output, and the arguments of each command there.

Commands that need more than files (hosts, Slurm, Amazon, S3, a training) are called in tests of their own: ELSEWHERE.
"""

import contextlib
import io
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_dtfperf.baselines.store import BaselineStore
from pytest_dtfperf.cli import main
from tests.baselines.examples import entry_of
from tests.records.damage import whole_session

SESSION = "perf_results/20260131T021503Z-9f3c1a"
CLUSTERS = """
[lab]
backend = "ssh"
hosts = ["n[1-3]"]
gpus_per_host = 2

[lost]
backend = "ssh"
nodes_file = "missing"
gpus_per_host = 1
"""

# The arguments, and the exit code.
SAMPLES: Mapping[str, tuple[Sequence[str], int]] = {
    "init": (["init", "project"], 0),
    "clusters list": (["clusters", "list"], 0),
    "clusters show": (["clusters", "show", "lab"], 0),
    "clusters check": (["clusters", "check"], 1),
    "predict": (["predict", "alexnet", "--device-rate=100", "--gpus=1,2"], 0),
    "judge": (["judge", SESSION], 1),
    "explain": (["explain", SESSION], 0),
    "history list": (["history", "list"], 0),
    "history show": (["history", "show", "last"], 0),
    "history trend": (["history", "trend", "model=alexnet"], 0),
    "history compare": (["history", "compare", "2026-01-31", "last"], 0),
    "history changes": (["history", "changes"], 0),
    "history import": (["history", "import", "perf_results"], 0),
    "history hosts": (["history", "hosts"], 1),
    "history prune": (["history", "prune", "--keep=5", "--yes"], 1),
    "history export": (["history", "export"], 0),
    "site": (["site", "--out=site"], 0),
    "figures": (["figures", SESSION, "model=alexnet", "--out=pictures"], 0),
    "baselines audit": (["baselines", "audit"], 1),
    "baselines remove": (["baselines", "remove", "model=*", "--yes", "--baselines=doomed"], 0),
    "baselines uncalibrate": (["baselines", "uncalibrate", "model=*", "--yes"], 1),
    "make-data": (["make-data", "mnist", "--out=data", "--images=5"], 0),
}
# What is made by one call would be in the next one's way.
MADE = ("project", "data", "doomed")

ELSEWHERE: Mapping[str, str] = {
    "doctor": "tests/cli/test_doctor.py",
    "run": "tests/cli/test_run.py",
    "ab": "tests/cli/test_ab.py",
    "isolate": "tests/cli/test_isolate.py",
    "qualify": "tests/cli/test_qualify.py",
    "bisect": "tests/cli/test_bisect.py",
    "notebook": "tests/cli/test_notebook.py",
    "launch": "tests/cli/test_launch.py",
    "nightly": "tests/nightly/test_nightly.py",
    "baselines calibrate": "tests/cli/test_calibrate.py",
    "slurm reap": "tests/clusters/slurm/test_reap.py",
    "data push": "tests/cli/test_data.py",
    "data pull": "tests/cli/test_data.py",
    "ec2 up": "tests/clusters/ec2/test_commands.py",
    "ec2 status": "tests/clusters/ec2/test_commands.py",
    "ec2 down": "tests/clusters/ec2/test_commands.py",
    "ec2 reap": "tests/clusters/ec2/test_commands.py",
    "ec2 cost": "tests/clusters/ec2/test_commands.py",
}


def make_folder(folder: Path) -> Path:
    """Make a session, its history, baselines, empty tests, a usable cluster and an unusable one."""
    whole_session(folder / "perf_results")
    BaselineStore(folder / "baselines").update("cpu-x", [entry_of([1.0, 1.1])])
    (folder / "perf_tests").mkdir()
    (folder / "perf_tests" / "test_a.py").write_text("def test_a(): pass\n")
    (folder / "clusters.toml").write_text(CLUSTERS)
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(["history", "import", str(folder / "perf_results"), "--results", str(folder / "perf_results")]) == 0
    return folder


def reset_folder(folder: Path) -> None:
    """Remove the files that commands made."""
    for name in MADE:
        shutil.rmtree(folder / name, ignore_errors=True)
    shutil.copytree(folder / "baselines", folder / "doomed")
