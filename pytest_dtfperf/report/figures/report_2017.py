"""Figures 5 to 11 of the report of 2017, from the published rates that come with the package.

E. Bugliarello: Distributed TensorFlow: A performance evaluation. CSCS, September 2017. Its text says which systems and sizes
each figure has; its Tables 1 to 3, and Google's of May 2017, have the rates.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_dtfperf.baselines.references import Reference, references
from pytest_dtfperf.measurement import io_overhead
from pytest_dtfperf.report.figures.drawing import Drawing
from pytest_dtfperf.report.figures.overhead import overhead_figure
from pytest_dtfperf.report.figures.rates import rates_figure
from pytest_dtfperf.report.series import Series, published_point

MODEL, BATCH_SIZE, DATA = "inception3", 64, "imagenet"
DAINT, P2_XLARGE, P2_8XLARGE = "piz-daint", "cscs-ec2-p2.xlarge", "cscs-ec2-p2.8xlarge"


@dataclass(frozen=True)
class ReportFigure:
    """A figure of rates."""

    number: int
    title: str
    lines: Sequence[tuple[str, str]]  # systems and their input
    most_gpus: int
    remark: str = ""


BOTH = ("synthetic", DATA)
FIGURES = (
    ReportFigure(5, "NVIDIA P100, synthetic data", [("dgx1", "synthetic"), (DAINT, "synthetic")], 8),
    ReportFigure(
        6,
        "NVIDIA K80, synthetic data",
        [("google-ec2-p2.8xlarge", "synthetic"), (P2_8XLARGE, "synthetic"), (P2_XLARGE, "synthetic")],
        8,
        "The report drew 30, 58, 116 and 227 for Google, its rates on Google's own cloud, cut; here are those on EC2.",
    ),
    ReportFigure(
        7,
        "NVIDIA K80, synthetic data",
        [("google-ec2-p2.8xlarge-distributed", "synthetic"), (P2_8XLARGE, "synthetic"), (P2_XLARGE, "synthetic")],
        64,
        "The report drew 30 for Google's one GPU; its table has 29.7.",
    ),
    ReportFigure(8, "Piz Daint", [(DAINT, data) for data in BOTH], 128),
    ReportFigure(9, "EC2 p2.xlarge", [(P2_XLARGE, data) for data in BOTH], 128),
    ReportFigure(10, "EC2 p2.8xlarge", [(P2_8XLARGE, data) for data in BOTH], 128),
)
TRAINED = f"{MODEL}, {BATCH_SIZE} images per GPU and step, fp32"


def drawings() -> Iterator[Drawing]:
    """All seven, in their order."""
    for each in FIGURES:
        found = [_rows(system, data, each.most_gpus) for system, data in each.lines]
        beneath = [*_about(found), *([each.remark] if each.remark else [])]
        title = f"Figure {each.number}: {each.title}, up to {each.most_gpus} GPUs. {TRAINED}"
        yield Drawing(
            f"figure-{each.number}", rates_figure(title, [_line(rows) for rows in found], beneath=beneath, written=_whole)
        )
    pairs = [(_rows(system, "synthetic"), _rows(system, DATA)) for system in (DAINT, P2_XLARGE, P2_8XLARGE)]
    overheads = {synthetic[0].title: _overheads(synthetic, real) for synthetic, real in pairs}
    beneath = [
        *_about([rows for pair in pairs for rows in pair]),
        "Below zero: real input was the faster; the report drew zero.",
    ]
    yield Drawing("figure-11", overhead_figure(f"Figure 11: I/O overhead. {TRAINED}", overheads, beneath=beneath))


def _rows(system: str, data: str, most_gpus: int = 128) -> list[Reference]:
    found = [
        row
        for row in references()
        if (row.system, row.model, row.batch_size, row.data) == (system, MODEL, BATCH_SIZE, data) and row.gpus <= most_gpus
    ]
    return sorted(found, key=lambda row: row.gpus)


def _line(rows: Sequence[Reference]) -> Series:
    data = rows[0].data
    return Series(f"{rows[0].title}, {data}: {rows[0].citation}", [published_point(row) for row in rows], data)


def _overheads(synthetic: Sequence[Reference], real: Sequence[Reference]) -> dict[int, float]:
    return {a.gpus: io_overhead(a.images_per_sec, b.images_per_sec) for a, b in zip(synthetic, real, strict=True)}


def _about(lines: Sequence[Sequence[Reference]]) -> list[str]:
    """The machines, a line for each publication, and with what it measured."""
    machines = dict.fromkeys(f"{rows[0].title}: {_machine(rows[0])}" for rows in lines)
    software = dict.fromkeys(f"{rows[0].source.authors}, {rows[0].source.measured}: {_first(rows[0])}" for rows in lines)
    return [*machines, *software]


def _machine(row: Reference) -> str:
    machine = row.machine
    known = [f"{machine.gpus_per_node} x {machine.gpu} per node", machine.interconnect]
    return ", ".join(part for part in known if part)


def _first(row: Reference) -> str:
    """What names the software; the rest of it stands in the file of published rates."""
    return row.source.software.split(" (")[0].split(",")[0]


def _whole(images_per_sec: float) -> str:
    """As the tables have it."""
    return f"{images_per_sec:g}" if images_per_sec < 1000 else f"{images_per_sec:.2f}".rstrip("0").rstrip(".")
