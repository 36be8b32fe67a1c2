"""Training on EC2 instances, as a user of pytest runs it: TensorFlow itself, on machines that stand for the instances."""

import json
import sys

import pytest

from tests.clusters.ec2.cloud.cloud import NOTHING
from tests.clusters.ec2.cloud.datacenter import DataCenter
from tests.clusters.ec2.conftest import amazon, datacenter, no_real_amazon
from tests.clusters.ec2.sessions import watchdogs
from tests.plugin.conftest import PerfTests
from tests.plugin.test_verdicts import records, session

__all__ = ["amazon", "datacenter", "no_real_amazon"]

STEPS = 100  # more than a second: on a busy machine one worker begins some milliseconds later, of which 2% may be seen
KIND, USD_PER_HOUR = "c5.large", 0.085  # as the pretended price list says
CLUSTER = """
[cloud]
backend = "ec2"
region = "{region}"
instance_type = "{kind}"
count = 2
device = "cpu"
devices_per_host = 1
python = "{python}"
subnets = {subnets}
caller_cidr = "{caller}/32"
placement = "cluster"
max_hours = 1
max_usd = 1.0
training = {{ repeats = 1, warmup_steps = 1, steps = {steps}, batch_size = 2 }}
"""
THROUGHPUT = """
def test_throughput(train, baseline, gpus, num_ps):
    baseline.check(train(model="mnist", gpus=gpus, num_ps=num_ps))
"""


@pytest.fixture
def on_ec2(datacenter: DataCenter, perf: PerfTests) -> PerfTests:
    """Perf tests whose cluster is two instances."""
    table = CLUSTER.format(
        region=datacenter.region,
        steps=STEPS,
        kind=KIND,
        python=sys.executable,
        subnets=json.dumps(list(datacenter.subnets.values())),
        caller=datacenter.caller,
    )
    (perf.folder / "perf" / "clusters.toml").write_text(table)
    perf.write(THROUGHPUT)
    return perf


def test_mnist_on_two_instances(datacenter: DataCenter, on_ec2: PerfTests) -> None:
    """Two instances train MNIST with parameter servers and workers, over the addresses that only they can reach each other by;
    the measurement and what it cost are collected, and nothing is left of the instances."""
    ended = on_ec2.run("--cluster=cloud", "--gpus=2", "--num-ps=2")

    assert ended.code == 0, f"{ended.out}\n{ended.err}"
    (record,) = records(on_ec2)
    run = record["runs"][-1]  # whose hosts are this machine, and may have had other work during an earlier one
    assert set(run["hosts"]) == datacenter.states().keys()
    assert {task: len(steps) for task, steps in run["step_s"].items()} == {"worker:0": STEPS, "worker:1": STEPS}
    assert run["bytes_sent"] > 0
    assert datacenter.left() == NOTHING
    assert watchdogs() == []
    (cost,) = session(on_ec2)["costs"]
    assert 0 < cost["usd"] < 2 * USD_PER_HOUR
