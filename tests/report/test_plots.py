"""The scaling figure as a file."""

import xml.etree.ElementTree as ET
from pathlib import Path

import matplotlib as mpl
import pytest

from pytest_dtfperf.baselines.references import references_for
from pytest_dtfperf.report import plots
from pytest_dtfperf.report.figure import scaling_figure
from pytest_dtfperf.report.published import Published
from pytest_dtfperf.report.record import Record
from pytest_dtfperf.report.series import published_series
from pytest_dtfperf.report.session import SessionFolder
from tests.report.records import record, spec

RECORDS = [
    record(spec(), 9.7, 9.81, 10.1),
    record(spec(gpus=2, num_ps=1), 15.2, 15.4),
    record(spec(gpus=2, variable_update="replicated"), 18.2, 18.4),
    record(spec(model="mnist", batch_size=64, gpus=2, num_ps=1), 1830.0),
]
PUBLISHED = [Published.of(reference) for reference in references_for(spec())]


@pytest.fixture
def folder(tmp_path: Path) -> SessionFolder:
    return SessionFolder.create(tmp_path, cluster="local", command=[], versions={})


def test_one_svg_per_model_and_batch(folder: SessionFolder) -> None:
    """Every model and batch size has a figure of its own, and it is well-formed SVG."""
    said = plots.write(folder, RECORDS, PUBLISHED)
    assert said == ["Drawn: figures/inception3_b8.svg, figures/mnist_b64.svg"]
    for name in ("inception3_b8", "mnist_b64"):
        assert ET.parse(folder.path / "figures" / f"{name}.svg").getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_the_same_numbers_give_the_same_bytes(folder: SessionFolder) -> None:
    """A figure drawn again is the same file, so that a changed figure means changed numbers."""
    path = folder.path / "figures" / "inception3_b8.svg"
    plots.write(folder, RECORDS[:3], PUBLISHED)
    first = path.read_bytes()
    plots.write(folder, RECORDS[:3], PUBLISHED)
    assert path.read_bytes() == first


def test_matplotlibs_settings_stay(folder: SessionFolder) -> None:
    """Drawing leaves the settings of the process that draws as they were."""
    before = dict(mpl.rcParams)
    plots.write(folder, RECORDS[:1])
    assert dict(mpl.rcParams) == before


@pytest.mark.parametrize("records", [RECORDS[:1], RECORDS[:3], RECORDS[3:]], ids=["one point", "three lines", "no anchor"])
@pytest.mark.parametrize("beside", [PUBLISHED, []], ids=["with published", "alone"])
def test_no_words_overlap(records: list[Record], beside: list[Published]) -> None:
    """Titles, axes' labels and legends keep clear of each other and stay inside the figure, whatever is drawn."""
    figure = scaling_figure(records, published_series(beside, "inception3", 8, 8))
    figure.draw_without_rendering()
    texts = [*(axes.get_tightbbox() for axes in figure.axes), *(legend.get_window_extent() for legend in figure.legends)]
    boxes = [box for box in (*texts, *(text.get_window_extent() for text in figure.texts)) if box is not None]
    for i, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[i + 1 :])
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert box.x1 <= figure.bbox.x1
        assert box.y1 <= figure.bbox.y1


def test_nothing_measured_nothing_drawn(folder: SessionFolder) -> None:
    """No measurement, no figure, and nothing to say about it."""
    assert plots.write(folder, []) == []
