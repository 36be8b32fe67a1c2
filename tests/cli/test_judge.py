"""dtfperf judge: stored sessions, judged again."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_dtfperf.baselines.checks import ask
from pytest_dtfperf.baselines.entry import Entry
from pytest_dtfperf.baselines.store import BaselineStore
from pytest_dtfperf.baselines.terms import ComparisonPolicy
from pytest_dtfperf.cli import main
from pytest_dtfperf.records.session import SessionFolder
from pytest_dtfperf.records.stored import Budget
from tests.baselines.examples import SYSTEM, entry_of, measurement_of

ENTRY = entry_of([100, 100.5, 99.5, 100])


@pytest.fixture
def folder(tmp_path: Path) -> SessionFolder:
    """A session of one test that passed by a margin of 10 %: 6 % slower than its baseline."""
    folder = SessionFolder.create(
        tmp_path, cluster="local", command=["pytest"], versions={}, budget=Budget(false_alarms=0.05, tests=1)
    )
    measured = measurement_of([94, 94.1, 93.9, 94, 94])
    record = folder.add("t.py::test_a", measured)
    folder.add_judgement(record.id, ask("baseline", ComparisonPolicy(margin=0.10), measured, entry=ENTRY))
    return folder


def with_baseline(tmp_path: Path, entry: Entry) -> str:
    store = BaselineStore(tmp_path / "baselines")
    store.update(SYSTEM, [entry])
    return str(store.folder)


def test_same_verdicts(folder: SessionFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """Without options the table of then is shown, and nothing has changed."""
    assert main(["judge", str(folder.path)]) == 0
    out = capsys.readouterr().out
    assert "PASSED" in out
    assert "All verdicts are the same as in the session." in out


def test_other_margin(folder: SessionFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """With a tighter margin the difference is named, and the folder stays what it was."""
    before = (folder.path / "measurements.jsonl").read_bytes()
    assert main(["judge", str(folder.path), "--margin=0.01"]) == 1
    out = capsys.readouterr().out
    assert "PASSED then, REGRESSED now: -6.0 % against 100.0 images/sec" in out
    assert (folder.path / "measurements.jsonl").read_bytes() == before


def test_other_baselines(folder: SessionFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Against other baselines the verdict is another; against a folder that is none, there is one clear line."""
    slower = with_baseline(tmp_path, entry_of([80, 80.5, 79.5, 80]))
    assert main(["judge", str(folder.path), "--baselines", slower]) == 0
    assert "PASSED then, IMPROVED now" in capsys.readouterr().out
    assert main(["judge", str(folder.path), "--baselines", str(tmp_path / "nowhere")]) == 2
    assert capsys.readouterr().err == f"dtfperf: --baselines: {tmp_path / 'nowhere'} is no folder\n"


def test_lines_as_they_would_be_now(folder: SessionFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """--json prints what measurements.jsonl would be, for other programs."""
    assert main(["judge", str(folder.path), "--margin=0.01", "--json"]) == 1
    (line,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (line["verdict"], line["checks"][0]["terms"]["margin"]) == ("REGRESSED", 0.01)


@pytest.mark.parametrize("margin", ["much", "5", "1", "nan"])
def test_wrong_margin(folder: SessionFolder, margin: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A margin that is no fraction is refused with what is meant."""
    with pytest.raises(SystemExit) as ended:
        main(["judge", str(folder.path), "--margin", margin])
    assert ended.value.code == 2
    assert f"takes a fraction, as 0.05 for 5 %, not '{margin}'" in capsys.readouterr().err


@pytest.mark.parametrize("efficiency", ["much", "5", "0", "nan"])
def test_wrong_efficiency(folder: SessionFolder, efficiency: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An efficiency that nothing could have, or everything has, is refused with what is meant."""
    with pytest.raises(SystemExit) as ended:
        main(["judge", str(folder.path), "--min-efficiency", efficiency])
    assert ended.value.code == 2
    assert f"takes an efficiency, as 0.9 for 90 %, not '{efficiency}'" in capsys.readouterr().err


def test_whoever_reads_may_stop_reading(folder: SessionFolder) -> None:
    """A reader that is gone, as head is once it has its lines, is no traceback."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "pytest_dtfperf.cli", "judge", str(folder.path)]
    ended = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=300, check=False)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (141, "")


def test_no_session(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder without a session is named."""
    assert main(["judge", str(tmp_path)]) == 2
    assert "is no session folder" in capsys.readouterr().err
