"""What an instance costs per hour: Amazon's price list, the present spot price, or what clusters.toml says."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from pytest_dtfperf.clusters.ec2.amazon.remembered import cached_answer
from pytest_dtfperf.clusters.ec2.market.offers import Offer
from pytest_dtfperf.errors import AllocationError

if TYPE_CHECKING:
    from pytest_dtfperf.clusters.ec2.amazon.account import Account

LIST_AGE_S = 7 * 86400.0  # the price list changes a few times a year
SPOT_AGE_S = 3600.0  # a spot price, a few times a day


@dataclass(frozen=True)
class Price:
    """Of one instance for an hour, without volumes and traffic."""

    usd: float
    source: str  # who says so
    date: str  # and when: YYYY-MM-DD

    def __str__(self) -> str:
        return f"${self.usd:.4g}/h ({self.source}, {self.date})"


def get_price(account: "Account", offer: Offer, spot: bool, zone: str | None = None, given: float | None = None) -> Price:
    """The price of a type in the account's region. Raises `AllocationError` where nobody knows it.

    `given` is what clusters.toml says, and goes before everything. Spot prices differ by zone: without one, the dearest.
    """
    if given is not None:
        return Price(given, "usd_per_hour of the cluster file", _today())
    kind = _kind(spot, zone)
    # An endpoint that is not Amazon's has prices of its own.
    name = f"price {account.endpoint} {account.region} {offer.instance_type} {kind}"

    def ask() -> object:
        found = _get_spot_price(account, offer, zone) if spot else _get_list_price(account, offer)
        return asdict(found)

    try:
        return Price(**cached_answer(name, SPOT_AGE_S if spot else LIST_AGE_S, ask))
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
    return Price(max(found), "AWS price list", _today())  # one product, where the list is in order


def _find_hourly_prices(product: Mapping[str, Any]) -> Iterator[float]:
    """The hourly prices in one product of the price list; reservations, and what costs nothing in itself, are none."""
    for term in product["terms"].get("OnDemand", {}).values():
        for dimension in term["priceDimensions"].values():
            usd = float(dimension["pricePerUnit"].get("USD", 0))
            if dimension["unit"] in ("Hrs", "Hours") and usd > 0:
                yield usd


def _get_spot_price(account: "Account", offer: Offer, zone: str | None) -> Price:
    which: dict[str, Any] = {
        "InstanceTypes": [offer.instance_type],
        "ProductDescriptions": ["Linux/UNIX"],
        "StartTime": datetime.now(UTC),  # gives each zone's price of now
        **({"Filters": [{"Name": "availability-zone", "Values": [zone]}]} if zone else {}),
    }
    pages = account.ec2.get_paginator("describe_spot_price_history").paginate(**which)
    entries = sorted((each for page in pages for each in page["SpotPriceHistory"]), key=lambda each: each["Timestamp"])
    found = {each["AvailabilityZone"]: float(each["SpotPrice"]) for each in entries}  # the latest of each zone
    if not found:
        raise AllocationError(_format_unknown_price(account, offer, _kind(True, zone), "there is no history of one"))
    return Price(max(found.values()), f"spot price in {zone or account.region}", _today())


def _format_unknown_price(account: "Account", offer: Offer, kind: str, why: str) -> str:
    return (
        f"nobody knows the price ({kind}) of {offer.instance_type} in {account.region}: {why}. "
        "Say it with usd_per_hour in the cluster's table of clusters.toml."
    )


def _kind(spot: bool, zone: str | None) -> str:
    if not spot:
        return "on demand"
    return f"spot in {zone}" if zone else "spot"


def _today() -> str:
    return datetime.now(UTC).date().isoformat()
