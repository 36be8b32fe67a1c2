"""DescribeInstances shows instances after a delay, and finds them by filters."""

from pytest_dtfperf.testing.backends import wait_until
from tests.clusters.ec2.cloud.cloud import Cloud
from tests.clusters.ec2.cloud.hands import client, describe, get_refusal, launch, wait_for


def test_new_instances_are_not_seen_at_once(cloud: Cloud) -> None:
    """A new instance is in no list and unknown by its id for a while; `left` has it."""
    cloud.world.visible_after_s = 3600
    ids = launch(cloud, 2, ClientToken="t")
    assert describe() == describe(client_token="t") == {}
    assert get_refusal(lambda: describe(ids[0])) == ("InvalidInstanceID.NotFound", 400)
    assert set(cloud.list_resources().instances) == set(ids)
    cloud.world.visible_after_s, cloud.world.blind_calls = 0, 2
    assert describe() == describe() == {}
    wait_until("they are seen", lambda: set(describe()) == set(ids))


def test_new_instances_have_no_addresses_at_once(cloud: Cloud) -> None:
    """A new instance is described without its addresses for a while, then with both."""
    cloud.world.addressed_after_s = 3600
    (one,) = launch(cloud, 1)
    assert not {"PrivateIpAddress", "PublicIpAddress"} & describe(one)[one].keys()
    cloud.world.addressed_after_s = 0.3
    wait_until("it has addresses", lambda: {"PrivateIpAddress", "PublicIpAddress"} <= describe(one)[one].keys())
    assert describe(one)[one]["PrivateIpAddress"].startswith("10.77.0.")


def test_filters(cloud: Cloud) -> None:
    """Instances are found by tag, by token, by placement group, by state."""
    ec2 = client()
    ec2.create_placement_group(GroupName="close", Strategy="cluster")
    tags = [{"ResourceType": "instance", "Tags": [{"Key": "run", "Value": "7"}]}]
    (one,) = launch(cloud, 1, ClientToken="one", TagSpecifications=tags)
    (other,) = launch(cloud, 1, Placement={"GroupName": "close"})
    wait_for("running", one, other)
    tagged = [{"Name": "tag:run", "Values": ["7"]}]
    assert [i["InstanceId"] for r in ec2.describe_instances(Filters=tagged)["Reservations"] for i in r["Instances"]] == [one]
    assert list(describe(client_token="one")) == [one]
    assert list(describe(placement_group_name="close")) == [other]
    assert set(describe(instance_state_name="running")) == {one, other}
    assert describe(instance_state_name="pending") == {}


def test_order_of_launch(cloud: Cloud) -> None:
    """Each instance knows its place in its launch."""
    ids = launch(cloud, 3)
    assert [describe(each)[each]["AmiLaunchIndex"] for each in ids] == [0, 1, 2]


def test_console_of_an_instance_without_a_machine(cloud: Cloud) -> None:
    """The console of an instance without a machine is empty."""
    (one,) = launch(cloud, 1)
    assert client().get_console_output(InstanceId=one).get("Output", "") == ""
