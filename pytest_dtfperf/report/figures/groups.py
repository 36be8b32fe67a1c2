"""Which measurements share a figure, what it is called, and what stands beneath it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

from pytest_dtfperf.baselines.system import system_name
from pytest_dtfperf.formats import minute
from pytest_dtfperf.records.logs import file_stem
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.report.exports import format_versions
from pytest_dtfperf.report.series import ScalingSeries, make_measured_series

VERSIONS = ("tensorflow", "cuda", "pytest-dtfperf", "python")  # those that a figure has room for


@dataclass(frozen=True)
class SessionRecord:
    """A measurement, and what is known of its session."""

    record: Record
    session: Mapping[str, Any]

    @property
    def system(self) -> str:
        return system_name(self.record.measurement.fingerprint.get("hardware") or {})


@dataclass(frozen=True)
class FigureGroup:
    """All of one model and batch size. Not empty."""

    model: str
    batch_size: int  # of one device and step; 0: an external command's own
    measured: Sequence[SessionRecord]

    @property
    def records(self) -> list[Record]:
        return [each.record for each in self.measured]

    @cached_property
    def lines(self) -> list[ScalingSeries]:
        return make_measured_series(self.records)

    @property
    def scales(self) -> bool:
        """Whether anything was measured on several sizes."""
        return any(len(line.points) > 1 for line in self.lines)

    @property
    def name(self) -> str:
        """Of its files."""
        return file_stem(self.model, self.batch_size)

    @property
    def title(self) -> str:
        """A precision that not all of them have stands in the lines' names."""
        precisions = sorted({record.spec.precision for record in self.records})
        batch = [f"{self.batch_size} images per device and step"] if self.batch_size else []
        return ", ".join([self.model, *batch, *(precisions if len(precisions) == 1 else [])])


def group_by_figure(measured: Iterable[SessionRecord]) -> list[FigureGroup]:
    """By model and batch size, in their order, of all that may be a point in a figure."""
    shown = sorted((each for each in measured if _may_be_shown(each.record)), key=_make_group_key)
    return [FigureGroup(*key, list(found)) for key, found in groupby(shown, key=_make_group_key)]


def describe_origin(measured: Iterable[SessionRecord]) -> list[str]:
    """Machine and date on a line, versions on another."""
    found = list(measured)
    clusters = dict.fromkeys(each.session["cluster"] for each in found)
    systems = dict.fromkeys(each.system for each in found)
    dates = sorted({minute(each.session["started"]) for each in found})
    words = dict.fromkeys(word for each in found for word in format_versions(each.record, each.session).split())
    shown = [word.replace("=", " ") for name in VERSIONS for word in words if word.startswith(f"{name}=")]
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    return [f"on {' and '.join(clusters)}, {' and '.join(systems)}, {when} UTC", ", ".join(shown)]


def _may_be_shown(record: Record) -> bool:
    """Whether it is a point. One that learns until it knows enough has no rate to be looked for."""
    spec = record.spec
    return (record.is_valid or record.is_tainted) and not spec.evaluates and spec.stop_at_top_1_accuracy is None


def _make_group_key(measured: SessionRecord) -> tuple[str, int]:
    return measured.record.spec.model, measured.record.spec.batch_size
