"""Published results, with their citations. Derived values are computed here and not stored.

They form series: rows of one table that differ only in the size of the cluster (and, if a report selected the best of
a sweep, in its parameters). A row's efficiency is relative to the 1-device row of its own series.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from pytest_dtfperf.baselines.files import published_folder, read_published_file
from pytest_dtfperf.datamodel.measurement import scaling_efficiency
from pytest_dtfperf.errors import BaselineFileError, describe_unknown_name
from pytest_dtfperf.spec import Spec


@dataclass(frozen=True, kw_only=True)
class Source:
    """A publication, and the software of its measurements."""

    title: str
    authors: str
    revision: str
    measured: str  # date of the measurements: year, or year and month
    software: str
    published: str | None = None  # date of the publication
    protocol: str | None = None  # runs, steps, and how they were averaged
    notes: Sequence[str] = ()

    def __str__(self) -> str:
        return f"{self.authors}: {self.title} ({self.revision})"


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A published system's hardware, as far as known."""

    gpu: str | None
    gpus_per_node: int
    cpu: str | None = None
    interconnect: str | None = None
    disk: str | None = None


@dataclass(frozen=True, kw_only=True)
class Reference:
    """One published rate. None: not in the publication."""

    system: str
    title: str  # the system's name for display
    machine: Machine
    source: Source
    table: str
    model: str
    data: str  # "synthetic", or the data set
    gpus: int  # 0: the CPU of the whole host
    images_per_sec: float
    images_per_sec_notebook: float | None = None  # in full precision, if published and different
    batch_size: int | None = None  # per device
    nodes: int | None = None
    num_ps: int | None = None
    variable_update: str | None = None
    cross_replica_sync: bool | None = None
    local_parameter_device: str | None = None
    all_reduce: str | None = None
    data_format: str | None = None
    optimizer: str | None = None
    implementation: str | None = None
    mode: str = "training"
    precision: str = "fp32"
    xla: bool = False
    build: str | None = None  # instruction set the framework was compiled for
    intra_op: int | None = None
    inter_op: int | None = None
    notes: Sequence[str] = ()  # of the row and its series
    one_device: float | None = None  # rate of the 1-device row of the same series

    @property
    def efficiency(self) -> float | None:
        """rate(n) / (n x rate(1)), if the series has a 1-device row."""
        return scaling_efficiency(self.images_per_sec, self.gpus, self.one_device) if self.one_device else None

    @property
    def citation(self) -> str:
        """A short citation: author, date and table."""
        return f"{self.source.authors} {self.source.measured}, {self.table}"


def references_for(spec: Spec, folder: Path | None = None) -> list[Reference]:
    """Return all published trainings of the same model, by system, table and size."""
    return [reference for reference in references(folder) if reference.model == spec.model and reference.mode == "training"]


def references(folder: Path | None = None) -> Sequence[Reference]:
    """Return every published rate in a folder of baselines; by default those of the package."""
    return _load_references(folder or published_folder())


@cache
def _load_references(folder: Path) -> tuple[Reference, ...]:
    paths = sorted(path for path in folder.glob("*.json") if not path.name.startswith("."))
    return tuple(reference for path in paths for reference in _read_references(read_published_file(path)))


def find(system: str, gpus: int, **wanted: Any) -> Reference:
    """Return the single published rate with these properties. Raises `BaselineFileError` if there is none, or more than one."""
    known = {reference.system for reference in references()}
    if system not in known:
        raise BaselineFileError(describe_unknown_name("published system", system, known))
    found = [
        reference
        for reference in references()
        if reference.system == system
        and reference.gpus == gpus
        and all(getattr(reference, name) == value for name, value in wanted.items())
    ]
    if len(found) != 1:
        asked = ", ".join(f"{name}={value}" for name, value in {"gpus": gpus, **wanted}.items())
        raise BaselineFileError(f"{len(found)} published numbers of {system} have {asked}; exactly one was expected")
    return found[0]


def _read_references(data: Mapping[str, Any]) -> Iterable[Reference]:
    sources = {name: _source(source) for name, source in data.get("sources", {}).items()}
    for series in data.get("references", []):
        settings = {
            "system": data["system"],
            "title": data.get("title", data["system"]),
            "machine": Machine(**data["machine"]),
            "source": sources[series["source"]],
            "table": series["table"],
            **series["settings"],
        }
        rows = [_row(settings, row, series.get("notes", [])) for row in series["rows"]]
        one_device = next((row.images_per_sec for row in rows if row.gpus == 1), None)
        yield from (replace(row, one_device=one_device) for row in rows)


def _row(settings: Mapping[str, Any], row: Mapping[str, Any], series_notes: Sequence[str]) -> Reference:
    own = [row["note"]] if "note" in row else []
    values = {name: value for name, value in row.items() if name != "note"}
    return Reference(**{**settings, **values, "notes": (*own, *series_notes)})


def _source(data: Mapping[str, Any]) -> Source:
    return Source(**{name: value for name, value in data.items() if name != "kind"})
