"""The price of an instance per hour."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from moto.ec2.models.instance_types import INSTANCE_TYPES

from pytest_dtfperf.clusters.ec2 import instance_types
from pytest_dtfperf.clusters.ec2.costs import Price, get_price
from pytest_dtfperf.errors import AllocationError
from tests.clusters.ec2.stubbed import StubbedAccount

G5 = instance_types.parse_offer(INSTANCE_TYPES["g5.xlarge"])


def _product(*prices: tuple[str, str, str], term: str = "OnDemand") -> str:
    """One of the price list's: JSON in JSON."""
    dimensions = {
        f"SKU.{i}": {"unit": unit, "pricePerUnit": {currency: amount}} for i, (unit, currency, amount) in enumerate(prices)
    }
    return json.dumps({"product": {"sku": "SKU"}, "terms": {term: {"SKU.TERM": {"priceDimensions": dimensions}}}})


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


def test_price_on_demand() -> None:
    """The query is for exactly one product, and its hourly price has source and date."""
    account = StubbedAccount()
    account.answer(
        "pricing",
        "get_products",
        {"PriceList": [_product(("Hrs", "USD", "1.1230000000"))]},
        ServiceCode="AmazonEC2",
        Filters=[
            {"Type": "TERM_MATCH", "Field": "instanceType", "Value": "g5.xlarge"},
            {"Type": "TERM_MATCH", "Field": "regionCode", "Value": "eu-west-1"},
            {"Type": "TERM_MATCH", "Field": "operatingSystem", "Value": "Linux"},
            {"Type": "TERM_MATCH", "Field": "tenancy", "Value": "Shared"},
            {"Type": "TERM_MATCH", "Field": "preInstalledSw", "Value": "NA"},
            {"Type": "TERM_MATCH", "Field": "capacitystatus", "Value": "Used"},
        ],
    )

    price = get_price(account.account, G5, spot=False)

    assert price == Price(1.123, "AWS price list", _today())
    assert str(price) == f"$1.123/h (AWS price list, {_today()})"
    assert get_price(account.account, G5, spot=False) == price  # from the disk: there is no second answer


def test_highest_price_of_several() -> None:
    """Several products, pages and prices are a list in disorder: the dearest cannot be too little. What is free is no price."""
    account = StubbedAccount()
    first = [_product(("Hrs", "USD", "0.0000000000"), ("Hrs", "USD", "1.5")), _product(("Hrs", "USD", "9"), term="Reserved")]
    account.answer("pricing", "get_products", {"PriceList": first, "NextToken": "more"})
    second = [_product(("Quantity", "USD", "50")), _product(("Hrs", "CNY", "70")), _product(("Hrs", "USD", "1.7"))]
    account.answer("pricing", "get_products", {"PriceList": second})

    assert get_price(account.account, G5, spot=False).usd == 1.7
    account.assert_all_asked()


def test_price_of_the_cluster_file_goes_first() -> None:
    """The key usd_per_hour is used without a query."""
    price = get_price(StubbedAccount().account, G5, spot=True, zone="eu-west-1a", given=0.5)

    assert str(price) == f"$0.5/h (usd_per_hour of the cluster file, {_today()})"


def _history(*prices: tuple[str, str, int]) -> dict[str, Any]:
    """Price, zone, and how many hours ago it was made."""
    now = datetime.now(UTC)
    return {
        "SpotPriceHistory": [
            {"SpotPrice": price, "AvailabilityZone": zone, "Timestamp": now - timedelta(hours=age)}
            for price, zone, age in prices
        ]
    }


def test_spot_in_a_zone() -> None:
    """The price is the latest one of the instances' zone."""
    account = StubbedAccount()
    account.answer("ec2", "describe_spot_price_history", _history(("0.4105", "eu-west-1a", 0), ("0.9", "eu-west-1a", 6)))

    assert get_price(account.account, G5, spot=True, zone="eu-west-1a") == Price(0.4105, "spot price in eu-west-1a", _today())


def test_spot_price_without_a_zone() -> None:
    """The price without a zone is the highest of all zones, cached apart from others."""
    account = StubbedAccount()
    account.answer("ec2", "describe_spot_price_history", _history(("0.41", "eu-west-1a", 3), ("0.52", "eu-west-1b", 4)))
    account.answer("ec2", "describe_spot_price_history", _history(("0.41", "eu-west-1a", 3)))
    account.answer("pricing", "get_products", {"PriceList": [_product(("Hrs", "USD", "1.1"))]})

    found = [
        get_price(account.account, G5, spot=spot, zone=zone)
        for spot, zone in ((True, None), (True, "eu-west-1a"), (False, "eu-west-1a"))
        for _ in range(2)
    ]

    assert [price.usd for price in found] == [0.52, 0.52, 0.41, 0.41, 1.1, 1.1]
    assert found[0].source == "spot price in eu-west-1"


@pytest.mark.parametrize(
    "spot, method, client, answer, why",
    [
        (
            False,
            "get_products",
            "pricing",
            {"PriceList": []},
            "(on demand) of g5.xlarge in eu-west-1 is not known: Amazon's price list has none",
        ),
        (
            True,
            "describe_spot_price_history",
            "ec2",
            _history(),
            "(spot) of g5.xlarge in eu-west-1 is not known: there is no history of one",
        ),
    ],
)
def test_unknown_price_is_an_error(spot: bool, method: str, client: str, answer: dict[str, Any], why: str) -> None:
    """An unknown price must be set, and the message shows how; the failure is not cached."""
    account = StubbedAccount()
    for _ in range(2):
        account.answer(client, method, answer)

    for _ in range(2):
        with pytest.raises(AllocationError) as error:
            get_price(account.account, G5, spot=spot)
        assert str(error.value) == (f"the price {why}. Set it with usd_per_hour in the cluster's table of clusters.toml.")
    account.assert_all_asked()


def test_missing_right_to_read_prices() -> None:
    """A missing right to read prices is named, with the alternative."""
    account = StubbedAccount()
    account.refuse("pricing", "get_products", "AccessDeniedException")

    with pytest.raises(AllocationError, match=r"(?s)pricing:GetProducts.*usd_per_hour"):
        get_price(account.account, G5, spot=False)
