"""Progress during a training."""

import io
from dataclasses import replace
from itertools import count

import pytest

from pytest_dtfperf.report.progress import REDRAW_S, Progress, wrap_line
from tests.records.host_states import BUSY
from tests.records.samples import run, spec

SPEC = spec(gpus=2, num_ps=1)


def test_log_has_two_lines_for_each_run() -> None:
    """In a log a run has two lines, its start and its rate."""
    file = io.StringIO()
    progress = Progress(file, is_terminal=False)
    progress.run_started(SPEC, 2, 5)
    for step in range(100):
        progress.step("worker:0", step, 100, 9.0)
    progress.run_ended(run(9.81, wall_s=12.34))
    progress.close()
    assert file.getvalue().splitlines() == [
        "inception3 b8 gpus=2 num_ps=1 parameter_server, run 2 of 5 ...",
        "inception3 b8 gpus=2 num_ps=1 parameter_server, run 2 of 5: 9.81 images/sec (12.3 s)",
    ]


def test_dumb_terminal_has_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `TERM=dumb`, each run has two lines as in a log."""
    monkeypatch.setenv("TERM", "dumb")
    file = io.StringIO()
    progress = Progress(file, is_terminal=True, width=120)
    progress.run_started(SPEC, 2, 5)
    progress.run_ended(run(9.81, wall_s=12.34))
    progress.close()
    assert len(file.getvalue().splitlines()) == 2


@pytest.mark.parametrize("is_terminal", [True, False], ids=["terminal", "log"])
def test_begun_line_of_pytest_is_ended_first(is_terminal: bool) -> None:
    """Before progress is written, the caller is asked to end its line."""
    file = io.StringIO()
    progress = Progress(file, is_terminal=is_terminal, width=80, fresh_line=lambda: print("\n<left>", file=file))
    for number in (3, 4):
        file.write("test_a.py .")
        progress.run_started(SPEC, number, 5)
        progress.run_ended(run(9.81))
    file.write("test_a.py .")
    progress.waiting("for hosts")
    progress.close()
    assert file.getvalue().count("test_a.py .\n<left>\n") == 3


def test_run_has_the_progress_of_the_session() -> None:
    """The number of the test and the remaining time are before the line."""
    file = io.StringIO()
    progress = Progress(file, is_terminal=False, where=lambda: "test 3 of 25, about 12 min left")
    progress.run_started(SPEC, 1, 5)
    assert file.getvalue().startswith(
        "test 3 of 25, about 12 min left: inception3 b8 gpus=2 num_ps=1 parameter_server, run 1 of 5"
    )


def test_failed_run_has_its_reason() -> None:
    """A failed run ends with its reason."""
    file = io.StringIO()
    progress = Progress(file, is_terminal=False)
    progress.run_started(SPEC, 1, 5)
    progress.run_failed("worker:1 on localhost was killed by SIGKILL")
    assert file.getvalue().splitlines()[-1].endswith("run 1 of 5: worker:1 on localhost was killed by SIGKILL")


def test_terminal_shows_the_slowest_task() -> None:
    """On a terminal a bar has the step of the slowest worker, and the rate."""
    file = io.StringIO()
    progress = Progress(file, is_terminal=True, width=80, clock=count(0.0, REDRAW_S).__next__)
    progress.run_started(SPEC, 1, 5)
    progress.step("worker:0", 7, 10, 9.81)
    progress.step("worker:1", 6, 10)
    text = file.getvalue()
    for words in ("run 1 of 5", "starting", "step 7/10  9.81 images/sec", "step 6/10  9.81 images/sec"):
        assert words in text


def test_terminal_is_restored() -> None:
    """At the end the bar is erased and the cursor is visible again."""
    file = io.StringIO()
    progress = Progress(file, is_terminal=True, width=80)
    progress.run_started(SPEC, 1, 5)
    progress.step("worker:0", 7, 10)
    progress.close()
    assert file.getvalue().endswith("\x1b[?25h\r\x1b[1A\x1b[2K\x1b[1A\x1b[2K")
    drawn = len(file.getvalue())
    progress.close()
    assert len(file.getvalue()) == drawn


def test_log_has_each_text_of_waiting_once() -> None:
    """In a log, waiting for hosts is one line as long as the text does not change."""
    file = io.StringIO()
    progress = Progress(file, is_terminal=False)
    for words in ("daint: job 17 pending (Priority)",) * 3 + ("daint: job 17 pending (Resources)",):
        progress.waiting(words)
    progress.run_started(SPEC, 1, 5)
    assert file.getvalue().splitlines() == [
        "daint: job 17 pending (Priority)",
        "daint: job 17 pending (Resources)",
        "inception3 b8 gpus=2 num_ps=1 parameter_server, run 1 of 5 ...",
    ]


def test_terminal_redraws_the_line_of_waiting() -> None:
    """On a terminal the texts of waiting replace each other, and are erased if it ends without hosts."""
    file = io.StringIO()
    progress = Progress(file, is_terminal=True, width=80)
    progress.waiting("daint: job 17 pending (Priority)")
    progress.waiting("daint: job 17 pending (Resources)")
    assert "\x1b[2K" in file.getvalue().partition("(Priority)")[2].partition("(Resources)")[0]
    progress.end_measurement()
    assert file.getvalue().endswith("\x1b[?25h\r\x1b[1A\x1b[2K")


@pytest.mark.parametrize("seconds, words", [(35, "35 s"), (119, "119 s"), (725, "12 min"), (11100, "3 h 05 min")])
def test_terminal_shows_the_duration_of_waiting(seconds: int, words: str) -> None:
    """The duration of waiting is beside its text, also after a change of the text."""
    file = io.StringIO()
    now_s = [100.0]
    progress = Progress(file, is_terminal=True, width=80, clock=lambda: now_s[0])
    progress.waiting("Slurm job 17 pending (Priority)")
    now_s[0] += seconds
    progress.waiting("Slurm job 17 pending (Resources)")
    progress.close()
    assert f"  {words}\n" in file.getvalue()


def test_failed_allocation_is_no_failed_run() -> None:
    """Without hosts no run begins: a log has only the text of waiting."""
    file = io.StringIO()
    progress = Progress(file, is_terminal=False)
    progress.waiting("Slurm job 17 pending")
    progress.run_failed("Slurm job 17 cannot start")
    assert file.getvalue().splitlines() == ["Slurm job 17 pending"]


def test_fast_steps_are_not_all_drawn() -> None:
    """Steps within a quarter of a second are not drawn."""
    file = io.StringIO()
    now_s = [100.0]
    progress = Progress(file, is_terminal=True, width=80, clock=lambda: now_s[0])
    progress.run_started(SPEC, 1, 5)
    drawn = len(file.getvalue())
    for step in range(1000):
        progress.step("worker:0", step, 1000)
    assert len(file.getvalue()) == drawn
    now_s[0] += REDRAW_S
    progress.step("worker:0", 1000, 1000)
    assert "step 1000/1000" in file.getvalue()


@pytest.mark.parametrize("is_terminal", [True, False], ids=["terminal", "log"])
def test_closed_output_is_no_error(is_terminal: bool) -> None:
    """If the output is closed, progress writes nothing and raises nothing."""
    file = io.StringIO()
    progress = Progress(file, is_terminal=is_terminal, width=80)
    progress.run_started(SPEC, 1, 5)
    file.close()
    progress.step("worker:0", 1, 10)
    progress.waiting("stopping")
    progress.run_ended(run(9.81))
    progress.run_started(SPEC, 2, 5)
    progress.close()


LONG = spec(gpus=128, num_ps=64, precision="bf16", data_format="NCHW")


def lines_of(width: int, *, is_quiet: bool = False, is_terminal: bool = False) -> list[str]:
    """Return the lines of two runs, of which the second is disturbed."""
    file = io.StringIO()
    progress = Progress(
        file, is_terminal=is_terminal, width=width, is_quiet=is_quiet,
        where=lambda: "12/25" if is_quiet else "test 12 of 25, about 1 h 12 min left",
    )  # fmt: skip
    for number, disturbances in enumerate([[], [BUSY]], start=1):
        progress.run_started(LONG, number, 10)
        progress.run_ended(replace(run(9.81, wall_s=12.34), disturbances=disturbances))
    progress.run_started(LONG, 3, 10)
    progress.run_failed("worker:1 on localhost was killed by SIGKILL, and nothing that it has printed says why it was")
    progress.close()
    return file.getvalue().splitlines()


def test_disturbed_run_is_marked() -> None:
    """A disturbed run has the disturbance in its line, in a log and on a terminal."""
    assert any(line.endswith(f"9.81 images/sec (12.3 s), disturbed: {BUSY}") for line in lines_of(999))
    shown = [line for line in lines_of(999, is_terminal=True) if "disturbed" in line]
    assert [line.endswith(f"run 2 of 10: 9.81 images/sec, disturbed: {BUSY}") for line in shown] == [True]


@pytest.mark.parametrize("width", [40, 80])
def test_lines_fit_the_width(width: int) -> None:
    """A longer line is wrapped between words, without losing any."""
    lines = lines_of(width)
    assert max(map(len, lines)) <= width
    whole = " ".join(" ".join(lines_of(9999)).split())
    assert " ".join(" ".join(lines).split()) == whole


def test_long_word_is_cut() -> None:
    """A word of a hundred characters does not widen a line."""
    assert wrap_line(f"sh {'x' * 100}", 30) == [f"sh {'x' * 25}…"]


@pytest.mark.parametrize("width", [60, 80])
def test_quiet_sessions_have_a_short_line_for_each_run(width: int) -> None:
    """With -q a run has one line, which fits; the name of the training is shortened."""
    lines = lines_of(width, is_quiet=True)
    assert len(lines) == 3
    assert max(map(len, lines)) <= width
    assert [line.startswith("12/25 inception3 b8 ") for line in lines] == [True, True, True]
    assert lines[0].endswith(" 1/10: 9.81 images/sec")
    assert lines[1].endswith(" 2/10: 9.81 images/sec, disturbed")
    assert " 3/10: worker:1 on" in lines[2]
