"""The ends of instances, and what goes with them."""

from pytest_dtfperf.testing.backends import wait_until
from tests.clusters.ec2.cloud.cloud import NOTHING, Cloud
from tests.clusters.ec2.cloud.hands import client, describe, launch, refused, state, wait_for


def reason(instance_id: str) -> str:
    return str(describe(instance_id)[instance_id]["StateReason"]["Code"])


def test_terminated_by_way_of_shutting_down(cloud: Cloud) -> None:
    """An instance that is terminated shuts down first; then nothing of it is left but its description, without addresses."""
    ids = launch(cloud, 2)
    wait_for("running", *ids)
    cloud.world.pending_s = 3600
    answer = client().terminate_instances(InstanceIds=ids)["TerminatingInstances"]
    assert {each["CurrentState"]["Name"] for each in answer} == {"shutting-down"}
    assert {each["PreviousState"]["Name"] for each in answer} == {"running"}
    assert set(cloud.left().instances) == set(ids)
    cloud.world.hurry()
    assert {state(each) for each in ids} == {"terminated"}
    assert reason(ids[0]) == "Client.UserInitiatedShutdown"
    assert not {"PrivateIpAddress", "PublicIpAddress"} & describe(ids[0])[ids[0]].keys()
    assert cloud.left() == NOTHING


def test_terminating_twice_is_no_error(cloud: Cloud) -> None:
    """Terminating what is terminated already is a success; what never was is refused, and then nothing is done."""
    (one,) = launch(cloud, 1)
    assert refused(lambda: client().terminate_instances(InstanceIds=[one, "i-00000000000000000"]))[0] == (
        "InvalidInstanceID.NotFound"
    )
    assert state(one) in ("pending", "running")
    client().terminate_instances(InstanceIds=[one])
    client().terminate_instances(InstanceIds=[one])
    wait_for("terminated", one)
    client().terminate_instances(InstanceIds=[one])


def test_protected_instance(cloud: Cloud) -> None:
    """Of instances of which one is protected, none is terminated."""
    ids = [*launch(cloud, 1), *launch(cloud, 1, DisableApiTermination=True)]
    assert refused(lambda: client().terminate_instances(InstanceIds=ids)) == ("OperationNotPermitted", 400)
    assert set(cloud.states().values()) <= {"pending", "running"}


def test_shut_down_from_within(cloud: Cloud) -> None:
    """An instance that shuts itself down is terminated or only stopped, as its launch said."""
    (mortal,) = launch(cloud, 1, InstanceInitiatedShutdownBehavior="terminate")
    (stopping,) = launch(cloud, 1)
    wait_for("running", mortal, stopping)
    cloud.power_off(mortal)
    cloud.power_off(stopping)
    wait_for("terminated", mortal)
    assert state(stopping) == "stopped"
    assert reason(mortal) == reason(stopping) == "Client.InstanceInitiatedShutdown"
    assert cloud.left().instances == (stopping,)


def test_spot_interruption(cloud: Cloud) -> None:
    """Amazon takes a spot instance back: it ends with a reason, and its one-time request is closed."""
    (one,) = launch(cloud, 1, InstanceMarketOptions={"MarketType": "spot"})
    wait_for("running", one)
    request = describe(one)[one]["SpotInstanceRequestId"]
    assert cloud.left().spot_requests == (request,)
    cloud.interrupt_spot(one)
    wait_for("terminated", one)
    assert reason(one) == "Server.SpotInstanceTermination"
    found = client().describe_spot_instance_requests(SpotInstanceRequestIds=[request])["SpotInstanceRequests"]
    assert [each["State"] for each in found] == ["closed"]
    assert cloud.left() == NOTHING


def test_persistent_spot_request_outlives_its_instance(cloud: Cloud) -> None:
    """It is open again when its instance is terminated, until it is cancelled."""
    options = {"MarketType": "spot", "SpotOptions": {"SpotInstanceType": "persistent"}}
    (one,) = launch(cloud, 1, InstanceMarketOptions=options)
    client().terminate_instances(InstanceIds=[one])
    wait_for("terminated", one)
    (request,) = cloud.left().spot_requests
    client().cancel_spot_instance_requests(SpotInstanceRequestIds=[request])
    assert cloud.left() == NOTHING


def test_volume_that_is_to_be_kept_is_left(cloud: Cloud) -> None:
    """`left` sees volumes that their instance's end does not delete."""
    disk = {"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 8, "DeleteOnTermination": False}}
    (one,) = launch(cloud, 1, BlockDeviceMappings=[disk])
    client().terminate_instances(InstanceIds=[one])
    wait_until("it is terminated", lambda: not cloud.left().instances)
    assert len(cloud.left().volumes) == 1
