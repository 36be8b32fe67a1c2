"""`dtfperf baselines calibrate` in a folder with perf tests and baselines, with known noise."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.baselines.files import canonical
from pytest_dtfperf.baselines.store import BaselineStore
from pytest_dtfperf.cli import main
from pytest_dtfperf.records.session import SessionFolder, session_folders
from tests.baselines.examples import SYSTEM, entry_of, measurement_of
from tests.cli.table import read, read_refusal
from tests.plugin.conftest import LIGHT, Ended, PerfTests, perf_tests_in

DRIFT = 0.001  # by which part each run of the toy training is slower than the one before it


@pytest.fixture(scope="module")
def calibration(tmp_path_factory: pytest.TempPathFactory) -> tuple[PerfTests, Ended]:
    """Return baselines of one and two devices, and the calibration of the first by two sessions of three runs."""
    perf = perf_tests_in(tmp_path_factory.mktemp("calibrated"))
    assert perf.run("--update-baselines").code == 0
    ended = dtfperf(perf, "--sessions=2", "--repeats=3", "perf", "--gpus=1", **make_noisy_environment(perf))
    return perf, ended


@pytest.fixture
def perf(tmp_path: Path) -> PerfTests:
    return perf_tests_in(tmp_path)


def make_noisy_environment(perf: PerfTests) -> dict[str, str]:
    return {"TOY_NOISE": str(DRIFT), "TOY_COUNTER": str(perf.folder / "runs")}


def dtfperf(perf: PerfTests, *arguments: str, **environment: str) -> Ended:
    command = ["-m", "pytest_dtfperf.cli", "baselines", "calibrate", *arguments]
    return replace(perf, starts_forks=True).run_python(*command, **{**LIGHT, **environment})


def copy_perf_tests(perf: PerfTests, folder: Path) -> PerfTests:
    """Copy the shared folder, so that a test can change it."""
    shutil.copytree(perf.folder, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("runtime"))
    (folder / "runtime").mkdir(exist_ok=True)
    return PerfTests(folder, {"XDG_RUNTIME_DIR": str(folder / "runtime")})


def file_of(perf: PerfTests) -> Path:
    (found,) = (perf.folder / "baselines").glob("*.json")
    return found


def read_entries(perf: PerfTests) -> dict[int, dict[str, Any]]:
    """Return the stored entries by number of devices."""
    found = json.loads(file_of(perf).read_text())["entries"]
    return {int(key.partition("gpus=")[2].partition(" ")[0]): entry for key, (entry,) in found.items()}


def list_sessions(perf: PerfTests) -> list[str]:
    """Return the sessions of the calibration, without the first one, which made the baselines."""
    return [str(folder.path) for folder in session_folders(perf.folder / "perf_results")][1:]


def test_noise_is_measured_and_stored(calibration: tuple[PerfTests, Ended]) -> None:
    """Each session makes all runs, and their noise is stored in the entry of the measured case only."""
    perf, ended = calibration
    assert ended.code == 0, ended.out + ended.err
    assert [len(json.loads((Path(path) / "measurements.jsonl").read_text())["runs"]) for path in list_sessions(perf)] == [3, 3]
    one, two = read_entries(perf)[1], read_entries(perf)[2]
    assert one["noise"]["run"] == pytest.approx(DRIFT, rel=0.05)
    assert one["noise"]["session"] == pytest.approx(DRIFT * 3 / 2**0.5, rel=0.1)
    assert (one["noise"]["sessions"], one["noise"]["degrees_of_freedom"]) == (2, 4)
    assert one["samples"][0] == pytest.approx(1000, rel=0.01)
    assert "noise" not in two
    text = file_of(perf).read_text()
    assert text == canonical(json.loads(text))


def test_calibration_prints_sessions_and_result(calibration: tuple[PerfTests, Ended]) -> None:
    """Each session is announced and shown, and the case is one line with runs, noise and the detectable margin."""
    _, ended = calibration
    ended.line("dtfperf: session 2 of 2: pytest perf --gpus=1")
    assert ended.out.count("1 passed") == 2
    ended.line(
        "calibrated: cpu-", "gpus=1", ": 6 runs in 2 sessions; noise of runs 0.10 %, of sessions 0.2", "detectable margin: 1."
    )
    assert ended.out.splitlines()[-1] == "dtfperf: 2 sessions: noise of 1 baseline written to baselines."


def test_from_gives_the_same_file(calibration: tuple[PerfTests, Ended], tmp_path: Path) -> None:
    """--from trains nothing, and writes the same file as the measurement."""
    perf = copy_perf_tests(calibration[0], tmp_path)
    before = file_of(perf).read_bytes()
    plain = json.loads(before)
    for (entry,) in plain["entries"].values():
        entry.pop("noise", None)
    file_of(perf).write_text(canonical(plain))
    ended = dtfperf(perf, "--from", *list_sessions(perf))
    assert ended.code == 0
    assert "pytest" not in ended.out
    assert file_of(perf).read_bytes() == before


def test_json_has_the_noise(calibration: tuple[PerfTests, Ended], tmp_path: Path) -> None:
    """With --json each case has its noise as numbers."""
    perf = copy_perf_tests(calibration[0], tmp_path)
    ended = dtfperf(perf, "--json", "--from", *list_sessions(perf))
    data = read("baselines calibrate", ended.out)
    (case,) = data["cases"]
    assert (case["what"], case["runs"], case["sessions"], data["written"]) == ("calibrated", 6, 2, 1)
    assert case["noise_run"] == pytest.approx(read_entries(perf)[1]["noise"]["run"], rel=1e-3)


def test_like_measures_the_trainings_of_a_session(calibration: tuple[PerfTests, Ended], tmp_path: Path) -> None:
    """--like repeats the trainings of a stored session without pytest, and stores their noise."""
    perf = copy_perf_tests(calibration[0], tmp_path)
    known = list_sessions(perf)
    environment = {**make_noisy_environment(perf), "TOY_COUNTER": str(tmp_path / "anew")}
    like = [f"--like={known[0]}", "--clusters-file=perf/clusters.toml"]
    ended = dtfperf(perf, "--sessions=2", "--repeats=3", *like, **environment)
    assert ended.code == 0, ended.out + ended.err
    assert "pytest" not in ended.out
    ended.line(f"dtfperf: session 2 of 2: as {Path(known[0]).name}")
    ended.line(
        "calibrated: cpu-", "gpus=1", ": 6 runs in 2 sessions; noise of runs 0.10 %, of sessions 0.2", "detectable margin: 1."
    )
    new = [Path(path) for path in list_sessions(perf) if path not in known]
    assert [len(json.loads((path / "measurements.jsonl").read_text())["runs"]) for path in new] == [3, 3]
    assert all("pytest" not in json.loads((path / "session.json").read_text())["versions"] for path in new)


def test_case_without_a_baseline_is_not_written(calibration: tuple[PerfTests, Ended], tmp_path: Path) -> None:
    """Noise of a case without a baseline is shown with the remedy, and the exit code is 1 if none was written."""
    perf = copy_perf_tests(calibration[0], tmp_path)
    file_of(perf).unlink()
    ended = dtfperf(perf, "--from", *list_sessions(perf))
    assert ended.code == 1
    ended.line("not written: cpu-", "noise of runs 0.10 %", "it has no baseline yet; accept one (--update-baselines=new)")
    assert ended.out.splitlines()[-1] == "dtfperf: 2 sessions: noise of 0 baselines written to baselines."


def test_failed_session_is_used(calibration: tuple[PerfTests, Ended], tmp_path: Path) -> None:
    """Sessions with failed tests are used for the noise."""
    perf = copy_perf_tests(calibration[0], tmp_path)
    ended = dtfperf(perf, "--sessions=2", "--repeats=3", "perf", "--gpus=1", **make_noisy_environment(perf), TOY_STEP_S="0.02")
    assert ended.code == 0
    assert ended.out.count("FAILED (REGRESSED)") == 2
    ended.line("calibrated: ", "6 runs in 2 sessions")


def test_injected_slowdown_is_refused(calibration: tuple[PerfTests, Ended], tmp_path: Path) -> None:
    """An injected slow-down is refused, also in a stored session."""
    perf = copy_perf_tests(calibration[0], tmp_path)
    ended = dtfperf(perf, "perf", DTFPERF_SLOWDOWN="worker:1=0.1")
    assert (ended.code, ended.out) == (2, "")
    ended.line("DTFPERF_SLOWDOWN is set", "unset it")
    known = list_sessions(perf)
    assert perf.run("--gpus=2", DTFPERF_SLOWDOWN="worker:1=0.1").code == 1
    ended = dtfperf(perf, "--from", *known, *(path for path in list_sessions(perf) if path not in known))
    assert (ended.code, ended.out) == (2, "")
    ended.line("has an injected slow-down of worker:1", "leave this one out")


WRONG: dict[str, tuple[list[str], str]] = {
    "one session": (["--sessions=1", "perf"], "--sessions must be 2 or more, not 1"),
    "one run": (["--repeats=1", "perf"], "--repeats must be 2 or more, not 1"),
    "no session": (["--sessions=0", "perf"], "--sessions must be 2 or more, not 0"),
    "no run": (["--repeats=0", "perf"], "--repeats must be 2 or more, not 0"),
    "own option too late": (["perf", "--sessions=3"], "--sessions=3 is after the tests, where arguments are for pytest"),
    "accepting": (["perf", "--update-baselines=new"], "calibrating accepts no rates; leave it out"),
    "a dry run": (["perf", "--dtfperf-dry-run"], "only real runs show the noise; leave it out"),
    "no baselines": (["--baselines=none", "perf"], "there is no folder of baselines none"),
    "tests and a session": (["--like=x", "perf"], "--like defines what is measured: leave out --from, tests"),
    "clusters for tests": (["--clusters-file=x", "perf"], "--clusters-file is for --like; for tests, put it after them"),
    "both": (["--sessions=3", "--from", "x"], "--from takes sessions as they are"),
    "one stored session": (["--from", "perf_results"], "perf_results is no session folder"),
}


@pytest.mark.parametrize("arguments, words", WRONG.values(), ids=WRONG)
def test_wrong_arguments_are_one_line(
    perf: PerfTests, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    """The only output is the error, and nothing is trained."""
    (perf.folder / "baselines").mkdir()
    monkeypatch.chdir(perf.folder)
    assert words in read_refusal(capfd, "baselines", "calibrate", *arguments)
    assert not (perf.folder / "perf_results").exists()


def test_missing_tests_are_reported(perf: PerfTests) -> None:
    """If pytest finds no test, the last line of stderr has its exit code, and nothing is trained."""
    (perf.folder / "baselines").mkdir()
    ended = dtfperf(perf, "nowhere")
    assert ended.code == 2
    assert "pytest found no test that could be run, or a wrong option (its exit code is 4" in ended.err.splitlines()[-1]
    assert not (perf.folder / "perf_results").exists()


WILD = [[60.0, 140.0, 90.0], [150.0, 65.0, 100.0], [75.0, 120.0, 55.0]]
CALM = [[100.0, 101.0, 99.0], [100.5, 99.5, 101.5], [99.8, 100.2, 100.1]]
RESTLESS = [[100.0, 104.0, 97.0], [95.0, 102.0, 99.0], [106.0, 103.0, 98.0]]


def calibrate_from(folder: Path, rates: list[list[float]], *options: str, more: list[list[float]] | None = None) -> int:
    """Run `calibrate --from` on sessions with these rates of a case with a baseline, and `more` of another."""
    store = BaselineStore(folder / "baselines")
    store.update(SYSTEM, [entry_of([100.0, 101.0, 99.0]), entry_of([100.0, 101.0, 99.0], gpus=4)])
    paths = []
    for number, of_session in enumerate(rates):
        name = f"20260131T02150{number}Z-9f3c1a"
        session = SessionFolder.create(folder, cluster="local", command=[], versions={}, session_id=name)
        session.add("t", measurement_of(of_session))
        if more:
            session.add("t", measurement_of(more[number], gpus=4))
        paths.append(str(session.path))
    return main(["baselines", "calibrate", f"--baselines={store.folder}", *options, "--from", *paths])


def list_calibrated(folder: Path) -> dict[int, bool]:
    """Return, by number of devices, whether the case has noise."""
    entries = BaselineStore(folder / "baselines").entries(SYSTEM)
    return {int(entry.key.partition("gpus=")[2].partition(" ")[0]): entry.noise is not None for entry in entries}


def test_noise_without_a_possible_margin_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A case with too much noise is not written and has a remedy; the others are written."""
    assert calibrate_from(tmp_path, WILD, more=CALM) == 1
    wild, calm, last = capsys.readouterr().out.splitlines()
    assert wild.startswith(f"too noisy: {SYSTEM}: trivial b32 gpus=2 ")
    assert "detectable margin: none; 10 runs could not even detect a loss of 60 %: with that noise all verdicts would" in wild
    assert wild.endswith("or write it with --allow-noisy")
    assert calm.startswith("calibrated: ")
    assert last.startswith("dtfperf: 3 sessions: noise of 1 baseline written to ")
    assert list_calibrated(tmp_path) == {2: False, 4: True}


def test_repeated_session_counts_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A session that is named twice counts once."""
    assert calibrate_from(tmp_path, CALM) == 0
    once = capsys.readouterr().out
    paths = [str(path) for path in sorted(tmp_path.glob("2026*"))]
    assert main(["baselines", "calibrate", f"--baselines={tmp_path / 'baselines'}", "--from", *paths, paths[0]]) == 0
    assert capsys.readouterr().out == once


def test_copied_session_counts_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A copied session counts once, in any order of names, with a message about the copy."""
    assert calibrate_from(tmp_path, CALM) == 0
    once = capsys.readouterr().out.splitlines()
    first, *others = sorted(tmp_path.glob("2026*"))
    copy = tmp_path / "20250101T000000Z-c0c0c0"
    shutil.copytree(first, copy)
    baselines = f"--baselines={tmp_path / 'baselines'}"
    for paths in ([copy, first, *others], [first, *others, copy]):
        assert main(["baselines", "calibrate", baselines, "--from", *map(str, paths)]) == 0
        found = capsys.readouterr()
        assert found.out.splitlines() == [*once[:-1], once[-1].replace("3 sessions", "3 sessions (1 copied folder left out)")]
        assert found.err == f"dtfperf: {copy} is left out: it is a copy of session {first.name}, as {first} has it\n"
    assert main(["baselines", "calibrate", baselines, "--json", "--from", str(copy), str(first), *map(str, others)]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["sessions"], data["copies"]) == ([path.name for path in (first, *others)], 1)


def test_allow_noisy_writes_the_noise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--allow-noisy writes noise that is otherwise refused."""
    assert calibrate_from(tmp_path, WILD, "--allow-noisy") == 0
    assert "calibrated: " in capsys.readouterr().out
    assert list_calibrated(tmp_path) == {2: True, 4: False}


def test_tight_margin_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Noise that needs a wider margin is written, with the consequence for verdicts."""
    assert calibrate_from(tmp_path, RESTLESS) == 0
    line = capsys.readouterr().out.splitlines()[0]
    assert line.startswith("calibrated: ")
    assert "; its margin is 5.0 %, so that many verdicts will be INCONCLUSIVE: allow " in line


def test_one_session_is_refused(calibration: tuple[PerfTests, Ended]) -> None:
    """A single stored session is refused with the required number."""
    perf = calibration[0]
    ended = dtfperf(perf, "--from", list_sessions(perf)[0])
    assert (ended.code, ended.out) == (2, "")
    ended.line("1 session with measurements: the noise between sessions needs at least 2 of them")


def test_interrupted_session_names_usable_sessions(perf: PerfTests) -> None:
    """An interrupted session ends the calibration with exit code 1, and the message has the option for finished sessions."""
    (perf.folder / "baselines").mkdir()
    perf.write("import pytest\ndef test_it(train):\n    train(model='trivial', gpus=1)\n    pytest.exit('enough')\n")
    ended = dtfperf(perf, "perf")
    assert ended.code == 1
    ended.line("session 1 ended early (pytest's exit code is 2", "use them with --from")
