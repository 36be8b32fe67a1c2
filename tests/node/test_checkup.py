"""One host's part of the doctor, as a process in the hand of a test."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.node import checkup, probes, processes, wire
from pytest_dtfperf.testing.backends import PATIENCE_S, wait_until
from tests.doctor.interpreters import make_interpreter

REPOSITORY = Path(__file__).parents[2]


class Handheld:
    """A checkup with its lines connected to the test."""

    def __init__(self, *options: str, python: Path | str = sys.executable, **env: str) -> None:
        self.process = subprocess.Popen(
            [str(python), "-m", "pytest_dtfperf.node.checkup", *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=REPOSITORY,
            env={**os.environ, "DTFPERF_HOST_INDEX": "0", **env},
        )
        self.heard: list[str] = []  # the names of all events

    def order(self, order: str, **data: Any) -> None:
        assert self.process.stdin
        self.process.stdin.write(wire.encode({"order": order, **data}) + b"\n")
        self.process.stdin.flush()

    def expect(self, event: str) -> dict[str, Any]:
        """Return the next event of that name, within a time limit."""
        assert self.process.stdout
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and (line := self.process.stdout.readline()):
            self.order("ping")
            found = wire.decode(line)
            self.heard.append(found["event"])
            if found["event"] == event:
                return found
        raise AssertionError(f"no {event}")

    def answer(self, order: str, **data: Any) -> dict[str, Any]:
        self.order(order, **data)
        return self.expect(order)

    def end(self) -> tuple[int, str]:
        """Hang up, and return its exit code and output."""
        _, output = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, output.decode()


@pytest.fixture
def host() -> Iterator[Handheld]:
    held = Handheld("--heartbeat-timeout-s", str(PATIENCE_S))
    yield held
    held.process.kill()
    held.process.communicate()


def test_checkup_sends_hello_and_beats(host: Handheld) -> None:
    """A checkup sends hello with the host's number, and beats during its work."""
    assert host.expect("hello")["host"] == 0
    host.order("trial", within_s=PATIENCE_S)
    assert host.expect("beat")["host"] == 0


def test_number_of_the_host_may_be_given() -> None:
    """A host that is allocated alone gets its number as an argument."""
    held = Handheld("--host", "5")
    assert held.expect("hello")["host"] == 5
    assert held.end()[0] == 0


def test_facts_are_this_hosts(host: Handheld) -> None:
    """The report about a host matches what can be seen on it."""
    found = host.answer("facts")
    assert found["python"] == sys.version.split()[0]
    assert found["executable"] == sys.executable
    assert found["tensorflow"] == probes.find_tensorflow_version()
    assert found["cores"] == len(os.sched_getaffinity(0))
    assert found["machine_cores"] == os.cpu_count()
    assert found["memory_bytes"] > 1 << 28
    assert found["load"] >= 0
    assert "127.0.0.1" in found["addresses"]
    assert {disk["what"] for disk in found["disks"]} == {"cache", "temporary files"}
    assert all(0 <= disk["free_bytes"] <= disk["total_bytes"] for disk in found["disks"])


def test_room_is_that_of_the_folder_above_one_that_is_not_there_yet(tmp_path: Path) -> None:
    """The cache's disk is known before the first session has made the cache."""
    held = Handheld(XDG_CACHE_HOME=str(tmp_path / "not" / "yet"))
    (cache,) = (disk for disk in held.answer("facts")["disks"] if disk["what"] == "cache")
    held.end()
    assert cache["folder"] == str(tmp_path / "not" / "yet")
    assert cache["total_bytes"] > 0


def test_disk_of_the_cache_is_the_one_that_agents_use(tmp_path: Path) -> None:
    """A relative XDG_CACHE_HOME is not valid: the cache is in ~/.cache, and its disk is measured there."""
    held = Handheld(XDG_CACHE_HOME="relative", HOME=str(tmp_path))
    (cache,) = (disk for disk in held.answer("facts")["disks"] if disk["what"] == "cache")
    held.end()
    assert cache["folder"] == str(tmp_path / ".cache")


def test_failing_nvidia_smi_is_reported(tmp_path: Path) -> None:
    """GPUs that cannot be listed are reported with the error, and not as an empty list."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho this is not a list of GPUs\n")
    tool.chmod(0o755)
    held = Handheld(PATH=f"{tmp_path}:{os.environ['PATH']}")
    found = held.answer("facts")
    held.end()
    assert found["gpus"] is None
    assert found["gpus_error"]


def test_gpus_are_listed(tmp_path: Path) -> None:
    """GPUs are reported by name."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\necho "0, NVIDIA A100-SXM4-40GB, 40960, 550.54, GPU-1"\n')
    tool.chmod(0o755)
    held = Handheld(PATH=f"{tmp_path}:{os.environ['PATH']}", CUDA_VISIBLE_DEVICES="0")
    found = held.answer("facts")
    held.end()
    assert found["gpus"] == [{"name": "NVIDIA A100-SXM4-40GB", "memory_mib": 40960}]


def test_clock_is_read_between_question_and_answer(host: Handheld) -> None:
    """The host's clock is read when the question comes and when the answer goes; here both are this machine's."""
    before = time.time()
    found = host.answer("clock", round=3)
    assert before <= found["arrived_s"] <= found["left_s"] <= time.time()
    assert found["round"] == 3


def test_orders_for_others_are_not_answered(host: Handheld) -> None:
    """An order for other hosts is ignored."""
    host.order("list_files", only=[1], folder="~", token="t", hosts=[])
    host.order("list_files", only=[0], folder="~", token="t", hosts=[])
    assert host.expect("list_files")["sees"] == []
    host.answer("clock", round=0)
    assert host.heard.count("list_files") == 1


def test_files_are_written_listed_and_removed(host: Handheld, tmp_path: Path) -> None:
    """A file that one host writes is listed by all hosts with the same folder, until it is removed."""
    where = {"folder": str(tmp_path), "token": "abc"}
    assert "error" not in host.answer("write", **where)
    assert [path.name for path in tmp_path.iterdir()] == [".dtfperf-abc-0"]
    assert host.answer("list_files", hosts=[0, 1], **where)["sees"] == [0]
    host.answer("remove")
    assert list(tmp_path.iterdir()) == []


def test_checkup_removes_its_file_at_its_end(host: Handheld, tmp_path: Path) -> None:
    """A checkup removes its file at its end, without an order."""
    host.answer("write", folder=str(tmp_path), token="abc")
    assert host.end() == (0, "checkup: the controller closed the connection\n")
    assert list(tmp_path.iterdir()) == []


def test_failed_order_is_an_error(host: Handheld) -> None:
    """A failed order is reported as an error, and the next one is carried out."""
    found = host.answer("write", folder="/no/such/folder", token="abc")
    assert "FileNotFoundError" in found["error"]
    assert host.answer("clock", round=0)["round"] == 0


def test_ports_of_two_hosts() -> None:
    """Two hosts listen, reach each other and measure a link; each knows whether the address is its own."""
    both = [Handheld("--host", str(number)) for number in (0, 1)]
    addresses = {"0": "127.0.0.1", "1": "192.0.2.77"}
    listening = [each.answer("listen", token="t", ports=[0, 0], addresses=addresses) for each in both]
    assert [each["has_address"] for each in listening] == [True, False]
    targets = [{"host": number, "address": "127.0.0.1", "ports": listening[number]["ports"]} for number in (0, 1)]
    for here, each in enumerate(both):
        reached = each.answer("reach", token="t", targets=targets)["reached"]
        assert [row["error"] for row in reached] == [None, None]
        assert {row["to"] for row in reached} == {1 - here}
    pairs = {"0": {"host": 1, "address": "127.0.0.1", "port": listening[1]["ports"][0]}}
    found = both[0].answer("measure", only=[0], token="t", pairs=pairs, stream_s=0.2)
    assert found["bytes"] > 0
    assert [each.end()[0] for each in both] == [0, 0]


@pytest.mark.parametrize(
    "address, mine", [("127.0.0.1", True), ("localhost", True), ("192.0.2.77", False), ("no.such.host.invalid", False)]
)
def test_own_addresses_are_known(address: str, mine: bool) -> None:
    """A host knows which addresses are its own, by number or name."""
    assert checkup.has_address(address) == mine


def test_silence_ends_the_checkup() -> None:
    """A checkup without a message for `--heartbeat-timeout-s` exits with this reason."""
    held = Handheld("--heartbeat-timeout-s", "0.5")
    held.process.wait(PATIENCE_S)
    assert held.end() == (0, "checkup: no message from the controller for 0.5 s\n")


def test_end_of_the_checkup_ends_its_processes(tmp_path: Path) -> None:
    """An import that hangs ends with the checkup, which exits or is killed."""
    for end in ("leave", "kill"):
        python = make_interpreter(tmp_path / end, module="import time\ntime.sleep(3600)\n")
        held = Handheld(python=python, PYTHONPATH=str(REPOSITORY))
        held.order("trial", within_s=3600)
        wait_until("it tries", lambda held=held: processes.list_descendants(held.process.pid))  # type: ignore[misc]
        (child,) = processes.list_descendants(held.process.pid)
        if end == "kill":
            held.process.kill()
        held.end()
        wait_until("the import has ended", lambda child=child: not _lives(child.pid))  # type: ignore[misc]


def _lives(pid: int) -> bool:
    process = processes.inspect(pid)
    return process is not None and process.state != "Z"


@pytest.mark.parametrize("line", [b"what?\n", b'{"v": 1, "order": "facts"}\n'])
def test_other_version_is_reported(line: bytes) -> None:
    """Lines that are no orders of this version end it with a message."""
    held = Handheld()
    assert held.process.stdin
    held.process.stdin.write(line)
    code, output = held.end()
    assert code == 1
    assert "the controller uses another protocol" in output


class TestTrial:
    """TensorFlow, imported for trial in a process of its own."""

    def test_version_and_gpus(self, tmp_path: Path) -> None:
        """Version and GPUs are those that TensorFlow itself reports."""
        found = self.attempt(make_interpreter(tmp_path / "venv", "2.99.1", gpus=3))
        assert (found["version"], found["gpus"]) == ("2.99.1", 3)
        assert found["import_s"] >= 0

    def test_missing_tensorflow(self, tmp_path: Path) -> None:
        """A missing TensorFlow is reported with the last lines of output."""
        found = self.attempt(make_interpreter(tmp_path / "venv", None))
        assert found["error"] == "the import failed"
        assert found["last_lines"][-1] == "ModuleNotFoundError: No module named 'tensorflow'"

    def test_one_that_takes_its_process_with_it(self, tmp_path: Path) -> None:
        """An import that crashes is reported with the signal, and nothing else crashes."""
        found = self.attempt(make_interpreter(tmp_path / "venv", module="import os\nos.kill(os.getpid(), 4)\n"))
        assert found["error"] == "the import was killed by signal 4"

    def test_one_that_hangs(self, tmp_path: Path) -> None:
        """An import that takes too long is ended."""
        python = make_interpreter(tmp_path / "venv", module="import time\ntime.sleep(3600)\n")
        assert self.attempt(python, within_s=1.0)["error"] == "not imported within 1 s"

    def test_import_with_output(self, tmp_path: Path) -> None:
        """Output of an import is not taken for the answer."""
        module = "print('hello')\n__version__ = '1'\nclass config:\n    list_physical_devices = lambda kind: []\n"
        assert self.attempt(make_interpreter(tmp_path / "venv", module=module))["version"] == "1"

    def attempt(self, python: Path, within_s: float = PATIENCE_S) -> dict[str, Any]:
        held = Handheld(python=python, PYTHONPATH=str(REPOSITORY))
        try:
            return held.answer("trial", within_s=within_s)
        finally:
            held.end()
