"""Damaged and foreign session files: whatever they hold, every command reads them, or refuses them in one line.

DTFPERF_FUZZ=20000 tries so many kinds of damage; a failure names the one, which is the same in every run.
"""

import os
from pathlib import Path

import pytest

from pytest_dtfperf.cli import main
from pytest_dtfperf.cli.options import DONE, FAILED, USAGE
from pytest_dtfperf.records.session import SessionFolder
from pytest_dtfperf.report.markdown import format_markdown_summary
from tests.records.damage import contents, damage_files, whole_session, write

MANY = int(os.environ.get("DTFPERF_FUZZ", "100"))
PARTS = 10


@pytest.fixture(scope="module")
def session_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return contents(whole_session(tmp_path_factory.mktemp("whole")))


def test_undamaged_session_is_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The session of these tests is judged with the same verdicts before it is damaged."""
    folder = whole_session(tmp_path)
    assert main(["judge", str(folder.path)]) == FAILED  # some of its verdicts fail their tests
    assert "All verdicts are the same as in the session." in capsys.readouterr().out


@pytest.mark.campaign
@pytest.mark.parametrize("part", range(PARTS))
def test_damaged_session_is_judged_or_refused(
    part: int, session_files: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A damaged session is judged, or refused in one printable line with its path, and is never a traceback."""
    path = tmp_path / "20260131T021503Z-9f3c1a"
    for number in range(part, MANY, PARTS):
        write(path, damage_files(session_files, number))
        try:
            code = main(["judge", str(path)])
            output = capsys.readouterr()
            if code == USAGE:
                assert output.err.startswith("dtfperf: ")
                assert str(path) in output.err
                assert output.err[:-1].isprintable()
                assert output.out == ""
            else:
                assert code in (DONE, FAILED)
                assert output.err == ""
                assert output.out.replace("\n", "").isprintable()
                format_markdown_summary(SessionFolder.open(path))
        except Exception as exc:
            raise AssertionError(f"damage {number}") from exc
