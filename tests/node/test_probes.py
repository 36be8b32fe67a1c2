"""What a host says of itself."""

import os
import socket
import stat
import sys
from pathlib import Path

import pytest

from pytest_dtfperf.node import interconnect, probes

SMI = """#!/bin/sh
echo "0, Tesla P100-PCIE-16GB, 16280, 535.104.05, GPU-aaaa"
echo "1, Tesla P100-PCIE-16GB, 16280, 535.104.05, GPU-bbbb"
"""


@pytest.fixture
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which nvidia-smi lists two GPUs."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text(SMI)
    smi.chmod(smi.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.parametrize(
    ("folder", "version"),
    [
        ("tensorflow-2.21.0.dist-info", "2.21.0"),
        ("tensorflow_cpu-2.20.0rc1.dist-info", "2.20.0rc1"),
        ("tensorflow-1.1.0-py3.6.egg-info", "1.1.0"),
        ("tensorflow_datasets-4.9.dist-info", None),
        ("tensorflow", None),
    ],
)
def test_version_of_tensorflow_is_read_from_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, version: str | None
) -> None:
    """Whatever package provides TensorFlow, its folder of metadata tells the version; what is no folder is passed over."""
    (tmp_path / folder).mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "no such.zip"), str(tmp_path)])
    assert probes.tensorflow_version() == version


def test_version_of_cuda_is_that_beside_tensorflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA is known where TensorFlow brought its own, whatever generation the package is named for."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert probes.cuda_version() is None
    (tmp_path / "nvidia_cuda_runtime_cu12-12.5.82.dist-info").mkdir()
    assert probes.cuda_version() == "12.5.82"


def test_fingerprint_names_hardware_software_and_state() -> None:
    """A host knows its CPU, cores, memory, versions and load, without importing TensorFlow."""
    fingerprint = probes.fingerprint([])
    assert fingerprint["hardware"]["cpu"]
    assert (fingerprint["hardware"]["cpu"], fingerprint["hardware"]["cpu_kind"]) == probes.cpu()
    assert fingerprint["hardware"]["cores"] == os.cpu_count()
    assert fingerprint["hardware"]["memory_gib"] >= 1
    assert fingerprint["hardware"]["gpus"] == []
    assert fingerprint["hardware"]["interconnect"] == interconnect.fastest()
    assert set(fingerprint["software"]) == {"python", "tensorflow", "cuda", "kernel", "driver"}
    assert fingerprint["state"]["load"] >= 0


# The first lines of /proc/cpuinfo of virtual machines, as they are.
CPUS = {
    "AMD": (
        "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 1\nmodel name\t: AMD EPYC\nstepping\t: 1\n",
        ("AMD EPYC", "family 25, model 1"),
    ),
    "Intel": (
        "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 85\nmodel name\t: Intel(R) Xeon(R) CPU @ 2.00GHz\n",
        ("Intel(R) Xeon(R) CPU @ 2.00GHz", "family 6, model 85"),
    ),
    "ARM": (
        "BogoMIPS\t: 243.75\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd0c\nCPU revision\t: 1\n",
        (os.uname().machine, "implementer 0x41, part 0xd0c"),
    ),
    "of an emulator that tells nothing": ("BogoMIPS\t: 243.75\n", (os.uname().machine, None)),
}


@pytest.mark.parametrize(("told", "known"), CPUS.values(), ids=CPUS)
def test_processor_is_known_by_more_than_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str, known: tuple[str, str | None]
) -> None:
    """The first processor's design is told beside its name, which hypervisors shorten and ARM's do not have."""
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(
        f"processor\t: 0\n{told}\nprocessor\t: 1\ncpu family\t: 99\nmodel\t\t: 9\nCPU implementer\t: 0x99\nCPU part\t: 0x99\n"
    )
    monkeypatch.setattr(probes, "_CPUINFO", str(cpuinfo))
    assert probes.cpu() == known


@pytest.mark.usefixtures("two_gpus")
def test_gpus_are_listed() -> None:
    """Name, memory and driver of each GPU come from nvidia-smi."""
    found = probes.gpus()
    fingerprint = probes.fingerprint(found)
    assert [gpu.index for gpu in found] == ["0", "1"]
    assert fingerprint["hardware"]["gpus"] == [{"name": "Tesla P100-PCIE-16GB", "memory_gib": 16}] * 2
    assert fingerprint["software"]["driver"] == "535.104.05"


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(("visible", "indices"), [("1", ["1"]), ("GPU-aaaa", ["0"]), ("", [])])
def test_only_visible_gpus_count(visible: str, indices: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler that hands out GPUs through CUDA_VISIBLE_DEVICES is obeyed, by number and by UUID."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [gpu.index for gpu in probes.gpus()] == indices


PARTS = """GPU 0: Tesla P100-PCIE-16GB (UUID: GPU-aaaa)
  MIG 3g.20gb     Device  0: (UUID: MIG-c738)
  MIG 1g.5gb+me   Device  1: (UUID: MIG-a28a)
GPU 1: Tesla P100-PCIE-16GB (UUID: GPU-bbbb)
  MIG 7g.40gb Device 0: (UUID: MIG-GPU-bbbb/1/0)
"""


@pytest.fixture
def parts(two_gpus: None, tmp_path: Path) -> None:
    """The same machine, whose GPUs are cut into parts, as drivers of today and those before 470 name them."""
    script = SMI.removeprefix("#!/bin/sh\n")
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\nif [ $1 = -L ]; then\ncat <<'END'\n{PARTS}END\nexit\nfi\n{script}")


@pytest.mark.usefixtures("parts")
def test_parts_of_gpus_are_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who was given parts (MIG) has GPUs, with the names, memory and order that they have, and not the whole ones, nor none."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-GPU-bbbb/1/0, MIG-a28a")
    found = probes.gpus()
    assert [gpu.index for gpu in found] == ["MIG-GPU-bbbb/1/0", "MIG-a28a"]
    assert probes.fingerprint(found)["hardware"]["gpus"] == [
        {"name": "Tesla P100-PCIE-16GB MIG 7g.40gb", "memory_gib": 40},
        {"name": "Tesla P100-PCIE-16GB MIG 1g.5gb+me", "memory_gib": 5},
    ]


@pytest.mark.usefixtures("parts")
def test_a_part_that_is_not_listed_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of an earlier cut, for one: training would go on without it, on the CPU."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-gone")
    with pytest.raises(ValueError, match="names MIG-gone, but nvidia-smi -L lists MIG-c738, MIG-a28a, MIG-GPU-bbbb/1/0"):
        probes.gpus()


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("code", [0, 14])
def test_words_beside_the_gpus(tmp_path: Path, code: int) -> None:
    """What nvidia-smi says besides, of a GPU with damaged notes on itself, is no GPU, and takes none away."""
    with (tmp_path / "nvidia-smi").open("a") as smi:
        smi.write(f"echo 'WARNING: infoROM is corrupted at gpu 0000:02:00.0'\necho\nexit {code}\n")
    assert [gpu.index for gpu in probes.gpus()] == ["0", "1"]


@pytest.mark.usefixtures("two_gpus")
def test_an_answer_without_any_gpu_is_an_error(tmp_path: Path) -> None:
    """What cannot be read is not taken for a host without GPUs, and is quoted."""
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho Something else\n")
    with pytest.raises(ValueError, match="nvidia-smi lists no GPU, and says: Something else"):
        probes.gpus()


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("script", ["echo '0, half of an answer'; exec sleep 60", "exit 9"], ids=["hangs", "fails"])
def test_nvidia_smi_that_hangs_or_fails(tmp_path: Path, script: str) -> None:
    """A tool without a driver means that there are no GPUs; one that hangs is ended, and is an error that names it."""
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    if script == "exit 9":
        assert probes.gpus() == []
    else:
        with pytest.raises(TimeoutError, match=r"nvidia-smi has not answered for 0\.2 s"):
            probes.gpus(within_s=0.2)


def test_network_bytes_count_what_is_sent() -> None:
    """A megabyte over the loopback shows in the host's counters, sent and received."""
    before = probes.counters()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        connection, _ = server.accept()
        with connection:
            for _ in range(16):
                client.sendall(bytes(1 << 16))
                rest = 1 << 16
                while rest:
                    rest -= len(connection.recv(rest))
    used = probes.counters().since(before)
    assert used.bytes_sent >= 1 << 20
    assert used.bytes_received >= 1 << 20


def test_interfaces_that_come_and_go_take_nothing_away() -> None:
    """What was sent is never less than nothing, as it was when a container's interface went while a training was measured."""
    before = probes.Counters({"lo": (100, 10), "veth1": (50_000, 70_000), "veth2": (900, 90)}, cpu_s=1.0, peak_rss_bytes=5)
    after = probes.Counters({"lo": (130, 15), "veth2": (4, 2), "veth3": (7, 1)}, cpu_s=3.0, peak_rss_bytes=6)
    used = after.since(before)
    assert (used.bytes_sent, used.bytes_received) == (30 + 4 + 7, 5 + 2 + 1)
    assert (used.cpu_s, used.peak_rss_bytes) == (2.0, 6)


def test_counters_grow() -> None:
    """CPU time and peak memory of this process are counted in seconds and bytes."""
    before = probes.counters()
    sum(range(3_000_000))
    after = probes.counters()
    assert after.cpu_s > before.cpu_s
    assert after.peak_rss_bytes >= before.peak_rss_bytes > 1 << 20
