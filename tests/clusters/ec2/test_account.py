"""The way to Amazon, and what is said when there is none."""

from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from pytest_dtfperf.clusters.ec2.account import Account
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.errors import AllocationError, ClusterFileError
from tests.clusters.ec2.cloud.cloud import Cloud


def config(**backend_keys: object) -> ClusterConfig:
    return ClusterConfig(name="mine", backend="ec2", backend_keys=backend_keys)


def test_an_account(cloud: Cloud) -> None:
    """Whose account and which region it is, and what is spoken with, can be told before anything is asked for."""
    account = Account.open(config(region="us-west-2"))
    assert (account.id, account.region) == (cloud.account, "us-west-2")
    assert str(account) == f"AWS account {cloud.account}, us-west-2 at {cloud.url}"
    assert account.ec2.describe_instances()["Reservations"] == []


def test_the_region_of_the_environment(cloud: Cloud) -> None:
    """Where the cluster file names no region, boto3's own way of finding one counts."""
    assert Account.open(config()).region == cloud.region


def test_no_region_at_all(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one anywhere, the message says where it can be said."""
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    with pytest.raises(ClusterFileError, match=r"cluster 'mine' has no region: set region = .* or AWS_REGION"):
        Account.open(config())


def test_a_region_that_does_not_exist(cloud: Cloud) -> None:
    """A mistyped region is told with the nearest one, and nothing is asked of anybody."""
    with pytest.raises(ClusterFileError, match=r"unknown region 'eu-wset-1'\. Did you mean 'eu-west-1'\?"):
        Account.open(config(region="eu-wset-1"))
    assert cloud.names() == []


def test_no_credentials(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any, the message says where boto3 looks for them."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with pytest.raises(AllocationError, match=r"no AWS credentials were found .* AWS_PROFILE of ~/\.aws"):
        Account.open(config())


def test_half_of_the_credentials(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key's id without its secret is told as that."""
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(AllocationError, match=r"no AWS credentials were found \(Partial credentials"):
        Account.open(config())


def test_a_profile_that_does_not_exist(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistyped AWS_PROFILE is named."""
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(AllocationError, match=r"The config profile \(nobody\) could not be found: AWS_PROFILE must name"):
        Account.open(config())


@pytest.mark.parametrize(
    "code, words",
    [
        ("ExpiredToken", r"the AWS credentials have expired \(ExpiredToken\): renew them"),
        ("InvalidClientTokenId", r"Amazon does not accept the AWS credentials \(InvalidClientTokenId"),
        ("AccessDenied", r"may not call sts:GetCallerIdentity: add it to the policy"),
    ],
)
def test_credentials_that_do_not_serve(cloud: Cloud, code: str, words: str) -> None:
    """Expired, invalid and insufficient credentials are three messages, each with what to do."""
    cloud.faults.error("GetCallerIdentity", code)
    with pytest.raises(AllocationError, match=words):
        Account.open(config())


def test_a_region_that_is_not_enabled(cloud: Cloud) -> None:
    """Credentials that Amazon refuses in a region which accounts have to enable are told with that region."""
    cloud.faults.error("GetCallerIdentity", "InvalidClientTokenId", "The security token included in the request is invalid")
    with pytest.raises(AllocationError, match=r"in af-south-1 \(InvalidClientTokenId: .*this region has to be enabled"):
        Account.open(config(region="af-south-1"))


def test_a_clock_that_is_wrong(cloud: Cloud) -> None:
    """A signature that Amazon takes for old names this machine's clock, and by how much it is wrong."""
    words = "Signature expired: 20260801T100000Z is now earlier than 20260801T104500Z (20260801T105000Z - 5 min.)"
    cloud.faults.error("GetCallerIdentity", "SignatureDoesNotMatch", words)
    with pytest.raises(AllocationError, match=r"this machine's clock is 50 minutes behind Amazon's\. Set it \(timedatectl"):
        Account.open(config())


def test_a_session_that_cannot_be_renewed(cloud: Cloud, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where a program gives the credentials and fails, its words are shown."""
    file = tmp_path / "config"
    file.write_text("[default]\ncredential_process = /bin/false\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(file))
    with pytest.raises(AllocationError, match=r"the AWS credentials cannot be renewed .* \(`aws sso login`\)"):
        Account.open(config())


def test_amazon_is_away() -> None:
    """Where nobody listens, the message asks for the way to the internet."""
    with pytest.raises(AllocationError, match=r"Amazon cannot be reached from here \(Could not connect"):
        Account.open(config(region="us-east-1"))


def test_only_runinstances_is_not_repeated(cloud: Cloud) -> None:
    """Every other call is repeated when Amazon is busy; RunInstances is left to whoever knows its token."""
    account = Account.open(config())
    cloud.faults.throttle("DescribeVpcs", times=2)
    account.ec2.describe_vpcs()
    assert len(cloud.sent("DescribeVpcs")) == 3
    cloud.faults.error("RunInstances", "InsufficientInstanceCapacity", times=9)
    with pytest.raises(ClientError, match="InsufficientInstanceCapacity"):
        account.launcher.run_instances(ImageId=cloud.image, InstanceType="g4dn.xlarge", MinCount=1, MaxCount=1)
    assert len(cloud.sent("RunInstances")) == 1
