"""The costs of ended instances."""

import json

import pytest

from pytest_dtfperf.clusters.ec2.costs import InstanceLifetime, Price, make_bill

PRICE = Price(3.6, "AWS price list", "2026-01-31")


def test_instance_seconds() -> None:
    """Each instance is billed for its running time, and the sum has the price's source, as JSON."""
    found = make_bill(PRICE, [InstanceLifetime("i-1", 1000.0, 1600.0), InstanceLifetime("i-2", 1000.25, 1300.5)])

    assert json.loads(json.dumps(found.to_json())) == {
        "backend": "ec2",
        "instances": [{"id": "i-1", "seconds": 600.0}, {"id": "i-2", "seconds": 300.25}],
        "seconds": 900.25,
        "usd": 0.90025,
        "usd_per_hour": 3.6,
        "price_source": "AWS price list",
        "price_date": "2026-01-31",
    }


@pytest.mark.parametrize("ended", [1000.0, 1059.9, 990.0])
def test_a_minute_is_the_least(ended: float) -> None:
    """An instance that ran for less than a minute is billed for one, also if two clocks disagree."""
    assert make_bill(PRICE, [InstanceLifetime("i-1", 1000.0, ended)]).usd == pytest.approx(0.06)


def test_no_instances() -> None:
    """No instances, no cost."""
    found = make_bill(PRICE, [])

    assert (found.instances, found.seconds, found.usd) == ([], 0, 0)
