"""Tests of --update-baselines: slower baselines, noise that stays, and damaged files."""

import json
from pathlib import Path
from typing import Any

from tests.plugin.conftest import PerfTests


def baseline_file(perf: PerfTests) -> Path:
    (found,) = (perf.folder / "baselines").glob("*.json")
    return found


def last_session(perf: PerfTests) -> dict[str, Any]:
    folder = max((perf.folder / "perf_results").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    found: dict[str, Any] = json.loads((folder / "session.json").read_text())
    return found


def test_slower_baseline_fails_the_session(accepted_tests: PerfTests) -> None:
    """A slower baseline is written with its reason, the test passes, and the session fails with an explanation."""
    ended = accepted_tests.run("--gpus=1", "-v", "--update-baselines", "--allow-regression=new network card", TOY_STEP_S="0.02")
    assert ended.code == 1
    ended.line("1 passed")
    ended.line("PASSED (REGRESSED, accepted)")
    ended.line("gpus=1", "1000 -> 500.0 (-50.0 %)")
    ended.line("LOOSENED: trivial b10 gpus=1 num_ps=1 parameter_server", "this session does not end with 0")
    assert last_session(accepted_tests)["exit_code"] == 1
    assert '"reason": "new network card"' in baseline_file(accepted_tests).read_text()


def test_faster_baseline_passes_the_session_and_keeps_its_noise(accepted_tests: PerfTests) -> None:
    """A faster baseline is written, the session ends with exit code 0, and the case keeps its calibrated noise, of which a line
    has the date."""
    path = baseline_file(accepted_tests)
    data = json.loads(path.read_text())
    noise = {"run": 0.01, "degrees_of_freedom": 20.0, "session": 0.001, "sessions": 6, "date": "2026-01-30T00:00:00Z"}
    for entries in data["entries"].values():
        entries[0]["noise"] = noise
    path.write_text(json.dumps(data))
    ended = accepted_tests.run("--gpus=1", "--update-baselines", TOY_STEP_S="0.005")
    assert ended.code == 0
    ended.line("gpus=1", "1000 -> 2000 (+100.0 %)")
    assert "LOOSENED" not in ended.out
    assert last_session(accepted_tests)["exit_code"] == 0
    ended.line("still as calibrated on 2026-01-30: the noise of trivial b10 gpus=1 num_ps=1 parameter_server; measure it again")
    ended.line("dtfperf baselines calibrate", "dtfperf baselines uncalibrate")
    assert [entries[0]["noise"] for entries in json.loads(path.read_text())["entries"].values()] == [noise, noise]


def test_damaged_baseline_file_ends_the_session_at_the_start(accepted_tests: PerfTests) -> None:
    """A truncated file of baselines is one line and exit code 4, nothing is trained, and the file stays as it is."""
    path = baseline_file(accepted_tests)
    path.write_bytes(path.read_bytes()[:-30])
    before = path.read_bytes()
    ended = accepted_tests.run("--update-baselines")
    assert ended.code == 4
    ended.line(f"ERROR: {path}: no valid JSON: ")
    assert "Traceback" not in ended.out + ended.err
    assert not (accepted_tests.folder / "perf_results").exists()
    assert path.read_bytes() == before


def test_file_damaged_during_a_session_is_not_overwritten(accepted_tests: PerfTests) -> None:
    """A file that is damaged while a session runs is named at its end and stays as it is, and the exit code is 3."""
    path = baseline_file(accepted_tests)
    accepted_tests.write(
        "from pathlib import Path\n\n"
        "def test_x(train, baseline):\n"
        '    baseline.check(train(model="trivial", gpus=1))\n'
        f"    Path({str(path)!r}).write_text('<<<<<<< HEAD')\n"
    )
    ended = accepted_tests.run("--update-baselines")
    assert ended.code == 3
    ended.line(f"{path}: no valid JSON: ")
    assert path.read_text() == "<<<<<<< HEAD"
    assert last_session(accepted_tests)["exit_code"] == 3


def test_session_that_accepts_nothing_fails(perf: PerfTests) -> None:
    """If each measurement is refused as a baseline, a line reports it, and the exit code is 1."""
    ended = perf.run("--update-baselines=new", "--gpus=1", DTFPERF_SLOWDOWN="worker:0=0.01")
    assert ended.code == 1
    ended.line("NOTHING ACCEPTED: ")
    assert not (perf.folder / "baselines").exists()
