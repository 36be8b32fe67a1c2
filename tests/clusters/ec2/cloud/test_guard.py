"""No test connects to the real Amazon."""

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


def test_amazon_is_unreachable_without_a_cloud() -> None:
    """A client of a test without the fixture cannot connect."""
    client = boto3.client("sts", config=Config(retries={"total_max_attempts": 1, "mode": "standard"}))
    with pytest.raises(EndpointConnectionError, match=r"127\.0\.0\.1"):
        client.get_caller_identity()


def test_all_services_are_the_clouds(cloud: Cloud) -> None:
    """All clients connect to the pretend cloud, in every region."""
    for service in ("ec2", "sts", "ssm", "s3", "pricing", "service-quotas"):
        for region in ("us-east-1", "eu-central-1"):
            assert boto3.client(service, region_name=region).meta.endpoint_url == cloud.url


def test_children_connect_to_the_cloud(cloud: Cloud) -> None:
    """Processes that a test starts connect to the pretend cloud."""
    output = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True).stdout
    assert json.loads(output) == [cloud.url, guard.ACCOUNT]


def test_no_credentials_of_this_machine() -> None:
    """Credentials and profiles of this machine's user are not visible."""
    session = boto3.Session()
    credentials = session.get_credentials()
    assert credentials is not None
    assert (credentials.access_key, session.available_profiles) == ("testing", [])
    assert guard.list_unwanted_variables(os.environ) == []
    assert guard.list_unwanted_variables({"AWS_PROFILE": "work", "AWS_REGION": "eu-west-1", "HOME": "/root"}) == [
        "AWS_PROFILE",
        "AWS_REGION",
    ]
