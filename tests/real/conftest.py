"""Whole runs, which train in earnest. As elsewhere pytest is forked and draws nothing, but for what is `whole_tests_in`.

Agents and programs on this machine are forks, too, where tests ask `imported` for that.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.plugin.conftest import PerfTests, perf_tests_in

# In a module that hosts have no other way to: what trains there has come with the order.
OWN_MODULE = """
from sizes import CLASSES

def cnn():
    from keras import Input, Sequential, layers
    hidden = [layers.Conv2D(4, 3), layers.BatchNormalization(), layers.Flatten()]
    return Sequential([Input((8, 8, 3)), *hidden, layers.Dense(CLASSES)])
"""
OWN_TEST = """
import mine

def test_own(train, baseline, gpus, num_ps):
    baseline.check(train(model=mine.cnn, gpus=gpus, num_ps=num_ps, batch_size=4, steps=3, warmup_steps=1, repeats=1))
"""


def write_own_model(perf: PerfTests) -> None:
    """Write a perf test of a model in a module that imports another module, both beside it."""
    perf.write(OWN_TEST)
    perf.write(OWN_MODULE, "mine.py")
    perf.write("CLASSES = 5\n", "sizes.py")


def assert_own_model_trained(record: Mapping[str, Any], hosts: Sequence[str]) -> None:
    assert (record["spec"]["model"], record["hosts"]) == ("mine.cnn", hosts)
    (run,) = record["runs"]
    assert {task: len(steps) for task, steps in run["step_s"].items()} == {"worker:0": 3, "worker:1": 3}
    assert run["network"]["classes"] == 5
    assert run["network"]["multiply_adds"] == 36 * 4 * 27 + 36 * 4 * 5
    assert record["flops_per_sec"] > 0


@pytest.fixture
def perf(tmp_path: Path) -> PerfTests:
    """Make perf tests on a machine without baselines."""
    return perf_tests_in(tmp_path)
