"""A pretend S3 for the tests of data that lie elsewhere than those of EC2: one server per module, one bucket per test."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import boto3
import pytest

from tests.clusters.ec2.cloud import guard
from tests.clusters.ec2.cloud.cloud import Cloud
from tests.clusters.ec2.cloud.server import Server, run_server

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

# For the start of a child's code: Ctrl-C raises KeyboardInterrupt even if this process's parent ignores it, and makes a file.
HEARS_CTRL_C = """
import pathlib, signal
def interrupted(*_):
    pathlib.Path("{flag}").touch()
    raise KeyboardInterrupt
signal.signal(signal.SIGINT, interrupted)
"""
PATIENCE_S = 120.0  # a child imports boto3 first, on a machine that is busy with other things
NAME = "perf-data"
REGION: Literal["eu-central-1"] = "eu-central-1"


@contextmanager
def child(*argv: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A process of Python, gone in the end whatever becomes of the test."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, *argv], stdout=pipe, stderr=pipe, env=os.environ) as process:
        try:
            yield process
        finally:
            process.kill()


@cache
def _session() -> boto3.Session:
    """Return a session that has read the service description of S3, which is done once."""
    return boto3.Session()


class S3:
    """An account with one bucket in a region that no setting names."""

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        self.client: S3Client = _session().client("s3", region_name=REGION)
        self.client.create_bucket(Bucket=NAME, CreateBucketConfiguration={"LocationConstraint": REGION})

    def put(self, key: str, content: bytes, **more: Any) -> None:
        self.client.put_object(Bucket=NAME, Key=key, Body=content, **more)

    def contents(self) -> dict[str, bytes]:
        listed = self.client.list_objects_v2(Bucket=NAME).get("Contents", [])
        return {each["Key"]: self.client.get_object(Bucket=NAME, Key=each["Key"])["Body"].read() for each in listed}

    def head(self, key: str) -> Any:
        return self.client.head_object(Bucket=NAME, Key=key, ChecksumMode="ENABLED")

    def list_unfinished_uploads(self) -> list[Any]:
        """Uploads in parts that are neither complete nor taken back."""
        return list(self.client.list_multipart_uploads(Bucket=NAME).get("Uploads", []))

    def count_requests(self, method: str, key: str = "") -> int:
        """How often an object, or any below a prefix, was asked for."""
        return sum(name.startswith(f"{method} /{NAME}/{key}") for name in self.cloud.names())


@pytest.fixture(scope="module")
def amazon() -> Iterator[tuple[Server, str]]:
    with run_server() as server:
        yield server


@pytest.fixture
def s3(amazon: tuple[Server, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[S3]:
    """This process and its children speak with it alone; their cache is the test's own."""
    server, url = amazon
    for name in guard.list_unwanted_variables(os.environ):
        monkeypatch.delenv(name)
    for name, value in guard.environment(url).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    cloud = Cloud(server, url)
    s3 = S3(cloud)
    yield s3
    s3.client.close()
    cloud.faults.clear()
