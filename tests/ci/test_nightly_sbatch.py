"""The nightly job as a batch job on a real Slurm, with invented measurements."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_dtfperf.records.session import SessionFolder, session_folders
from tests.clusters.slurm.conftest import shared_site, site
from tests.clusters.slurm.site import Site
from tests.nightly.test_nightly import ENDS_S, REPOSITORY, clean
from tests.plugin.conftest import INI, LIGHT

__all__ = ["shared_site", "site"]

# Slurm sends the signal of 120 s before the time limit up to a minute too early: with a limit of 5 minutes after 2, when a
# night on a busy machine may not be half over.
TIME_LIMIT, MINUTES = 15, 12

SBATCH = REPOSITORY / "ci" / "nightly.sbatch"
CLUSTERS = f"""
[farm]
backend = "slurm"
dedicated = false
nodes = 128
devices_per_host = 1
device = "cpu"
python = "{sys.executable}"
entry = "tests.plugin.toy_training:run"
environment = ["TOY_*"]
training = {{ repeats = 3, batch_size = 10, warmup_steps = 1, steps = 4 }}
"""
THROUGHPUT = """
def test_throughput(train, baseline, gpus, num_ps):
    baseline.check(train(model="trivial", gpus=gpus, num_ps=num_ps))
"""
WAITS = """
def test_waits(train, monkeypatch):
    monkeypatch.setenv("TOY_DO", "wait")
    train(model="trivial", gpus=2, num_ps=1, batch_size=3)
"""


class Farm:
    """A folder of a user on a login node, and the batch job that is submitted from it."""

    def __init__(self, site: Site, folder: Path) -> None:
        self.site = site
        self.folder = folder
        self.results = folder / "results"
        (folder / "perf_tests").mkdir()
        (folder / "perf_tests" / "clusters.toml").write_text(CLUSTERS)
        (folder / "perf_tests" / "test_toy.py").write_text(THROUGHPUT)
        (folder / "pytest.ini").write_text(INI)
        (folder / "ci").symlink_to(REPOSITORY / "ci")

    def submit(self, *arguments: str, **environment: str) -> str:
        """Submit the job and return its id."""
        here = {"PYTHONPATH": str(REPOSITORY), "PYTHON": sys.executable, "XDG_RUNTIME_DIR": str(self.folder)}
        wishes = {"CLUSTER": "farm", "RESULTS": str(self.results), "MINUTES": str(MINUTES)}
        options = ["--parsable", "--nodes=2", f"--time={TIME_LIMIT}", "--output=night.log"]
        submitted = subprocess.run(
            ["sbatch", *options, "ci/nightly.sbatch", *arguments],
            cwd=self.folder,
            env=clean(os.environ) | self.site.environment | here | wishes | LIGHT | environment,
            capture_output=True,
            text=True,
            timeout=ENDS_S,
            check=True,
        )
        return submitted.stdout.strip()

    def end_of(self, job_id: str) -> str:
        """Return Slurm's exit code and signal of the job, such as "0:0"."""
        self._wait_until("it ends", lambda: self._code(job_id))
        return str(self._code(job_id))

    def wait_for(self, path: Path, job_id: str) -> None:
        """Return when the job has made the file; fail if it ends without it."""

        def is_made() -> bool:
            code = self._code(job_id)
            assert path.exists() or code is None, f"the job ended with {code}, and without {path.name}: {self.log}"
            return path.exists()

        self._wait_until(f"{path.name} is there", is_made)

    def _wait_until(self, what: str, true: Callable[[], object]) -> None:
        deadline = time.monotonic() + ENDS_S
        while not true():
            assert time.monotonic() < deadline, f"not within {ENDS_S} s: {what}: {self.log}"
            time.sleep(0.2)

    def _code(self, job_id: str) -> str | None:
        """Return the exit code of the job, or None while it runs."""
        found = self.site.run("scontrol", "--oneliner", "show", "job", job_id)
        state, code = (re.search(rf"\b{key}=(\S+)", found) for key in ("JobState", "ExitCode"))
        assert state
        assert code
        return None if state[1] in ("PENDING", "RUNNING", "COMPLETING") else code[1]

    @property
    def log(self) -> str:
        path = self.folder / "night.log"
        return path.read_text() if path.exists() else "it has not begun"

    @property
    def sessions(self) -> list[SessionFolder]:
        return session_folders(self.results)


@pytest.fixture
def farm(site: Site, tmp_path: Path) -> Farm:
    return Farm(site, tmp_path)


def test_batch_script_is_valid_bash() -> None:
    """bash finds no error of syntax in the batch script."""
    subprocess.run(["bash", "-n", SBATCH], check=True)


def test_batch_script_requests_a_signal_before_its_end() -> None:
    """The script gets SIGTERM 120 s before its time limit, and is replaced by the nightly program."""
    lines = SBATCH.read_text().splitlines()
    assert "#SBATCH --signal=B:TERM@120" in lines
    assert lines[-1].startswith('exec "$PYTHON" ci/nightly ')


def test_nights_run_on_the_nodes_of_their_jobs(farm: Farm) -> None:
    """Two nights in jobs of two nodes submit no other job, and have the usual verdicts and exit codes.

    After SIGTERM the second one reports it, keeps its measurements, and leaves no agents.
    """
    first = farm.submit("--update-baselines")
    assert farm.end_of(first) == "0:0", farm.log
    assert "2 passed" in farm.log  # one device and two: as many as the job has, not 128

    (farm.folder / "perf_tests" / "clusters.toml").write_text(CLUSTERS + 'allocation = "test"\n')  # so that agents start anew
    (farm.folder / "perf_tests" / "test_waits.py").write_text(WAITS)
    waits = farm.folder / "waits"
    second = farm.submit(TOY_STEP_S="0.02", TOY_WAITS=str(waits))
    assert int(second) == int(first) + 1
    farm.wait_for(waits, second)
    assert int(farm.site.run("sbatch", "--parsable", "--output=/dev/null", "--wrap=true")) == int(second) + 1
    farm.site.run("scancel", "--batch", "--signal=TERM", second)
    assert farm.end_of(second) == "143:0", farm.log
    assert "nightly: SIGTERM came, and pytest was ended. Exit code 143." in farm.log
    assert farm.site.processes("pytest_dtfperf.node.agent") == []
    before, after = farm.sessions
    assert [record.verdict for record in before.measurements()] == ["NO_BASELINE", "NO_BASELINE"]
    assert [record.verdict for record in after.measurements()] == ["REGRESSED", "REGRESSED"]
    assert [len(record.measurement.hosts) for record in after.measurements()] == [1, 2]
    assert after.session.exit_code == 143
