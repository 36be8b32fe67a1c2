"""A place in Amazon S3: whether it exists, in which region, which others can read it, how it encrypts, and its files."""

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    PartialCredentialsError,
)

from pytest_dtfperf.clusters.ec2 import log_redaction, refusals
from pytest_dtfperf.errors import DataError, UsageError

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

PARALLEL = 16  # requests at a time
URL_S = 12 * 3600  # a presigned URL's life; those of temporary credentials end with them
DIGEST = (
    "dtfperf-sha256"  # user metadata of what was uploaded from here: of the whole content, which S3 has only for small files
)
DEFAULT_ENCRYPTION = "AES256"
_EVERYBODY = ("http://acs.amazonaws.com/groups/global/AllUsers", "http://acs.amazonaws.com/groups/global/AuthenticatedUsers")
_EXPIRED = ("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired")
_UNKNOWN_KEYS = ("InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken")


@dataclass(frozen=True)
class Location:
    """s3://bucket/prefix."""

    bucket: str
    prefix: str  # without slashes at its ends; may be empty

    @classmethod
    def parse(cls, url: str) -> Self:
        """Parse a URL of S3. Raises `UsageError`."""
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        if not url.startswith("s3://") or not bucket:
            raise UsageError(f"{url!r} is no place in S3. Write s3://bucket or s3://bucket/prefix")
        return cls(bucket, prefix.strip("/"))

    def key(self, path: str) -> str:
        return f"{self.prefix}/{path}" if self.prefix else path

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")


@dataclass(frozen=True)
class Stored:
    """A file there."""

    path: str  # below the prefix
    size: int
    etag: str


@dataclass(frozen=True)
class Bucket:
    """A place that can be asked."""

    client: "S3Client"
    location: Location
    region: str
    encryption: str | None  # what an upload must ask for; None: what the bucket does by itself is better, or not known
    warnings: Sequence[str] = ()  # for people

    @classmethod
    def open(cls, url: str) -> Self:
        """Look at the bucket. Raises `UsageError` for a place that cannot be, `DataError` for one that cannot be reached."""
        location = Location.parse(url)
        log_redaction.hide_credentials()
        with translate_errors(location):
            session = boto3.session.Session()
            region = _region_of(session, location)
            client = _client(session, region)
            return cls(client, location, region, _encryption(client, location), tuple(_public(client, location)))

    def files(self) -> list[Stored]:
        """Return all files below the prefix, by name. Raises `DataError`."""
        prefix = self.location.key("") if self.location.prefix else ""
        found = []
        with translate_errors(self.location):
            for page in self.client.get_paginator("list_objects_v2").paginate(Bucket=self.location.bucket, Prefix=prefix):
                for each in page.get("Contents", ()):
                    if not each["Key"].endswith("/"):  # the console's way to show an empty folder
                        path = each["Key"].removeprefix(prefix)
                        found.append(Stored(_check_location(path, self.location), each["Size"], each["ETag"]))
        return found

    def checksum(self, file: Stored) -> str | None:
        """Return the best of what S3 knows of its content, as on_host/job.py reads it; None: nothing that can be used here."""
        key = self.location.key(file.path)
        with translate_errors(self.location):
            head = self.client.head_object(Bucket=self.location.bucket, Key=key, ChecksumMode="ENABLED")
            return best_checksum(head, lambda: self._part_bytes(key))

    def checksums(self, files: Sequence[Stored]) -> list[str | None]:
        """Return the checksums of all files, in their order."""
        with ThreadPoolExecutor(PARALLEL) as pool:
            return list(pool.map(self.checksum, files))

    def url(self, file: Stored) -> str:
        """Return a URL that grants any holder reading of this file for some hours: a secret."""
        key = self.location.key(file.path)
        with translate_errors(self.location):
            return self.client.generate_presigned_url(
                "get_object", Params={"Bucket": self.location.bucket, "Key": key}, ExpiresIn=URL_S
            )

    def _part_bytes(self, key: str) -> int:
        return self.client.head_object(Bucket=self.location.bucket, Key=key, PartNumber=1)["ContentLength"]


def best_checksum(head: Mapping[str, Any], part_bytes: Callable[[], int]) -> str | None:
    """Return the best checksum in the answer to HeadObject. Multipart files have sums of their parts' sums, but for some CRCs.

    In this order: that of our own upload; those that cannot be forged; those that are fast. The ETag is an MD5 unless the
    object is encrypted with a key of KMS or of the client.
    """
    if own := head.get("Metadata", {}).get(DIGEST):
        return f"sha256:{own}"
    in_parts = "-" in head["ETag"]
    found = {kind: head[name] for kind, name in _CHECKSUMS.items() if head.get(name)}
    etag = head["ETag"].strip('"').partition("-")[0]
    if head.get("ServerSideEncryption") in (None, "AES256") and "SSECustomerAlgorithm" not in head and len(etag) == 32:
        found["md5"] = base64.b64encode(bytes.fromhex(etag)).decode()
    for kind in ("sha256", "sha1", "crc32", "md5", "crc64nvme"):
        if kind in found:
            whole = not in_parts or (kind.startswith("crc") and head.get("ChecksumType") == "FULL_OBJECT")
            value = base64.b64decode(found[kind].partition("-")[0]).hex()
            return f"{kind}:{value}" if whole else f"{kind}/{part_bytes()}:{value}"
    return None


_CHECKSUMS = {"sha256": "ChecksumSHA256", "sha1": "ChecksumSHA1", "crc32": "ChecksumCRC32", "crc64nvme": "ChecksumCRC64NVME"}


@contextmanager
def translate_errors(location: Location) -> Iterator[None]:
    """Raise boto3's errors as `DataError` with a plain message."""
    try:
        yield
    except (BotoCoreError, ClientError) as exc:
        raise DataError(f"{location}: {_format_error(exc, location)}") from exc


def _format_error(error: Exception, location: Location) -> str:
    match error:
        case NoCredentialsError() | PartialCredentialsError():
            return f"no AWS credentials ({error}). Set AWS_PROFILE, or log in with aws configure or aws sso login"
        case EndpointConnectionError() | ConnectTimeoutError():
            return f"S3 cannot be reached from here: {error}"
        case ClientError():
            code, status = error.response["Error"].get("Code", ""), error.response["ResponseMetadata"].get("HTTPStatusCode")
            if code == "NoSuchBucket" or (error.operation_name == "HeadBucket" and status == 404):
                return f"there is no bucket {location.bucket}. Make one with: aws s3 mb s3://{location.bucket}"
            if clock := refusals.wrong_clock(error):
                return clock
            if code in _EXPIRED:
                return "the AWS credentials have expired: log in again"
            if code in _UNKNOWN_KEYS:
                return f"AWS does not accept these credentials ({code})"
            if denied := refusals.denial(error.response["Error"].get("Message", "")):
                return f"AWS denies {error.operation_name} there: {denied}"
            if status == 403:
                return (
                    f"AWS denies {error.operation_name} there ({code}): the bucket is somebody else's, or these credentials "
                    "lack a permission. docs/data.md lists those that are needed"
                )
            return f"{error.operation_name} failed: {code}: {error.response['Error'].get('Message', '')}"
    return str(error)


def _client(session: boto3.session.Session, region: str) -> "S3Client":
    """Checksums are asked for where they are wanted; a presigned URL must not ask for them."""
    config = Config(
        signature_version="s3v4",
        retries={"mode": "standard", "max_attempts": 5},
        max_pool_connections=2 * PARALLEL,
        connect_timeout=10,
        response_checksum_validation="when_required",
    )
    return session.client("s3", region_name=region, config=config)


def _region_of(session: boto3.session.Session, location: Location) -> str:
    """Return a bucket's region, which S3 reports in any region; a presigned URL must name it."""
    client = _client(session, session.region_name or "us-east-1")
    return client.head_bucket(Bucket=location.bucket).get("BucketRegion") or "us-east-1"


def _encryption(client: "S3Client", location: Location) -> str | None:
    try:
        rules = client.get_bucket_encryption(Bucket=location.bucket)["ServerSideEncryptionConfiguration"]["Rules"]
    except ClientError as error:
        unset = error.response["Error"].get("Code") == "ServerSideEncryptionConfigurationNotFoundError"
        return DEFAULT_ENCRYPTION if unset else None
    kinds = {rule.get("ApplyServerSideEncryptionByDefault", {}).get("SSEAlgorithm") for rule in rules}
    return DEFAULT_ENCRYPTION if kinds <= {DEFAULT_ENCRYPTION, None} else None


def _public(client: "S3Client", location: Location) -> Iterator[str]:
    """Return which others can read it, as far as these credentials may ask."""
    blocked = (
        _ask_bucket(lambda: client.get_public_access_block(Bucket=location.bucket)["PublicAccessBlockConfiguration"]) or {}
    )
    policy = _ask_bucket(lambda: client.get_bucket_policy_status(Bucket=location.bucket)["PolicyStatus"]) or {}
    ways = []
    if policy.get("IsPublic") and not blocked.get("RestrictPublicBuckets"):
        ways.append("its policy")
    grants = _ask_bucket(lambda: client.get_bucket_acl(Bucket=location.bucket)["Grants"]) or []
    if any(grant.get("Grantee", {}).get("URI") in _EVERYBODY for grant in grants) and not blocked.get("IgnorePublicAcls"):
        ways.append("its access control list")
    if ways:
        settings = json.dumps(dict.fromkeys(_BLOCKS, True), separators=(",", ":"))
        yield (
            f"the bucket {location.bucket} is public, by {' and '.join(ways)}: anybody can read what lies there. Close it with:"
            f" aws s3api put-public-access-block --bucket {location.bucket} --public-access-block-configuration '{settings}'"
        )


_BLOCKS = ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets")


def _ask_bucket(question: Callable[[], Any]) -> Any:
    """None where the answer is that nothing is set, or that these credentials may not know."""
    try:
        return question()
    except ClientError:
        return None


def _check_location(path: str, location: Location) -> str:
    if any(part in ("", ".", "..") for part in path.split("/")) or "\0" in path:
        raise DataError(f"{location}: {location.key(path)!r} cannot be a file on disk. Rename or remove it there")
    return path
