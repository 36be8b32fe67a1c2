"""What instances cost: the price per hour, the estimate before a launch, its confirmation, and the bill afterwards.

Prices come from Amazon's price list, from the current spot price, or from clusters.toml.
"""

import json
import math
import os
import select
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from pytest_dtfperf.clusters.answer_cache import cached
from pytest_dtfperf.clusters.ec2.instance_types import Offer
from pytest_dtfperf.clusters.protocol import Bill, PaidInstance
from pytest_dtfperf.errors import AllocationError

if TYPE_CHECKING:
    from pytest_dtfperf.clusters.ec2.account import Account
    from pytest_dtfperf.clusters.named import ClusterConfig


LIST_AGE_S = 7 * 86400.0  # the price list changes a few times a year
SPOT_AGE_S = 3600.0  # a spot price, a few times a day


@dataclass(frozen=True)
class Price:
    """The price of one instance per hour, without volumes and traffic."""

    usd: float
    source: str  # of the price
    date: str  # YYYY-MM-DD

    def __str__(self) -> str:
        return f"${self.usd:.4g}/h ({self.source}, {self.date})"


def get_price(account: "Account", offer: Offer, spot: bool, zone: str | None = None, given: float | None = None) -> Price:
    """Return the price of a type in the account's region. Raises `AllocationError` if it is unknown.

    `given` is the price in clusters.toml, and takes precedence. Spot prices differ by zone: without a zone, the highest.
    """
    if given is not None:
        return Price(given, "usd_per_hour of the cluster file", _format_today())
    kind = _get_kind(spot, zone)
    # An endpoint other than Amazon's has prices of its own.
    name = f"price {account.endpoint} {account.region} {offer.instance_type} {kind}"

    def ask() -> object:
        found = _get_spot_price(account, offer, zone) if spot else _get_list_price(account, offer)
        return asdict(found)

    try:
        return Price(**cached(name, SPOT_AGE_S if spot else LIST_AGE_S, ask))
    except (BotoCoreError, ClientError) as exc:
        raise AllocationError(_format_unknown_price(account, offer, kind, account.explain(exc))) from exc


def _get_list_price(account: "Account", offer: Offer) -> Price:
    wanted = {
        "instanceType": offer.instance_type,
        "regionCode": account.region,
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
    }
    pages = account.pricing.get_paginator("get_products").paginate(
        ServiceCode="AmazonEC2", Filters=[{"Type": "TERM_MATCH", "Field": key, "Value": value} for key, value in wanted.items()]
    )
    found = [usd for page in pages for product in page["PriceList"] for usd in _find_hourly_prices(json.loads(product))]
    if not found:
        raise AllocationError(_format_unknown_price(account, offer, "on demand", "Amazon's price list has none"))
    return Price(max(found), "AWS price list", _format_today())  # one product if the list is in order


def _find_hourly_prices(product: Mapping[str, Any]) -> Iterator[float]:
    """Yield the hourly prices in one product of the price list, without those of reservations and without zero prices."""
    for term in product["terms"].get("OnDemand", {}).values():
        for dimension in term["priceDimensions"].values():
            usd = float(dimension["pricePerUnit"].get("USD", 0))
            if dimension["unit"] in ("Hrs", "Hours") and usd > 0:
                yield usd


def _get_spot_price(account: "Account", offer: Offer, zone: str | None) -> Price:
    which: dict[str, Any] = {
        "InstanceTypes": [offer.instance_type],
        "ProductDescriptions": ["Linux/UNIX"],
        "StartTime": datetime.now(UTC),  # selects each zone's current price
        **({"Filters": [{"Name": "availability-zone", "Values": [zone]}]} if zone else {}),
    }
    pages = account.ec2.get_paginator("describe_spot_price_history").paginate(**which)
    entries = sorted((each for page in pages for each in page["SpotPriceHistory"]), key=lambda each: each["Timestamp"])
    found = {each["AvailabilityZone"]: float(each["SpotPrice"]) for each in entries}  # the latest of each zone
    if not found:
        raise AllocationError(_format_unknown_price(account, offer, _get_kind(True, zone), "there is no history of one"))
    return Price(max(found.values()), f"spot price in {zone or account.region}", _format_today())


def _format_unknown_price(account: "Account", offer: Offer, kind: str, why: str) -> str:
    return (
        f"the price ({kind}) of {offer.instance_type} in {account.region} is not known: {why}. "
        "Set it with usd_per_hour in the cluster's table of clusters.toml."
    )


def _get_kind(spot: bool, zone: str | None) -> str:
    if not spot:
        return "on demand"
    return f"spot in {zone}" if zone else "spot"


def _format_today() -> str:
    return datetime.now(UTC).date().isoformat()


@dataclass(frozen=True)
class CostEstimate:
    """The cost of a number of instances from now until their timers end them."""

    where: str  # account and region
    instance_type: str
    count: int
    max_hours: float
    price: Price
    spot: bool = False

    @property
    def worst_usd(self) -> float:
        """The cost if the instances run for their whole lifetime, without volumes, traffic and changes of spot prices."""
        return self.count * self.price.usd * self.max_hours

    def __str__(self) -> str:
        kind = "spot" if self.spot else "on demand"
        sum_ = f"{format_usd(self.worst_usd)} at this price" if self.spot else f"at most {format_usd(self.worst_usd)}"
        return (
            f"{self.count} x {self.instance_type} {kind} ({self.where}): {self.price} each x {self.max_hours:g} h "
            f"= {sum_}, without volumes and traffic"
        )


def format_usd(amount: float) -> str:
    """Format an amount in cents; with more digits if it is only a few cents."""
    return f"${amount:,.2f}" if amount >= 0.1 or amount == 0 else f"${amount:.2g}"


LEAST_S = 60.0  # Amazon bills Linux instances by the second, but a minute at least: aws.amazon.com/ec2/pricing/on-demand


@dataclass(frozen=True)
class InstanceLifetime:
    """The time that one instance ran, in seconds since 1970: from its launch until it was seen to shut down."""

    instance_id: str
    began: float
    ended: float

    @property
    def billed_s(self) -> float:
        return max(LEAST_S, self.ended - self.began)


def make_bill(
    price: Price,
    lives: Sequence[InstanceLifetime],
    *,
    run: str = "",
    placement: Mapping[str, str | float | bool | None] = MappingProxyType({}),
) -> Bill:
    """Return the bill for the session's records: an estimate from the price at launch, not Amazon's invoice."""
    seconds = sum(life.billed_s for life in lives)
    return Bill(
        backend="ec2",
        run=run,
        placement=placement,
        usd=round(seconds / 3600 * price.usd, 6),
        seconds=round(seconds, 3),
        instances=[PaidInstance(id=life.instance_id, seconds=round(life.billed_s, 3)) for life in lives],
        usd_per_hour=price.usd,
        price_source=price.source,
        price_date=price.date,
    )


TERMINAL = "/dev/tty"  # this process's own terminal, even if its streams are redirected
PATIENCE_S = 300.0  # for an absent user; a job on a terminal without a user must not wait without end
_YES = ("y", "yes")


def ask_at_terminal(question: str, patience_s: float = PATIENCE_S) -> bool | None:
    """Return whether the user agrees. None: there is no terminal, or no answer within the time."""
    if os.environ.get("PYTEST_XDIST_WORKER"):  # several workers would ask at once, and read each other's answers
        return None
    try:
        terminal = os.open(TERMINAL, os.O_RDWR | os.O_NOCTTY)
    except OSError:
        return None
    try:
        if os.tcgetpgrp(terminal) != os.getpgrp():  # in the background, reading would stop this process
            return None
        os.write(terminal, f"\n{question} [y/N] ".encode())
        ready, _, _ = select.select([terminal], [], [], patience_s)
        if not ready:
            os.write(terminal, b"\n")
            return None
        return os.read(terminal, 1024).decode(errors="replace").strip().lower() in _YES
    except OSError:  # the terminal was closed
        return None
    finally:
        os.close(terminal)


VARIABLE = "DTFPERF_EC2_YES"

Ask = Callable[[str], bool | None]  # a question; None: it cannot be asked


def confirm_cost(estimate: CostEstimate, config: "ClusterConfig", ask: Ask = ask_at_terminal) -> None:
    """Confirm that so much may be spent. Raises `AllocationError` otherwise."""
    limit: float | None = config.backend_keys.get("max_usd")
    if limit is not None:
        if estimate.worst_usd > limit:
            raise AllocationError(_format_too_expensive(estimate, config, limit))
        return
    if os.environ.get(VARIABLE) == "1":
        return
    answer = ask(f"dtfperf: {estimate}. Launch?")
    if answer is None:
        raise AllocationError(
            f"{estimate}. No user has agreed to that, and there is no terminal to ask at. Set how much cluster {config.name!r} "
            f"may cost with max_usd in clusters.toml, or set {VARIABLE}=1."
        )
    if not answer:
        raise AllocationError(f"cluster {config.name!r} was not launched: the answer was no")


def _format_too_expensive(estimate: CostEstimate, config: "ClusterConfig", limit: float) -> str:
    hours = math.floor(10 * limit / (estimate.count * estimate.price.usd)) / 10
    count = math.floor(limit / (estimate.price.usd * estimate.max_hours))
    ways = [f"max_hours to {hours:g}" if hours else "", f"--gpus so that {count} will do" if count else ""]
    lower = f"lower {' or '.join(filter(None, ways))}, or " if any(ways) else ""
    return (
        f"{estimate}. That is more than max_usd = {limit:g} of cluster {config.name!r}: "
        f"{lower}raise max_usd to {math.ceil(100 * estimate.worst_usd) / 100:g}."
    )
