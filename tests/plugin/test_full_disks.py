"""Tests of disks that are full, read-only or out of inodes: real small ones in a mount namespace of the tested pytest."""

import json
import os
from pathlib import Path

import pytest

from pytest_dtfperf.records.session import SessionFolder
from tests.plugin.conftest import Ended, PerfTests

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a disk")


def fill(folder: str) -> None:
    """Until there is no room."""
    try:
        with open(folder + "/filling", "wb") as file:
            while True:
                file.write(b"x" * 65536)
    except OSError:
        pass


FILLING = """
import os
from tests.plugin.test_full_disks import fill

def test_before(train, baseline):
    baseline.check(train(model="trivial"))

def test_meanwhile(train, baseline):
    measurement = train(model="trivial", batch_size=20)
    fill(os.environ["DISK"])
    baseline.check(measurement)

def test_after(train, baseline):
    baseline.check(train(model="trivial", batch_size=30))
"""


@pytest.fixture
def disk(perf: PerfTests) -> Path:
    """Where a disk will be, for pytest alone."""
    folder = perf.folder / "disk"
    folder.mkdir()
    perf.environment["DISK"] = str(folder)
    return folder


# What a fork does that sees the disk, as its workers do then, which are forks, too.
ON_DISK = """
import ctypes, runpy, subprocess, sys

mount, disk, keep, *sys.argv = sys.argv[1:]
assert ctypes.CDLL(None).unshare(0x00020000) == 0  # CLONE_NEWNS
subprocess.run(["mount", "--make-rprivate", "/"], check=True)
subprocess.run(["mount", "-t", "tmpfs", "-o", mount, "none", disk], check=True)
try:
    runpy.run_module("pytest", run_name="__main__", alter_sys=True)
finally:
    if keep:
        subprocess.run(["cp", "-r", disk, keep], check=True)
"""


def run_on(disk: Path, perf: PerfTests, mount: str, *arguments: str, keep: Path | None = None) -> Ended:
    """`pytest perf --gpus=1 ARGUMENTS`, on a disk that is mounted so; what is on it in the end is copied to `keep`."""
    command = perf.command("perf", "--gpus=1", *arguments)
    return perf.run_python("-c", ON_DISK, mount, str(disk), str(keep or ""), *command[2:])


# How the disk is mounted, what is said to pytest, and what pytest says.
BEFORE = {
    "full results": ("size=64k", ["--perf-results={}"], {}, "results cannot be written to {}: 64 KiB are free there"),
    "results without inodes": ("nr_inodes=2", ["--perf-results={}/x"], {}, "results cannot be written to {}/x: the file"),
    "read-only results": ("ro", ["--perf-results={}/x", "-n2"], {}, "results cannot be written to {}/x: Read-only file sys"),
    "read-only baselines": ("ro", ["--baselines={}/b", "--update-baselines"], {}, "baselines cannot be written to {}/b: "),
    "runtime without inodes": ("nr_inodes=1", [], {"XDG_RUNTIME_DIR": "{}"}, "runtime files cannot be written to {}: No space"),
    "full temporary folder": ("size=8k", [], {"TMPDIR": "{}"}, "temporary files cannot be written to {}: 8 KiB are free there"),
}  # fmt: skip


@pytest.mark.parametrize("case", BEFORE)
def test_session_without_room_is_refused_at_the_start(perf: PerfTests, disk: Path, case: str) -> None:
    """Where there is no room for the files of a session, the only line is an error with the folder and the reason, and nothing
    is measured."""
    mount, arguments, environment, words = BEFORE[case]
    perf.environment |= {name: value.format(disk) for name, value in environment.items()}
    ended = run_on(disk, perf, mount, *(word.format(disk) for word in arguments))
    assert ended.code == 4
    assert [line for line in ended.err.splitlines() if line] == [ended.line("ERROR: ", words.format(disk))]
    assert not (perf.folder / "perf_results").exists()


def test_results_folder_that_is_a_file_is_refused(perf: PerfTests) -> None:
    """A file in the place of the results folder is named."""
    (perf.folder / "results").write_text("")
    ended = perf.run("--perf-results=results/mine")
    assert ended.code == 4
    ended.line("ERROR: results cannot be written to results/mine: ", "results is no folder")


def test_collection_and_dry_run_work_on_a_full_disk(perf: PerfTests, disk: Path) -> None:
    """Collection and a dry run end with exit code 0 on a full disk."""
    for option in ("--co", "--dry-run"):
        assert run_on(disk, perf, "size=8k", f"--perf-results={disk}", option).code == 0


@pytest.mark.parametrize("how", [[], ["-n1"]], ids=["alone", "xdist"])
def test_measurements_stay_when_the_disk_fills_up(perf: PerfTests, disk: Path, tmp_path: Path, how: list[str]) -> None:
    """When the results' disk fills up, no further test trains, measurements before are judged, shown and readable, and one line
    has the reason."""
    perf.write(FILLING)
    ended = run_on(disk, perf, "size=18m", f"--perf-results={disk}/results", *how, keep=tmp_path / "kept")
    assert ended.code != 0
    ended.line("trivial b10 gpus=1", "NO_BASELINE")
    ended.line("trivial b20 gpus=1", "NO_BASELINE")
    assert "trivial b30" not in ended.out
    assert "2 undecided" in ended.out
    (line,) = (line for line in ended.out.splitlines() if line.startswith("results cannot be written to "))
    assert "No space left on device (measurements.jsonl" in line
    assert "Traceback" not in ended.out + ended.err
    (lines,) = (tmp_path / "kept" / "results").glob("*/measurements.jsonl")
    kept = SessionFolder.open(lines.parent).measurements()
    assert [record.spec.batch_size for record in kept] == [10, 20]


EXPORTS = """
import os
from pytest_dtfperf.report.session_exports import Export
from tests.plugin.test_full_disks import fill

BY_FOLDER = Export(("polite.txt",), "exporting:polite")
BY_ITSELF = Export(("rough.txt",), "exporting:rough")

def polite(folder, results):
    fill(os.environ["DISK"])
    return ["Listed: polite.txt"] if folder.write("polite.txt", b"x" * 100_000) else []

def rough(folder, results):
    fill(os.environ["DISK"])
    (folder.path / "rough.txt").write_bytes(b"x" * 100_000)
    return ["Listed: rough.txt"]
"""


def test_exports_of_another_package_fail_on_a_full_disk(perf: PerfTests, disk: Path) -> None:
    """Each export that fails on a full disk is one line with the reason, and its file is missing, but all other files are
    there."""
    info = perf.folder / "exporting-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: exporting\nVersion: 1.0\n")
    rows = "polite = exporting:BY_FOLDER\nrough = exporting:BY_ITSELF\n"
    (info / "entry_points.txt").write_text(f"[pytest_dtfperf.exports]\n{rows}")
    (perf.folder / "exporting.py").write_text(EXPORTS)
    perf.environment["PYTHONPATH"] = os.pathsep.join([str(perf.folder), perf.environ()["PYTHONPATH"]])
    kept = perf.folder / "kept"
    ended = run_on(disk, perf, "size=18m", f"--perf-results={disk}/results", keep=kept)
    assert ended.code == pytest.ExitCode.INTERNAL_ERROR
    ended.line("No space left on device (polite.txt")
    ended.line("export rough of exporting 1.0 failed: OSError: [Errno 28] No space left on device")
    ended.line("trivial b10 gpus=1", "NO_BASELINE")
    assert "Traceback" not in ended.out + ended.err
    assert "Listed" not in ended.out
    (session,) = (path.parent for path in (kept / "results").glob("*/session.json"))
    assert json.loads((session / "session.json").read_text())["exit_code"] == 0
    assert len((session / "measurements.jsonl").read_text().splitlines()) == 1
    assert (session / "report.html").exists()
    assert not (session / "polite.txt").exists()


VANISHING = """
import os, subprocess

def test_before(train, baseline):
    baseline.check(train(model="trivial"))

def test_last(train, baseline):
    measurement = train(model="trivial", batch_size=20)
    subprocess.run(os.environ["THEN"], shell=True, check=True)
    baseline.check(measurement)
"""


@pytest.mark.parametrize("then", ["mount -o remount,ro $DISK", "mount -t tmpfs none $DISK"], ids=["read-only", "another disk"])
def test_table_is_shown_when_the_disk_is_lost(perf: PerfTests, disk: Path, then: str) -> None:
    """If the results' disk becomes read-only or empty, the table still has all measurements, and there is no traceback."""
    perf.write(VANISHING)
    perf.environment["THEN"] = then
    ended = run_on(disk, perf, "size=18m", f"--perf-results={disk}/results")
    assert ended.code != 0
    ended.line("trivial b10 gpus=1")
    ended.line("trivial b20 gpus=1")
    assert "Traceback" not in ended.out + ended.err
    assert "INTERNALERROR" not in ended.out + ended.err
