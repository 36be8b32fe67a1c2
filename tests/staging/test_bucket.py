"""Tests of the check of a location in S3 before files are moved, and of the errors if it cannot be used."""

import base64
import json
import urllib.request
from collections.abc import Mapping
from typing import Any

import pytest

from pytest_dtfperf.errors import DataError, UsageError
from pytest_dtfperf.staging.bucket import Bucket, Location, choose_checksum
from tests.clusters.ec2.cloud import guard
from tests.s3 import NAME, REGION, S3, amazon, s3

__all__ = ["amazon", "s3"]  # fixtures

URL = f"s3://{NAME}/sets"
EVERYBODY = {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": f"arn:aws:s3:::{NAME}/*"}
CLOSED: Any = {"BlockPublicAcls": True, "IgnorePublicAcls": True, "BlockPublicPolicy": True, "RestrictPublicBuckets": True}


@pytest.mark.parametrize(
    ("url", "location"),
    [
        ("s3://bucket", Location("bucket", "")),
        ("s3://bucket/", Location("bucket", "")),
        ("s3://bucket/a/b/", Location("bucket", "a/b")),
    ],
)
def test_location_has_bucket_and_prefix(url: str, location: Location) -> None:
    """A location is a bucket and a prefix, with any number of slashes at the end."""
    assert Location.parse(url) == location
    assert str(location) == url.rstrip("/")
    assert location.key("f") == ("f" if not location.prefix else f"{location.prefix}/f")


@pytest.mark.parametrize("url", ["bucket/a", "s3:/bucket", "s3://", "s3:///a", "/folder", ""])
def test_invalid_url_is_refused(url: str) -> None:
    """Any other text is refused, with the form of a location."""
    with pytest.raises(UsageError, match=r"is not an S3 URL\. Write s3://bucket or s3://bucket/prefix"):
        Location.parse(url)


def test_private_bucket_has_no_warning(s3: S3) -> None:
    """A private bucket in another region has this region, encryption by AES256, and no warning."""
    bucket = Bucket.open(URL)
    assert (bucket.region, bucket.encryption, bucket.warnings) == (REGION, "AES256", ())
    assert guard.REGION != REGION


def test_public_policy_has_a_warning(s3: S3) -> None:
    """A policy that lets anyone read is a warning with the command that closes the bucket, after which there is no warning."""
    s3.client.put_bucket_policy(Bucket=NAME, Policy=json.dumps({"Version": "2012-10-17", "Statement": [EVERYBODY]}))
    (warning,) = Bucket.open(URL).warnings
    assert warning.startswith(f"the bucket {NAME} is public, by its policy: anyone can read its files.")
    assert f"aws s3api put-public-access-block --bucket {NAME} " in warning
    assert json.loads(warning.split("'")[1]) == CLOSED

    s3.client.put_public_access_block(Bucket=NAME, PublicAccessBlockConfiguration=CLOSED)
    assert Bucket.open(URL).warnings == ()


def test_public_access_control_list_has_a_warning(s3: S3) -> None:
    """An access control list that lets anyone read is a warning, until the bucket is closed."""
    s3.client.put_bucket_acl(Bucket=NAME, ACL="public-read")
    (warning,) = Bucket.open(URL).warnings
    assert f"the bucket {NAME} is public, by its access control list:" in warning

    s3.client.put_public_access_block(Bucket=NAME, PublicAccessBlockConfiguration=CLOSED)
    assert Bucket.open(URL).warnings == ()


def test_files_have_sizes_and_urls(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files below the prefix are listed with their sizes, over several pages, and a URL gives anyone one file for 12 hours."""
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "10")
    for number in range(23):
        s3.put(f"sets/{number:04}", b"x" * (number % 3))
    s3.put("sets-too/other", b"")
    files = Bucket.open(URL).list_files()
    assert [(file.path, file.size) for file in files] == [(f"{number:04}", number % 3) for number in range(23)]

    assert sum("list-type" in call.parameters for call in s3.cloud.calls) == 3
    url = Bucket.open(URL).url(files[2])
    with urllib.request.urlopen(urllib.request.Request(url, headers={"If-Match": files[2].etag})) as answer:
        assert answer.read() == b"xx"
    assert "X-Amz-Expires=43200" in url
    assert "hecksum" not in url


def test_missing_bucket_is_named(s3: S3) -> None:
    """A bucket that does not exist is named, with the command that creates it."""
    with pytest.raises(DataError) as raised:
        Bucket.open("s3://nobodys-bucket/a")
    assert str(raised.value) == (
        "s3://nobodys-bucket/a: there is no bucket nobodys-bucket. Create it with: aws s3 mb s3://nobodys-bucket"
    )


def test_denied_action_is_named(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """A denied action is named, and without permission to read policies there is no warning."""
    allowed: dict[str, Any] = {"Effect": "Allow", "Action": ["s3:GetObject"], "Resource": "*"}

    def log_in_as(user: Mapping[str, str]) -> None:
        for name, value in user.items():
            monkeypatch.setenv(name, value)

    log_in_as(s3.cloud.user({"Version": "2012-10-17", "Statement": [allowed]}))
    with pytest.raises(DataError, match=rf"s3://{NAME}/sets: AWS denies HeadBucket there .*docs/data\.md"):
        Bucket.open(URL)
    log_in_as(s3.cloud.user({"Version": "2012-10-17", "Statement": [allowed | {"Action": ["s3:ListBucket"]}]}))
    bucket = Bucket.open(URL)
    assert (bucket.warnings, bucket.encryption) == ((), None)
    assert bucket.list_files() == []


def test_missing_credentials_are_explained(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error on missing credentials explains how to get them."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(DataError, match=r"no AWS credentials \(.*\). Set AWS_PROFILE, or log in"):
        Bucket.open(URL)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("ExpiredToken", "the AWS credentials have expired: log in again"),
        ("InvalidAccessKeyId", "AWS does not accept these credentials (InvalidAccessKeyId)"),
        ("InvalidArgument", "ListObjectsV2 failed: InvalidArgument: This is InvalidArgument."),
    ],
)
def test_error_of_s3_is_one_message(s3: S3, code: str, words: str) -> None:
    """Each error of S3 is one message, which begins with the location."""
    bucket = Bucket.open(URL)
    s3.cloud.faults.error(f"GET /{NAME}.*", code, times=10)
    with pytest.raises(DataError) as raised:
        bucket.list_files()
    assert str(raised.value).startswith(f"{URL}: {words}")


def test_unreachable_s3_is_reported(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network without S3 is reported with the location and the endpoint."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", guard.NOWHERE)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(DataError, match=f"{URL}: S3 cannot be reached from here: .*{guard.NOWHERE}"):
        Bucket.open(URL)


MD5 = "0" * 31 + "1"
B64 = base64.b64encode(bytes.fromhex(MD5)).decode()
KMS = {"ServerSideEncryption": "aws:kms"}  # whose ETags say nothing of the content


@pytest.mark.parametrize(
    ("head", "found"),
    [
        ({"ETag": f'"{MD5}"', "Metadata": {"dtfperf-sha256": "aa"}, "ChecksumSHA256": B64}, "sha256:aa"),
        ({"ETag": f'"{MD5}"', "ChecksumSHA256": B64, "ChecksumCRC32": B64}, f"sha256:{MD5}"),
        ({"ETag": f'"{MD5}-3"', "ChecksumSHA256": f"{B64}-3", "ChecksumType": "COMPOSITE"}, f"sha256/99:{MD5}"),
        ({"ETag": f'"{MD5}-3"', "ChecksumCRC32": B64, "ChecksumType": "FULL_OBJECT"}, f"crc32:{MD5}"),
        ({"ETag": f'"{MD5}-3"', "ChecksumCRC32": f"{B64}-3", "ChecksumType": "COMPOSITE"}, f"crc32/99:{MD5}"),
        ({"ETag": f'"{MD5}"', "ServerSideEncryption": "AES256", "ChecksumCRC64NVME": B64}, f"md5:{MD5}"),
        ({"ETag": f'"{MD5}-2"'}, f"md5/99:{MD5}"),
        (KMS | {"ETag": f'"{MD5}-2"', "ChecksumCRC64NVME": B64, "ChecksumType": "FULL_OBJECT"}, f"crc64nvme:{MD5}"),
        (KMS | {"ETag": f'"{MD5}"', "ChecksumCRC32C": B64}, None),
        ({"ETag": f'"{MD5}"', "SSECustomerAlgorithm": "AES256"}, None),
    ],
    ids=[
        "our own", "the strongest", "of parts", "a CRC of all", "a CRC of parts", "the ETag", "the ETag of parts",
        "a slow one", "none that can be computed here", "encrypted with the client's key",
    ],
)  # fmt: skip
def test_best_checksum_is_chosen(head: dict[str, Any], found: str | None) -> None:
    """The best of the checksums that S3 has of a file is chosen, and the size of parts is requested only for a file of
    parts."""
    asked: list[int] = []

    def request_part_bytes() -> int:
        asked.append(99)
        return 99

    assert choose_checksum(head, request_part_bytes) == found
    assert bool(asked) == (found is not None and "/" in found)
