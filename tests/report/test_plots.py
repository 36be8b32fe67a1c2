"""The scaling figure as a file."""

import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest

from pytest_dtfperf.baselines.references import references_for
from pytest_dtfperf.records.record import Record, with_efficiencies
from pytest_dtfperf.records.session import SessionFolder
from pytest_dtfperf.report import session_exports
from pytest_dtfperf.report.charts import draw_scaling
from pytest_dtfperf.report.series import (
    PublishedPoint,
    SessionRecord,
    describe_origin,
    make_measured_series,
    make_published_series,
)
from pytest_dtfperf.report.session_exports import SessionResults
from tests.records.samples import record, spec

RECORDS = with_efficiencies(
    [
        record(spec(), 9.7, 9.81, 10.1, name="one"),
        record(spec(gpus=2, num_ps=1), 15.2, 15.4, name="two"),
        record(spec(gpus=2, variable_update="replicated"), 18.2, 18.4, name="replicated"),
        record(spec(model="mnist", batch_size=64, gpus=2, num_ps=1), 1830.0, name="mnist two"),
        record(spec(model="mnist", batch_size=64, gpus=4, num_ps=1), 3500.0, name="mnist four"),
    ]
)
PUBLISHED = [PublishedPoint.from_reference(reference) for reference in references_for(spec())]


@pytest.fixture
def folder(tmp_path: Path) -> SessionFolder:
    return SessionFolder.create(tmp_path, cluster="local", command=[], versions={})


def test_one_svg_per_model_and_batch(folder: SessionFolder) -> None:
    """Every model and batch size has a figure of its own, which is well-formed SVG."""
    assert session_exports.write_figures(folder, SessionResults(RECORDS, PUBLISHED)) == []
    assert len(list(folder.path.glob("figures/*"))) == 2
    for name in ("inception3_b8", "mnist_b64"):
        assert ET.parse(folder.path / "figures" / f"{name}.svg").getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_scaling_figure_is_reproducible(folder: SessionFolder) -> None:
    """A figure drawn again has the same bytes."""
    path = folder.path / "figures" / "inception3_b8.svg"
    session_exports.write_figures(folder, SessionResults(RECORDS[:3], PUBLISHED))
    first = path.read_bytes()
    session_exports.write_figures(folder, SessionResults(RECORDS[:3], PUBLISHED))
    assert path.read_bytes() == first


def test_matplotlibs_settings_stay(folder: SessionFolder) -> None:
    """Drawing does not change the settings of matplotlib."""
    before = dict(mpl.rcParams)
    session_exports.write_figures(folder, SessionResults(RECORDS[:1]))
    assert dict(mpl.rcParams) == before


@pytest.mark.campaign
@pytest.mark.parametrize("records", [RECORDS[:1], RECORDS[:3], RECORDS[3:]], ids=["one point", "three lines", "no anchor"])
@pytest.mark.parametrize("beside", [PUBLISHED, []], ids=["with published", "alone"])
def test_texts_do_not_overlap(folder: SessionFolder, records: list[Record], beside: list[PublishedPoint]) -> None:
    """Titles, labels and legends do not overlap and are inside the figure."""
    lines, beneath = make_measured_series(records), describe_origin(SessionRecord(record, folder.session) for record in records)
    figure = draw_scaling("inception3", lines, make_published_series(beside, [spec()], 8), notes=beneath)
    figure.draw_without_rendering()
    texts = [*(axes.get_tightbbox() for axes in figure.axes), *(legend.get_window_extent() for legend in figure.legends)]
    boxes = [box for box in (*texts, *(text.get_window_extent() for text in figure.texts)) if box is not None]
    for i, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[i + 1 :])
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert box.x1 <= figure.bbox.x1
        assert box.y1 <= figure.bbox.y1


def test_session_without_measurements_has_no_figure(folder: SessionFolder) -> None:
    """Without a measurement there is no figure and no remark."""
    assert session_exports.write_figures(folder, SessionResults([])) == []


def test_evaluated_trainings_have_no_figure(folder: SessionFolder) -> None:
    """Trainings with evaluations are in no scaling figure."""
    learning = {"model": "mnist", "data": "mnist", "data_dir": "/digits"}
    evaluations = {"stop_at_top_1_accuracy": 0.95, "eval_during_training_every_n_steps": 20}
    records = [record(spec(**learning, **evaluations, gpus=n), 100.0 * n, name=f"r{n}") for n in (1, 2)]
    records += [record(spec(**learning, evaluate=True, gpus=n), 100.0 * n, name=f"e{n}") for n in (1, 2)]
    assert session_exports.write_figures(folder, SessionResults(records)) == []


def test_single_size_has_no_figure(folder: SessionFolder) -> None:
    """A single size has no figure, also with published rates."""
    assert session_exports.write_figures(folder, SessionResults(RECORDS[:1], PUBLISHED)) == []


@pytest.mark.parametrize(("records", "halves"), [(RECORDS[:2], 2), (RECORDS[3:], 1)], ids=["anchored", "no anchor"])
def test_figure_without_efficiencies_has_one_half(records: list[Record], halves: int) -> None:
    """Without an anchor the figure has no axes of efficiency."""
    figure = draw_scaling("inception3", make_measured_series(records))
    assert len(figure.axes) == halves
    assert all(axes.lines for axes in figure.axes)


def test_all_lines_are_within_the_axes() -> None:
    """All lines, also the ideal one, are within the axes."""
    figure = draw_scaling("inception3", make_measured_series(RECORDS[:2]))
    for axes in figure.axes:
        lowest, highest = axes.get_ylim()
        drawn = [value for line in axes.lines for value in np.asarray(line.get_ydata())]
        assert lowest <= min(drawn) <= max(drawn) <= highest
    (ideal,) = (line for line in figure.axes[0].lines if line.get_gid() == "ideal-0")
    assert np.asarray(ideal.get_ydata()) == pytest.approx([9.81, 19.62])


def test_figure_has_cluster_date_and_versions(folder: SessionFolder) -> None:
    """Cluster, system, date and versions are in the figure."""
    session = replace(folder.session, versions={"python": "3.11.9", "pytest": "9.0"})
    machine, versions = describe_origin(SessionRecord(record, session) for record in RECORDS)
    started = folder.session.started[:16].replace("T", " ")
    assert machine == f"on local, cpu-any-0c, {started} UTC"
    assert versions == "python 3.11.9"
    session_exports.write_figures(folder, SessionResults(RECORDS, PUBLISHED))
    assert machine in (folder.path / "figures" / "inception3_b8.svg").read_text()


def test_published_rates_of_another_batch_or_precision_are_marked() -> None:
    """The label of published rates has the batch or precision if it differs."""
    (line, *_) = make_published_series(PUBLISHED, [spec()], 8)
    assert ", b64: " in line.label
    (line, *_) = make_published_series(PUBLISHED, [spec(batch_size=64)], 8)
    assert ", b64" not in line.label
    (line, *_) = make_published_series(PUBLISHED, [spec(batch_size=64, precision="bf16")], 8)
    assert ", fp32: " in line.label
