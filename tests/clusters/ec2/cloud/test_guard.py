"""No test speaks with the real Amazon."""

import json
import os
import subprocess
import sys

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import EndpointConnectionError

from tests.clusters.ec2.cloud import guard
from tests.clusters.ec2.cloud.cloud import Cloud

CHILD = """
import boto3, json
client = boto3.client("sts")
print(json.dumps([client.meta.endpoint_url, client.get_caller_identity()["Account"]]))
"""


def test_without_a_cloud_nobody_is_reached() -> None:
    """A test that asks for no cloud reaches nobody."""
    client = boto3.client("sts", config=Config(retries={"total_max_attempts": 1, "mode": "standard"}))
    with pytest.raises(EndpointConnectionError, match=r"127\.0\.0\.1"):
        client.get_caller_identity()


def test_all_services_are_the_clouds(cloud: Cloud) -> None:
    """Every client speaks with the pretend cloud, in whatever region."""
    for service in ("ec2", "sts", "ssm", "s3", "pricing", "service-quotas"):
        for region in ("us-east-1", "eu-central-1"):
            assert boto3.client(service, region_name=region).meta.endpoint_url == cloud.url


def test_children_speak_with_the_cloud(cloud: Cloud) -> None:
    """So do processes that a test starts."""
    output = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True).stdout
    assert json.loads(output) == [cloud.url, guard.ACCOUNT]


def test_no_credentials_of_this_machine() -> None:
    """What this machine's user has of credentials and profiles is out of sight."""
    session = boto3.Session()
    credentials = session.get_credentials()
    assert credentials is not None
    assert (credentials.access_key, session.available_profiles) == ("testing", [])
    assert guard.unwanted(os.environ) == []
    assert guard.unwanted({"AWS_PROFILE": "work", "AWS_REGION": "eu-west-1", "HOME": "/root"}) == ["AWS_PROFILE", "AWS_REGION"]
