"""Test of a bisection over commits of a Keras program that reports its steps."""

import json
from pathlib import Path

import pytest

from tests import campaign
from tests.cli.test_bisect import run_git
from tests.plugin.conftest import COMMANDS_HERE, PerfTests
from tests.real import imported

PROGRAM = """
import keras, numpy as np
from data import read_batch
from pytest_dtfperf.steps import Steps

model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)])
model.compile("sgd", "mse")
steps = Steps(images_per_step=16)
for _ in range(6):
    with steps:
        images, labels = read_batch()
        steps.wait_for(model.train_on_batch(images, labels))
"""
# Reading waits, so that other load on the machine changes little of a step.
DATA = """
import time
import numpy as np

def read_batch():
    time.sleep({read_s})
    return np.zeros((16, 8), "float32"), np.zeros((16, 1), "float32")
"""
READ_S, SLOW_READ_S = 0.04, 0.1
COMMITS, SLOW, MOST_TRAINED = (32, 21, 16) if campaign.WHOLE else (4, 2, 4)


def make_commits(folder: Path, count: int, slow: int) -> list[str]:
    """Make a repository with slower reading from commit `slow` on, and return its commits."""
    folder.mkdir()
    run_git(folder, "init", "-q")
    (folder / "train.py").write_text(PROGRAM)
    commits = []
    for number in range(count):
        (folder / "data.py").write_text(DATA.format(read_s=SLOW_READ_S if number >= slow else READ_S))
        (folder / "notes.txt").write_text(f"{number}\n")
        run_git(folder, "add", "-A")
        run_git(folder, "commit", "-qm", f"Change number {number}")
        commits.append(run_git(folder, "rev-parse", "HEAD"))
    return commits


@pytest.mark.campaign
def test_slow_commit_is_found(perf: PerfTests) -> None:
    """The slow commit, of 32 in campaigns, is FOUND with its file, and not all commits are trained."""
    (perf.folder / "perf" / "clusters.toml").write_text(COMMANDS_HERE)
    commits = make_commits(perf.folder / "repo", COMMITS, SLOW)
    argv = [f"--repo={perf.folder / 'repo'}", f"--good={commits[0]}", "--command=python train.py"]
    argv += ["variable_update=independent"]  # no server, which would be the same program
    argv += ["--clusters-file=perf/clusters.toml", "--seed=1"]
    cache = str(perf.folder / "cache")
    ended = perf.run_python("-m", "pytest_dtfperf.cli", "bisect", *argv, PATH=imported.path(), XDG_CACHE_HOME=cache)
    assert ended.code == 0, ended.out + ended.err
    (path,) = (perf.folder / "perf_results").glob("*/bisection.json")
    found = json.loads(path.read_text())
    assert (found["result"], [each["candidates"] for each in found["changes"]]) == ("FOUND", [[commits[SLOW][:12]]])
    assert len({each["candidate"] for each in found["blocks"]}) < MOST_TRAINED
    ended.line("data.py", "| 2")
