"""`dtfperf baselines audit` in a folder with perf tests, baselines and sessions."""

import os
import pty
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_dtfperf.baselines.store import BaselineStore
from pytest_dtfperf.records.session import SessionFolder
from tests.baselines.examples import entry_of, measurement_of
from tests.cli.test_slurm import run_dtfperf
from tests.plugin import zygote
from tests.plugin.conftest import LIGHT, PerfTests, perf_tests_in
from tests.records.damage import judge

SYSTEM = "cpu-amd-epyc-9b45-2c"


@pytest.fixture
def perf(tmp_path: Path) -> PerfTests:
    return perf_tests_in(tmp_path)


def make_store(perf: PerfTests, *tests: str, date: str = "2126-01-31T02:15:03Z") -> BaselineStore:
    """Return a store with a baseline of each test, from a date when none of them is old."""
    store = BaselineStore(perf.folder / "baselines")
    rates = [100.0, 100.1, 99.9, 100.2, 99.8]
    for gpus, test in enumerate(tests, start=1):
        entry = entry_of(rates, gpus=gpus, date=date)
        store.update(SYSTEM, [replace(entry, provenance=replace(entry.provenance, test=test))])
    return store


def test_audit_without_findings_has_exit_code_0(perf: PerfTests) -> None:
    """Without findings the exit code is 0, with a line of the checked and the unknown things."""
    make_store(perf, "perf/test_perf.py::test_throughput[gpus64-ps8-parameter_server]")
    code, out, err = run_dtfperf(perf.folder, "baselines", "audit", "perf")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "note: perf_results has no sessions, so cases without a baseline and beaten baselines are not known (--results)",
        "dtfperf: 1 baseline of 1 system, 2 tests, 0 sessions: no problem was found.",
    ]


def test_findings_are_lines_and_exit_code_1(perf: PerfTests) -> None:
    """Each finding is a line with kind, system, case and reason, and the exit code is 1."""
    make_store(perf, "perf/test_perf.py::test_throughput", "perf/test_gone.py::test_it", date="2026-01-01T00:00:00Z")
    code, out, _ = run_dtfperf(perf.folder, "baselines", "audit", "perf", "--max-age=1")
    lines = out.splitlines()
    assert code == 1
    assert lines[0].startswith(
        f"no test: {SYSTEM}: trivial b32 gpus=2 num_ps=1 parameter_server: perf/test_gone.py::test_it is not among the tests"
    )
    assert [line.partition(":")[0] for line in lines] == ["no test", "old", "old", "note", "dtfperf"]
    assert lines[-1].endswith("3 findings.")


def test_findings_on_a_terminal_are_a_table(perf: PerfTests) -> None:
    """On a terminal the findings are a table of the terminal's width, without truncated text."""
    make_store(perf, "perf/test_gone.py::test_it")
    controller, terminal = pty.openpty()
    argv = ["-m", zygote.COMMANDS, "baselines", "audit", "perf"]
    with zygote.start(argv, perf.folder, perf.environ({**LIGHT, "COLUMNS": "90"}), stdout=terminal, starts_forks=True):
        pass
    os.close(terminal)
    lines = os.read(controller, 1 << 16).decode().splitlines()
    os.close(controller)
    assert max(map(len, lines[1:6])) == 90
    assert all(word in " ".join(lines) for word in ("problem", "no test", SYSTEM, "test_gone.py::test_it", "1 finding."))


def test_baseline_of_a_deselected_test_has_a_test(perf: PerfTests) -> None:
    """A baseline of a test for more devices than available is no finding."""
    perf.write(
        "import pytest\n\n"
        "@pytest.mark.dtfperf(min_gpus=64)\n"
        "def test_large(train, baseline, gpus):\n"
        '    baseline.check(train(model="trivial", gpus=gpus))\n'
    )
    make_store(perf, "perf/test_perf.py::test_large[gpus64]")
    assert run_dtfperf(perf.folder, "baselines", "audit", "perf")[0] == 0


def test_measured_case_without_a_baseline_is_found(perf: PerfTests) -> None:
    """A case that a session measured without a baseline is found until it is accepted."""
    assert perf.run("--gpus=1").code == 0
    (perf.folder / "baselines").mkdir()
    code, out, _ = run_dtfperf(perf.folder, "baselines", "audit", "perf")
    assert code == 1
    assert "no baseline: cpu-" in out
    assert "trivial b10 gpus=1 num_ps=1 parameter_server: session " in out
    assert "1 session: 1 finding." in out
    assert perf.run("--gpus=1", "--update-baselines").code == 0
    code, out, _ = run_dtfperf(perf.folder, "baselines", "audit", "perf")
    assert (code, out) == (0, "dtfperf: 1 baseline of 1 system, 2 tests, 2 sessions: no problem was found.\n")


def test_copied_session_counts_once(perf: PerfTests) -> None:
    """A copied session counts once for an exceeded baseline, and a note names the copy."""
    results = perf.folder / "perf_results"
    store = make_store(perf, "perf/test_perf.py::test_throughput", date="2026-01-30T00:00:00Z")
    session = SessionFolder.create(results, cluster="local", command=[], versions={}, session_id="21260131T021503Z-9f3c1a")
    judge(session, "baseline", session.add("t", measurement_of([120.0, 120.1, 119.9], gpus=1)), entry=store.entries(SYSTEM)[0])
    copy = results / "21260201T021503Z-c0c0c0"
    shutil.copytree(session.path, copy)
    code, out, _ = run_dtfperf(perf.folder, "baselines", "audit", "perf", "--beaten=2", "--max-age=99999")
    note = f"perf_results/{copy.name} is left out: it is a copy of session {session.id}, as "
    lines = out.splitlines()
    assert lines[0].startswith("note: ")
    assert note in lines[0]
    assert (code, lines[1:]) == (0, ["dtfperf: 1 baseline of 1 system, 2 tests, 1 session: no problem was found."])


def test_damaged_session_is_left_out_with_a_note(perf: PerfTests) -> None:
    """A session that cannot be read is left out with a note."""
    make_store(perf, "perf/test_perf.py::test_throughput")
    session = perf.folder / "perf_results" / "20260131T021503Z-9f3c1a"
    session.mkdir(parents=True)
    (session / "session.json").write_text("{}")
    (session / "measurements.jsonl").write_text("{}\n")
    code, out, _ = run_dtfperf(perf.folder, "baselines", "audit", "perf")
    assert code == 0
    assert "note: left out: " in out
    assert "measurements.jsonl:1: is no measurement: the key 'schema' is missing" in out


WRONG: dict[str, tuple[list[str], str]] = {
    "no command": ([], "the following arguments are required: COMMAND"),
    "no tests": (["audit"], "there are no tests at perf_tests; name files or folders of perf tests"),
    "no baselines": (["audit", "perf", "--baselines=none"], "there is no folder of baselines none; name one with --baselines"),
    "no time at all": (["audit", "perf", "--max-age=0"], "--max-age must be 1 or more, not 0"),
    "no sessions in a row": (["audit", "perf", "--beaten=0"], "--beaten must be 1 or more, not 0"),
    "no number": (["audit", "perf", "--beaten=often"], "invalid int value: 'often'"),
}


@pytest.mark.parametrize("arguments, words", WRONG.values(), ids=WRONG)
def test_wrong_arguments_are_exit_code_2(perf: PerfTests, arguments: list[str], words: str) -> None:
    """Wrong arguments have exit code 2, and the last line of stderr is the error."""
    make_store(perf, "perf/test_perf.py::test_throughput")
    code, out, err = run_dtfperf(perf.folder, "baselines", *arguments)
    assert (code, out) == (2, "")
    assert words in err.splitlines()[-1]


def test_damaged_file_of_baselines_is_one_line(perf: PerfTests) -> None:
    """A damaged file of baselines is one line with exit code 2."""
    path = perf.folder / "baselines" / f"{SYSTEM}.json"
    path.parent.mkdir()
    path.write_text('{"schema": 1, "system":')
    code, out, err = run_dtfperf(perf.folder, "baselines", "audit", "perf")
    assert (code, out) == (2, "")
    assert err.startswith(f"dtfperf: baselines/{SYSTEM}.json: no valid JSON: ")
    assert len(err.splitlines()) == 1


def test_collection_error_is_shown(perf: PerfTests) -> None:
    """A collection error of pytest is shown with exit code 2, and no baseline is reported."""
    perf.write("import nonsense_that_is_not_there\n")
    make_store(perf, "perf/test_perf.py::test_throughput")
    code, out, err = run_dtfperf(perf.folder, "baselines", "audit", "perf")
    assert (code, out) == (2, "")
    assert "pytest cannot collect perf (exit code 2):" in err
    assert "nonsense_that_is_not_there" in err


def test_help_names_all_findings(tmp_path: Path) -> None:
    """The help names every finding and the exit codes."""
    from pytest_dtfperf.baselines import audit

    code, out, _ = run_dtfperf(tmp_path, "baselines", "audit", "--help")
    assert code == 0
    for words in (audit.MISSING, audit.UNOWNED, audit.BEATEN, audit.TIGHT, audit.OLD, "Exit codes: 0", "--max-age DAYS"):
        assert words in out


def test_help_of_baselines_names_its_commands(tmp_path: Path) -> None:
    """The help of `dtfperf baselines` names its commands."""
    out = run_dtfperf(tmp_path, "baselines", "--help")[1]
    assert {"audit", "calibrate", "remove", "uncalibrate"} <= set(out.split())
