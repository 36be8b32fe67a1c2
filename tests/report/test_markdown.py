"""A session as Markdown."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.datamodel.task_report import Evaluation, Score
from pytest_dtfperf.records.session import SessionFolder
from pytest_dtfperf.report.markdown import format_markdown_summary
from pytest_dtfperf.spec import Spec
from tests.records.samples import make_comparison, measurement, run, spec

TEST = "perf_tests/test_a.py::test_rate"


@pytest.fixture
def folder(tmp_path: Path) -> SessionFolder:
    started = datetime(2026, 1, 31, 2, 15, 3, tzinfo=UTC)
    return SessionFolder.create(tmp_path, cluster="daint", command=["pytest", "perf_tests"], versions={}, started=started)


def add_measurement(
    folder: SessionFolder, gpus: int, rate: float, verdict: str | None, reason: str = "", change: float = 0.0
) -> None:
    what = spec(gpus=gpus, num_ps=1)
    record = folder.add(
        TEST, measurement(what, [rate, rate], injected_slowdowns={"worker:0": 0.2} if verdict == "REGRESSED" else {})
    )
    if verdict:
        if change:
            folder.add_judgement(record.id, make_comparison(20.0, change, verdict=Verdict(verdict), reason=reason))
        else:
            folder.judge(record.id, verdict=Verdict(verdict), reason=reason)


def test_gravest_verdict_comes_first(folder: SessionFolder) -> None:
    """The table begins with the gravest verdict, and ends with measurements without a verdict."""
    for gpus, verdict in enumerate((None, "PASSED", "NO_BASELINE", "REGRESSED", "INCONCLUSIVE"), start=1):
        add_measurement(folder, gpus, 10.0, verdict)
    folder.finish(exit_code=1, wall_s=312.2)

    text = format_markdown_summary(folder, outcome="Tests failed.")
    rows = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| ") and "`" in line]
    assert rows == ["| REGRESSED", "| INCONCLUSIVE", "| NO_BASELINE", "| PASSED", "| not judged"]
    assert text.startswith("# Performance on daint, 2026-01-31 02:15 UTC\n\nTests failed.\n\n**1 REGRESSED**, 1 INCONCLUSIVE,")
    assert " in 5 min 12 s\n" in text


def test_failure_has_reason_hosts_and_logs(folder: SessionFolder) -> None:
    """A failure has its reason, hosts, injected slow-down and link to its logs; a bar in a reason is escaped."""
    folder.new_logs(TEST)
    add_measurement(folder, 2, 15.0, "REGRESSED", reason="slower | much", change=-0.25)
    folder.finish(exit_code=1, wall_s=1.0)

    lines = format_markdown_summary(folder).splitlines()
    logs = folder.logs_of(TEST).relative_to(folder.path).as_posix()
    row = "| REGRESSED | `inception3 b8 gpus=2 num_ps=1 parameter_server` | 15.00 ±0.0 % | - | 20.00 | -25.0 % |"
    explained = [
        "### REGRESSED: inception3 b8 gpus=2 num_ps=1 parameter_server",
        f"- test: `{TEST}`",
        "- reason: slower \\| much",
        "- hosts: localhost",
        "- injected slow-down: worker:0 slept 0.2 s in every step",
        f"- logs: [{logs}]({logs})",
    ]
    assert [line for line in lines if line in {row, *explained}] == [row, *explained]


def test_unfinished_session_is_reported(folder: SessionFolder) -> None:
    """A session without an end is reported as such."""
    add_measurement(folder, 1, 10.0, "PASSED")
    assert "no verdicts; the session was ended before it could finish" in format_markdown_summary(folder)


def test_previous_rates_must_be_valid(folder: SessionFolder, tmp_path: Path) -> None:
    """The previous valid rate has a change; a TAINTED one is not used."""
    previous = SessionFolder.create(tmp_path, cluster="daint", command=[], versions={})
    add_measurement(previous, 1, 8.0, "PASSED")
    add_measurement(previous, 2, 99.0, "TAINTED")
    add_measurement(folder, 1, 10.0, "PASSED")
    add_measurement(folder, 2, 18.0, "PASSED")

    rows = [line for line in format_markdown_summary(folder, previous).splitlines() if line.startswith("| PASSED")]
    assert [row.split(" | ")[-1] for row in rows] == ["8.00 (+25.0 %) |", "- |"]


def test_flops_and_scores_are_shown(folder: SessionFolder) -> None:
    """FLOP/s are a line below the rates, and scores a table if there are any."""
    add_measurement(folder, 1, 10.0, "PASSED")
    without = format_markdown_summary(folder)
    evaluations = [Evaluation(step=200, trained_s=8.0, score=Score(images=9, loss=0.1, total_loss=0.5, top_1=0.9, top_5=1.0))]
    what = Spec(model="mnist", batch_size=64, data="mnist", data_dir="/digits", evaluate=True)
    folder.add(TEST, replace(measurement(what, []), runs=[run(500.0, evaluations=evaluations)]))
    text = format_markdown_summary(folder)
    assert "inception3: 34.3 GFLOP per training image; best 10.00 images/sec = 343 GFLOP/s\n" in without
    assert "top-5" not in without
    assert "| parameter_server | 1 | 0 | 64 | 200 | 0.100 | 0.500 | 90.0 % | 100.0 % |\n" in text
