"""A prefix in Amazon S3: its files, its region, its encryption, and whether others can read it."""

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
URL_S = 12 * 3600  # validity of a presigned URL; with temporary credentials it ends with them
DIGEST = "dtfperf-sha256"  # the uploaded file's user metadata: of the whole content, which S3 has only for small files
DEFAULT_ENCRYPTION = "AES256"
_PUBLIC_GROUPS = (
    "http://acs.amazonaws.com/groups/global/AllUsers",
    "http://acs.amazonaws.com/groups/global/AuthenticatedUsers",
)
_EXPIRED = ("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired")
_UNKNOWN_KEYS = ("InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken")


@dataclass(frozen=True)
class Location:
    """A prefix in a bucket: s3://bucket/prefix."""

    bucket: str
    prefix: str  # without slashes at its ends; may be empty

    @classmethod
    def parse(cls, url: str) -> Self:
        """Parse a URL of S3. Raises `UsageError`."""
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        if not url.startswith("s3://") or not bucket:
            raise UsageError(f"{url!r} is not an S3 URL. Write s3://bucket or s3://bucket/prefix")
        return cls(bucket, prefix.strip("/"))

    def key(self, path: str) -> str:
        return f"{self.prefix}/{path}" if self.prefix else path

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")


@dataclass(frozen=True)
class StoredFile:
    """A file in S3."""

    path: str  # below the prefix
    size: int
    etag: str


@dataclass(frozen=True)
class Bucket:
    """A prefix in a bucket, with a client for it."""

    client: "S3Client"
    location: Location
    region: str
    encryption: str | None  # that an upload must request; None: the bucket's own is better, or unknown
    warnings: Sequence[str] = ()  # for the user

    @classmethod
    def open(cls, url: str) -> Self:
        """Check the bucket. Raises `UsageError` for an invalid URL, `DataError` for a bucket that cannot be reached."""
        location = Location.parse(url)
        log_redaction.hide_credentials()
        with translate_errors(location):
            session = boto3.session.Session()
            region = _find_region(session, location)
            client = _make_client(session, region)
            return cls(
                client, location, region, _choose_encryption(client, location), tuple(_find_public_access(client, location))
            )

    def list_files(self) -> list[StoredFile]:
        """Return all files below the prefix, by name. Raises `DataError`."""
        prefix = self.location.key("") if self.location.prefix else ""
        found = []
        with translate_errors(self.location):
            for page in self.client.get_paginator("list_objects_v2").paginate(Bucket=self.location.bucket, Prefix=prefix):
                for each in page.get("Contents", ()):
                    if not each["Key"].endswith("/"):  # the console's entry for a folder
                        path = each["Key"].removeprefix(prefix)
                        found.append(StoredFile(_check_location(path, self.location), each["Size"], each["ETag"]))
        return found

    def checksum(self, file: StoredFile) -> str | None:
        """Return the best checksum that S3 has, in the form of `on_host`; None if none can be computed here."""
        key = self.location.key(file.path)
        with translate_errors(self.location):
            head = self.client.head_object(Bucket=self.location.bucket, Key=key, ChecksumMode="ENABLED")
            return choose_checksum(head, lambda: self._part_bytes(key))

    def checksums(self, files: Sequence[StoredFile]) -> list[str | None]:
        """Return the checksums of all files, in their order."""
        with ThreadPoolExecutor(PARALLEL) as pool:
            return list(pool.map(self.checksum, files))

    def url(self, file: StoredFile) -> str:
        """Return a URL with which anyone can read this file for `URL_S` seconds: a secret."""
        key = self.location.key(file.path)
        with translate_errors(self.location):
            return self.client.generate_presigned_url(
                "get_object", Params={"Bucket": self.location.bucket, "Key": key}, ExpiresIn=URL_S
            )

    def _part_bytes(self, key: str) -> int:
        return self.client.head_object(Bucket=self.location.bucket, Key=key, PartNumber=1)["ContentLength"]


def choose_checksum(head: Mapping[str, Any], part_bytes: Callable[[], int]) -> str | None:
    """Return the best checksum in the answer to HeadObject.

    Multipart files have checksums of their parts' checksums, except for some CRCs. The order is: that of this package's upload,
    those that cannot be forged, those that are fast. The ETag is an MD5 unless the object is encrypted with a key of KMS or of
    the client.
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
    """Raise boto3's errors in the block as `DataError` with a plain message."""
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
                return f"there is no bucket {location.bucket}. Create it with: aws s3 mb s3://{location.bucket}"
            if clock := refusals.explain_wrong_clock(error):
                return clock
            if code in _EXPIRED:
                return "the AWS credentials have expired: log in again"
            if code in _UNKNOWN_KEYS:
                return f"AWS does not accept these credentials ({code})"
            if denied := refusals.explain_denial(error.response["Error"].get("Message", "")):
                return f"AWS denies {error.operation_name} there: {denied}"
            if status == 403:
                return (
                    f"AWS denies {error.operation_name} there ({code}): the bucket is another account's, or these credentials "
                    "lack a permission. docs/data.md lists the required ones"
                )
            return f"{error.operation_name} failed: {code}: {error.response['Error'].get('Message', '')}"
    return str(error)


def _make_client(session: boto3.session.Session, region: str) -> "S3Client":
    """Return a client that requests checksums only where a call does, as a presigned URL must not request them."""
    config = Config(
        signature_version="s3v4",
        retries={"mode": "standard", "max_attempts": 5},
        max_pool_connections=2 * PARALLEL,
        connect_timeout=10,
        response_checksum_validation="when_required",
    )
    return session.client("s3", region_name=region, config=config)


def _find_region(session: boto3.session.Session, location: Location) -> str:
    """Return a bucket's region, which S3 reports in any region and a presigned URL must name."""
    client = _make_client(session, session.region_name or "us-east-1")
    return client.head_bucket(Bucket=location.bucket).get("BucketRegion") or "us-east-1"


def _choose_encryption(client: "S3Client", location: Location) -> str | None:
    try:
        rules = client.get_bucket_encryption(Bucket=location.bucket)["ServerSideEncryptionConfiguration"]["Rules"]
    except ClientError as error:
        unset = error.response["Error"].get("Code") == "ServerSideEncryptionConfigurationNotFoundError"
        return DEFAULT_ENCRYPTION if unset else None
    kinds = {rule.get("ApplyServerSideEncryptionByDefault", {}).get("SSEAlgorithm") for rule in rules}
    return DEFAULT_ENCRYPTION if kinds <= {DEFAULT_ENCRYPTION, None} else None


def _find_public_access(client: "S3Client", location: Location) -> Iterator[str]:
    """Yield a warning if others can read the bucket, as far as these credentials may check."""
    blocked = (
        _call_if_allowed(lambda: client.get_public_access_block(Bucket=location.bucket)["PublicAccessBlockConfiguration"]) or {}
    )
    policy = _call_if_allowed(lambda: client.get_bucket_policy_status(Bucket=location.bucket)["PolicyStatus"]) or {}
    ways = []
    if policy.get("IsPublic") and not blocked.get("RestrictPublicBuckets"):
        ways.append("its policy")
    grants = _call_if_allowed(lambda: client.get_bucket_acl(Bucket=location.bucket)["Grants"]) or []
    if any(grant.get("Grantee", {}).get("URI") in _PUBLIC_GROUPS for grant in grants) and not blocked.get("IgnorePublicAcls"):
        ways.append("its access control list")
    if ways:
        settings = json.dumps(dict.fromkeys(_BLOCKS, True), separators=(",", ":"))
        yield (
            f"the bucket {location.bucket} is public, by {' and '.join(ways)}: anyone can read its files. Block this with:"
            f" aws s3api put-public-access-block --bucket {location.bucket} --public-access-block-configuration '{settings}'"
        )


_BLOCKS = ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets")


def _call_if_allowed(question: Callable[[], Any]) -> Any:
    """Return the result of a call; None if nothing is set, or if these credentials may not read it."""
    try:
        return question()
    except ClientError:
        return None


def _check_location(path: str, location: Location) -> str:
    if any(part in ("", ".", "..") for part in path.split("/")) or "\0" in path:
        raise DataError(f"{location}: {location.key(path)!r} cannot be a file on disk. Rename or remove it there")
    return path
