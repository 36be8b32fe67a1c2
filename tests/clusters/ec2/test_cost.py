"""The highest costs of instances."""

import pytest

from pytest_dtfperf.clusters.ec2.costs import CostEstimate, Price, format_usd

PRICE = Price(1.006, "AWS price list", "2026-01-31")


def test_worst_case() -> None:
    """The estimate is the cost of all instances for their longest life, and each number has its source."""
    estimate = CostEstimate("AWS account 111122223333, eu-west-1", "g5.xlarge", 2, 4.0, PRICE)

    assert estimate.worst_usd == pytest.approx(8.048)
    assert str(estimate) == (
        "2 x g5.xlarge on demand (AWS account 111122223333, eu-west-1): $1.006/h (AWS price list, 2026-01-31) each x 4 h "
        "= at most $8.05, without volumes and traffic"
    )


def test_spot_estimate_has_no_maximum() -> None:
    """The estimate of spot instances is at the present price, without "at most"."""
    estimate = CostEstimate("AWS account 1, eu-west-1", "g5.xlarge", 1, 0.5, PRICE, spot=True)

    assert str(estimate) == (
        "1 x g5.xlarge spot (AWS account 1, eu-west-1): $1.006/h (AWS price list, 2026-01-31) each x 0.5 h "
        "= $0.50 at this price, without volumes and traffic"
    )


@pytest.mark.parametrize(
    "amount, text", [(0, "$0.00"), (0.0123, "$0.012"), (0.1, "$0.10"), (8.048, "$8.05"), (12345.678, "$12,345.68")]
)
def test_dollars(amount: float, text: str) -> None:
    """Cents, but not so few digits that little money becomes none."""
    assert format_usd(amount) == text
