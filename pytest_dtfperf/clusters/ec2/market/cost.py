"""What instances will cost at most, told before there are any."""

from dataclasses import dataclass

from pytest_dtfperf.clusters.ec2.market.prices import Price


@dataclass(frozen=True)
class CostEstimate:
    """So many instances, from now until they end by themselves."""

    where: str  # whose account and which region, in words
    instance_type: str
    count: int
    max_hours: float
    price: Price
    spot: bool = False

    @property
    def worst_usd(self) -> float:
        """If they stay as long as they can. Volumes and traffic come on top, and spot prices may move."""
        return self.count * self.price.usd * self.max_hours

    def __str__(self) -> str:
        kind = "spot" if self.spot else "on demand"
        sum_ = f"{format_usd(self.worst_usd)} at this price" if self.spot else f"at most {format_usd(self.worst_usd)}"
        return (
            f"{self.count} x {self.instance_type} {kind} ({self.where}): {self.price} each x {self.max_hours:g} h "
            f"= {sum_}, without volumes and traffic"
        )


def format_usd(amount: float) -> str:
    """For people: cents, and what is less than a few of them as it is."""
    return f"${amount:,.2f}" if amount >= 0.1 or amount == 0 else f"${amount:.2g}"
