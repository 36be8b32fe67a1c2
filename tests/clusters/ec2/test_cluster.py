"""The ec2 backend from clusters.toml to instances and back: messages, costs, kept instances, and refusals."""

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


def allocate_once(cloud: Cloud, devices: int = 2, heard: Heard | None = None, **backend_keys: Any) -> InstanceGroup:
    """Allocate instances, release them, and return their group."""
    with runs.backend(cloud, **backend_keys).provide_instances((heard or Heard()).resources(devices)) as lot:
        return lot


def refusal(cloud: Cloud, kind: type[DtfPerfError] = AllocationError, devices: int = 2, **backend_keys: Any) -> str:
    """Return the error of an allocation, after a check that nothing was made."""
    with pytest.raises(kind) as caught:
        allocate_once(cloud, devices, **backend_keys)
    assert not any(name.startswith(("Create", "Import", "Run")) for name in cloud.names())
    return str(caught.value)


def test_messages_of_an_allocation(cloud: Cloud) -> None:
    """The messages are the account, then the possible costs, then the progress."""
    heard = Heard()
    allocate_once(cloud, heard=heard)
    account, estimate, *rest = heard.words
    assert account == f"AWS account {cloud.account}, us-east-1 at {cloud.url}"
    assert estimate.startswith(f"2 x {runs.KIND} on demand")
    assert estimate.endswith("each x 4 h = at most $4.21, without volumes and traffic")
    assert rest == [f"launching 2 x {runs.KIND} in us-east-1a"]


def test_disk_that_is_full_at_the_end(cloud: Cloud) -> None:
    """Instances are released, and their costs reported, if the ledger cannot be written any more."""
    heard = Heard()
    with ExitStack() as disk, runs.backend(cloud).provide_instances(heard.resources()) as lot:
        disk.enter_context(full_behind(lot.ledger.path))
    assert cloud.list_resources() == NOTHING
    assert len(heard.costs) == 1


def test_disk_that_is_full_at_the_start(cloud: Cloud) -> None:
    """An allocation is refused if its ledger cannot be written."""
    get_state_folder().mkdir(parents=True, exist_ok=True)
    with full_behind(get_state_folder() / "none", room=100):
        assert "cannot be written" in refusal(cloud)


@pytest.mark.parametrize("keep", [False, True], ids=["its own", "kept by another"])
def test_ledger_that_is_gone_at_the_end(cloud: Cloud, keep: bool) -> None:
    """Instances are released by their session and their tags if the ledger was deleted."""
    cluster = runs.backend(cloud, keep=keep)
    if keep:
        with cluster.provide_instances(Heard().resources()) as lot:
            note_ready(lot)
    with cluster.provide_instances(Heard().resources()) as lot:
        lot.ledger.path.unlink()
        assert cloud.list_resources().instances
    assert cloud.list_resources() == NOTHING


def test_costs_are_reported_at_the_release(cloud: Cloud) -> None:
    """The seconds, the cost and the placement of each instance are reported once, at the release."""
    heard = Heard()
    lot = allocate_once(cloud, heard=heard)
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
    assert cloud.list_resources() == NOTHING


def test_allocation_has_the_needed_instances(cloud: Cloud) -> None:
    """The number of instances is the number of devices over the GPUs of the type."""
    lot = allocate_once(cloud, devices=8, instance_type="g4dn.12xlarge", count=4)
    assert len(lot.instances) == 2


def test_too_many(cloud: Cloud) -> None:
    """More than `count` is refused with the numbers."""
    assert "2 hosts of 1 device, but 3 devices need 3 hosts" in refusal(cloud, devices=3)


def test_failed_block_leaves_nothing(cloud: Cloud) -> None:
    """Any exception in an allocation's block leaves nothing, and is raised unchanged."""
    with pytest.raises(KeyboardInterrupt), runs.backend(cloud).provide_instances(Heard().resources()):
        raise KeyboardInterrupt
    assert cloud.list_resources() == NOTHING


@pytest.mark.parametrize(
    "action", ["ImportKeyPair", "CreateSecurityGroup", "AuthorizeSecurityGroupIngress", "CreatePlacementGroup", "RunInstances"]
)
def test_missing_right_is_named(cloud: Cloud, action: str) -> None:
    """A call without permission is named, and everything that was made before is deleted."""
    cloud.faults.error(action, "UnauthorizedOperation")
    with pytest.raises(AllocationError, match=rf"cluster 'test': .* may not call ec2:{action}: add it to the policy"):
        allocate_once(cloud)
    assert cloud.list_resources() == NOTHING


def test_mistakes_in_the_cluster_file(cloud: Cloud) -> None:
    """An unknown type, image, subnet or region is refused in one message, before anything is made."""
    assert "offers no instance type 'p2.xlarge'. Nearest there:" in refusal(cloud, ClusterFileError, instance_type="p2.xlarge")
    assert "there is no image ami-00000000" in refusal(cloud, ClusterFileError, ami="ami-00000000")
    assert "InvalidSubnetID.NotFound" in refusal(cloud, subnets=["subnet-0badbad0badbad0ba"])
    assert "Check subnets in clusters.toml" in refusal(cloud, subnets=["subnet-0badbad0badbad0ba"])
    assert "unknown region 'us-esat-1'" in refusal(cloud, ClusterFileError, region="us-esat-1")
    assert "g4dn.xlarge has no EFA" in refusal(cloud, ClusterFileError, efa=True)
    assert "more than max_usd = 1" in refusal(cloud, max_usd=1)


def test_costs_without_agreement_are_refused(cloud: Cloud) -> None:
    """Nothing is launched without a limit of costs and without a user at a terminal."""
    assert "No user has agreed to that" in refusal(cloud, max_usd=None)


def test_public_address_limits_efa_interfaces(cloud: Cloud) -> None:
    """A public address leaves one EFA interface, and the message has the setting for all."""
    heard = Heard()
    lot = allocate_once(cloud, devices=8, heard=heard, instance_type="p4d.24xlarge", efa=True, max_usd=10**6)
    assert lot.plan.efa == 1
    assert "1 of 4 EFA interfaces: public addresses go with one only" in " ".join(heard.words)


def test_caller_address_is_found(cloud: Cloud) -> None:
    """Only the address that Amazon sees is allowed to log in, if the cluster file has none."""
    assert allocate_once(cloud, caller_cidr=None).plan.caller_cidr == f"{cloud.caller}/32"


def test_unused_instances_are_not_kept(cloud: Cloud) -> None:
    """Instances without a login are not kept, even with `keep`."""
    with runs.backend(cloud, keep=True).provide_instances(Heard().resources()):
        pass
    assert cloud.list_resources() == NOTHING


def note_ready(lot: InstanceGroup) -> None:
    lot.ledger.note("ready", instances=[each.id for each in lot.instances])


def test_instances_are_kept_for_the_next_session(cloud: Cloud) -> None:
    """The next session gets the same instances without a question about costs; each pays for its own time."""
    first, second = Heard(), Heard()
    cluster = runs.backend(cloud, keep=True)
    with cluster.provide_instances(first.resources()) as lot:
        note_ready(lot)
    assert first.words[-1].startswith(f"run {lot.plan.run} is kept until 20")
    with cluster.provide_instances(second.resources(devices=1)) as again:
        assert [each.id for each in again.instances] == [lot.instances[0].id]
    assert len(cloud.list_calls("RunInstances")) == 1
    assert f"1 of 2 instances of run {lot.plan.run}" in " ".join(second.words)
    assert len(second.costs) == 1


def test_kept_instances_are_paid_by_amazons_clock(cloud: Cloud) -> None:
    """A session with kept instances pays by Amazon's clock, even if this machine's is wrong by two days."""
    cloud.set_clock_ahead(2 * 86400.0)
    cluster, heard = runs.backend(cloud, keep=True), Heard()
    with cluster.provide_instances(Heard().resources()) as lot:
        note_ready(lot)
    with cluster.provide_instances(heard.resources()) as again:
        assert again.plan.run == lot.plan.run
    cloud.set_clock_ahead(0.0)
    (cost,) = heard.costs
    assert cost.seconds == 2 * 60  # the least that is billed


def test_kept_instances_admit_a_new_address(cloud: Cloud) -> None:
    """A session from another address is allowed to log in to kept instances."""
    with runs.backend(cloud, keep=True).provide_instances(Heard().resources()) as lot:
        note_ready(lot)
    with runs.backend(cloud, keep=True, caller_cidr="198.51.100.0/24").provide_instances(Heard().resources()) as again:
        assert again.plan.run == lot.plan.run
        (group,) = client().describe_security_groups(
            GroupNames=[], Filters=[{"Name": "group-name", "Values": [lot.plan.name]}]
        )["SecurityGroups"]
        doors = {each["CidrIp"] for rule in group["IpPermissions"] for each in rule["IpRanges"]}
    assert doors == {f"{cloud.caller}/32", "198.51.100.0/24"}


def test_unused_kept_instances_are_released(cloud: Cloud) -> None:
    """A session that cannot find its address releases kept instances to the next one, which launches none."""
    cluster = runs.backend(cloud, keep=True)
    with cluster.provide_instances(Heard().resources()) as lot:
        note_ready(lot)
    lost = Ec2(runs.config(cloud, keep=True, caller_cidr=None), settle_s=runs.SETTLE_S, check_ip="http://127.0.0.1:9/")
    with (
        pytest.raises(AllocationError, match="cannot find out from which address"),
        lost.provide_instances(Heard().resources()),
    ):
        pytest.fail("nobody could have logged in")
    with cluster.provide_instances(Heard().resources()) as again:
        assert again.plan.run == lot.plan.run
    assert len(cloud.list_calls("RunInstances")) == 1


def test_incomplete_kept_instances_are_replaced(cloud: Cloud) -> None:
    """Kept instances are ended if one of them has ended, and the session launches new ones."""
    cluster = runs.backend(cloud, keep=True)
    with cluster.provide_instances(Heard().resources()) as lot:
        note_ready(lot)
    client().terminate_instances(InstanceIds=[lot.instances[0].id])
    heard = Heard()
    with cluster.provide_instances(heard.resources()) as again:
        assert again.plan.run != lot.plan.run
        assert f"what run {lot.plan.run} had kept runs no more" in heard.words
        assert len(cloud.list_resources().instances) == 2


def test_incomplete_instances_are_not_kept(cloud: Cloud) -> None:
    """A session that has lost an instance leaves none to the next session."""
    with runs.backend(cloud, keep=True).provide_instances(Heard().resources()) as lot:
        note_ready(lot)
        client().terminate_instances(InstanceIds=[lot.instances[0].id])
    assert cloud.list_resources() == NOTHING


def test_every_run_has_a_ledger(cloud: Cloud, tmp_path: Path) -> None:
    """The ledger of a run is in the user's state folder or in the given one, and is closed at the end."""
    allocate_once(cloud)
    with Ec2(runs.config(cloud), settle_s=runs.SETTLE_S, folder=tmp_path / "mine").provide_instances(Heard().resources()):
        pass
    for folder in (get_state_folder(), tmp_path / "mine"):
        (ledger,) = list_ledgers(folder)
        record = ledger.read_record()
        assert record
        assert record.is_closed


def test_unproven_end_is_an_error(cloud: Cloud) -> None:
    """A session that cannot prove its end fails with the commands to type, also when all else went well."""
    with (
        pytest.raises(AllocationError, match=r"INSTANCES MAY STILL RUN AND COST MONEY\.(.|\n)*aws ec2 terminate-instances"),
        runs.backend(cloud).provide_instances(Heard().resources()) as lot,
    ):
        cloud.instance(lot.instances[0].id).disable_api_termination = True
    cloud.instance(lot.instances[0].id).disable_api_termination = False
