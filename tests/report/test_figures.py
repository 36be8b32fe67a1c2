"""Figures: their numbers, their texts, and that nothing overlaps."""

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from pytest_dtfperf.baselines.references import references
from pytest_dtfperf.cli import main
from pytest_dtfperf.datamodel.fingerprint import Hardware
from pytest_dtfperf.history.enter import enter_all
from pytest_dtfperf.history.where import parse_address
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.records.session import SessionFolder
from pytest_dtfperf.report import figures
from pytest_dtfperf.report.charts import NamedFigure, convert_to_png, convert_to_svg
from pytest_dtfperf.report.sources import load_sessions
from pytest_dtfperf.spec import Spec
from tests.baselines.published import published_efficiency, published_overhead
from tests.history.sessions import HARDWARE, folder_of
from tests.plugin import zygote
from tests.records.host_states import ANOTHER_USER
from tests.records.samples import measurement, run, spec

REPORT = (5, 6, 7, 8, 9, 10, 11)
RATES = {(0, 1): 10.0, (1, 2): 18.0, (2, 2): 19.0, (1, 4): 24.0, (2, 4): 36.0}  # by servers and devices
STEPS = {"worker:0": [0.1, 0.2, 0.1, 0.4], "worker:1": [0.1, 0.3, 0.1, 0.1]}


def bars_of(figure: Figure) -> dict[str, float]:
    """Return the heights of bars by id."""
    patches = [patch for axes in figure.axes for patch in axes.patches if isinstance(patch, Rectangle) and patch.get_gid()]
    return {str(patch.get_gid()): patch.get_height() for patch in patches}


def lines_of(figure: Figure) -> dict[str, list[tuple[float, float]]]:
    lines = [line for axes in figure.axes for line in axes.lines if line.get_gid()]
    return {str(line.get_gid()): [(float(x), float(y)) for x, y in np.asarray(line.get_xydata())] for line in lines}


def texts_of(figure: Figure) -> str:
    """Return all texts of a figure, one in each line."""
    texts = [*figure.findobj(mpl.text.Text)]
    return "\n".join(text.get_text() for text in texts if isinstance(text, mpl.text.Text))


def get_report_figure(number: int) -> Figure:
    """Return a figure of the report, which is drawn once for all tests."""
    return draw_report_figures()[f"figure-{number}"]


@cache
def draw_report_figures() -> dict[str, Figure]:
    found = [*figures.draw_report_figures()]
    assert len({drawing.name for drawing in found}) == len(found)
    return {drawing.name: drawing.figure for drawing in found}


def find_published_rates(system: str, data: str, most: int) -> dict[int, float]:
    """Return a published table, read from the file of the system."""
    rows = [row for row in references() if row.system == system and row.data == data]
    return {
        row.gpus: row.images_per_sec for row in rows if row.model == "inception3" and row.batch_size == 64 and row.gpus <= most
    }


# The report's figures


@pytest.mark.parametrize(
    ("number", "lines", "most"),
    [
        (5, [("dgx1", "synthetic"), ("piz-daint", "synthetic")], 8),
        (6, [("google-ec2-p2.8xlarge", "synthetic"), ("cscs-ec2-p2.8xlarge", "synthetic"),
             ("cscs-ec2-p2.xlarge", "synthetic")], 8),
        (7, [("google-ec2-p2.8xlarge-distributed", "synthetic"), ("cscs-ec2-p2.8xlarge", "synthetic"),
             ("cscs-ec2-p2.xlarge", "synthetic")], 64),
        (8, [("piz-daint", "synthetic"), ("piz-daint", "imagenet")], 128),
        (9, [("cscs-ec2-p2.xlarge", "synthetic"), ("cscs-ec2-p2.xlarge", "imagenet")], 128),
        (10, [("cscs-ec2-p2.8xlarge", "synthetic"), ("cscs-ec2-p2.8xlarge", "imagenet")], 128),
    ],
)  # fmt: skip
def test_report_figures_have_the_published_rates(number: int, lines: list[tuple[str, str]], most: int) -> None:
    """The bars of Figures 5 to 10 are the published rates, all of them, with their numbers."""
    figure = get_report_figure(number)
    tables = [find_published_rates(system, data, most) for system, data in lines]
    assert bars_of(figure) == {f"bar-{i}-{gpus}": rate for i, table in enumerate(tables) for gpus, rate in table.items()}
    written = texts_of(figure).splitlines()
    assert all(
        any(float(text) == rate for text in written if re.fullmatch(r"[\d.]+", text)) for t in tables for rate in t.values()
    )


@pytest.mark.parametrize(
    ("system", "gpus", "data", "printed", "images_per_sec"),
    [
        ("piz-daint", 64, "synthetic", 0.8046, 7118.31),
        ("piz-daint", 128, "imagenet", 0.5163, 9055.64),
        ("cscs-ec2-p2.xlarge", 128, "synthetic", 0.2756, 1077.59),
        ("cscs-ec2-p2.8xlarge", 128, "synthetic", 0.8524, 3333.20),
    ],
)
def test_report_speedups_are_devices_times_efficiencies(
    system: str, gpus: int, data: str, printed: float, images_per_sec: float
) -> None:
    """A speed-up is devices times the printed efficiency, and its bar is the printed rate."""
    number, line = (
        {"piz-daint": 8, "cscs-ec2-p2.xlarge": 9, "cscs-ec2-p2.8xlarge": 10}[system],
        ("synthetic", "imagenet").index(data),
    )
    figure = get_report_figure(number)
    speedups = dict(lines_of(figure)[f"speedups-{line}"])
    assert speedups[gpus] / gpus == pytest.approx(printed, abs=6e-5)
    assert speedups[gpus] / gpus == published_efficiency(system, gpus, data=data)
    assert bars_of(figure)[f"bar-{line}-{gpus}"] == images_per_sec
    assert all(x == y for x, y in lines_of(figure)["ideal"])


def test_report_overheads_include_a_negative_one() -> None:
    """Figure 11 has all 24 overheads, including p2.xlarge's negative one."""
    bars = bars_of(get_report_figure(11))
    systems = ["piz-daint", "cscs-ec2-p2.xlarge", "cscs-ec2-p2.8xlarge"]
    counts = [1, 2, 4, 8, 16, 32, 64, 128]
    assert bars == {f"bar-{i}-{n}": published_overhead(system, n) for i, system in enumerate(systems) for n in counts}
    assert bars["bar-2-8"] == pytest.approx(0.1765, abs=5e-5)
    assert bars["bar-1-128"] == pytest.approx(-0.0023, abs=5e-5)


@pytest.mark.parametrize("number", REPORT)
def test_report_figures_have_their_origin(number: int) -> None:
    """Model, batch, precision, GPU, date, version and authors are in each figure."""
    found = texts_of(get_report_figure(number))
    for wanted in (
        "inception3, 64 images per GPU and step, fp32",
        "E. Bugliarello (CSCS), 2017-08: TensorFlow 1.1.0",
        "NVIDIA Tesla",
    ):
        assert wanted in found


# Figures of sessions


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> SessionFolder:
    """Return a session with several numbers of servers and devices, real input, and steps."""
    folder = folder_of(tmp_path_factory.mktemp("results"), rates={})
    for (num_ps, gpus), rate in RATES.items():
        for data, loss in (("synthetic", 1.0), ("imagenet", 0.9)):
            add(folder, spec(gpus=gpus, num_ps=num_ps, data=data, data_dir=None if loss == 1 else "/images"), rate * loss)
    return folder


@pytest.fixture(scope="module")
def drawings(session: SessionFolder) -> dict[str, NamedFigure]:
    """Return the figures of the session."""
    return draw_session(session.path)


def add(folder: SessionFolder, what: Spec, *rates: float, **changes: Any) -> Record:
    found = measurement(what, rates)
    runs = [run(rate, step_s=STEPS, **changes) for rate in rates]
    return folder.add(
        "t.py::test_a", replace(found, runs=runs, fingerprint=replace(found.fingerprint, hardware=Hardware.from_json(HARDWARE)))
    )


def draw_session(source: Path) -> dict[str, NamedFigure]:
    found = list(figures.draw_session_figures(load_sessions(source)))
    assert len({each.name for each in found}) == len(found)
    return {each.name: each for each in found}


def test_session_has_a_figure_of_each_kind(session: SessionFolder, drawings: dict[str, NamedFigure]) -> None:
    """A session has figures of rates, scaling, overhead, servers, and the steps of each measurement."""
    kinds = [f"inception3_b8_{kind}" for kind in ("scaling", "rates", "overhead", "servers")]
    assert list(drawings) == [*kinds, *(f"steps_{record.id}" for record in session.measurements())]


def test_bars_and_speedups_are_those_of_the_records(drawings: dict[str, NamedFigure]) -> None:
    """Every bar is a measurement's rate, and every speed-up is devices times efficiency."""
    figure = drawings["inception3_b8_rates"].figure
    rates = [rate * loss for loss in (1.0, 0.9) for (_, gpus), rate in RATES.items() if gpus > 1]
    assert sorted(value for at, value in bars_of(figure).items() if not at.endswith("-1")) == pytest.approx(sorted(rates))
    speedups = [point for at, line in lines_of(figure).items() if at.startswith("speedups") for point in line]
    assert sorted({round(y, 9) for x, y in speedups if x > 1}) == pytest.approx([1.8, 1.9, 2.4, 3.6])


def test_overheads_compare_pairs(drawings: dict[str, NamedFigure]) -> None:
    """An overhead compares two measurements that differ only in their input."""
    assert bars_of(drawings["inception3_b8_overhead"].figure) == pytest.approx({f"bar-0-{n}": 0.1 for n in (1, 2, 4)})


def test_heat_map_has_all_rates_and_frames_the_best(drawings: dict[str, NamedFigure]) -> None:
    """Each cell has its rate, and the best number of servers has a frame for each number of devices."""
    figure = drawings["inception3_b8_servers"].figure
    cells = {text.get_gid(): text.get_text() for axes in figure.axes for text in axes.texts}
    synthetic = {f"cell-0-{ps}-{gpus}": f"{rate:.2f}" for (ps, gpus), rate in RATES.items() if ps}
    assert {at: text for at, text in cells.items() if str(at).startswith("cell-0")} == synthetic
    frames = [patch.get_xy() for patch in figure.axes[0].patches if isinstance(patch, Rectangle)]
    assert sorted(frames) == [(-0.5, 0.5), (0.5, 0.5)]  # two servers for two devices and for four


def test_steps_are_those_of_the_median_run(tmp_path: Path) -> None:
    """The steps of the run with the median rate are drawn, with their distribution."""
    folder = folder_of(tmp_path, rates={})
    add(folder, spec(gpus=2), 10.0, 12.0, 11.0)
    drawing = draw_session(folder.path)[f"steps_{folder.measurements()[-1].id}"]
    lines = lines_of(drawing.figure)
    assert lines["steps-1"] == [(1, 100), (2, 300), (3, 100), (4, 100)]
    assert {x: y for x, y in lines["shares-0"] if x > 0}[400.0] == 1.0
    assert "run 3 of 3, 11.00 images/sec" in texts_of(drawing.figure)


def test_steps_of_disturbed_runs_are_not_drawn(tmp_path: Path) -> None:
    """The steps of a disturbed run are not drawn, also if its rate is the nearest."""
    folder = folder_of(tmp_path, rates={})
    found = replace(measurement(spec(), [1.0]), runs=[run(10.0, step_s=STEPS, disturbances=[ANOTHER_USER])])
    folder.add("t.py::test_a", found.with_runs([run(rate, step_s=STEPS) for rate in (9.0, 11.0)]))
    drawing = draw_session(folder.path)[f"steps_{folder.measurements()[-1].id}"]
    assert "run 2 of 3, 9.00 images/sec" in texts_of(drawing.figure)


def test_tainted_rates_are_marked(tmp_path: Path) -> None:
    """A TAINTED rate is drawn with a mark, has no speed-up, and is no best cell."""
    folder = folder_of(tmp_path, rates={})
    for (num_ps, gpus), rate in RATES.items():
        disturbed = [ANOTHER_USER] if (num_ps, gpus) == (2, 4) else []
        add(folder, spec(gpus=gpus, num_ps=num_ps), rate, disturbances=disturbed)
    found = draw_session(folder.path)
    rates, servers = found["inception3_b8_rates"].figure, found["inception3_b8_servers"].figure
    assert 36.0 in bars_of(rates).values()
    assert "TAINTED" in texts_of(rates)
    assert not any(y > 3 for at, line in lines_of(rates).items() if at.startswith("speedups") for _, y in line)
    assert "36.00 x" in texts_of(servers)
    assert (0.5, -0.5) in [patch.get_xy() for patch in servers.axes[0].patches if isinstance(patch, Rectangle)]


def test_each_hardware_has_its_own_figure(tmp_path: Path) -> None:
    """Rates of two kinds of hosts are in separate files with their names."""
    folder_of(tmp_path, 0, {1: [10.0], 2: [19.0]})
    folder_of(tmp_path, 1, {1: [20.0], 2: [39.0]}, hardware={"cpu": "other", "cores": 4})
    found = {name: each.figure for name, each in draw_session(tmp_path).items() if "_rates" in name}
    assert list(found) == ["inception3_b8_rates_local_cpu-any-2c", "inception3_b8_rates_local_cpu-other-4c"]
    assert [sorted(bars_of(figure).values()) for figure in found.values()] == [[10.0, 19.0], [20.0, 39.0]]


def test_latest_rates_of_several_sessions_are_drawn(tmp_path: Path) -> None:
    """A figure of several sessions has the latest rate of each spec, and the first and last date."""
    folder_of(tmp_path, 0, {1: [10.0], 2: [19.0]})
    folder_of(tmp_path, 3, {2: [17.0]})
    figure = draw_session(tmp_path)["inception3_b8_rates"].figure
    assert sorted(bars_of(figure).values()) == [10.0, 17.0]
    assert "2026-01-01 02:15 to 2026-01-04 02:15 UTC" in texts_of(figure)


@pytest.mark.parametrize("kind", ["scaling", "rates", "overhead", "servers", "steps", "report"])
def test_texts_do_not_overlap(drawings: dict[str, NamedFigure], kind: str) -> None:
    """Titles, labels and legends do not overlap and are inside the figure."""
    of_kind = [drawing.figure for name, drawing in drawings.items() if kind in name][:1]
    found = [get_report_figure(n) for n in REPORT] if kind == "report" else of_kind
    assert found
    for figure in found:
        figure.draw_without_rendering()
        parts: Sequence[Any] = (*figure.axes, *figure.legends, *figure.texts)
        boxes = [box for box in (part.get_tightbbox() for part in parts) if box is not None]
        for i, box in enumerate(boxes):
            assert not any(box.overlaps(other) for other in boxes[i + 1 :])
            assert figure.bbox.x0 <= box.x0 <= box.x1 <= figure.bbox.x1
            assert figure.bbox.y0 <= box.y0 <= box.y1 <= figure.bbox.y1


def test_figures_are_reproducible() -> None:
    """A figure has the same bytes in both formats, with any settings of matplotlib."""
    figure = next(figures.draw_report_figures()).figure
    first = [write(figure) for write in (convert_to_svg, convert_to_png)]
    with mpl.rc_context({"font.size": 20, "savefig.dpi": 30, "svg.fonttype": "none"}):
        again = next(figures.draw_report_figures()).figure
        assert [write(again) for write in (convert_to_svg, convert_to_png)] == first


def test_dollars_in_names_are_text(tmp_path: Path) -> None:
    """A cluster's name with dollars is no formula."""
    folder = folder_of(tmp_path, rates={})
    add(folder, spec(), 10.0)
    (stored,) = load_sessions(folder.path)
    session = replace(stored.session, cluster=r"$\frac{$")
    rates = next(iter(figures.draw_session_figures([replace(stored, session=session)])))
    assert r"on $\frac{$" in texts_of(rates.figure)
    assert ET.fromstring(convert_to_svg(rates.figure)).tag.endswith("svg")


# The command


def test_command_draws_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a source, Figures 5 to 11 are written, and JSON has their files."""
    assert main(["figures", "--out", str(tmp_path), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)["figures"]
    assert [figure["name"] for figure in figures] == [f"figure-{n}" for n in REPORT]
    assert {path.name for path in tmp_path.iterdir()} == {f"figure-{n}.svg" for n in REPORT}
    assert all(Path(file).stat().st_size for figure in figures for file in figure["files"])


def test_command_draws_a_history(tmp_path: Path) -> None:
    """A history has the figures of its folders, except for steps."""
    for night in range(2):
        folder_of(tmp_path / "results", night, {1: [10.0 + night], 2: [19.0]})
    file = tmp_path / "history.sqlite"
    address = parse_address(file, Path())
    assert address
    enter_all([SessionFolder.open(path) for path in sorted((tmp_path / "results").iterdir())], address)
    pictures = {source: tmp_path / f"{source.name} pictures" for source in (file, tmp_path / "results")}
    for source, out in pictures.items():
        assert main(["figures", str(source), "--out", str(out)]) == 0
    of_history, of_folders = ({path.name: path.read_bytes() for path in out.iterdir()} for out in pictures.values())
    assert {name: content for name, content in of_folders.items() if not name.startswith("steps")} == of_history
    assert sorted(of_history) == ["inception3_b8_rates.svg", "inception3_b8_scaling.svg"]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--session=last"], 2, "--session goes with SOURCE"),
        (["--format=gif"], 2, "gif"),
        (["--format="], 2, "format of a picture"),
        (["nowhere"], 2, "'nowhere' is not there"),
        (["results", "model=vgg16"], 1, "there is no measurement to draw"),
        (["results", "modle=vgg16"], 2, "model"),
        (["results", "--session=2020-01-01"], 2, "no session"),
    ],
)
def test_wrong_arguments_are_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    code: int,
    message: str,
) -> None:
    """A wrong argument is one line, and nothing is written."""
    folder_of(tmp_path / "results")
    monkeypatch.chdir(tmp_path)
    assert main(["figures", *words, "--out", "pictures"]) == code
    captured = capsys.readouterr()
    assert message in captured.err
    assert len(captured.err.splitlines()) == 1
    assert not (tmp_path / "pictures").exists()


def test_names_of_clusters_are_no_paths(tmp_path: Path) -> None:
    """A cluster's name with slashes does not leave the folder of figures, which has them in all requested formats."""
    for night in range(2):
        file = folder_of(tmp_path / "results", night).path / "session.json"
        file.write_text(file.read_text().replace('"local"', f'"../../../{night}"'))
    assert main(["figures", str(tmp_path / "results"), "--out", str(tmp_path / "a" / "pictures"), "--format=svg,png"]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"a", "results"}
    written = {path.name: path.stat().st_size for path in (tmp_path / "a" / "pictures").iterdir()}
    assert all(written[f"inception3_b8_rates_..-..-..-1_cpu-any-2c.{kind}"] for kind in ("svg", "png"))
    assert {name.removesuffix(".svg") for name in written if name.endswith(".svg")} == {
        name.removesuffix(".png") for name in written if name.endswith(".png")
    }


def test_missing_matplotlib_names_the_extra(tmp_path: Path) -> None:
    """Without matplotlib, the command shows how to install it."""
    code = "import sys; sys.modules['matplotlib'] = None; from pytest_dtfperf.cli import main; sys.exit(main())"
    found = zygote.python("-c", code, "figures", "--out", tmp_path)
    assert found.returncode == 2
    assert "pip install 'pytest-dtfperf[report]'" in found.stderr
    assert len(found.stderr.splitlines()) == 1
