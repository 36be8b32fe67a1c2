"""What a test has measured, as properties of it: JUnit's XML has them, and xdist carries them along."""

from collections.abc import Mapping
from typing import Any

import pytest

from pytest_dtfperf.records.record import Record
from pytest_dtfperf.report import measurement_text
from pytest_dtfperf.spec import Spec, labels

_NOTED = pytest.StashKey[dict[Spec, Record]]()  # what a test has measured, as it is now


def note(item: pytest.Item, record: Record) -> None:
    """Numbers of a measurement, in the place of what they were before further runs."""
    noted = item.stash.setdefault(_NOTED, {})
    before = _properties(noted)
    noted[record.spec] = record
    others = [(name, value) for name, value in item.user_properties if name not in before]
    item.user_properties[:] = [*others, *_properties(noted).items()]


def is_noted(item: pytest.Item, record: Record) -> bool:
    """Whether there are any of that training."""
    return record.spec in item.stash.get(_NOTED, {})


def _properties(noted: Mapping[Spec, Record]) -> dict[str, Any]:
    """Trainings of one label are told apart as in the table, each by the fields in which they differ."""
    label = labels(noted)
    found = ((f"dtfperf {label[spec]}: {name}", n) for spec, each in noted.items() for name, n in _numbers(each).items())
    return {name: number for name, number in found if number is not None}


def _numbers(record: Record) -> dict[str, Any]:
    return {
        "images_per_sec": record.images_per_sec,
        "runs": len(record.measurement.rates),
        "limit": record.limit and record.limit["images_per_sec"],
        "share_of_limit": record.share_of_limit,
        "bound_by": measurement_text.find_binding_resource(record),
    }
