"""`dtfperf qualify` on instances of EC2, of which one does not boot."""

import json
import sys
from pathlib import Path

import pytest
from moto.ec2.models.instances import Instance

from pytest_dtfperf.cli import main
from pytest_dtfperf.datamodel.qualification import HostVerdict, Qualification
from tests.cli.table import read
from tests.clusters.ec2.cloud import ending
from tests.clusters.ec2.cloud.cloud import NOTHING
from tests.clusters.ec2.cloud.datacenter import DataCenter
from tests.plugin.conftest import REPOSITORY
from tests.plugin.test_ssh import TOY, TRAINING

CLOUD = """
[cloud]
backend = "ec2"
region = "{region}"
instance_type = "c5.large"
count = 4
device = "cpu"
devices_per_host = 1
python = "{python}"
subnets = {subnets}
caller_cidr = "{caller}/32"
max_usd = 10.0
setup = ["export PYTHONPATH={root}"]
"""


def test_qualify_names_an_instance_that_does_not_boot(
    datacenter: DataCenter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An instance of EC2 that ends before it runs is not judged, with Amazon's reason, and the others are measured."""
    monkeypatch.chdir(tmp_path)
    failed: list[str] = []
    boot = datacenter.world.on_boot
    assert boot

    def boot_all_but_one(instance: Instance) -> None:
        if failed:
            boot(instance)
        else:
            failed.append(instance.id)
            ending.shut_down(instance, "Server.InternalError", "Internal error on launch")

    datacenter.world.on_boot = boot_all_but_one
    values = {"region": datacenter.region, "python": sys.executable, "caller": datacenter.caller, "root": REPOSITORY}
    table = CLOUD.format(subnets=json.dumps(list(datacenter.subnets.values())), **values)
    (tmp_path / "clusters.toml").write_text(f"{table}\n{TRAINING}\n{TOY}\n")
    code = main(["qualify", "trivial", "--cluster=cloud", "--max-rounds=1", "--no-training", "--history=never", "--json"])
    printed = capsys.readouterr()
    assert code in (1, 3), printed.err
    hosts = Qualification.from_json(read("qualify", printed.out)).hosts
    assert hosts[failed[0]].verdict is HostVerdict.NOT_JUDGED
    assert "Server.InternalError" in hosts[failed[0]].reason
    others = [host for name, host in hosts.items() if name not in failed]
    assert [max(each.readings for each in host.capacities.values()) >= 3 for host in others] == [True] * 3
    assert datacenter.list_resources() == NOTHING
