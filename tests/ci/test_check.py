"""ci/check with stages of a few invented tests: what it runs despite failures, what it runs again, what it prints."""

import os
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.testing.backends import wait_until
from tests.plugin import zygote
from tests.plugin.conftest import LIGHT

REPOSITORY = Path(__file__).parents[2]
CHECK = REPOSITORY / "ci" / "check"
ENDS_S = 120.0  # whatever has not ended by then hangs

# Fails the first time, and passes from then on.
FLAKY = """
from pathlib import Path

def test_now_and_then():
    first = not Path("seen").exists()
    Path("seen").touch()
    assert not first, "the queue was not empty yet"
"""

WAITS = """
import signal, time
from pathlib import Path
import pytest

@pytest.fixture
def resource():
    yield
    Path("torn-down").touch()

def test_waits(resource):
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    Path("started").touch()
    time.sleep(1000)
"""

Check = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def script() -> Mapping[str, Any]:
    return runpy.run_path(str(CHECK))


def make_command(folder: Path, stages: str) -> list[str]:
    """Return a command that checks `folder` in these stages: expressions of ci/check's own names."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    code = (
        f"import runpy, sys; sys.path.insert(0, {str(REPOSITORY)!r}); check = runpy.run_path({str(CHECK)!r})\n"
        f"pytest, Stage = check['pytest'], check['Stage']\n"
        f"sys.exit(check['main']([], [{stages}]))"
    )
    return [sys.executable, "-c", code]


def make_environment() -> dict[str, str]:
    """Return variables with which stages find tests/outcomes.py, without plugins that they do not use."""
    return {**os.environ, **zygote.SEARCH_PATH, **LIGHT}


@pytest.fixture
def check(tmp_path: Path) -> Check:
    def run(stages: str, **files: str) -> tuple[int, str]:
        for name, text in files.items():
            (tmp_path / f"{name}.py").write_text(text)
        code, out, err = zygote.run(make_command(tmp_path, stages)[1:], tmp_path, make_environment(), ENDS_S, starts_forks=True)
        return code, out + err

    return run


def test_stages_run_after_a_failed_stage(check: Check) -> None:
    """After a failed command and a failed test, the later stages run, and the summary has all of them."""
    code, output = check(
        "Stage('style', ('false',)), pytest('first', 'test_bad.py'), pytest('second', 'test_good.py')",
        test_bad="def test_wrong():\n    assert 1 == 2, 'one is not two'\n",
        test_good="def test_right():\n    pass\n",
    )
    summary = output.partition("== summary")[2].splitlines()
    assert code == 1
    assert [line.split()[0] for line in summary[1:4]] == ["style", "first", "second"]
    assert "FAILED test_bad.py::test_wrong: AssertionError: one is not two" in summary
    assert "FAILED style: exit code 1: false" in summary
    assert summary[-1] == "1 passed, 2 failed, 0 skipped"


def test_test_that_passes_alone_is_flaky(check: Check, tmp_path: Path) -> None:
    """A test that fails and then passes alone fails no run, but is named with its first failure, also in a file."""
    code, output = check("pytest('all', 'test_flaky.py')", test_flaky=FLAKY)
    assert code == 0, output
    first = "AssertionError: the queue was not empty yet"
    assert f"FLAKY  test_flaky.py::test_now_and_then: failed, and passed alone. Its first failure: {first}" in output
    left = (tmp_path / ".tools" / "check" / "flaky.txt").read_text()
    assert left.startswith("test_flaky.py::test_now_and_then\n")
    assert first in left
    assert output.splitlines()[-1] == "1 passed, 0 failed, 0 skipped"


def test_test_that_fails_twice_fails_the_run(check: Check) -> None:
    """A test that fails twice is run twice, counts once, and is not flaky."""
    code, output = check(
        "pytest('all', '-n2', 'test_bad.py')",
        test_bad="def test_wrong():\n    assert False\ndef test_right():\n    pass\n",
    )
    assert code == 1
    assert output.count("== test_bad.py::test_wrong, again") == 1
    assert "FLAKY" not in output
    assert output.splitlines()[-1] == "1 passed, 1 failed, 0 skipped"


def test_many_failures_are_not_run_again(check: Check) -> None:
    """If more than 20 tests fail, none is run again."""
    many = "import pytest\n@pytest.mark.parametrize('i', range(21))\ndef test_wrong(i):\n    assert False\n"
    code, output = check("pytest('all', 'test_bad.py')", test_bad=many)
    assert code == 1
    assert "again" in output
    assert "== test_bad.py" not in output
    assert output.splitlines()[-1] == "0 passed, 21 failed, 0 skipped"


@pytest.mark.parametrize("file", ["import no_such_module\n", "def test_nothing_else(no_such_fixture):\n    pass\n"])
def test_test_that_cannot_run_fails_the_run(check: Check, file: str) -> None:
    """A file that cannot be imported and a missing fixture are failures, and not flaky."""
    code, output = check("pytest('all', 'test_bad.py')", test_bad=file)
    assert code == 1
    assert output.splitlines()[-1].startswith("0 passed, ")
    assert "FLAKY" not in output


def test_stage_without_tests_fails_the_run(check: Check) -> None:
    """A stage without a test fails with its exit code."""
    code, output = check("pytest('all', 'test_empty.py')", test_empty="")
    assert code == 1
    assert "FAILED all: exit code 5: " in output


def test_seconds_are_written_by_file(check: Check, tmp_path: Path) -> None:
    """The CPU time of the tests is written by file, with their number."""
    check(
        "pytest('all', 'test_a.py', 'test_b.py')",
        test_a="import time\ndef test_1():\n    end = time.process_time() + 0.4\n    while time.process_time() < end: pass\n"
        "def test_2(): pass\n",
        test_b="def test_3(): pass\n",
    )
    rows = [line.split() for line in (tmp_path / ".tools" / "check" / "seconds.txt").read_text().splitlines()]
    assert [(row[-1], row[5]) for row in rows] == [("test_a.py", "2"), ("test_b.py", "1")]
    assert float(rows[0][0]) > 0.2 > float(rows[1][0])


def test_lanes_run_at_the_same_time(check: Check) -> None:
    """Stages of two lanes run at the same time, those of one lane in turn, and the output of each stage is in one piece."""
    comes = "from pathlib import Path\nimport time\ndef test_it():\n    Path('{}').touch()\n"
    waits = "    while not Path('{}').exists(): time.sleep(0.01)\n"
    code, output = check(
        "pytest('left', 'test_left.py'), pytest('right', 'test_right.py', lane='other'), pytest('later', 'test_later.py')",
        test_left=(comes + waits).format("left", "right"),
        test_right=(comes + waits).format("right", "left"),
        test_later="from pathlib import Path\ndef test_it():\n    assert Path('left').exists()\n",
    )
    assert code == 0, output
    shown = re.findall(r"== (\w+) has ended with 0, and printed:\n=+ test session starts", output)
    assert sorted(shown) == ["later", "left", "right"]
    summary = output.partition("== summary")[2].splitlines()
    assert [line.split()[0] for line in summary[1:4]] == ["left", "right", "later"]


def test_free_lane_runs_stages_of_either(check: Check) -> None:
    """Stages of either lane run while one lane is free."""
    comes = "from pathlib import Path\nimport time\ndef test_it():\n"
    waits = "    while not Path('{}').exists(): time.sleep(0.01)\n"
    touches = "    Path('{}').touch()\n"
    code, output = check(
        "pytest('long', 'test_long.py'), pytest('short', 'test_short.py', lane='other'),"
        " pytest('one', 'test_one.py', lane='either'), pytest('two', 'test_two.py', lane='either')",
        test_long=comes + waits.format("one") + waits.format("two"),
        test_short=comes + touches.format("short"),
        test_one=comes + "    assert Path('short').exists()\n" + touches.format("one") + waits.format("two"),
        test_two=comes + touches.format("two") + waits.format("one"),
    )
    assert code == 0, output
    assert [line.split()[0] for line in output.partition("== summary")[2].splitlines()[1:5]] == ["long", "short", "one", "two"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_is_torn_down(tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C lets the running test clean up, runs no other one, and prints that, also if a shell's `&` had ignored it."""
    (tmp_path / "test_waits.py").write_text(WAITS)
    ignoring = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    command = make_command(tmp_path, "pytest('one', 'test_waits.py'), pytest('two', 'test_waits.py')")
    process = subprocess.Popen(
        [sys.executable, "-c", ignoring, *command],
        cwd=tmp_path, env=make_environment(), stdout=subprocess.PIPE, text=True, process_group=0,
    )  # fmt: skip
    wait_until("the test runs", (tmp_path / "started").exists)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as a terminal does
    else:
        process.send_signal(number)
    output, _ = process.communicate(timeout=ENDS_S)
    assert process.returncode == 130, output
    assert (tmp_path / "torn-down").exists() == (number == signal.SIGINT)  # pytest alone has no handler for SIGTERM
    assert output.splitlines()[-1] == "Interrupted: later stages were not run."


def test_all_tests_are_in_a_stage(script: Mapping[str, Any]) -> None:
    """Every folder of tests is in exactly one stage."""
    folders = {path.name for path in (REPOSITORY / "tests").iterdir() if any(path.glob("**/test_*.py"))}
    named = [folder for group in ("WAITING", "TRAINING", "WHOLE") for folder in script[group]]
    assert len(named) == len(set(named))
    assert {Path(folder).name for folder in named} <= folders
    (computes,) = (stage for stage in script["STAGES"] if stage.name == "what computes")
    ignored = {argument.partition("=")[2] for argument in computes.argv if argument.startswith("--ignore=")}
    assert ignored == set(named)
