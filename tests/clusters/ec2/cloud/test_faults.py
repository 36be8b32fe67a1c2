"""Faults of requests, and the record of requests."""

from threading import Thread

import boto3
import pytest
from botocore.exceptions import ConnectionClosedError

from tests.clusters.ec2.cloud import faults
from tests.clusters.ec2.cloud.cloud import NOTHING, Cloud
from tests.clusters.ec2.cloud.hands import client, describe, get_refusal, launch


def test_calls_are_throttled_the_set_number_of_times(cloud: Cloud) -> None:
    """A number of calls is refused with status 503 and not carried out, and botocore's own retries succeed."""
    cloud.faults.throttle("RunInstances", times=2)
    for _ in range(2):
        assert get_refusal(lambda: launch(cloud, 1)) == ("RequestLimitExceeded", 503)
    assert cloud.list_resources() == NOTHING
    launch(cloud, 1)
    cloud.faults.throttle("DescribeInstances", times=1)
    boto3.client("ec2").describe_instances()
    assert cloud.names()[-2:] == ["DescribeInstances", "DescribeInstances"]


@pytest.mark.parametrize(
    "service, action, code, status",
    [
        ("ec2", "DescribeInstances", "InternalError", 500),
        ("ec2", "DescribeInstances", "AuthFailure", 401),
        ("sts", "GetCallerIdentity", "ExpiredToken", 403),
        ("ssm", "GetParameter", "ParameterNotFound", 400),
        ("pricing", "GetProducts", "AccessDeniedException", 400),
        ("s3", "GET /", "SlowDown", 503),
    ],
)
def test_errors_have_the_format_of_their_service(cloud: Cloud, service: str, action: str, code: str, status: int) -> None:
    """An error has the format of its service, so that boto3 reads it."""
    cloud.faults.error(action, code)
    calls = {
        "ec2": lambda: client("ec2").describe_instances(),
        "sts": lambda: client("sts").get_caller_identity(),
        "ssm": lambda: client("ssm").get_parameter(Name="/a"),
        "pricing": lambda: client("pricing").get_products(ServiceCode="AmazonEC2"),
        "s3": lambda: client("s3").list_buckets(),
    }
    assert get_refusal(calls[service]) == (code, status)


def test_lost_answer_and_lost_request(cloud: Cloud) -> None:
    """Both look the same to the caller; but one was carried out."""
    cloud.faults.lose_answer("RunInstances")
    with pytest.raises(ConnectionClosedError):
        launch(cloud, 2)
    assert len(cloud.list_resources().instances) == 2
    cloud.faults.lose_request("RunInstances")
    with pytest.raises(ConnectionClosedError):
        launch(cloud, 2)
    assert len(cloud.list_resources().instances) == 2


def test_withheld_answer(cloud: Cloud) -> None:
    """A call is carried out, and its answer does not come, until the connection breaks."""
    hang = cloud.faults.hang_after("RunInstances")
    broken: list[str] = []

    def call() -> None:
        with pytest.raises(ConnectionClosedError):
            launch(cloud, 2)
        broken.append("broken")

    thread = Thread(target=call)
    thread.start()
    hang.wait_until_executed()
    assert len(cloud.list_resources().instances) == 2
    assert describe().keys() == set(cloud.list_resources().instances)
    assert not broken
    hang.release()
    thread.join()
    assert broken


def test_skipped_calls_and_any_action(cloud: Cloud) -> None:
    """A fault skips the first calls, and applies to any action that follows."""
    cloud.faults.error(".*", "InternalError", skip=1)
    client().describe_instances()
    assert get_refusal(client().describe_key_pairs) == ("InternalError", 500)
    client().describe_key_pairs()


def test_delay(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """A delayed call is answered after the server has slept for the set time, and the next one is not delayed."""
    slept: list[float] = []
    monkeypatch.setattr(faults, "sleep", slept.append)
    cloud.faults.delay("DescribeKeyPairs", 0.2, times=1)
    for _ in range(2):
        client().describe_key_pairs()
    assert slept == [0.2]


def test_record_of_calls(cloud: Cloud) -> None:
    """All calls are recorded with their parameters, of all services; `left` makes none."""
    launch(cloud, 2, ClientToken="t")
    client("sts").get_caller_identity()
    cloud.list_resources()
    assert cloud.names() == ["RunInstances", "GetCallerIdentity"]
    (call,) = cloud.list_calls("RunInstances")
    assert (call.service, call.region, call.parameters["ClientToken"], call.parameters["MaxCount"]) == (
        "ec2",
        "us-east-1",
        "t",
        "2",
    )


def test_each_test_has_an_empty_account(cloud: Cloud) -> None:
    """The account has nothing of earlier tests."""
    assert cloud.list_resources() == NOTHING
    assert cloud.calls == []
    assert describe() == {}
    assert not client("s3").list_buckets()["Buckets"]
