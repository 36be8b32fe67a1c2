"""What a user sees while tests train."""

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
def test_runs_are_shown_on_lines_of_their_own(perf: PerfTests, words: list[str], workers: list[str]) -> None:
    """Every run is shown, with its test's place and, once one has ended, how long it may take; never on pytest's own line."""
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
def test_quiet_sessions_show_one_short_line_for_each_run(perf: PerfTests, workers: list[str]) -> None:
    """With -q a run is one line that fits 80 columns, and nothing else is shown of it."""
    perf.write(TESTS)
    ended = perf.run("-q", *workers, COLUMNS="80")
    assert ended.code == 0, ended.out
    lines = ended.out.partition("distributed training performance")[0].splitlines()
    worker = "gw[01] " if workers else ""
    run = rf"{worker}[123]/3 trivial b\d .* [12]/3: \d+(\.\d+)? images/sec"
    assert len([line for line in lines if re.fullmatch(run, line)]) == 3 * 2, ended.out
    assert max(map(len, lines)) <= 80


def test_a_second_session_knows_how_long_tests_take(perf: PerfTests) -> None:
    """From the first run on it is said how long all of them may take, as earlier sessions tell."""
    perf.write(TESTS)
    perf.run()
    ended = perf.run()
    first = next(line for line in ended.out.splitlines() if ", run " in line)
    assert re.match(r"test 1 of 3, about \d+ s left: ", first)


@pytest.mark.parametrize(
    "encoding, arguments", [("ascii", ["-v"]), ("latin-1", ["-n2"]), ("latin-1", ["-s"]), ("ascii", ["--dry-run"])]
)
def test_an_encoding_that_lacks_characters_costs_those_alone(
    accepted: PerfTests, tmp_path: Path, encoding: str, arguments: list[str]
) -> None:
    """On a stdout that is not UTF-8 each line stays one: of failing tests, tables and runs; what draws a table is hyphens."""
    environment = accepted.environ({"PYTHONIOENCODING": encoding, "TOY_STEP_S": "0.02"})
    argv = accepted.command("perf", "--gpus=1", *arguments)[1:]
    with (
        (tmp_path / "stdout").open("wb") as out,
        (tmp_path / "stderr").open("wb") as err,
        zygote.start(argv, accepted.folder, environment, stdout=out.fileno(), stderr=err.fileno()) as started,
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


def test_a_terminal_that_is_not_utf_8_shows_progress(accepted: PerfTests) -> None:
    """A live bar is of characters that an ASCII terminal has, and the session's end leaves as many lines as elsewhere."""
    controller, terminal = pty.openpty()
    environment = accepted.environ({"PYTHONIOENCODING": "ascii", "TERM": "xterm", "COLUMNS": "80"})
    argv = accepted.command("perf", "--gpus=1")[1:]
    with zygote.start(argv, accepted.folder, environment, stdout=terminal, stderr=terminal) as process:
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
