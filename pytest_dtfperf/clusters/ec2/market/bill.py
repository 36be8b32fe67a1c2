"""What instances have cost, told when they are given back."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pytest_dtfperf.clusters.ec2.market.prices import Price

LEAST_S = 60.0  # Amazon bills Linux instances by the second, but a minute at least: aws.amazon.com/ec2/pricing/on-demand


@dataclass(frozen=True)
class InstanceLifetime:
    """How long one instance ran, in seconds since 1970: from when it was launched until it was seen to shut down."""

    instance_id: str
    began: float
    ended: float

    @property
    def billed_s(self) -> float:
        return max(LEAST_S, self.ended - self.began)


def make_bill(price: Price, lives: Sequence[InstanceLifetime]) -> dict[str, Any]:
    """JSON, for the session's records: an estimate from the price that was known before, not Amazon's invoice."""
    seconds = sum(life.billed_s for life in lives)
    return {
        "instances": [{"id": life.instance_id, "seconds": round(life.billed_s, 3)} for life in lives],
        "seconds": round(seconds, 3),
        "usd": round(seconds / 3600 * price.usd, 6),
        "usd_per_hour": price.usd,
        "price_source": price.source,
        "price_date": price.date,
    }
