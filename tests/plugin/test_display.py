"""Tests of the progress that a session shows while it trains."""

import os
import pty
import re
from contextlib import suppress
from pathlib import Path

import pytest

from tests.plugin import zygote
from tests.plugin.conftest import ENDS_S, PerfTests

TESTS = """
import pytest

@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_rate(train, batch_size):
    train(model="trivial", batch_size=batch_size)

def test_foreign():
    print("not ours")
"""


@pytest.mark.campaign
@pytest.mark.parametrize("workers", [[], ["-n2"]], ids=["alone", "xdist"])
@pytest.mark.parametrize("words", [[], ["-v"]], ids=["as ever", "verbose"])
def test_runs_are_shown_on_their_own_lines(perf: PerfTests, words: list[str], workers: list[str]) -> None:
    """Each run has lines with its test's number and, after the first run, the time that is left, and none is within a line of
    pytest's."""
    perf.write(TESTS)
    ended = perf.run(*workers, *words)
    assert ended.code == 0, ended.out
    shown = [line for line in ended.out.splitlines() if ", run " in line]
    worker = r"gw[01]: " if workers else ""
    where = rf"{worker}test ([123]) of 3(, about \d+ s left)?: trivial b\d gpus=1 num_ps=1 parameter_server, run [12] of 3"
    found = [re.fullmatch(rf"{where}( \.\.\.|: \d+(\.\d+)? images/sec \(\d+\.\d s\))", line) for line in shown]
    assert len(found) == 3 * 2 * 2
    assert all(found), ended.out
    assert {match[1] for match in found if match} == {"1", "2", "3"}
    assert any(match[2] for match in found if match)  # not the last line: the worker that prints it may have had no other test
    assert ended.err == ""


@pytest.mark.parametrize("workers", [[], ["-n2"]], ids=["alone", "xdist"])
def test_quiet_session_shows_one_short_line_for_each_run(perf: PerfTests, workers: list[str]) -> None:
    """With -q each run has one line, and no line is longer than 80 columns."""
    perf.write(TESTS)
    ended = perf.run("-q", *workers, COLUMNS="80")
    assert ended.code == 0, ended.out
    lines = ended.out.partition("distributed training performance")[0].splitlines()
    worker = "gw[01] " if workers else ""
    run = rf"{worker}[123]/3 trivial b\d .* [12]/3: \d+(\.\d+)? images/sec"
    assert len([line for line in lines if re.fullmatch(run, line)]) == 3 * 2, ended.out
    assert max(map(len, lines)) <= 80


def test_second_session_shows_the_remaining_time(perf: PerfTests) -> None:
    """The first run of a second session has an estimate of the remaining time."""
    perf.write(TESTS)
    perf.run()
    ended = perf.run()
    first = next(line for line in ended.out.splitlines() if ", run " in line)
    assert re.match(r"test 1 of 3, about \d+ s left: ", first)


@pytest.mark.parametrize(
    "encoding, arguments", [("ascii", ["-v"]), ("latin-1", ["-n2"]), ("latin-1", ["-s"]), ("ascii", ["--dry-run"])]
)
def test_other_encoding_replaces_single_characters(
    accepted_tests: PerfTests, tmp_path: Path, encoding: str, arguments: list[str]
) -> None:
    """On a stdout that is not UTF-8 no line is escaped or split, and tables are drawn with hyphens."""
    environment = accepted_tests.environ({"PYTHONIOENCODING": encoding, "TOY_STEP_S": "0.02"})
    argv = accepted_tests.command("perf", "--gpus=1", *arguments)[1:]
    with (
        (tmp_path / "stdout").open("wb") as out,
        (tmp_path / "stderr").open("wb") as err,
        zygote.start(argv, accepted_tests.folder, environment, stdout=out.fileno(), stderr=err.fileno()) as started,
    ):
        started.wait(ENDS_S)
    lines = (tmp_path / "stdout").read_bytes().decode(encoding).splitlines()
    assert not [line for line in lines if "\\n" in line or "\\u" in line], lines
    if "--dry-run" not in arguments:
        more_or_less = "~" if encoding == "ascii" else "±"
        assert [line for line in lines if re.match(rf"  measured    500.0 {more_or_less}0.0 % images/sec \(runs: ", line)]
        assert [line for line in lines if re.fullmatch("-+", line)]
        assert [line for line in lines if re.search(r", run 1 of 3: 500.0 images/sec", line)]
        assert [line for line in lines if line.startswith("Session folder: ")]
    assert (tmp_path / "stderr").read_bytes() == b""


def test_ascii_terminal_shows_progress(accepted_tests: PerfTests) -> None:
    """The progress bar on an ASCII terminal has ASCII characters only, and no line is longer than 80 columns."""
    controller, terminal = pty.openpty()
    environment = accepted_tests.environ({"PYTHONIOENCODING": "ascii", "TERM": "xterm", "COLUMNS": "80"})
    argv = accepted_tests.command("perf", "--gpus=1")[1:]
    with zygote.start(argv, accepted_tests.folder, environment, stdout=terminal, stderr=terminal) as process:
        os.close(terminal)
        shown = b""
        with suppress(OSError):  # as a terminal ends
            while block := os.read(controller, 1 << 16):
                shown += block
        process.wait(ENDS_S)
    os.close(controller)
    assert process.returncode == 0
    assert shown.isascii()
    assert b"\\u" not in shown
    assert b"run 1 of 3" in shown
    _, _, header = shown.decode("ascii").replace("\r", "").partition("dtfperf: cluster local")
    lines = f"dtfperf: cluster local{header}".partition("\nrootdir: ")[0].splitlines()
    assert lines[0] == "dtfperf: cluster local (local, 2 cpu devices), baselines"
    assert max(map(len, lines)) <= 80
