"""Test of `dtfperf isolate` with real training, on machines with links of known rates."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clusters.ssh.lab import Lab, why_not
from tests.plugin.conftest import REPOSITORY

# A step sends the values and gradients of 0.3 million variables: for more than a second each over the slow link.
TRAINING = "training = { batch_size = 1, warmup_steps = 1, steps = 40, num_ps = 1 }"
ENDS_S = 1800


@pytest.mark.campaign(only=True)
def test_slow_link_is_named_by_step_timings_and_confirmed(tmp_path: Path) -> None:
    """Of four machines the one with a slow link is late in each step, and four trainings confirm it."""
    if reason := why_not(namespaces=True):
        pytest.skip(reason)
    with Lab(4, namespaces=True, rate="40mbit") as lab:
        lab["m3"].shape("8mbit")
        (tmp_path / "clusters.toml").write_text(lab.toml("connect_s = 300", TRAINING))
        command = ["isolate", "resnet20", "gpus=4", "--cluster=lab", "--smallest=0.2", "--layouts=1", "--json"]
        done = subprocess.run(
            [sys.executable, "-m", "pytest_dtfperf.cli", *command],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            stdout=subprocess.PIPE,
            text=True,
            timeout=ENDS_S,
            check=False,
        )
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert list(found["late"]) == ["m3"]
    assert [each["hosts"] for each in found["conclusion"]["findings"]] == [["m3"]]
    assert (found["conclusion"]["runs"], found["exclude"]) == (4, ["m3"])
