"""Nothing is spent that nobody has agreed to: by a limit in the cluster file, at the terminal, or by a variable."""

import math
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from pytest_dtfperf.clusters.ec2.market import terminal
from pytest_dtfperf.clusters.ec2.market.cost import CostEstimate
from pytest_dtfperf.errors import AllocationError

if TYPE_CHECKING:
    from pytest_dtfperf.clusters.named import ClusterConfig

VARIABLE = "DTFPERF_EC2_YES"

Ask = Callable[[str], bool | None]  # a question; None: there is nobody to ask


def confirm_cost(estimate: CostEstimate, config: "ClusterConfig", ask: Ask = terminal.ask_at_terminal) -> None:
    """Raises `AllocationError` unless so much may be spent."""
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
            f"{estimate}. Nobody has agreed to that, and there is nobody to ask. Say how much cluster {config.name!r} "
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
