"""Which published results to show beside what was measured: all are too many, and the first few would be of one system."""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

from pytest_dtfperf.baselines.references import Reference, references_for
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.spec import Spec

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class PublishedRate:
    """One published rate, as a report shows it."""

    system: str  # for people: "Piz Daint (CSCS)"
    model: str
    batch_size: int  # per device; 0 where the publication does not say
    gpus: int  # 0: the CPU of the whole host
    images_per_sec: float
    citation: str  # short: who, when, which table
    efficiency: float | None = None
    num_ps: int = 0
    variable_update: str = ""
    data: str = "synthetic"
    precision: str = "fp32"
    gpu: str | None = None  # what the devices are

    @classmethod
    def of(cls, reference: Reference) -> Self:
        return cls(
            system=reference.title,
            model=reference.model,
            batch_size=reference.batch_size or 0,
            gpus=reference.gpus,
            images_per_sec=reference.images_per_sec,
            citation=reference.citation,
            efficiency=reference.efficiency,
            num_ps=reference.num_ps or 0,
            variable_update=reference.variable_update or "",
            data=reference.data,
            precision=reference.precision,
            gpu=reference.machine.gpu,
        )

    def name(self, measured: Iterable[Spec]) -> str:
        """The system, its input where that is not synthetic, and what of its training nobody here has measured."""
        return self.system + self.marks(measured)

    def marks(self, measured: Iterable[Spec]) -> str:
        """What stands behind the system in its name: ", imagenet, b64"."""
        specs = list(measured)
        marks = [self.data] if self.data != "synthetic" else []
        if self.batch_size not in {spec.batch_size for spec in specs}:
            marks.append(f"b{self.batch_size}" if self.batch_size else "batch unknown")
        if self.precision not in {spec.precision for spec in specs}:
            marks.append(self.precision)
        return "".join(f", {mark}" for mark in marks)

    @property
    def devices(self) -> str:
        return str(self.gpus) if self.gpus else "CPU"


def find_nearest(published: Iterable[PublishedRate], measured: Collection[Spec], most: int) -> list[PublishedRate]:
    """The few rows that say most beside `measured`; ordered by system and devices.

    First what ran on as many devices as were measured here, on the most of them because that says most; then what was
    trained alike. Of every system one row before any has a second.
    """
    rows, counts = list(published), {spec.gpus for spec in measured}
    same = sorted((row for row in rows if row.gpus in counts), key=lambda row: (-row.gpus, *_rank_likeness(row, measured)))
    other = sorted((row for row in rows if row.gpus not in counts), key=lambda row: _rank_likeness(row, measured))
    chosen = [*take_in_turns(same, [row.system for row in same]), *take_in_turns(other, [row.system for row in other])][:most]
    return sorted(chosen, key=lambda row: (row.system, row.gpus, row.images_per_sec))


def take_in_turns(items: Sequence[T], kinds: Sequence[Hashable]) -> list[T]:
    """The first item of every kind, then every second, ...; otherwise in the order they came."""
    seen: Counter[Hashable] = Counter()
    turns = []
    for kind in kinds:
        turns.append(seen[kind])
        seen[kind] += 1
    return [items[i] for _, i in sorted(zip(turns, range(len(items)), strict=True))]


def _rank_likeness(row: PublishedRate, measured: Collection[Spec]) -> tuple[object, ...]:
    """In what a row is unlike everything measured here, the weightiest first."""
    unlike = (
        getattr(row, name) not in {getattr(spec, name) for spec in measured}
        for name in ("data", "variable_update", "batch_size", "num_ps")
    )
    return (*unlike, row.system, row.gpus, -row.images_per_sec)


def find_published_rates(records: Iterable[Record]) -> list[PublishedRate]:
    """Published trainings of the models that were measured."""
    one_of_each_model = {record.spec.model: record.spec for record in records}.values()
    return [PublishedRate.of(reference) for spec in one_of_each_model for reference in references_for(spec)]
