"""`dtfperf judge`: stored sessions, judged again."""

import json
import os
import subprocess
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
from tests.plugin import zygote

ENTRY = entry_of([100, 100.5, 99.5, 100])


@pytest.fixture
def folder(tmp_path: Path) -> SessionFolder:
    """Return a session of one test that passed with a margin of 10 %, 6 % slower than its baseline."""
    folder = SessionFolder.create(
        tmp_path, cluster="local", command=["pytest"], versions={}, budget=Budget(false_alarms=0.05, tests=1)
    )
    measured = measurement_of([94, 94.1, 93.9, 94, 94])
    record = folder.add("t.py::test_a", measured)
    folder.add_judgement(record.id, ask("baseline", ComparisonPolicy(margin=0.10), measured, entry=ENTRY))
    return folder


def store_baseline(tmp_path: Path, entry: Entry) -> str:
    store = BaselineStore(tmp_path / "baselines")
    store.update(SYSTEM, [entry])
    return str(store.folder)


def test_judge_without_options_changes_no_verdict(folder: SessionFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """Without options the verdicts are the same."""
    assert main(["judge", str(folder.path)]) == 0
    out = capsys.readouterr().out
    assert "PASSED" in out
    assert "All verdicts are the same as in the session." in out


def test_smaller_margin_changes_the_verdict(folder: SessionFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """With a smaller margin the changed verdict is shown, and the folder is unchanged."""
    before = (folder.path / "measurements.jsonl").read_bytes()
    assert main(["judge", str(folder.path), "--margin=0.01"]) == 1
    out = capsys.readouterr().out
    assert "PASSED before, REGRESSED after: -6.0 % against 100.0 images/sec" in out
    assert (folder.path / "measurements.jsonl").read_bytes() == before


def test_other_baselines_change_the_verdict(folder: SessionFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Other baselines change the verdict; a missing folder is one line."""
    slower = store_baseline(tmp_path, entry_of([80, 80.5, 79.5, 80]))
    assert main(["judge", str(folder.path), "--baselines", slower]) == 0
    assert "PASSED before, IMPROVED after" in capsys.readouterr().out
    assert main(["judge", str(folder.path), "--baselines", str(tmp_path / "nowhere")]) == 2
    assert capsys.readouterr().err == f"dtfperf: --baselines: {tmp_path / 'nowhere'} is no folder\n"


def test_json_has_the_new_records(folder: SessionFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """--json prints the records of measurements.jsonl with the new verdicts."""
    assert main(["judge", str(folder.path), "--margin=0.01", "--json"]) == 1
    (line,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (line["verdict"], line["checks"][0]["terms"]["margin"]) == ("REGRESSED", 0.01)


@pytest.mark.parametrize("margin", ["much", "5", "1", "nan"])
def test_wrong_margin_is_refused(folder: SessionFolder, margin: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A margin that is no fraction is refused with an example."""
    with pytest.raises(SystemExit) as ended:
        main(["judge", str(folder.path), "--margin", margin])
    assert ended.value.code == 2
    assert f"takes a fraction, as 0.05 for 5 %, not '{margin}'" in capsys.readouterr().err


@pytest.mark.parametrize("efficiency", ["much", "5", "0", "nan"])
def test_wrong_efficiency_is_refused(folder: SessionFolder, efficiency: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An impossible efficiency is refused with an example."""
    with pytest.raises(SystemExit) as ended:
        main(["judge", str(folder.path), "--min-efficiency", efficiency])
    assert ended.value.code == 2
    assert f"takes an efficiency, as 0.9 for 90 %, not '{efficiency}'" in capsys.readouterr().err


def test_closed_reader_is_no_traceback(folder: SessionFolder) -> None:
    """A closed reader, as after `| head`, is exit code 141 without a traceback."""
    reader, writer = os.pipe()
    os.close(reader)
    command = zygote.make_command("judge", str(folder.path))
    env = {**os.environ, **zygote.SEARCH_PATH}
    ended = subprocess.run(command, env=env, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=300, check=False)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (141, "")


def test_folder_without_a_session_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder without a session is refused."""
    assert main(["judge", str(tmp_path)]) == 2
    assert "is no session folder" in capsys.readouterr().err
