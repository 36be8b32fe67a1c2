"""Published results as a report shows them beside what was measured."""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from pytest_dtfperf.spec import Spec


@dataclass(frozen=True, kw_only=True)
class Published:
    """One published rate of a system."""

    system: str  # "DGX-1"
    model: str
    batch_size: int
    gpus: int
    images_per_sec: float
    citation: str  # short: who and when
    efficiency: float | None = None
    num_ps: int = 0
    variable_update: str = "parameter_server"
    data: str = "synthetic"


def nearest(published: Iterable[Published], measured: Collection[Spec], most: int) -> list[Published]:
    """The few rows that say most beside `measured`, all of one model; ordered by system and devices.

    First what ran on as many devices as were measured here, then what was trained alike; and of every system one row before
    any has a second, so that a system with many tables does not hide the others.
    """
    models = {spec.model for spec in measured}
    candidates = sorted(
        (row for row in published if row.model in models),
        key=lambda row: (*(_strange(row, measured)), row.system, row.gpus, -row.images_per_sec),
    )
    seen: Counter[tuple[bool, str]] = Counter()
    ranked: list[tuple[bool, int, int]] = []
    for position, row in enumerate(candidates):
        other_count = row.gpus not in {spec.gpus for spec in measured}
        seen[other_count, row.system] += 1
        ranked.append((other_count, seen[other_count, row.system], position))
    chosen = [candidates[position] for *_, position in sorted(ranked)[:most]]
    return sorted(chosen, key=lambda row: (row.system, row.gpus, row.images_per_sec))


def _strange(row: Published, measured: Collection[Spec]) -> tuple[bool, ...]:
    """In what a row is unlike everything measured here, the weightiest first."""
    return tuple(
        getattr(row, name) not in {getattr(spec, name) for spec in measured}
        for name in ("gpus", "data", "variable_update", "batch_size", "num_ps")
    )
