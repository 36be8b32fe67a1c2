"""The ends of instances, and what goes with them."""

from pytest_dtfperf.testing.backends import wait_until
from tests.clusters.ec2.cloud.cloud import NOTHING, Cloud
from tests.clusters.ec2.cloud.hands import client, describe, get_refusal, launch, state, wait_for


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
    assert set(cloud.list_resources().instances) == set(ids)
    cloud.world.hurry()
    assert {state(each) for each in ids} == {"terminated"}
    assert reason(ids[0]) == "Client.UserInitiatedShutdown"
    assert not {"PrivateIpAddress", "PublicIpAddress"} & describe(ids[0])[ids[0]].keys()
    assert cloud.list_resources() == NOTHING


def test_terminating_twice_is_no_error(cloud: Cloud) -> None:
    """Terminating a terminated instance succeeds; an unknown instance is refused, and then none is terminated."""
    (one,) = launch(cloud, 1)
    assert get_refusal(lambda: client().terminate_instances(InstanceIds=[one, "i-00000000000000000"]))[0] == (
        "InvalidInstanceID.NotFound"
    )
    assert state(one) in ("pending", "running")
    client().terminate_instances(InstanceIds=[one])
    client().terminate_instances(InstanceIds=[one])
    wait_for("terminated", one)
    client().terminate_instances(InstanceIds=[one])


def test_protected_instance(cloud: Cloud) -> None:
    """None of several instances is terminated if one of them is protected."""
    ids = [*launch(cloud, 1), *launch(cloud, 1, DisableApiTermination=True)]
    assert get_refusal(lambda: client().terminate_instances(InstanceIds=ids)) == ("OperationNotPermitted", 400)
    assert set(cloud.states().values()) <= {"pending", "running"}


def test_shut_down_from_within(cloud: Cloud) -> None:
    """An instance that shuts itself down is terminated or stopped, as its launch requested."""
    (mortal,) = launch(cloud, 1, InstanceInitiatedShutdownBehavior="terminate")
    (stopping,) = launch(cloud, 1)
    wait_for("running", mortal, stopping)
    cloud.power_off(mortal)
    cloud.power_off(stopping)
    wait_for("terminated", mortal)
    assert state(stopping) == "stopped"
    assert reason(mortal) == reason(stopping) == "Client.InstanceInitiatedShutdown"
    assert cloud.list_resources().instances == (stopping,)


def test_spot_interruption(cloud: Cloud) -> None:
    """Amazon takes a spot instance back: it ends with a reason, and its one-time request is closed."""
    (one,) = launch(cloud, 1, InstanceMarketOptions={"MarketType": "spot"})
    wait_for("running", one)
    request = describe(one)[one]["SpotInstanceRequestId"]
    assert cloud.list_resources().spot_requests == (request,)
    cloud.interrupt_spot(one)
    wait_for("terminated", one)
    assert reason(one) == "Server.SpotInstanceTermination"
    found = client().describe_spot_instance_requests(SpotInstanceRequestIds=[request])["SpotInstanceRequests"]
    assert [each["State"] for each in found] == ["closed"]
    assert cloud.list_resources() == NOTHING


def test_persistent_spot_request_outlives_its_instance(cloud: Cloud) -> None:
    """A persistent spot request is open again after its instance's termination, until it is cancelled."""
    options = {"MarketType": "spot", "SpotOptions": {"SpotInstanceType": "persistent"}}
    (one,) = launch(cloud, 1, InstanceMarketOptions=options)
    client().terminate_instances(InstanceIds=[one])
    wait_for("terminated", one)
    (request,) = cloud.list_resources().spot_requests
    client().cancel_spot_instance_requests(SpotInstanceRequestIds=[request])
    assert cloud.list_resources() == NOTHING


def test_kept_volume_is_left(cloud: Cloud) -> None:
    """A volume that is not deleted with its instance is in `left`."""
    disk = {"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 8, "DeleteOnTermination": False}}
    (one,) = launch(cloud, 1, BlockDeviceMappings=[disk])
    client().terminate_instances(InstanceIds=[one])
    wait_until("it is terminated", lambda: not cloud.list_resources().instances)
    assert len(cloud.list_resources().volumes) == 1
