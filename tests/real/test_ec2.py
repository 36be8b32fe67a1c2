"""Tests of real training, and of a notebook's tunnel, on machines that stand for EC2 instances."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.cli.test_notebook import MIB, SEARCHED, assert_nothing_left, folder, make_bytes, make_setup, start_notebook
from tests.clusters.ec2.cloud.cloud import NOTHING
from tests.clusters.ec2.cloud.datacenter import DataCenter
from tests.clusters.ec2.conftest import amazon, datacenter, no_real_amazon
from tests.clusters.ec2.sessions import watchdogs
from tests.plugin.conftest import PerfTests
from tests.plugin.test_verdicts import records, session

__all__ = ["amazon", "datacenter", "folder", "no_real_amazon"]

STEPS = 100  # more than a second: on a busy machine one worker begins some milliseconds later, of which 2% may be seen
KIND, USD_PER_HOUR = "c5.large", 0.085  # as the pretended price list says
CLUSTER = """
[cloud]
backend = "ec2"
region = "{region}"
instance_type = "{kind}"
count = {count}
device = "cpu"
devices_per_host = 1
python = "{python}"
subnets = {subnets}
caller_cidr = "{caller}/32"
placement = "cluster"
max_hours = 1
max_usd = 1.0
training = {{ repeats = 1, warmup_steps = 1, steps = {steps}, batch_size = 2 }}
{more}
"""
THROUGHPUT = """
def test_throughput(train, baseline, gpus, num_ps):
    baseline.check(train(model="mnist", gpus=gpus, num_ps=num_ps))
"""


@pytest.fixture
def on_ec2(datacenter: DataCenter, perf: PerfTests) -> PerfTests:
    """Make perf tests with a cluster of two instances."""
    (perf.folder / "perf" / "clusters.toml").write_text(format_cluster(datacenter, count=2))
    perf.write(THROUGHPUT)
    return perf


def format_cluster(datacenter: DataCenter, count: int, more: str = "") -> str:
    """Format the cluster file."""
    return CLUSTER.format(
        region=datacenter.region,
        count=count,
        steps=STEPS,
        kind=KIND,
        python=sys.executable,
        subnets=json.dumps(list(datacenter.subnets.values())),
        caller=datacenter.caller,
        more=more,
    )


def test_mnist_trains_on_two_instances(datacenter: DataCenter, on_ec2: PerfTests) -> None:
    """Two instances train MNIST with servers and workers, the session has its cost, and no instance or watchdog is left."""
    ended = on_ec2.run("--cluster=cloud", "--gpus=2", "--num-ps=2")

    assert ended.code == 0, f"{ended.out}\n{ended.err}"
    (record,) = records(on_ec2)
    run = record["runs"][-1]  # whose hosts are this machine, and may have had other work during an earlier one
    assert set(run["hosts"]) == datacenter.states().keys()
    assert {task: len(steps) for task, steps in run["step_s"].items()} == {"worker:0": STEPS, "worker:1": STEPS}
    assert run["bytes_sent"] > 0
    assert datacenter.list_resources() == NOTHING
    assert watchdogs() == []
    (cost,) = session(on_ec2)["costs"]
    assert 0 < cost["usd"] < 2 * USD_PER_HOUR


def test_notebook_on_an_instance_is_reached(datacenter: DataCenter, folder: Path) -> None:
    """The tunnel to an instance returns requested bytes unchanged, and Ctrl-C ends the tunnel and the instance."""
    (folder / "clusters.toml").write_text(format_cluster(datacenter, 1, make_setup(folder)))
    with start_notebook(folder, "--cluster=cloud", PYTHONPATH=SEARCHED) as notebook:
        assert notebook.get("/lab", token="")[0] == 403
        assert notebook.get(f"/bytes/{20 * MIB + 5}") == (200, make_bytes(20 * MIB + 5))
        os.kill(notebook.process.pid, signal.SIGINT)
        assert notebook.ends() == 130
    assert datacenter.list_resources() == NOTHING
    assert watchdogs() == []
    assert_nothing_left(folder)
