"""`dtfperf doctor` on this machine as two hosts."""

import os
import pty
import subprocess
from pathlib import Path

import pytest

from tests.cli.table import read, read_refusal
from tests.doctor.interpreters import SHORT_S, make_interpreter
from tests.plugin import zygote

REPOSITORY = Path(__file__).parents[2]
PATIENCE_S = 180.0
SHORT_STREAMS = f"""
import sys
from pytest_dtfperf.cli import main
from pytest_dtfperf.doctor import examination
examination.STREAM_S = {SHORT_S}
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set a home and locks of the test's own, and this package for interpreters without it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))


def write_cluster(folder: Path, python: Path, *lines: str) -> None:
    usual = ["[twins]", 'backend = "local"', "hosts = 2", "devices_per_host = 1", 'device = "cpu"', f'python = "{python}"']
    (folder / "clusters.toml").write_text("\n".join([*usual, *lines, ""]))


def run_doctor(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return zygote.python("-c", SHORT_STREAMS, "doctor", *arguments, cwd=folder, **environment)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """Check two hosts without problems, of which one is given by a name that the cluster does not use."""
    folder = tmp_path_factory.mktemp("healthy")
    write_cluster(folder, make_interpreter(folder / "venv", "2.99.0"))
    variables = {"HOME": str(folder), "XDG_RUNTIME_DIR": str(folder), "PYTHONPATH": str(REPOSITORY)}
    return run_doctor(folder, "--cluster=twins", "--hosts=twins-1", **variables)


def test_healthy_hosts_are_exit_code_0(healthy: subprocess.CompletedProcess[str]) -> None:
    """Hosts without problems are exit code 0, a table with a row per host, and a last line without findings."""
    assert healthy.returncode == 0, healthy.stdout + healthy.stderr
    heading, _, first, second, *rest = healthy.stdout.splitlines()
    for column in ("host", "reachable", "python", "TensorFlow", "devices", "clock offset", "ports", "round trip", "files"):
        assert column in heading
    for row in (first, second):
        assert "yes" in row
        assert "2.99.0" in row
        assert "shared by all" in row
    assert rest[-1].startswith("cluster twins: 2 hosts, nothing is wrong")
    assert "dtfperf: importing TensorFlow on every host" in healthy.stderr
    assert "\x1b" not in healthy.stdout + healthy.stderr


def test_json_has_the_numbers_of_the_table(tmp_path: Path) -> None:
    """With --json each host has its values as numbers, and its findings."""
    write_cluster(tmp_path, make_interpreter(tmp_path / "venv", "2.99.0"))
    ended = run_doctor(tmp_path, "--cluster=twins", "--json")
    assert ended.returncode == 0, ended.stderr
    data = read("doctor", ended.stdout)
    assert [host["tensorflow"] for host in data["hosts"]] == ["2.99.0"] * 2
    for host in data["hosts"]:
        assert host["missing"] is None
        assert host["files"] == 2
        assert host["ports_reached"] == host["ports_tried"] > 0
        assert host["round_trip_s"] > 0
    assert not any(finding["wrong"] for finding in data["findings"])


def test_problem_is_exit_code_1(tmp_path: Path) -> None:
    """Findings are below the table with remedies, and the exit code is 1."""
    write_cluster(tmp_path, make_interpreter(tmp_path / "venv", None))
    ended = run_doctor(tmp_path, "--cluster=twins", "--gpus=1")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "wrong: TensorFlow is missing on " in ended.stdout
    assert "pip install tensorflow-cpu==" in ended.stdout
    assert ended.stdout.splitlines()[-1].startswith("cluster twins: 1 host, 1 thing is wrong")


def test_no_hosts_is_exit_code_1(tmp_path: Path) -> None:
    """Without allocated hosts there is no table, only the reason, and exit code 1."""
    write_cluster(tmp_path, tmp_path / "python-that-is-not-there")
    ended = run_doctor(tmp_path, "--cluster=twins")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.splitlines()[-1].startswith("dtfperf: cannot start ")


@pytest.mark.parametrize(
    "arguments, words",
    [
        ([], "--cluster"),
        (["--cluster=daint"], "unknown cluster 'daint'"),
        (["--cluster=twins", "--gpus=0"], "--gpus must be 1 or more, not 0"),
        (["--cluster=twins", "--gpus=two"], "--gpus: invalid int value: 'two'"),
        (["--cluster=twins", "--clusters-file=none.toml"], "there is no cluster file none.toml"),
    ],
)
def test_wrong_arguments_are_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    """Wrong arguments are exit code 2 and one line on stderr."""
    write_cluster(tmp_path, tmp_path / "python")
    monkeypatch.chdir(tmp_path)
    assert words in read_refusal(capfd, "doctor", *arguments)


def test_too_many_devices_are_refused(tmp_path: Path) -> None:
    """More devices than the cluster has are refused with the numbers."""
    write_cluster(tmp_path, tmp_path / "python")
    ended = run_doctor(tmp_path, "--cluster=twins", "--gpus=3")
    assert ended.returncode == 1
    assert "has 2 hosts of 1 device, but 3 devices need 3 hosts" in ended.stderr


def test_help_has_checks_and_exit_codes(tmp_path: Path) -> None:
    """The help describes the checks and the exit codes."""
    ended = run_doctor(tmp_path, "--help")
    assert ended.returncode == 0
    for words in ("and release them", "TensorFlow (which is imported)", "Exit codes: 0 no problems", "--gpus N"):
        assert words.replace("\n", " ") in ended.stdout.replace("\n", " ")


def test_terminal_has_progress_and_colours(tmp_path: Path) -> None:
    """On a terminal the progress is one line that is erased, and the table has colours."""
    write_cluster(tmp_path, make_interpreter(tmp_path / "venv", "2.99.0"))
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        zygote.make_command("doctor", "--cluster=twins", "--gpus=1"),
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env={name: value for name, value in os.environ.items() if name != "NO_COLOR"},
    )
    os.close(theirs)
    output = b""
    try:
        while data := os.read(ours, 1 << 16):
            output += data
    except OSError:  # the terminal's other side has been closed
        pass
    finally:
        process.wait(PATIENCE_S)
        os.close(ours)
    assert process.returncode == 0, output.decode()
    assert b"\r\x1b[Kdtfperf: importing TensorFlow" in output
    assert b"\x1b[32myes" in output


def test_hosts_without_names_are_all_checked(healthy: subprocess.CompletedProcess[str], tmp_path: Path) -> None:
    """If hosts cannot be allocated by name, all are checked, with a message; --gpus and --hosts exclude each other."""
    assert "dtfperf: twins does not allocate hosts by name: checking all" in healthy.stderr
    assert "cluster twins: 2 hosts, nothing is wrong" in healthy.stdout
    write_cluster(tmp_path, tmp_path / "python")
    ended = run_doctor(tmp_path, "--cluster=twins", "--hosts=twins-1", "--gpus=1")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "--gpus and --hosts both choose hosts" in ended.stderr
