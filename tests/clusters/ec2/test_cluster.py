"""The ec2 backend from clusters.toml to instances and back: what is told, paid, kept, and refused."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.clusters.ec2.cluster import Ec2, InstanceGroup
from pytest_dtfperf.clusters.ec2.ledger import get_state_folder, list_ledgers
from pytest_dtfperf.errors import AllocationError, ClusterFileError, DtfPerfError
from tests.clusters.ec2 import runs
from tests.clusters.ec2.cloud.cloud import NOTHING, Cloud
from tests.clusters.ec2.cloud.hands import client
from tests.clusters.ec2.runs import Heard
from tests.full_disk import full_behind


def lend(cloud: Cloud, devices: int = 2, heard: Heard | None = None, **backend_keys: Any) -> InstanceGroup:
    """Instances that were lent, and are gone again."""
    with runs.backend(cloud, **backend_keys).lot((heard or Heard()).resources(devices)) as lot:
        return lot


def refusal(cloud: Cloud, kind: type[DtfPerfError] = AllocationError, devices: int = 2, **backend_keys: Any) -> str:
    """What is said instead of lending anything. Nothing is left, nor was anything made."""
    with pytest.raises(kind) as caught:
        lend(cloud, devices, **backend_keys)
    assert not any(name.startswith(("Create", "Import", "Run")) for name in cloud.names())
    return str(caught.value)


def test_what_is_told(cloud: Cloud) -> None:
    """Whose account it is comes first, then what it may cost, then what happens."""
    heard = Heard()
    lend(cloud, heard=heard)
    account, estimate, *rest = heard.words
    assert account == f"AWS account {cloud.account}, us-east-1 at {cloud.url}"
    assert estimate.startswith(f"2 x {runs.KIND} on demand")
    assert estimate.endswith("each x 4 h = at most $4.21, without volumes and traffic")
    assert rest == [f"launching 2 x {runs.KIND} in us-east-1a"]


def test_a_disk_that_is_full_at_the_end(cloud: Cloud) -> None:
    """Instances are given back, and what they have cost is told, also where nothing can be written down any more."""
    heard = Heard()
    with ExitStack() as disk, runs.backend(cloud).lot(heard.resources()) as lot:
        disk.enter_context(full_behind(lot.ledger.path))
    assert cloud.left() == NOTHING
    assert len(heard.costs) == 1


def test_a_disk_that_is_full_before_anything_is_asked(cloud: Cloud) -> None:
    """Where it cannot be written down what is asked for, nothing is."""
    get_state_folder().mkdir(parents=True, exist_ok=True)
    with full_behind(get_state_folder() / "none", room=100):
        assert "cannot be written" in refusal(cloud)


@pytest.mark.parametrize("keep", [False, True], ids=["its own", "kept by another"])
def test_a_ledger_that_is_gone_at_the_end(cloud: Cloud, keep: bool) -> None:
    """Instances of which nobody knows any more but their session, and their tags, are given back."""
    cluster = runs.backend(cloud, keep=keep)
    if keep:
        with cluster.lot(Heard().resources()) as lot:
            ready(lot)
    with cluster.lot(Heard().resources()) as lot:
        lot.ledger.path.unlink()
        assert cloud.left().instances
    assert cloud.left() == NOTHING


def test_what_is_paid(cloud: Cloud) -> None:
    """When instances are given back, each one's seconds, what they cost, and where they were are told once."""
    heard = Heard()
    lot = lend(cloud, heard=heard)
    (cost,) = heard.costs
    assert [each.id for each in cost.instances] == [each.id for each in lot.instances]
    assert cost.usd == pytest.approx(2 * 60 / 3600 * 0.526, rel=0.5)  # a minute is the least that is billed
    assert cost.placement == {
        "region": "us-east-1",
        "zone": "us-east-1a",
        "instance_type": runs.KIND,
        "ami": cloud.image,
        "spot": False,
        "placement": "cluster",
        "efa_interfaces": 0,
        "baseline_gbps": 5.0,
        "network": "Up to 25 Gigabit",
    }
    assert cloud.left() == NOTHING


def test_as_many_as_are_needed(cloud: Cloud) -> None:
    """An instance has as many devices as its type has GPUs: eight devices are two instances of four."""
    lot = lend(cloud, devices=8, instance_type="g4dn.12xlarge", count=4)
    assert len(lot.instances) == 2


def test_too_many(cloud: Cloud) -> None:
    """More than `count` is refused with the numbers."""
    assert "2 hosts of 1 device, but 3 devices need 3 hosts" in refusal(cloud, devices=3)


def test_a_block_that_fails_ends_like_any_other(cloud: Cloud) -> None:
    """Whatever happens while instances are lent, nothing is left, and it is told as it was."""
    with pytest.raises(KeyboardInterrupt), runs.backend(cloud).lot(Heard().resources()):
        raise KeyboardInterrupt
    assert cloud.left() == NOTHING


@pytest.mark.parametrize(
    "action", ["ImportKeyPair", "CreateSecurityGroup", "AuthorizeSecurityGroupIngress", "CreatePlacementGroup", "RunInstances"]
)
def test_a_missing_right_is_named(cloud: Cloud, action: str) -> None:
    """Whatever may not be called is named, and what was made before it is gone."""
    cloud.faults.error(action, "UnauthorizedOperation")
    with pytest.raises(AllocationError, match=rf"cluster 'test': .* may not call ec2:{action}: add it to the policy"):
        lend(cloud)
    assert cloud.left() == NOTHING


def test_mistakes_in_the_cluster_file(cloud: Cloud) -> None:
    """Each is one message, before anything is made: a type, an image, a subnet, a region there is not."""
    assert "offers no instance type 'p2.xlarge'. Nearest there:" in refusal(cloud, ClusterFileError, instance_type="p2.xlarge")
    assert "there is no image ami-00000000" in refusal(cloud, ClusterFileError, ami="ami-00000000")
    assert "InvalidSubnetID.NotFound" in refusal(cloud, subnets=["subnet-0badbad0badbad0ba"])
    assert "Check subnets in clusters.toml" in refusal(cloud, subnets=["subnet-0badbad0badbad0ba"])
    assert "unknown region 'us-esat-1'" in refusal(cloud, ClusterFileError, region="us-esat-1")
    assert "g4dn.xlarge has no EFA" in refusal(cloud, ClusterFileError, efa=True)
    assert "more than max_usd = 1" in refusal(cloud, max_usd=1)


def test_nobody_has_agreed(cloud: Cloud) -> None:
    """Without a limit, and with nobody to ask, nothing is launched."""
    assert "No user has agreed to that" in refusal(cloud, max_usd=None)


def test_fewer_efa_interfaces_than_there_could_be(cloud: Cloud) -> None:
    """A public address leaves one; that is told, with what to do for all."""
    heard = Heard()
    lot = lend(cloud, devices=8, heard=heard, instance_type="p4d.24xlarge", efa=True, max_usd=10**6)
    assert lot.plan.efa == 1
    assert "1 of 4 EFA interfaces: public addresses go with one only" in " ".join(heard.words)


def test_from_where_logins_come_is_found_out(cloud: Cloud) -> None:
    """Where the cluster file does not say it, only the address that Amazon sees is let in."""
    assert lend(cloud, caller_cidr=None).plan.caller_cidr == f"{cloud.caller}/32"


def test_kept_only_after_it_has_worked(cloud: Cloud) -> None:
    """Instances that nobody has logged in to are not kept, whatever the cluster file says."""
    with runs.backend(cloud, keep=True).lot(Heard().resources()):
        pass
    assert cloud.left() == NOTHING


def ready(lot: InstanceGroup) -> None:
    lot.ledger.note("ready", instances=[each.id for each in lot.instances])


def test_kept_for_the_next_session(cloud: Cloud) -> None:
    """It gets the same instances without asking what they cost again; each pays for its own time."""
    first, second = Heard(), Heard()
    cluster = runs.backend(cloud, keep=True)
    with cluster.lot(first.resources()) as lot:
        ready(lot)
    assert first.words[-1].startswith(f"run {lot.plan.run} is kept until 20")
    with cluster.lot(second.resources(devices=1)) as again:
        assert [each.id for each in again.instances] == [lot.instances[0].id]
    assert len(cloud.sent("RunInstances")) == 1
    assert f"1 of 2 instances of run {lot.plan.run}" in " ".join(second.words)
    assert len(second.costs) == 1


def test_kept_instances_are_paid_by_amazons_clock(cloud: Cloud) -> None:
    """A session that was lent them for a moment has not paid for the two days that this machine's clock is wrong by."""
    cloud.set_clock_ahead(2 * 86400.0)
    cluster, heard = runs.backend(cloud, keep=True), Heard()
    with cluster.lot(Heard().resources()) as lot:
        ready(lot)
    with cluster.lot(heard.resources()) as again:
        assert again.plan.run == lot.plan.run
    cloud.set_clock_ahead(0.0)
    (cost,) = heard.costs
    assert cost.seconds == 2 * 60  # the least that is billed


def test_kept_instances_let_in_who_has_moved(cloud: Cloud) -> None:
    """The next session may come from another address."""
    with runs.backend(cloud, keep=True).lot(Heard().resources()) as lot:
        ready(lot)
    with runs.backend(cloud, keep=True, caller_cidr="198.51.100.0/24").lot(Heard().resources()) as again:
        assert again.plan.run == lot.plan.run
        (group,) = client().describe_security_groups(
            GroupNames=[], Filters=[{"Name": "group-name", "Values": [lot.plan.name]}]
        )["SecurityGroups"]
        doors = {each["CidrIp"] for rule in group["IpPermissions"] for each in rule["IpRanges"]}
    assert doors == {f"{cloud.caller}/32", "198.51.100.0/24"}


def test_kept_instances_that_could_not_be_used_are_for_the_next(cloud: Cloud) -> None:
    """Who took them, and then could not tell from where it logs in, holds them no longer: nothing is launched beside them."""
    cluster = runs.backend(cloud, keep=True)
    with cluster.lot(Heard().resources()) as lot:
        ready(lot)
    lost = Ec2(runs.config(cloud, keep=True, caller_cidr=None), settle_s=runs.SETTLE_S, check_ip="http://127.0.0.1:9/")
    with pytest.raises(AllocationError, match="cannot find out from which address"), lost.lot(Heard().resources()):
        pytest.fail("nobody could have logged in")
    with cluster.lot(Heard().resources()) as again:
        assert again.plan.run == lot.plan.run
    assert len(cloud.sent("RunInstances")) == 1


def test_kept_instances_that_have_gone(cloud: Cloud) -> None:
    """Where one of them runs no more, all of them end, and the session launches its own."""
    cluster = runs.backend(cloud, keep=True)
    with cluster.lot(Heard().resources()) as lot:
        ready(lot)
    client().terminate_instances(InstanceIds=[lot.instances[0].id])
    heard = Heard()
    with cluster.lot(heard.resources()) as again:
        assert again.plan.run != lot.plan.run
        assert f"what run {lot.plan.run} had kept runs no more" in heard.words
        assert len(cloud.left().instances) == 2


def test_not_kept_once_one_is_gone(cloud: Cloud) -> None:
    """A session whose instances were taken from it leaves nothing to the next one."""
    with runs.backend(cloud, keep=True).lot(Heard().resources()) as lot:
        ready(lot)
        client().terminate_instances(InstanceIds=[lot.instances[0].id])
    assert cloud.left() == NOTHING


def test_every_run_is_written_down(cloud: Cloud, tmp_path: Path) -> None:
    """Ledgers are in this user's state folder, or where the caller says; those of runs that are over say so."""
    lend(cloud)
    with Ec2(runs.config(cloud), settle_s=runs.SETTLE_S, folder=tmp_path / "mine").lot(Heard().resources()):
        pass
    for folder in (get_state_folder(), tmp_path / "mine"):
        (ledger,) = list_ledgers(folder)
        record = ledger.read_record()
        assert record
        assert record.is_closed


def test_end_that_cannot_be_proven(cloud: Cloud) -> None:
    """A session that cannot prove its end fails loudly, with the commands, also when all else went well."""
    with (
        pytest.raises(AllocationError, match=r"INSTANCES MAY STILL RUN AND COST MONEY\.(.|\n)*aws ec2 terminate-instances"),
        runs.backend(cloud).lot(Heard().resources()) as lot,
    ):
        cloud.instance(lot.instances[0].id).disable_api_termination = True
    cloud.instance(lot.instances[0].id).disable_api_termination = False
