"""Functions that make the parts of a page: commands, logs, figures, optional sections."""

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.datamodel.step_times import MAX_LINKS, StepBreakdown, WorkerTimings
from pytest_dtfperf.history.past import Past
from pytest_dtfperf.records.session import SessionFolder
from pytest_dtfperf.records.stored import SessionInfo
from pytest_dtfperf.report.page import build, html
from pytest_dtfperf.report.page.build import PageInput, make_page
from pytest_dtfperf.report.page.card import (
    MOST_TASKS,
    axis_limit,
    make_causes,
    make_parts,
    make_rerun_command,
    make_steps,
    make_workers,
)
from pytest_dtfperf.report.page.html import Card, Page
from pytest_dtfperf.report.session_exports import SessionResults
from tests.predict.test_advice import make_record
from tests.records.samples import record, spec
from tests.report.page.samples import EXPLANATION, HISTORY, breakdown, rich_run, scores, session_records

TEST = "perf_tests/test_mnist.py::test_throughput[1-0]"
SESSION = SessionInfo(
    id="x", cluster="local", started="2026-11-23T07:00:00+00:00", wall_s=90.0, command=["pytest"], versions={}, exit_code=0
)


@pytest.mark.parametrize(
    "command, expected",
    [
        ("pytest perf_tests", f"pytest '{TEST}'"),
        ("pytest --cluster=daint perf_tests/test_mnist.py -x", f"pytest --cluster=daint -x '{TEST}'"),
        ("pytest --cluster daint ./perf_tests/ -v", f"pytest --cluster daint -v '{TEST}'"),
        ("pytest -k throughput -m slow perf_tests", f"pytest '{TEST}'"),
        ("pytest -kthroughput --deselect=a::b .", f"pytest '{TEST}'"),
        ("pytest --update-baselines --dtfperf-update-baselines=new", f"pytest '{TEST}'"),
        ("pytest --allow-regression because --gpus=2", f"pytest --gpus=2 '{TEST}'"),
        ("pytest --allow-regression=because perf_tests/test_mnist.py::test_throughput", f"pytest '{TEST}'"),
        ("measure.py --fast", "measure.py --fast"),
    ],
)
def test_rerun_command_selects_the_test(command: str, expected: str) -> None:
    """The command without selections and acceptance selects the test; only pytest's commands have one."""
    assert make_rerun_command(command.split(), TEST) == expected


def write_folder(path: Path, content: bytes) -> SessionFolder:
    folder = SessionFolder.create(path, cluster="local", command=[], versions={})
    (folder.new_logs(TEST) / "worker-0.log").write_bytes(b"an earlier run\n")
    (folder.new_logs(TEST) / "worker-0.log").write_bytes(content)
    return folder


def test_tail_has_the_last_lines_of_the_last_run(tmp_path: Path) -> None:
    """Few lines of a long log are read and made printable, with the number of bytes before them."""
    content = b"".join(b"line %d \x1b[31m<b>\xff\n" % n for n in range(50_000))
    (log,) = build.read_tails(write_folder(tmp_path, content), [TEST])[TEST]
    assert log.name.endswith("/2/worker-0.log")
    assert len(log.lines) == build.LINES
    assert log.lines[-1] == "line 49999 \\x1b[31m<b>\ufffd"
    assert log.left_out == len(content) - sum(len(b"line 499xx \x1b[31m<b>\xff\n") for _ in log.lines)


def test_tail_of_a_long_line_is_limited(tmp_path: Path) -> None:
    """The tail of a log with one very long line is limited."""
    (log,) = build.read_tails(write_folder(tmp_path, b"x" * 10_000_000), [TEST])[TEST]
    assert sum(map(len, log.lines)) <= build.SIZE_BYTES


def test_files_that_are_no_logs_are_ignored(tmp_path: Path) -> None:
    """A pipe, a link out of the folder, an empty file and a folder are no logs."""
    folder = write_folder(tmp_path, b"")
    last = folder.logs_of(TEST) / "2"
    os.mkfifo(last / "pipe.log")
    (last / "link.log").symlink_to("/etc/passwd")
    (last / "folder.log").mkdir()
    assert build.read_tails(folder, [TEST, "another test"]) == {}


def test_tests_without_measurement_have_logs(tmp_path: Path) -> None:
    """A test without a measurement is found with its logs; measured tests are not."""
    folder = write_folder(tmp_path, b"out of memory\n")
    (found,) = build.find_tests_without_measurement(folder, [])
    assert found.name.startswith("perf_tests_test_mnist.py_test_throughput")
    assert found.logs[0].lines == ["out of memory"]
    assert build.find_tests_without_measurement(folder, [TEST]) == []


def test_stack_fills_the_width_of_its_step() -> None:
    """The parts of a stack have no gaps, and fill the share that the step has of the longer one."""
    short, long = breakdown(), breakdown(slow_s=0.137)
    drawn = html.draw_stack(make_parts(short), long.wall_s, "a step")
    spans = [(float(x), float(width)) for x, width in re.findall(r'x="([\d.]+)%" width="([\d.]+)%"', drawn)]
    assert [x for x, _ in spans] == pytest.approx([sum(width for _, width in spans[:n]) for n in range(len(spans))], abs=0.05)
    assert sum(width for _, width in spans) == pytest.approx(50.0, abs=0.1)


def test_steps_are_compared_with_the_baseline() -> None:
    """The bars of both steps have one scale, and the table adds up to the change, or to the step without a baseline."""
    both, alone = make_steps(breakdown(slow_s=0.038), breakdown()), make_steps(breakdown(), None)
    assert both
    assert alone
    assert [(bar.name, bar.text) for bar in both.bars] == [("this session", "175.00 ms"), ("baseline", "137.00 ms")]
    assert [row[3] for row in both.table.rows if row[0] in ("receive", "the step")] == ["+38.00", "+38.00"]
    assert alone.table.rows[-1] == ["the step", "137.00", ""]
    assert make_steps(StepBreakdown(1, 0.0, [], {}, [], {}), None) is None


def test_causes_have_seconds_shares_and_widths() -> None:
    """Causes have the record's seconds, the largest has the whole width, and the unexplained part has its row."""
    found = make_causes(EXPLANATION, "dtfperf explain x m1")
    assert [(row.seconds, row.share, row.width) for row in found.rows] == [
        ("+38.0 ms", "94.0 %", 100.0),
        ("+1.60 ms", "4.0 %", 4.2),
    ]
    assert (found.unexplained, found.change) == ("+0.90 ms", "178 ms instead of 137 ms")


@pytest.mark.parametrize(
    "at, shape, x", [(-0.1, "#at", "25%"), (0.0, "#at", "50%"), (-0.5, "#less", "0%"), (0.5, "#more", "100%")]
)
def test_change_is_drawn_on_the_axis(at: float, shape: str, x: str) -> None:
    """A change is drawn at its value, or as an arrow at the end of the axis."""
    drawn = html.draw_interval(at, None, None, margin=0.05, limit=0.2, described="words")
    (use,) = re.findall(r"<use [^>]*>", drawn)
    assert f'href="{shape}"' in use
    assert x.rstrip("%") == use.partition('x="')[2].partition("%")[0].removesuffix(".0")


def test_axis_has_limits() -> None:
    """The axis of changes is at least 5 % wide, and otherwise that of the largest usual change."""
    assert axis_limit([]) == 0.05
    assert axis_limit(session_records()) == pytest.approx(1.1 * 0.142)


def test_tasks_have_only_known_columns() -> None:
    """Columns without values are left out; of many tasks the slowest are shown, and the others are counted."""
    run = rich_run(record(spec(), 9.0).measurement.runs[0], workers=20)
    slow = replace(run, step_s={task: [0.1 + int(task.split(":")[1]) / 100] * 20 for task in run.step_s})
    bare = make_workers(slow, None, None, number=1, total=1)
    whole = make_workers(slow, WorkerTimings.from_json(scores(20).to_json()), breakdown(20), number=2, total=3)
    assert bare
    assert whole
    assert " ".join(bare.table.headings) == "task step ms median slowest CPU s memory MB"
    assert [row[0] for row in whole.table.rows] == [f"worker:{n}" for n in range(20 - MOST_TASKS, 20)]
    assert whole.title == "run 2 of 3"
    assert whole.notes[0] == "and 9 tasks more, with shorter steps"
    assert whole.notes[-1] == "2 steps of 20 stood out, step 7 by 310.0 ms by worker:1"


def build_page(**changes: Any) -> Page:
    return make_page(PageInput(session=replace(SESSION, **changes), results=SessionResults(session_records())))


def find_card(shown: Page, label: str) -> Card:
    return next(card for card in shown.cards if card.label == label)


def test_sums_of_links_need_all_links() -> None:
    """A breakdown with a limited number of links has no sums of bytes."""
    slow = rich_run(record(spec(), 9.0).measurement.runs[0], workers=20)
    few, many = breakdown(15), breakdown(20)
    cut = replace(many, links=many.links[:MAX_LINKS])
    headings = [
        set(found.table.headings) for each in (few, cut) if (found := make_workers(slow, None, each, number=1, total=1))
    ]
    assert [{"sends MB", "receives MB"} & found for found in headings] == [{"sends MB", "receives MB"}, set()]


def test_history_is_shown_only_if_known() -> None:
    """Measurements with earlier sessions have a trend, and the table a column if any has one."""
    without = build_page()
    given = make_page(PageInput(session=SESSION, results=SessionResults(session_records(), pasts=HISTORY)))
    assert not without.has_history
    assert given.has_history
    known = [card.label for card in given.cards if card.past]
    assert sorted(known) == sorted(record.spec.label for record in session_records() if record.id in HISTORY)
    past = find_card(given, known[0]).past
    assert past
    assert past.change.startswith("since 20 October 2026: -12.3 %")
    assert 'd="M151,6v40"' in past.drawing  # between the 19th and the 20th of 30 nights, which take 228 of 240 units
    assert past.summary.startswith("30 sessions from 2026-10-01 to 2026-10-30: ")
    assert len(past.table.rows) == 30


def test_disturbed_rate_is_marked_in_the_trend() -> None:
    """A disturbed rate is a ring beside the line, with a note in summary and table."""
    record = session_records()[0]
    points = [("2026-10-01T02:15:00+00:00", 20.0), ("2026-10-02T02:15:00+00:00", 21.0), ("2026-10-03T02:15:00+00:00", 9.0)]
    pasts = {record.id: Past(points, is_disturbed=True)}
    past = find_card(
        make_page(PageInput(session=SESSION, results=SessionResults([record], pasts=pasts))), record.spec.label
    ).past
    assert past
    assert past.summary == (
        "2 sessions from 2026-10-01 to 2026-10-02: 20.00 to 21.00 images/sec, lowest 20.00, highest 21.00; "
        "this one, which something disturbed: 9.00 images/sec"
    )
    assert past.table.rows == [
        ["2026-10-03 02:15", "9.00, disturbed"],
        ["2026-10-02 02:15", "21.00"],
        ["2026-10-01 02:15", "20.00"],
    ]
    (line,) = re.findall('<polyline points="([^"]*)"', past.drawing)
    assert len(line.split()) == 2
    assert 'class="disturbed"' in past.drawing


def test_gravest_verdicts_come_first() -> None:
    """The gravest measurement is first, and bad verdicts are listed with their reasons and links."""
    shown = build_page()
    assert [card.standing.text for card in shown.cards] == ["REGRESSED", "INCONCLUSIVE", "NO_BASELINE", "IMPROVED", "PASSED"]
    assert [(why.standing.text, [card.anchor for card in why.cards]) for why in shown.why] == [
        ("REGRESSED", ["m1"]),
        ("INCONCLUSIVE", ["m2"]),
    ]
    injected, accept = shown.how
    assert injected == "Injected slow-down (DTFPERF_SLOWDOWN): worker:1 slept 0.2 s in every step"
    assert accept.startswith("1 measurement has no baseline. Accept what was measured with the same command ")


def test_differences_from_the_baseline_are_shown() -> None:
    """A card has the differences from its baseline's fingerprint; without a baseline it has none."""
    shown = build_page()
    assert "tensorflow 2.20.0 -> 2.21.0" in (
        find_card(shown, "inception3 b8 gpus=2 num_ps=1 parameter_server").differences or []
    )
    assert find_card(shown, "mnist b64 gpus=2 num_ps=1 parameter_server").differences is None


def test_hints_of_a_card_leave_out_its_training() -> None:
    """The card of a slow measurement shows what would help it without the name of the training, which is its heading."""
    record = make_record(50.0, variable_placement="greedy")
    (card,) = make_page(PageInput(session=SESSION, results=SessionResults([record]))).cards
    (hint,) = [fact.text for fact in card.facts if fact.name == "hint"]
    assert "is predicted to be " in hint
    assert record.spec.label not in hint
