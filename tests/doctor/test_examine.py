"""Tests of the whole examination of hosts that are this machine, with hosts that work, end or become silent."""

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.clusters.named import ClusterConfig, Limits
from pytest_dtfperf.doctor import examination
from pytest_dtfperf.doctor.allocation import compute_resources
from pytest_dtfperf.doctor.diagnosis import Diagnosis
from pytest_dtfperf.doctor.examination import examine, read_expectations
from pytest_dtfperf.doctor.findings import ExpectedHardware, list_findings
from pytest_dtfperf.errors import AllocationError, UsageError
from pytest_dtfperf.node import processes
from pytest_dtfperf.testing.backends import PATIENCE_S, wait_until
from tests.doctor.interpreters import SHORT_S, make_interpreter
from tests.fixed_ports import fixed_ports_held

REPOSITORY = Path(__file__).parents[2]
LIMITS = Limits(hello_s=PATIENCE_S, silence_s=PATIENCE_S)


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the test its own home and locks, this package for interpreters without it, and short streams."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setattr(examination, "STREAM_S", SHORT_S)


def make_config(python: Path, hosts: int = 2, **keys: Any) -> ClusterConfig:
    usual: dict[str, Any] = {"devices_per_host": 1, "device": "cpu", "limits": LIMITS, "heartbeat_timeout_s": PATIENCE_S}
    return ClusterConfig(name="twins", backend_keys={"hosts": hosts}, python=str(python), **{**usual, **keys})


def ignore_status(words: str) -> None:
    """Ignore a status line."""


def find_checkup(host: int) -> int | None:
    """Return the process id of the checkup on a host, of those that this process has started."""
    for process in processes.list_descendants(os.getpid()):
        with suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{process.pid}/environ", "rb") as file:
            if b"DTFPERF_HOST_INDEX=%d" % host in file.read().split(b"\0"):  # without an error: it has not ended yet
                return process.pid
    return None


def run_once_at(word: str, then: Callable[[], object]) -> Callable[[str], None]:
    """Return a callback for status lines that runs `then` once, at the first line with the word."""
    done: list[object] = []

    def on_status(words: str) -> None:
        if word in words and not done:
            done.append(then())

    return on_status


def list_problems(seen: Diagnosis, wanted: ExpectedHardware) -> list[str]:
    return [str(finding) for finding in list_findings(seen, wanted) if finding.wrong]


def test_healthy_hosts_are_examined_completely(tmp_path: Path) -> None:
    """Each host has all answers and each ordered pair is measured; there is no problem, no file and no process is left."""
    config = make_config(make_interpreter(tmp_path / "venv", "2.99.0"))
    seen = examine(config, None, ignore_status)
    assert list_problems(seen, read_expectations(config)) == []
    assert len(seen.hosts) == 2
    for host in seen.hosts:
        assert host.facts
        assert host.trial
        assert host.offset
        assert (host.missing, host.troubles, host.taken) == (None, (), ())
        assert (host.facts.tensorflow, host.trial.version, host.trial.gpus) == ("2.99.0", "2.99.0", 0)
        assert abs(host.offset.s) <= host.offset.uncertainty_s + 1e-5  # both clocks are this machine's
        assert host.sees == frozenset({0, 1})
        assert len(host.ports) == 2
    assert [(each.source, each.target, each.error) for each in seen.reached] == [(0, 1, None)] * 2 + [(1, 0, None)] * 2
    assert [(link.source, link.target) for link in seen.links] == [(0, 1), (1, 0)]
    assert not seen.ring
    assert all(link.bits_per_s and link.round_trip_s and link.counted_s >= SHORT_S for link in seen.links)
    assert list((tmp_path / "home").iterdir()) == []
    wait_until("both have left", lambda: find_checkup(0) is None and find_checkup(1) is None)


def test_single_host_has_no_links(tmp_path: Path) -> None:
    """A single host has no ports and links to check, and all other checks run."""
    config = make_config(make_interpreter(tmp_path / "venv"), hosts=1)
    seen = examine(config, None, ignore_status)
    assert list_problems(seen, read_expectations(config)) == []
    assert (seen.reached, seen.links) == ([], [])
    assert seen.hosts[0].trial


def test_number_of_devices_selects_hosts(tmp_path: Path) -> None:
    """Only the hosts that the number of devices requires are examined."""
    assert len(examine(make_config(make_interpreter(tmp_path / "venv"), hosts=2), 1, ignore_status).hosts) == 1


@pytest.mark.parametrize("at", ["comparing clocks", "importing TensorFlow", "round 2"])
def test_killed_host_is_lost_alone(tmp_path: Path, at: str) -> None:
    """A host with a killed process has the signal as its reason, at several moments, and the other host has its answers."""
    config = make_config(make_interpreter(tmp_path / "venv"))

    def kill() -> None:
        pid = find_checkup(1)
        assert pid
        os.kill(pid, signal.SIGKILL)

    seen = examine(config, None, run_once_at(at, kill))
    assert seen.hosts[1].missing == "its process was killed by SIGKILL"
    assert seen.hosts[0].missing is None
    assert seen.hosts[0].trial
    (output,) = list_problems(seen, read_expectations(config))
    assert "its process was killed by SIGKILL" in output


def test_silent_host_is_lost_alone(tmp_path: Path) -> None:
    """A stopped host is lost after `silence_s`, the other host has its answers, and no process is left."""
    config = make_config(make_interpreter(tmp_path / "venv"), limits=Limits(hello_s=PATIENCE_S, silence_s=10.0))

    def stop() -> None:
        pid = find_checkup(1)
        assert pid
        os.kill(pid, signal.SIGSTOP)

    seen = examine(config, None, run_once_at("reading the state", stop))
    assert seen.hosts[1].missing == "silent for 10 s"
    assert seen.hosts[0].trial
    wait_until("the stopped one is gone, too", lambda: find_checkup(1) is None)


def test_lost_hosts_have_their_reasons(tmp_path: Path) -> None:
    """If all hosts are lost, each has the reason."""
    config = make_config(make_interpreter(tmp_path / "venv"))

    def kill() -> None:
        for pid in (find_checkup(0), find_checkup(1)):
            assert pid
            os.kill(pid, signal.SIGKILL)

    seen = examine(config, None, run_once_at("comparing the files", kill))
    assert [host.missing for host in seen.hosts] == ["its process was killed by SIGKILL"] * 2


def test_python_without_the_package_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts with a Python that cannot import the checkup are lost, with its last output."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    seen = examine(make_config(make_interpreter(tmp_path / "venv")), None, ignore_status)
    assert [host.missing for host in seen.hosts] == ["its process left with exit code 1"] * 2
    assert "No module named 'pytest_dtfperf'" in seen.hosts[0].last_lines[-1]


def test_missing_tensorflow_is_reported(tmp_path: Path) -> None:
    """Missing TensorFlow is one problem, with the command that installs it."""
    config = make_config(make_interpreter(tmp_path / "venv", None), hosts=1)
    (output,) = list_problems(examine(config, None, ignore_status), read_expectations(config))
    assert output.startswith("TensorFlow is missing on ")
    assert "pip install tensorflow-cpu==" in output


def test_missing_python_is_an_allocation_error(tmp_path: Path) -> None:
    """A Python that does not exist is an error of the allocation."""
    with pytest.raises(AllocationError, match="cannot start /no/such/python"):
        examine(make_config(Path("/no/such/python")), None, ignore_status)


def test_unwritable_folder_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that does not exist is a trouble of the host, and the other checks run."""
    monkeypatch.setenv("HOME", str(tmp_path / "nowhere"))
    seen = examine(make_config(make_interpreter(tmp_path / "venv"), hosts=1), None, ignore_status)
    (trouble,) = seen.hosts[0].troubles
    assert trouble.startswith("cannot write to ~: FileNotFoundError")
    assert seen.hosts[0].trial


def test_fixed_ports_are_tried(tmp_path: Path) -> None:
    """Fixed ports of tasks are the ones that are tried, and one that two hosts on one machine need is reported as taken."""
    with fixed_ports_held():
        seen = examine(make_config(make_interpreter(tmp_path / "venv"), fixed_ports=True), None, ignore_status)
    tried = {port for host in seen.hosts for port in (*host.ports, *host.taken)}
    assert tried == {2220, 2230}
    assert any(host.taken for host in seen.hosts)


def test_cluster_without_a_number_of_hosts_needs_gpus() -> None:
    """A cluster without a number of hosts is refused without --gpus, and accepted with it."""
    config = ClusterConfig(name="alps", backend="slurm", devices_per_host=4)
    with pytest.raises(UsageError, match="has no number of hosts of 'alps': choose it with --gpus=N"):
        compute_resources(config, None, ignore_status)
    assert compute_resources(config, 8, ignore_status).devices == 8


@pytest.mark.parametrize(
    "keys, wanted",
    [
        ({"devices_per_host": 4}, (12, 0)),
        ({"devices_per_host": 4, "ps_on_worker_hosts": False}, (8, 1)),
    ],
)
def test_all_hosts_are_the_default(keys: dict[str, Any], wanted: tuple[int, int]) -> None:
    """Without --gpus all hosts are requested, also those for parameter servers alone."""
    config = ClusterConfig(name="alps", backend="slurm", backend_keys={"nodes": 3}, **keys)
    resources = compute_resources(config, None, ignore_status)
    assert (resources.devices, resources.separate_ps_hosts) == wanted


@pytest.mark.parametrize(
    "config, wanted",
    [
        (ClusterConfig(name="c", device="cpu", devices_per_host=3), ExpectedHardware(shares=3)),
        (ClusterConfig(name="c", backend="slurm", backend_keys={"gpus_per_node": 4}), ExpectedHardware(gpus=4)),
        (
            ClusterConfig(name="c", backend="slurm", backend_keys={"gpus_per_node": 4, "shared": "/scratch"}),
            ExpectedHardware(gpus=4, shared_folder=True),
        ),
    ],
)
def test_expectations_come_from_the_clusters_file(config: ClusterConfig, wanted: ExpectedHardware) -> None:
    """The expected devices, and the expected shared folder, are those of clusters.toml."""
    assert read_expectations(config) == wanted
