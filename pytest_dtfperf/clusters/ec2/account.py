"""An AWS account: its credentials, its clients, Amazon's clock, and calls that are made more than once.

This machine's clock may be wrong by days, and must not end what belongs to others. What has just been made or deleted shows at
Amazon only after a while.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import cache, cached_property
from itertools import count
from typing import TYPE_CHECKING, Any, Self, TypeVar

import boto3
import botocore.session
from botocore import exceptions
from botocore.config import Config
from botocore.loaders import Loader
from botocore.parsers import ResponseParserError

from pytest_dtfperf.clusters.ec2 import refusals
from pytest_dtfperf.errors import AllocationError, ClusterFileError, describe_unknown_name
from pytest_dtfperf.node.retry import compute_pause_s, retry

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_pricing import PricingClient
    from mypy_boto3_service_quotas import ServiceQuotasClient
    from mypy_boto3_ssm import SSMClient

    from pytest_dtfperf.clusters.named import ClusterConfig


class Clock:
    """Amazon's time, taken from each answer (`listen`) and continued by the monotonic clock, which no one can set."""

    def __init__(self) -> None:
        self._ahead_s: float | None = None  # relative to the seconds since this machine's start

    def listen(self, client: Any) -> None:
        """Take the time from every answer that a boto3 client gets."""

        def read_response(http_response: Any, **_: Any) -> None:
            self.read_date(http_response.headers.get("Date"))

        client.meta.events.register("after-call", read_response, unique_id="dtfperf-clock")

    def read_date(self, date: str | None) -> None:
        """Take the time from an answer's header, `Tue, 31 Jan 2026 02:15:03 GMT`. An invalid date is ignored."""
        try:
            stated = parsedate_to_datetime(date or "")
        except ValueError:
            return
        self._ahead_s = stated.timestamp() - _read_uptime_s()

    def get_time(self) -> float | None:
        """Return Amazon's time in seconds since 1970; None before its first answer."""
        return None if self._ahead_s is None else _read_uptime_s() + self._ahead_s


def _read_uptime_s() -> float:
    """Return the seconds since this machine's start, including those in sleep."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


PRICING_REGION = "us-east-1"  # the price list of all regions is served from three; this one is the oldest
_WAITS = {"connect_timeout": 5, "read_timeout": 30, "user_agent_extra": "pytest-dtfperf"}
# `adaptive` sends fewer requests after Amazon has throttled one.
_PATIENT = Config(retries={"mode": "adaptive", "total_max_attempts": 10}, max_pool_connections=32, **_WAITS)  # type: ignore[arg-type]
# Limits of the first call: a missing network must be reported within seconds.
_FIRST = Config(retries={"mode": "standard", "total_max_attempts": 3}, **_WAITS)  # type: ignore[arg-type]
# RunInstances reports missing capacity with status 500. Every retry mode of botocore repeats that until it is throttled.
_ONCE = Config(retries={"mode": "standard", "total_max_attempts": 1}, **_WAITS)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Account:
    """An AWS account in a region, opened with the credentials in use."""

    session: boto3.Session
    region: str
    id: str
    arn: str  # of the caller
    user: str = ""  # the caller in policies (aws:userid): a user, or a role and its session
    clock: Clock = field(default_factory=Clock)

    @classmethod
    def open(cls, config: "ClusterConfig") -> Self:
        """Open the account of a cluster. Raises `ClusterFileError` for an unknown region, else `AllocationError`."""
        return cls.open_region(config.backend_keys.get("region"), where=f"cluster {config.name!r}")

    @classmethod
    def open_region(cls, region: str | None, *, where: str = "EC2") -> Self:
        """Open the account in a region; None: the region that boto3 finds."""
        found = region
        try:
            session = _open_session(region)
            found = session.region_name
            if not found:
                raise ClusterFileError(
                    f'{where} has no region: set region = "us-east-1" in clusters.toml, or AWS_REGION, '
                    "or a region in the AWS profile"
                )
            _check_region(session, found, where)
            clock, sts = Clock(), session.client("sts", config=_FIRST)
            clock.listen(sts)
            identity = sts.get_caller_identity()
        except exceptions.ClientError as error:
            raise AllocationError(f"{where}: {refusals.format_refusal(error, region=found or 'its region')}") from error
        except exceptions.BotoCoreError as error:
            raise AllocationError(f"{where}: {explain_no_answer(error)}") from error
        return cls(session, found, identity["Account"], identity["Arn"], identity["UserId"], clock)

    @cached_property
    def ec2(self) -> "EC2Client":
        """The client for all calls except RunInstances."""
        client = self.session.client("ec2", region_name=self.region, config=_PATIENT)
        self.clock.listen(client)
        return client

    @cached_property
    def launcher(self) -> "EC2Client":
        """The client for RunInstances: its caller decides what is repeated."""
        return self.session.client("ec2", region_name=self.region, config=_ONCE)

    @cached_property
    def ssm(self) -> "SSMClient":
        return self.session.client("ssm", region_name=self.region, config=_PATIENT)

    @cached_property
    def pricing(self) -> "PricingClient":
        return self.session.client("pricing", region_name=PRICING_REGION, config=_PATIENT)

    @cached_property
    def quotas(self) -> "ServiceQuotasClient":
        return self.session.client("service-quotas", region_name=self.region, config=_PATIENT)

    @property
    def endpoint(self) -> str:
        """The address of the service: Amazon's, or AWS_ENDPOINT_URL."""
        return self.ec2.meta.endpoint_url

    def __str__(self) -> str:
        """Describe the account for messages."""
        elsewhere = "" if self.endpoint.endswith((".amazonaws.com", ".amazonaws.com.cn")) else f" at {self.endpoint}"
        return f"AWS account {self.id}, {self.region}{elsewhere}"

    def explain(self, error: Exception) -> str:
        """Return a message about a refusal, or about a missing answer."""
        if isinstance(error, exceptions.ClientError):
            return refusals.format_refusal(error, principal=self.arn, region=self.region)
        return explain_no_answer(error)


def explain_no_answer(error: Exception) -> str:
    """Return why boto3 did not get an answer, and how to continue."""
    match error:
        case exceptions.NoCredentialsError() | exceptions.PartialCredentialsError():
            return (
                f"no AWS credentials were found ({error}). boto3 looks in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
                "in the profile AWS_PROFILE of ~/.aws, and where an instance has a role; `aws configure` makes a profile"
            )
        case exceptions.ProfileNotFound():
            return f"{error}: AWS_PROFILE must name a profile of ~/.aws/config"
        case (
            exceptions.TokenRetrievalError()
            | exceptions.UnauthorizedSSOTokenError()
            | exceptions.SSOTokenLoadError()
            | exceptions.CredentialRetrievalError()
            | exceptions.RefreshWithMFAUnsupportedError()
        ):
            return f"the AWS credentials cannot be renewed ({error}): log in again (`aws sso login`) and start again"
        case exceptions.EndpointConnectionError() | exceptions.ConnectTimeoutError() | exceptions.ProxyConnectionError():
            return f"Amazon cannot be reached from here ({error}): is there a way to the internet, and is the region right?"
    return f"Amazon gives no answer that makes sense ({error})"


class _Folders(list[str]):
    """A list of folders without duplicates: every session adds boto3's own."""

    def append(self, folder: str) -> None:
        if folder not in self:
            super().append(folder)


@cache
def _get_service_loader(data_path: str | None) -> Loader:
    """Return the loader of service models, including AWS_DATA_PATH. Without it, each session reads them again for 0.5 s."""
    paths = [os.path.expanduser(os.path.expandvars(path)) for path in (data_path or "").split(os.pathsep) if path]
    return Loader(extra_search_paths=_Folders(paths))


def _open_session(region: str | None) -> boto3.Session:
    session = botocore.session.get_session()
    session.register_component("data_loader", _get_service_loader(session.get_config_variable("data_path")))
    return boto3.Session(region_name=region, botocore_session=session)


def _check_region(session: boto3.Session, region: str, where: str) -> None:
    """Check that a region exists. Otherwise boto3 would report its host name as a network failure."""
    known = [
        each for partition in session.get_available_partitions() for each in session.get_available_regions("ec2", partition)
    ]
    if region not in known:
        raise ClusterFileError(
            f"{where}: {describe_unknown_name('region', region, known)} boto3 knows no newer ones than itself."
        )


# There was no answer, or none that could be read: the request may have been carried out.
NO_ANSWER = (exceptions.ConnectionError, exceptions.HTTPClientError, ResponseParserError)
T = TypeVar("T")
_SEEN_WITHIN_S = 60.0


def iterate_attempts(within_s: float, *, first_s: float = 0.1, most_s: float = 5.0) -> Iterator[None]:
    """Yield at once, after growing pauses, and a last time when the time is over."""
    deadline = time.monotonic() + within_s
    for asked in count(1):
        yield
        left = deadline - time.monotonic()
        if left <= 0:
            return
        time.sleep(min(left, compute_pause_s(asked, first_s, most_s, growth=1.5, spread=0.2)))


def call_unless(codes: tuple[str, ...], call: Callable[[], T]) -> T | None:
    """Return the result of a call; None if it is refused with one of these codes."""
    try:
        return call()
    except exceptions.ClientError as error:
        if refusals.get_code(error) not in codes:
            raise
        return None


def call_once_known(call: Callable[[], T], *codes: str) -> T:
    """Return the result of a call that needs a new resource, which may not be known everywhere at Amazon yet."""
    return retry(
        call,
        exceptions.ClientError,
        within_s=_SEEN_WITHIN_S,
        first_pause_s=0.1,
        longest_pause_s=5.0,
        growth=1.5,
        spread=0.2,
        is_transient=lambda error: refusals.get_code(error) in codes,
    )


@contextmanager
def translate_errors(account: Account, doing: str) -> Iterator[None]:
    """Translate Amazon's errors in the block into `AllocationError` with a readable message."""
    try:
        yield
    except (exceptions.ClientError, exceptions.BotoCoreError) as error:
        raise AllocationError(f"{doing}: {account.explain(error)}") from error
