"""A run leaves no credentials: not on the terminal, in logs, JUnit, session folder, ledgers or caches."""

import base64
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.clusters.ec2.cloud.cloud import NOTHING, Cloud
from tests.plugin import zygote
from tests.plugin.conftest import ENDS_S

SECRET = "pretend+secret/5f2c91d07b"
TOKEN = "IQoJb3JpZ2luX2VjEPRETENDxSESSIONxTOKEN//////////wEaCXVzLWVhc3Qt"

CLUSTERS = """
[g5]
backend = "ec2"
region = "{region}"
instance_type = "g5.12xlarge"
count = 1
subnets = {subnets}
caller_cidr = "198.51.100.7/32"
max_usd = 100
boot_s = 0.01
"""
PERF_TEST = """
def test_throughput(train):
    train(model="trivial", gpus=4)
"""
# What a user's own fixtures may do before anything of ours runs.
LOUD = """
import logging

import boto3


def test_asks_amazon():
    logging.getLogger().setLevel(logging.DEBUG)
    boto3.client("ec2").describe_instances()
    raise AssertionError("so that pytest shows what was captured")
"""
ALL_THERE_IS = (
    "--log-level=DEBUG", "--log-file=pytest.log", "--log-file-level=DEBUG", "-o", "log_cli=true", "-o", "log_cli_level=DEBUG",
    "--junitxml=junit.xml", "-o", "junit_logging=all", "-o", "junit_log_passing_tests=true", "-rA", "-vv", "--showlocals",
    "--full-trace", "-p", "no:cacheprovider",
)  # fmt: skip


@dataclass(frozen=True)
class FinishedPytest:
    """The folder and the output of a pytest."""

    folder: Path
    printed: str

    def holders(self, *secrets: str) -> set[str]:
        """Return the files that contain one of the secrets."""
        texts = {str(path): path.read_text(errors="replace") for path in self.folder.rglob("*") if path.is_file()}
        return {name for name, text in {**texts, "terminal": self.printed}.items() if any(each in text for each in secrets)}


@pytest.fixture
def as_user(cloud: Cloud, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Mapping[str, str]]:
    """Credentials with every part that may leak, for a cloud from which instances cannot be logged in to."""
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text("#!/bin/sh\necho 'Connection refused' >&2\nexit 255\n")
    ssh.chmod(0o755)
    everything = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}
    credentials = {**cloud.user(everything), "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_SESSION_TOKEN": TOKEN}
    for name, value in {**credentials, "PATH": f"{ssh.parent}:{os.environ['PATH']}"}.items():
        monkeypatch.setenv(name, value)
    yield credentials
    assert logging.getLogger("botocore").level in (logging.NOTSET, logging.WARNING)


def _pytest(folder: Path, source: str, *arguments: str) -> FinishedPytest:
    folder.mkdir()
    (folder / "test_it.py").write_text(source)
    cleaned = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "DTFPERF_"))}
    folders = {f"XDG_{name}_HOME": str(folder / name.lower()) for name in ("STATE", "CACHE")}
    argv = ["-m", "pytest", *ALL_THERE_IS, *arguments, "test_it.py"]
    _, printed = zygote.run_as_one(argv, folder, {**cleaned, **folders, **zygote.SEARCH_PATH}, timeout_s=ENDS_S)
    return FinishedPytest(folder, printed)


def _key_lines(cloud: Cloud) -> list[str]:
    """The host key that the instances were to have, line by line, and the whole of what they were given, as it was sent."""
    found = []
    for call in cloud.list_calls("RunInstances"):
        sent = call.parameters["UserData"]
        key = base64.b64decode(sent).decode().partition("PRIVATE KEY-----\n")[2].partition("-----END")[0]
        found += [line.strip() for line in key.splitlines() if len(line.strip()) > 60]
        found.append(sent[:100])
    assert len(found) > 1
    return found


@pytest.mark.parametrize("refusal", [None, "InvalidParameterCombination"], ids=["instances that are silent", "a refusal"])
def test_run_at_debug_leaves_no_credentials(
    cloud: Cloud, as_user: Mapping[str, str], tmp_path: Path, refusal: str | None
) -> None:
    """A failing run with all output of pytest leaves no access key, token, host key or user data."""
    clusters = tmp_path / "clusters.toml"
    clusters.write_text(CLUSTERS.format(region=cloud.region, subnets=list(cloud.subnets.values())))
    if refusal:
        cloud.faults.error("RunInstances", refusal)

    left = _pytest(tmp_path / "run", PERF_TEST, "--cluster=g5", f"--dtfperf-clusters-file={clusters}", "--gpus=4")

    assert any(each in left.printed for each in (cloud.states() if refusal is None else [refusal]))
    assert cloud.list_calls("RunInstances")
    assert cloud.list_resources() == NOTHING
    assert (left.folder / "junit.xml").exists()
    assert (left.folder / "pytest.log").exists()
    secrets = [as_user["AWS_ACCESS_KEY_ID"], SECRET, TOKEN]
    assert left.holders(*secrets, *_key_lines(cloud)) == set()


@pytest.mark.usefixtures("cloud")
def test_token_of_another_client_is_found(as_user: Mapping[str, str], tmp_path: Path) -> None:
    """The same search finds the token on the terminal, in the log and in JUnit's file if another client logs it."""
    left = _pytest(tmp_path / "run", LOUD)

    assert {Path(each).name for each in left.holders(TOKEN)} == {"terminal", "pytest.log", "junit.xml"}
