"""Shares of the limit: the same number in all outputs, and none where it is unknown."""

import csv
from collections.abc import Sequence
from pathlib import Path

import pytest

import pytest_dtfperf
from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.datamodel.explanation import Bound, Limit
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.records.session import SessionFolder
from pytest_dtfperf.records.stored import SessionInfo
from pytest_dtfperf.report import markdown, terminal
from pytest_dtfperf.report.export_formats import format_openmetrics
from pytest_dtfperf.report.measurement_text import ABOUT_LIMITS, list_limits
from pytest_dtfperf.report.page.build import PageInput, make_page
from pytest_dtfperf.report.session_exports import SessionResults, format_measurements_csv
from pytest_dtfperf.report.sources import load_sessions
from tests.records.samples import measurement, record, spec

LINK = Bound(resource="link", host="node07", step_s=0.08, needs="95.3 MB sent at 1.19 GB/s")
LIMIT = Limit(images_per_sec=200.0, bounds=[LINK, Bound(resource="cores", host="node03", step_s=0.02, needs="few")])
WORDS = "91.0 % of 200.0 images/sec, the limit by the link of node07: 95.3 MB sent at 1.19 GB/s"
UNKNOWN = Limit(unknown={"cores": "node03 was not probed"})


def make_records(*limits: Limit | None) -> list[Record]:
    """Return a measurement of 182 images/sec with each of these limits."""
    return [
        record(spec(gpus=2 * n, num_ps=1), 182.0, verdict=Verdict.REGRESSED, name=f"a{n}", limit=found)
        for n, found in enumerate(limits, start=1)
    ]


@pytest.mark.parametrize("width", [80, 160])
def test_table_has_a_column_of_limits(width: int) -> None:
    """The table has a column if any measurement has a limit, and a description with -v."""
    text = terminal.format_summary(make_records(LIMIT, None, UNKNOWN), width=width, verbose=True)
    rows = [line.split() for line in text.splitlines() if "gpus=" in line and "182.0" in line]
    assert [" ".join(row).endswith("REGRESSED 91 % link") for row in rows] == [True, False, False]
    assert WORDS in " ".join(text.split())
    assert ABOUT_LIMITS in " ".join(text.split())
    without = terminal.format_summary(make_records(None, UNKNOWN), width=width, verbose=True)
    assert "limit" not in without


def test_fastest_measurement_of_each_model_is_listed() -> None:
    """The fastest measurement of each model has a line, and a last line describes the limit."""
    other = record(spec(model="mnist"), 20.0, limit=LIMIT)
    slower = record(spec(gpus=8), 10.0, limit=LIMIT)
    lines = list_limits([slower, other, *make_records(LIMIT, UNKNOWN)])
    assert [text.split()[0] for text in lines[:-1]] == ["inception3", "mnist"]
    assert WORDS in lines[0]
    assert lines[-1] == ABOUT_LIMITS
    assert list_limits(make_records(UNKNOWN, None)) == []


def test_failure_has_the_limit() -> None:
    """The message of a failure has the limit, if it is known."""
    with_limit, without = (terminal.format_failure(each, width=200) for each in make_records(LIMIT, UNKNOWN))
    assert f"limit       {WORDS}" in with_limit
    assert "limit" not in without


def test_csv_has_the_limit() -> None:
    """The CSV file has the limit, the share and the resource, or empty cells."""
    session = SessionInfo(id="x", started="2026-01-31T02:15:03+00:00", cluster="lab", command=["pytest"], versions={})
    rows = list(csv.DictReader(format_measurements_csv(make_records(LIMIT, None, UNKNOWN), session).splitlines()))
    cells = [(row["limit"], row["share_of_limit"], row["bound_by"]) for row in rows]
    assert cells == [("200", "0.91", "link"), ("", "", ""), ("", "", "")]


def test_data_frame_has_the_limit(tmp_path: Path) -> None:
    """The data frame has the limit, the share and the resource of each run, or NA."""
    make_folder(tmp_path, [LIMIT, UNKNOWN]).finish(exit_code=0, wall_s=1.0)
    known, unknown = (row for _, row in pytest_dtfperf.load(tmp_path)[["limit", "share_of_limit", "bound_by"]].iterrows())
    assert [*known] == [200.0, pytest.approx(0.91), "link"]
    assert unknown.isna().all()


def test_openmetrics_has_the_limit(tmp_path: Path) -> None:
    """OpenMetrics has gauges of the limit and the share for a known limit only."""
    make_folder(tmp_path, [LIMIT, UNKNOWN]).finish(exit_code=0, wall_s=1.0)
    text = format_openmetrics(load_sessions(tmp_path)).decode()
    samples = [line for line in text.splitlines() if line.startswith(("dtfperf_limit", "dtfperf_share"))]
    assert [(line.split("{")[0], float(line.split()[-1])) for line in samples] == [
        ("dtfperf_limit_images_per_second", 200.0),
        ("dtfperf_share_of_limit_ratio", pytest.approx(0.91)),
    ]


def make_folder(path: Path, limits: Sequence[Limit]) -> SessionFolder:
    folder = SessionFolder.create(path, session_id="20260131T021503Z-9f3c1a", cluster="lab", command=["pytest"], versions={})
    for number, found in enumerate(limits, start=1):
        added = folder.add("test_throughput", measurement(spec(gpus=number), [182.0]))
        assert folder.note_limit(added.id, found).limit == found
    return folder


def test_page_and_markdown_have_the_limit(tmp_path: Path) -> None:
    """The stored limit is in the record, the page's table and facts, and the Markdown."""
    folder = make_folder(tmp_path, [LIMIT, UNKNOWN])
    known, unknown = folder.measurements()
    assert unknown.share_of_limit is None
    assert known.to_json()["share_of_limit"] == pytest.approx(0.91)
    text = markdown.format_markdown_summary(folder)
    assert "| of limit |" in text
    assert "| 91 % link |" in text
    assert WORDS in text
    shown = make_page(PageInput(session=folder.session, results=SessionResults(records=[known, unknown])))
    assert shown.has_limits
    assert [card.of_limit for card in shown.cards] == ["91 % link", "-"]
    facts = [fact.text for card in shown.cards for fact in card.facts if fact.name == "limit"]
    assert facts == [WORDS, "not known: node03 was not probed"]


def test_page_without_limits_has_no_column(tmp_path: Path) -> None:
    """Without limits there is no column for them."""
    folder = make_folder(tmp_path, [UNKNOWN])
    assert not make_page(PageInput(session=folder.session, results=SessionResults(records=folder.measurements()))).has_limits
    assert "of limit" not in markdown.format_markdown_summary(folder)
