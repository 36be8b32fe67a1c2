"""Calls of the pretend cloud with plain boto3, without retries."""

import functools
import os
from collections.abc import Callable
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from pytest_dtfperf.testing.backends import wait_until
from tests.clusters.ec2.cloud.cloud import Cloud

ONCE = Config(retries={"mode": "standard", "total_max_attempts": 1})
KIND = "g4dn.xlarge"


def client(service: str = "ec2", **options: Any) -> Any:
    """Return a client without retries."""
    where = os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_ENDPOINT_URL"], os.environ.get("AWS_SESSION_TOKEN")
    return _client(where, service, **options)


@functools.cache
def _client(where: tuple[str, str, str | None], service: str, **options: Any) -> Any:
    """Return one client per user and server: making one takes longer than a call, and waits call often."""
    return _session(where[0]).client(service, config=ONCE, **options)  # type: ignore[call-overload]


@functools.cache
def _session(key_id: str) -> boto3.Session:
    """One for each user: a session reads half a second of service descriptions."""
    return boto3.Session()


def launch(cloud: Cloud, count: int = 2, zone: str = "us-east-1a", **more: Any) -> list[str]:
    """The ids of new instances."""
    request = {"ImageId": cloud.image, "InstanceType": KIND, "MinCount": count, "MaxCount": count, **more}
    if "NetworkInterfaces" not in request:
        request["SubnetId"] = cloud.subnets[zone]
    return [each["InstanceId"] for each in client().run_instances(**request)["Instances"]]


def describe(*ids: str, **filters: str) -> dict[str, dict[str, Any]]:
    """Instances as they are described, by id; filters with _ for -."""
    words = [{"Name": name.replace("_", "-"), "Values": [value]} for name, value in filters.items()]
    found = client().describe_instances(InstanceIds=list(ids), Filters=words)["Reservations"]
    return {each["InstanceId"]: each for reservation in found for each in reservation["Instances"]}


def state(instance_id: str) -> str:
    return str(describe(instance_id)[instance_id]["State"]["Name"])


def wait_for(wanted: str, *ids: str) -> None:
    wait_until(f"{ids} are {wanted}", lambda: all(state(each) == wanted for each in ids))


def get_refusal(call: Callable[[], object]) -> tuple[str, int]:
    """Return the code and the status with which a call is refused."""
    with pytest.raises(ClientError) as caught:
        call()
    return caught.value.response["Error"]["Code"], caught.value.response["ResponseMetadata"]["HTTPStatusCode"]
