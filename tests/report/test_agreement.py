"""The numbers of one session with many kinds of training are the same in all outputs."""

import csv
import json
import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import html5lib
import pytest

from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.formats import change, percent, rate
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.records.session import SessionFolder
from pytest_dtfperf.report import markdown, session_exports, terminal
from pytest_dtfperf.report.page import build
from pytest_dtfperf.report.series import make_measured_series
from pytest_dtfperf.report.session_exports import SessionResults
from pytest_dtfperf.spec import labels
from tests.records.samples import make_comparison, measurement, spec

SVG = "{http://www.w3.org/2000/svg}"
HTML = "{http://www.w3.org/1999/xhtml}"
ONE, TWO, FOUR = ({"gpus": n, "num_ps": 1} for n in (1, 2, 4))
REPLICATED, BF16 = {"variable_update": "replicated"}, {"precision": "bf16"}
REAL, NCHW = {"data": "imagenet", "data_dir": "/imagenet"}, {"data_format": "NCHW"}

# What a session measured, in the order it did; of several the anchor comes last.
MEASURED: list[tuple[dict[str, Any], list[float], str | None]] = [
    ({"num_ps": 0}, [12.0, 12.2], "NO_BASELINE"),  # the fastest on one device, and nobody's anchor
    ({**ONE}, [9.7, 9.8, 10.1], "PASSED"),
    ({**TWO}, [17.2, 17.4], "REGRESSED"),
    ({**FOUR}, [30.2, 31.0], "TAINTED"),
    ({**REPLICATED, "gpus": 2}, [19.2, 20.4], "INCONCLUSIVE"),
    ({**REPLICATED}, [11.1, 11.3], None),
    ({**ONE, **BF16}, [22.0, 23.0], "IMPROVED"),
    ({**TWO, **BF16}, [40.0, 41.0], "ANCHOR"),
    ({**FOUR, **BF16}, [77.0], "PASSED"),
    ({**TWO, **REAL}, [12.5, 13.0], "INCOMPARABLE"),  # has no anchor
    ({**TWO, **NCHW}, [15.0, 15.1], "PASSED"),
    ({**ONE, **NCHW}, [8.0, 8.1], "PASSED"),
    ({"gpus": 2, "num_ps": 2}, [18.1, 18.3], "PASSED"),  # its anchor has another number of parameter servers
]
# configuration and size -> the rate it must be divided by
ANCHORS = {2: 9.8, 4: 11.2, 7: 22.5, 8: 22.5, 10: 8.05, 12: 9.8}


@dataclass(frozen=True)
class Session:
    """All outputs of a session."""

    folder: SessionFolder
    records: list[Record]
    terminal: str
    markdown: str
    rows: Mapping[str, Mapping[str, str]]  # of measurements.csv, by id
    scaling: Mapping[str, Mapping[str, str]]  # of tfperftest's table, by spec
    svg: ET.Element
    page: list[list[str]]  # the cells of its table of rates


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    folder = SessionFolder.create(tmp_path_factory.mktemp("results"), cluster="local", command=["pytest"], versions={})
    for changes, rates, verdict in MEASURED:
        record = folder.add("t.py::test_a", measurement(spec(**changes), rates))
        if verdict:
            found = make_comparison(20.0, record.images_per_sec / 20 - 1, verdict=Verdict(verdict), reason=f"because {verdict}")
            folder.add_judgement(record.id, found)
    folder.finish(exit_code=1, wall_s=1.0)
    records = folder.measurements()
    results = SessionResults(records)
    assert session_exports.write_csv_files(folder, results) + session_exports.write_figures(folder, results) == []
    assert len(build.write_page(folder, SessionResults(records))) == 1
    tables = [(folder.path / name).read_text().splitlines() for name in ("measurements.csv", "inception3_b8.csv")]
    builder = ET.XMLParser(target=ET.TreeBuilder(insert_comments=True))
    return Session(
        folder=folder,
        records=records,
        terminal=terminal.format_summary(records, width=200),
        markdown=markdown.format_markdown_summary(folder),
        rows={row["id"]: row for row in csv.DictReader(tables[0])},
        scaling={row["spec"]: row for row in csv.DictReader(tables[1])},
        svg=ET.parse(folder.path / "figures" / "inception3_b8.svg", builder).getroot(),
        page=read_rates((folder.path / "report.html").read_text()),
    )


def read_rates(page: str) -> list[list[str]]:
    (table,) = [node for node in html5lib.parse(page).iter(f"{HTML}table") if node.get("id") == "rates"]
    (body,) = table.iter(f"{HTML}tbody")
    return [[" ".join("".join(cell.itertext()).split()) for cell in row] for row in body]


def test_efficiency_is_of_the_same_training_on_one_device(session: Session) -> None:
    """An efficiency is relative to the same training on one device; without one there is none."""
    found = {
        number: record.images_per_sec / record.spec.gpus / record.efficiency
        for number, record in enumerate(session.records)
        if record.efficiency
    }
    assert found == pytest.approx(ANCHORS)


def test_tables_have_the_numbers_of_the_records(session: Session) -> None:
    """Terminal, Markdown and page have the rates, spreads, efficiencies, baselines and verdicts of the records."""
    shown = [re.split(r"\s{2,}", line)[:4] for line in session.terminal.splitlines()]
    in_markdown = [[cell.strip(" `") for cell in line.split("|")[2:6]] for line in session.markdown.splitlines()]
    names = labels(record.spec for record in session.records)
    assert len(set(names.values())) == len(names)
    for record in session.records:
        efficiency = percent(record.efficiency) if record.efficiency else "-"
        spread = "" if record.measurement.spread is None else f" ±{percent(record.measurement.spread)}"
        baseline = rate(record.baseline) if record.baseline else "-"
        cells = [names[record.spec], f"{rate(record.images_per_sec)}{spread}", efficiency, baseline]
        assert shown.count(cells) == 1
        assert in_markdown.count(cells) == 1
        changed = change(record.change) if record.change is not None else "-"
        verdict = str(record.verdict or "not judged")
        assert [row[:6] for row in session.page].count([verdict, *cells, changed]) == 1


def test_json_lines_have_the_numbers_of_the_records(session: Session) -> None:
    """measurements.jsonl has the rates, efficiencies, anchors, baselines and changes of the records."""
    lines = [json.loads(line) for line in (session.folder.path / "measurements.jsonl").read_text().splitlines()]
    for line, record in zip(lines, session.records, strict=True):
        assert line["images_per_sec"] == record.images_per_sec
        assert (line["efficiency"], line["anchor"]) == (record.efficiency, record.anchor)
        assert (line["baseline"], line["change"]) == (record.baseline, record.change)


def test_csv_files_have_the_numbers_of_the_records(session: Session) -> None:
    """measurements.csv and the scaling tables have the numbers of the records."""
    assert list(session.rows) == [record.id for record in session.records]
    for record in session.records:
        row, other = session.rows[record.id], session.scaling.get(record.spec.label)
        assert float(row["images_per_sec"]) == pytest.approx(record.images_per_sec, rel=1e-5)
        assert (row["verdict"], row["tainted"] == "true") == (record.verdict or "", record.verdict == "TAINTED")
        assert row["spread"] == ("" if record.measurement.spread is None else f"{record.measurement.spread:.6g}")
        if record.efficiency is None:
            assert (row["efficiency"], row["anchor"]) == ("", "")
            assert other is None or other["efficiency"] == ("1" if record.spec.gpus == 1 else "")
        else:
            assert float(row["efficiency"]) == pytest.approx(record.efficiency, rel=1e-5)
            assert row["anchor"] == record.anchor
            assert other is None or other["efficiency"] == row["efficiency"]
    assert {label.split()[2] for label in session.scaling} == {"gpus=1", "gpus=2", "gpus=4"}


def test_figure_has_the_numbers_of_the_records(session: Session) -> None:
    """Points and ideal lines of the SVG are at the records' numbers; TAINTED rates are crosses."""
    rates, efficiencies = (Panel(session.svg, f"axes_{number}") for number in (1, 2))
    lines = make_measured_series(session.records)
    assert len(lines) == 7
    for number, line in enumerate(lines):
        sound = [point for point in line.points if not point.is_tainted]
        known = [(point.gpus, point.efficiency) for point in sound if point.efficiency is not None]
        tainted = [(point.gpus, point.images_per_sec) for point in line.points if point.is_tainted]
        ideal = [(point.gpus, point.ideal) for point in sound if point.ideal] if line.scales else []
        assert rates.points(f"rates-{number}") == approximate([(point.gpus, point.images_per_sec) for point in sound])
        assert rates.points(f"tainted-{number}") == approximate(tainted)
        assert rates.points(f"ideal-{number}") == approximate(ideal)
        assert efficiencies.points(f"efficiencies-{number}") == approximate(known)
    shown = {point.record for line in lines for point in line.points}
    assert shown == {record.id for record in session.records}


def approximate(points: Any) -> Any:
    """Return the points with the precision of a drawing."""
    return [pytest.approx(point, rel=2e-3) for point in points]


class Panel:
    """One half of a figure, read by the numbers at its axes."""

    def __init__(self, svg: ET.Element, name: str) -> None:
        (self._axes,) = (group for group in svg.iter(f"{SVG}g") if group.get("id") == name)
        self._x, self._y = (self._scale(number, along) for number, along in enumerate("xy"))

    def points(self, name: str) -> list[tuple[float, float]]:
        found = [group for group in self._axes.iter(f"{SVG}g") if group.get("id") == name]
        pairs = [re.findall(r"[ML] (\S+) (\S+)", path.get("d", "")) for group in found for path in group.findall(f"{SVG}path")]
        marks = [(use.get("x", ""), use.get("y", "")) for group in found for use in group.iter(f"{SVG}use")]
        drawn = marks or [pair for path in pairs for pair in path]
        return [(self._at(self._x, float(x)), self._at(self._y, float(y))) for x, y in drawn]

    def _scale(self, number: int, along: str) -> tuple[tuple[float, float], tuple[float, float], bool]:
        """Return two numbers of the axis with their positions, and whether it is logarithmic."""
        axes = [group for group in self._axes.iter(f"{SVG}g") if (group.get("id") or "").startswith("matplotlib.axis_")]
        ticks = [tick for tick in axes[number] if re.match(rf"{along}tick_", tick.get("id") or "")]
        ends = []
        for tick in ticks:
            (use,) = (use for use in tick.iter(f"{SVG}use") if use.get(along) and use.get("y") and use.get("style"))
            (text,) = (str(node.text).strip() for node in tick.iter() if not isinstance(node.tag, str))  # a comment
            ends.append((float(use.get(along) or 0), float(text.rstrip(" %")) / (100 if "%" in text else 1)))
        return ends[0], ends[-1], "%" not in text

    def _at(self, scale: tuple[tuple[float, float], tuple[float, float], bool], position: float) -> float:
        (first, low), (last, high), is_log = scale
        part = (position - first) / (last - first)
        return math.exp(math.log(low) + part * math.log(high / low)) if is_log else low + part * (high - low)
