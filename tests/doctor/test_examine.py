"""The whole conversation with hosts that are this machine, while everything goes well, and while hosts end or fall silent."""

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
from tests.doctor.interpreters import SHORT_S, interpreter
from tests.fixed_ports import fixed_ports_held

REPOSITORY = Path(__file__).parents[2]
LIMITS = Limits(hello_s=PATIENCE_S, silence_s=PATIENCE_S)


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home and locks of the test's own, this package for interpreters that do not have it, and short streams."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setattr(examination, "STREAM_S", SHORT_S)


def twins(python: Path, hosts: int = 2, **keys: Any) -> ClusterConfig:
    usual: dict[str, Any] = {"devices_per_host": 1, "device": "cpu", "limits": LIMITS, "heartbeat_timeout_s": PATIENCE_S}
    return ClusterConfig(name="twins", backend_keys={"hosts": hosts}, python=str(python), **{**usual, **keys})


def silent(words: str) -> None:
    """Nobody wants to know."""


def checkup_of(host: int) -> int | None:
    """The process on a host, of those that this process has started."""
    for process in processes.list_descendants(os.getpid()):
        with suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{process.pid}/environ", "rb") as file:
            if b"DTFPERF_HOST_INDEX=%d" % host in file.read().split(b"\0"):  # without an error: it has not ended yet
                return process.pid
    return None


def when(word: str, then: Callable[[], object]) -> Callable[[str], None]:
    """Something to `tell`: does it once, when the word is said."""
    done: list[object] = []

    def on_status(words: str) -> None:
        if word in words and not done:
            done.append(then())

    return on_status


def wrong(seen: Diagnosis, wanted: ExpectedHardware) -> list[str]:
    return [str(finding) for finding in list_findings(seen, wanted) if finding.wrong]


def test_two_hosts_that_are_well(tmp_path: Path) -> None:
    """Everything is asked of every host, and every ordered pair is measured; nothing is wrong, and nothing is left."""
    config = twins(interpreter(tmp_path / "venv", "2.99.0"))
    seen = examine(config, None, silent)
    assert wrong(seen, read_expectations(config)) == []
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
    assert all(link.bits_per_s and link.round_trip_s and link.counted_s >= seen.stream_s for link in seen.links)
    assert list((tmp_path / "home").iterdir()) == []
    wait_until("both have left", lambda: checkup_of(0) is None and checkup_of(1) is None)


def test_one_host_alone(tmp_path: Path) -> None:
    """One host has no peer to talk to, and all other checks run."""
    config = twins(interpreter(tmp_path / "venv"), hosts=1)
    seen = examine(config, None, silent)
    assert wrong(seen, read_expectations(config)) == []
    assert (seen.reached, seen.links) == ([], [])
    assert seen.hosts[0].trial


def test_as_many_hosts_as_devices_need(tmp_path: Path) -> None:
    """--gpus is the number of devices for which hosts are allocated."""
    assert len(examine(twins(interpreter(tmp_path / "venv"), hosts=3), 2, silent).hosts) == 2


@pytest.mark.parametrize("at", ["comparing clocks", "importing TensorFlow", "round 2"])
def test_a_host_that_ends_is_lost_and_the_other_goes_on(tmp_path: Path, at: str) -> None:
    """Whenever a host's process is killed, its row has the signal, and the other host answers everything."""
    config = twins(interpreter(tmp_path / "venv"))

    def kill() -> None:
        pid = checkup_of(1)
        assert pid
        os.kill(pid, signal.SIGKILL)

    seen = examine(config, None, when(at, kill))
    assert seen.hosts[1].missing == "its process was killed by SIGKILL"
    assert seen.hosts[0].missing is None
    assert seen.hosts[0].trial
    (output,) = wrong(seen, read_expectations(config))
    assert "its process was killed by SIGKILL" in output


def test_a_host_that_falls_silent_is_set_aside(tmp_path: Path) -> None:
    """A host that is stopped is not waited for longer than `silence_s`; the other answers everything."""
    config = twins(interpreter(tmp_path / "venv"), limits=Limits(hello_s=PATIENCE_S, silence_s=10.0))

    def stop() -> None:
        pid = checkup_of(1)
        assert pid
        os.kill(pid, signal.SIGSTOP)

    seen = examine(config, None, when("reading the state", stop))
    assert seen.hosts[1].missing == "silent for 10 s"
    assert seen.hosts[0].trial
    wait_until("the stopped one is gone, too", lambda: checkup_of(1) is None)


def test_all_hosts_lost(tmp_path: Path) -> None:
    """When no host is left, every row has the reason."""
    config = twins(interpreter(tmp_path / "venv"))

    def kill() -> None:
        for pid in (checkup_of(0), checkup_of(1)):
            assert pid
            os.kill(pid, signal.SIGKILL)

    seen = examine(config, None, when("comparing the files", kill))
    assert [host.missing for host in seen.hosts] == ["its process was killed by SIGKILL"] * 2


def test_python_that_has_no_checkup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts with a Python that cannot run the program are rows with its last output."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    seen = examine(twins(interpreter(tmp_path / "venv")), None, silent)
    assert [host.missing for host in seen.hosts] == ["its process left with exit code 1"] * 2
    assert "No module named 'pytest_dtfperf'" in seen.hosts[0].last_lines[-1]


def test_no_tensorflow(tmp_path: Path) -> None:
    """Hosts without TensorFlow are named, with how to get it."""
    config = twins(interpreter(tmp_path / "venv", None))
    (output,) = wrong(examine(config, None, silent), read_expectations(config))
    assert output.startswith("TensorFlow is missing on ")
    assert "pip install tensorflow-cpu==" in output


def test_program_that_is_not_there(tmp_path: Path) -> None:
    """A Python that cannot be started is the error that a test would have."""
    with pytest.raises(AllocationError, match="cannot start /no/such/python"):
        examine(twins(Path("/no/such/python")), None, silent)


def test_a_folder_that_nobody_can_write_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that fails is reported as a problem, and everything else goes on."""
    monkeypatch.setenv("HOME", str(tmp_path / "nowhere"))
    seen = examine(twins(interpreter(tmp_path / "venv"), hosts=1), None, silent)
    (trouble,) = seen.hosts[0].troubles
    assert trouble.startswith("cannot write to ~: FileNotFoundError")
    assert seen.hosts[0].trial


def test_fixed_ports_are_the_ones_that_are_tried(tmp_path: Path) -> None:
    """Where tasks have fixed ports, those are tried; that two hosts on one machine cannot both have them is reported."""
    with fixed_ports_held():
        seen = examine(twins(interpreter(tmp_path / "venv"), fixed_ports=True), None, silent)
    tried = {port for host in seen.hosts for port in (*host.ports, *host.taken)}
    assert tried == {2220, 2230}
    assert any(host.taken for host in seen.hosts)


def test_nobody_says_how_many_hosts() -> None:
    """A cluster without a number of hosts needs --gpus."""
    config = ClusterConfig(name="alps", backend="slurm", devices_per_host=4)
    with pytest.raises(UsageError, match="has no number of hosts of 'alps': choose it with --gpus=N"):
        compute_resources(config, None, silent)
    assert compute_resources(config, 8, silent).devices == 8


@pytest.mark.parametrize(
    "keys, wanted",
    [
        ({"devices_per_host": 4}, (12, 0)),
        ({"devices_per_host": 4, "ps_on_worker_hosts": False}, (8, 1)),
    ],
)
def test_by_default_all_hosts(keys: dict[str, Any], wanted: tuple[int, int]) -> None:
    """Without --gpus all hosts are asked for, those for parameter servers alone among them."""
    config = ClusterConfig(name="alps", backend="slurm", backend_keys={"nodes": 3}, **keys)
    resources = compute_resources(config, None, silent)
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
def test_what_the_file_says_is_expected(config: ClusterConfig, wanted: ExpectedHardware) -> None:
    """Devices, and the folder that all hosts see, are compared with clusters.toml."""
    assert read_expectations(config) == wanted
