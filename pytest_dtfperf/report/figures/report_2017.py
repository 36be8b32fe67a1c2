"""Figures 5 to 11 of the report of 2017, from the published rates that come with the package.

E. Bugliarello: Distributed TensorFlow: A performance evaluation. CSCS, September 2017. Its text says which systems and sizes
each figure has; its Tables 1 to 3, and Google's of May 2017, have the rates.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_dtfperf.baselines.references import Reference, references
from pytest_dtfperf.datamodel.measurement import io_overhead
from pytest_dtfperf.report.figures.charts import draw_overhead, draw_rates
from pytest_dtfperf.report.figures.style import NamedFigure
from pytest_dtfperf.report.series import ScalingSeries, make_published_point

MODEL, BATCH_SIZE, DATA = "inception3", 64, "imagenet"
DAINT, P2_XLARGE, P2_8XLARGE = "piz-daint", "cscs-ec2-p2.xlarge", "cscs-ec2-p2.8xlarge"


@dataclass(frozen=True)
class ReportFigure:
    """A figure of rates in the report."""

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


def draw_report_figures() -> Iterator[NamedFigure]:
    """Yield all seven figures, in their order."""
    for each in FIGURES:
        found = [_find_rows(system, data, each.most_gpus) for system, data in each.lines]
        beneath = [*_describe_origin(found), *([each.remark] if each.remark else [])]
        title = f"Figure {each.number}: {each.title}, up to {each.most_gpus} GPUs. {TRAINED}"
        yield NamedFigure(
            f"figure-{each.number}",
            draw_rates(title, [_make_series(rows) for rows in found], beneath=beneath, written=_format_rate),
        )
    pairs = [(_find_rows(system, "synthetic"), _find_rows(system, DATA)) for system in (DAINT, P2_XLARGE, P2_8XLARGE)]
    overheads = {synthetic[0].title: _compute_overheads(synthetic, real) for synthetic, real in pairs}
    beneath = [
        *_describe_origin([rows for pair in pairs for rows in pair]),
        "Below zero: real input was the faster; the report drew zero.",
    ]
    yield NamedFigure("figure-11", draw_overhead(f"Figure 11: I/O overhead. {TRAINED}", overheads, beneath=beneath))


def _find_rows(system: str, data: str, most_gpus: int = 128) -> list[Reference]:
    found = [
        row
        for row in references()
        if (row.system, row.model, row.batch_size, row.data) == (system, MODEL, BATCH_SIZE, data) and row.gpus <= most_gpus
    ]
    return sorted(found, key=lambda row: row.gpus)


def _make_series(rows: Sequence[Reference]) -> ScalingSeries:
    data = rows[0].data
    return ScalingSeries(f"{rows[0].title}, {data}: {rows[0].citation}", [make_published_point(row) for row in rows], data)


def _compute_overheads(synthetic: Sequence[Reference], real: Sequence[Reference]) -> dict[int, float]:
    return {a.gpus: io_overhead(a.images_per_sec, b.images_per_sec) for a, b in zip(synthetic, real, strict=True)}


def _describe_origin(lines: Sequence[Sequence[Reference]]) -> list[str]:
    """Return the machines, and a line with the software of each publication."""
    machines = dict.fromkeys(f"{rows[0].title}: {_describe_machine(rows[0])}" for rows in lines)
    software = dict.fromkeys(
        f"{rows[0].source.authors}, {rows[0].source.measured}: {_find_software_name(rows[0])}" for rows in lines
    )
    return [*machines, *software]


def _describe_machine(row: Reference) -> str:
    machine = row.machine
    known = [f"{machine.gpus_per_node} x {machine.gpu} per node", machine.interconnect]
    return ", ".join(part for part in known if part)


def _find_software_name(row: Reference) -> str:
    """Return the name of the software, without the details that the file of published rates has."""
    return row.source.software.split(" (")[0].split(",")[0]


def _format_rate(images_per_sec: float) -> str:
    """Return the rate with the digits of the tables."""
    return f"{images_per_sec:g}" if images_per_sec < 1000 else f"{images_per_sec:.2f}".rstrip("0").rstrip(".")
