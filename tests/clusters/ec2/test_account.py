"""Access to Amazon, and the messages of failures."""

from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from pytest_dtfperf.clusters.ec2.account import Account
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.errors import AllocationError, ClusterFileError
from tests.clusters.ec2.cloud.cloud import Cloud


def config(**backend_keys: object) -> ClusterConfig:
    return ClusterConfig(name="mine", backend="ec2", backend_keys=backend_keys)


def test_account_has_id_region_and_endpoint(cloud: Cloud) -> None:
    """An account has its id, its region and its endpoint before any resource is used."""
    account = Account.open(config(region="us-west-2"))
    assert (account.id, account.region) == (cloud.account, "us-west-2")
    assert str(account) == f"AWS account {cloud.account}, us-west-2 at {cloud.url}"
    assert account.ec2.describe_instances()["Reservations"] == []


def test_region_of_the_environment(cloud: Cloud) -> None:
    """The region of boto3's configuration is used if the cluster file names none."""
    assert Account.open(config()).region == cloud.region


def test_missing_region(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing region is an error with the settings that name one."""
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    with pytest.raises(ClusterFileError, match=r"cluster 'mine' has no region: set region = .* or AWS_REGION"):
        Account.open(config())


def test_unknown_region(cloud: Cloud) -> None:
    """An unknown region is refused with the nearest one, and without a request."""
    with pytest.raises(ClusterFileError, match=r"unknown region 'eu-wset-1'\. Did you mean 'eu-west-1'\?"):
        Account.open(config(region="eu-wset-1"))
    assert cloud.names() == []


def test_no_credentials(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing credentials are an error with the sources that boto3 reads."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with pytest.raises(AllocationError, match=r"no AWS credentials were found .* AWS_PROFILE of ~/\.aws"):
        Account.open(config())


def test_key_id_without_secret(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key id without its secret is an error that names this cause."""
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(AllocationError, match=r"no AWS credentials were found \(Partial credentials"):
        Account.open(config())


def test_unknown_profile(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown AWS_PROFILE is named."""
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
def test_unusable_credentials(cloud: Cloud, code: str, words: str) -> None:
    """Expired, invalid and insufficient credentials have different messages, each with a remedy."""
    cloud.faults.error("GetCallerIdentity", code)
    with pytest.raises(AllocationError, match=words):
        Account.open(config())


def test_region_that_is_not_enabled(cloud: Cloud) -> None:
    """Credentials that are refused in a region which accounts have to enable are reported with that region."""
    cloud.faults.error("GetCallerIdentity", "InvalidClientTokenId", "The security token included in the request is invalid")
    with pytest.raises(AllocationError, match=r"in af-south-1 \(InvalidClientTokenId: .*this region has to be enabled"):
        Account.open(config(region="af-south-1"))


def test_wrong_clock(cloud: Cloud) -> None:
    """A signature that Amazon considers old is reported with the error of this machine's clock."""
    words = "Signature expired: 20260801T100000Z is now earlier than 20260801T104500Z (20260801T105000Z - 5 min.)"
    cloud.faults.error("GetCallerIdentity", "SignatureDoesNotMatch", words)
    with pytest.raises(AllocationError, match=r"this machine's clock is 50 minutes behind Amazon's\. Set it \(timedatectl"):
        Account.open(config())


def test_failing_credential_process(cloud: Cloud, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A program for credentials that fails is reported with its message."""
    file = tmp_path / "config"
    file.write_text("[default]\ncredential_process = /bin/false\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(file))
    with pytest.raises(AllocationError, match=r"the AWS credentials cannot be renewed .* \(`aws sso login`\)"):
        Account.open(config())


def test_unreachable_amazon() -> None:
    """An unreachable Amazon is an error about the network."""
    with pytest.raises(AllocationError, match=r"Amazon cannot be reached from here \(Could not connect"):
        Account.open(config(region="us-east-1"))


def test_only_runinstances_is_not_repeated(cloud: Cloud) -> None:
    """A throttled call is repeated, except for RunInstances, which only the launch with its token repeats."""
    account = Account.open(config())
    cloud.faults.throttle("DescribeVpcs", times=2)
    account.ec2.describe_vpcs()
    assert len(cloud.list_calls("DescribeVpcs")) == 3
    cloud.faults.error("RunInstances", "InsufficientInstanceCapacity", times=9)
    with pytest.raises(ClientError, match="InsufficientInstanceCapacity"):
        account.launcher.run_instances(ImageId=cloud.image, InstanceType="g4dn.xlarge", MinCount=1, MaxCount=1)
    assert len(cloud.list_calls("RunInstances")) == 1
