"""What a test has measured, as properties of it: JUnit's XML has them, and xdist carries them along."""

from typing import Any

import pytest

from pytest_dtfperf.records.record import Record
from pytest_dtfperf.report import limits


def note(item: pytest.Item, record: Record) -> None:
    """Numbers of a measurement, in the place of what they were before further runs."""
    found = {f"{_beginning(record)}{name}": value for name, value in _numbers(record).items() if value is not None}
    known = {name for name, _ in item.user_properties}
    item.user_properties[:] = [(name, found.get(name, value)) for name, value in item.user_properties]
    item.user_properties.extend((name, value) for name, value in found.items() if name not in known)


def is_noted(item: pytest.Item, record: Record) -> bool:
    """Whether there are any of that training."""
    return any(name.startswith(_beginning(record)) for name, _ in item.user_properties)


def _numbers(record: Record) -> dict[str, Any]:
    return {
        "images_per_sec": record.images_per_sec,
        "runs": len(record.measurement.rates),
        "limit": record.limit and record.limit["images_per_sec"],
        "share_of_limit": record.share_of_limit,
        "bound_by": limits.bound_by(record),
    }


def _beginning(record: Record) -> str:
    return f"dtfperf {record.spec.label}: "
