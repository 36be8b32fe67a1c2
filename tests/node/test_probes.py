"""The properties of a host that it reports about itself."""

import os
import socket
import sys
from pathlib import Path

import pytest

from pytest_dtfperf.node import interfaces, probes
from tests.node.stand_in_smi import A100, LOST, MISMATCH, NO_DRIVER, UNKNOWN, gpu, use_smi, write_smi

ONE, TWO = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "GPU-8fe00000-d72c-4106-c12f-20bd9faed9f6"
FIRST, SECOND, OLD = "MIG-c7384736-a75d-5afc-978f-d2f1294409fd", "MIG-a28ad590-3fda-56dd-84fc-0a0b96edc58d", f"MIG-{TWO}/1/0"
TWO_GPUS = (gpu(ONE), gpu(TWO))
CUT = (gpu(ONE, [("3g.20gb", FIRST), ("1c.1g.10gb+me", SECOND)]), gpu(TWO, [("7g.40gb", OLD)]))


@pytest.fixture
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which nvidia-smi lists two GPUs."""
    use_smi(tmp_path, monkeypatch, *TWO_GPUS)


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same machine with GPUs that are cut into parts, as drivers of today and those before 470 name them."""
    use_smi(tmp_path, monkeypatch, *CUT)


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
    """The metadata folder of any package that provides TensorFlow has the version; what is no folder is passed over."""
    (tmp_path / folder).mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "no such.zip"), str(tmp_path)])
    assert probes.find_tensorflow_version() == version


def test_version_of_cuda_is_that_beside_tensorflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The version of CUDA is that of the package beside TensorFlow, of any generation."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert probes.find_cuda_version() is None
    (tmp_path / "nvidia_cuda_runtime_cu12-12.5.82.dist-info").mkdir()
    assert probes.find_cuda_version() == "12.5.82"


def test_fingerprint_names_hardware_software_and_state() -> None:
    """A host knows its CPU, cores, memory, versions and load, without importing TensorFlow."""
    fingerprint = probes.read_fingerprint([])
    assert fingerprint["hardware"]["cpu"]
    assert (fingerprint["hardware"]["cpu"], fingerprint["hardware"]["cpu_kind"]) == probes.read_cpu()
    assert fingerprint["hardware"]["cores"] == os.cpu_count()
    assert fingerprint["hardware"]["memory_gib"] >= 1
    assert fingerprint["hardware"]["gpus"] == []
    assert fingerprint["hardware"]["interconnect"] == interfaces.find_fastest()
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


@pytest.mark.parametrize(("listed", "known"), CPUS.values(), ids=CPUS)
def test_processor_has_name_and_design(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: str, known: tuple[str, str | None]
) -> None:
    """The first processor's design is reported beside its name, which hypervisors shorten and ARM's do not have."""
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(
        f"processor\t: 0\n{listed}\nprocessor\t: 1\ncpu family\t: 99\nmodel\t\t: 9\nCPU implementer\t: 0x99\nCPU part\t: 0x99\n"
    )
    monkeypatch.setattr(probes, "_CPUINFO", str(cpuinfo))
    assert probes.read_cpu() == known


@pytest.mark.parametrize("old", [False, True], ids=["today", "before MIG"])
def test_gpus_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: bool) -> None:
    """Name, memory and driver of each GPU come from nvidia-smi, whether or not it knows of MIG."""
    use_smi(tmp_path, monkeypatch, *TWO_GPUS, old=old)
    found = probes.list_gpus()
    fingerprint = probes.read_fingerprint(found)
    assert [(gpu.index, gpu.visible_as) for gpu in found] == [("0", "0"), ("1", "1")]
    assert fingerprint["hardware"]["gpus"] == [{"name": A100, "memory_gib": 40}] * 2
    assert fingerprint["software"]["driver"] == "535.129.03"


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("visible", "indices"),
    [
        ("1", ["1"]), ("1,0", ["1", "0"]), (" 1 , 0", ["1", "0"]), ("+1", ["1"]), ("1x,0", ["1", "0"]),
        ("0,-1,1", ["0"]), ("1,7,0", ["1"]), ("0,,1", ["0"]), ("0,two", ["0"]), (f"0,{TWO}", ["0"]),
        (ONE, ["0"]), (f"{TWO},{ONE}", ["1", "0"]), ("GPU-8f", ["1"]), ("GPU-8f,GPU-89", ["1", "0"]),
        (f"{TWO},GPU-8", ["1"]), (f"{TWO},0", ["1"]),
        ("", []), (" ", []), ("-1", []), ("-1,0", []), ("NoDevFiles", []), ("none", []),
    ],
)  # fmt: skip
def test_visible_gpus_are_those_that_cuda_shows(visible: str, indices: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA_VISIBLE_DEVICES means what CUDA makes of it: numbers or beginnings of UUIDs, up to the first that is none."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [gpu.index for gpu in probes.list_gpus()] == indices


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("visible", "why"),
    [
        ("0,0", " (0 is named twice)"), ("0,1,0", " (0 is named twice)"), (f"GPU-89,{ONE}", f" ({ONE} is named twice)"),
        ("2", ""), ("GPU-8", ""), ("GPU-ffff", ""), ("cuda:0", ""), (",0", ""),
    ],
)  # fmt: skip
def test_names_of_no_gpu_are_an_error(visible: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CUDA_VISIBLE_DEVICES that shows CUDA no GPU is an error, so that cores are not measured instead."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(probes.GpusUnknown) as raised:
        probes.list_gpus()
    assert str(raised.value).startswith(
        f"CUDA_VISIBLE_DEVICES={visible} shows CUDA no GPU{why}, but nvidia-smi lists 0 ({ONE}), 1 ({TWO}). "
    )


def test_numbers_in_an_unknown_order_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers of different GPUs in CUDA's own order are refused, and UUIDs are accepted in any order."""
    use_smi(tmp_path, monkeypatch, gpu(ONE, name="Tesla T4"), gpu(TWO))
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(probes.GpusUnknown, match=r"or set CUDA_DEVICE_ORDER=PCI_BUS_ID$"):
        probes.list_gpus()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-8f")
    assert [gpu.name for gpu in probes.list_gpus()] == [A100]


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize(
    ("visible", "names"),
    [
        (None, [FIRST, SECOND, OLD]),
        (f"{OLD}, {SECOND}", [OLD, SECOND]),
        ("MIG-a28", [SECOND]),
        ("1,0", [OLD, FIRST]),
        (ONE, [FIRST]),
        ("GPU-8f", [OLD]),
        ("", []),
    ],
)
def test_parts_are_devices(visible: str | None, names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part of a GPU that is divided by MIG is a device; a named GPU stands for its first part."""
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [gpu.visible_as for gpu in probes.list_gpus()] == names


@pytest.mark.usefixtures("parts")
def test_parts_are_fingerprinted_as_parts() -> None:
    """The fingerprint has a part's name and memory, and never those of the whole card."""
    assert probes.read_fingerprint(probes.list_gpus())["hardware"]["gpus"] == [
        {"name": f"{A100} MIG 3g.20gb", "memory_gib": 20},
        {"name": f"{A100} MIG 1c.1g.10gb+me", "memory_gib": 10},
        {"name": f"{A100} MIG 7g.40gb", "memory_gib": 40},
    ]


def test_whole_gpus_beside_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside GPUs that are cut into parts whole ones are named by UUID, and one that has no part yet is no device."""
    use_smi(tmp_path, monkeypatch, gpu("GPU-cut", [("3g.20gb", FIRST)]), gpu("GPU-empty", mig="Enabled"), gpu("GPU-whole"))
    assert [(gpu.index, gpu.visible_as) for gpu in probes.list_gpus()] == [(FIRST, FIRST), ("2", "GPU-whole")]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with pytest.raises(probes.GpusUnknown, match="CUDA_VISIBLE_DEVICES=1 shows CUDA no GPU"):
        probes.list_gpus()


@pytest.mark.usefixtures("parts")
def test_a_part_that_is_not_listed_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of an earlier cut, for one: training would go on without it, on the CPU."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-gone")
    with pytest.raises(probes.GpusUnknown, match=f"names MIG-gone, but nvidia-smi -L lists {FIRST}, {SECOND}, {OLD}"):
        probes.list_gpus()


def test_warnings_beside_the_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A warning that nvidia-smi prints before its lines is no GPU, and takes none away."""
    use_smi(tmp_path, monkeypatch, *TWO_GPUS, warning="WARNING: infoROM is corrupted at gpu 0000:02:00.0\n, a, b, c, d\n")
    assert [gpu.index for gpu in probes.list_gpus()] == ["0", "1"]


@pytest.mark.usefixtures("two_gpus")
def test_gpus_of_damaged_notes_count(tmp_path: Path) -> None:
    """Exit code 14, of a GPU with damaged notes on itself, takes none away."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text(smi.read_text() + "sys.exit(14)\n")
    assert [gpu.index for gpu in probes.list_gpus()] == ["0", "1"]


@pytest.mark.parametrize(
    ("code", "words"),
    [(6, "No devices were found\n"), (9, NO_DRIVER), (0, "No devices were found\n"), (0, "No devices found.\n")],
)
def test_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, words: str) -> None:
    """A host has no GPU where nvidia-smi reports none, or finds no driver."""
    use_smi(tmp_path, monkeypatch, failure=(code, words))
    assert probes.list_gpus() == []


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (18, MISMATCH), (15, LOST), (255, UNKNOWN), (4, "Insufficient Permissions\n"), (1, ""), (0, ""), (0, "Something\n"),
        (12, "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.\n"), (6 + 128, ""),
    ],
)  # fmt: skip
def test_gpus_that_cannot_be_listed_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, words: str
) -> None:
    """Another exit of nvidia-smi is an error with its output, and not a host without GPUs."""
    use_smi(tmp_path, monkeypatch, failure=(code, words))
    with pytest.raises(probes.GpusUnknown) as raised:
        probes.list_gpus()
    quoted = repr(" ".join(words.split())) if words else "nothing"
    assert str(raised.value) == f"nvidia-smi ended with exit code {code}, and printed {quoted}"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert probes.list_gpus() == []


def test_stderr_of_nvidia_smi_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loader's or the shell's message about an nvidia-smi that does not start is quoted, too."""
    use_smi(tmp_path, monkeypatch)
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 'cannot open shared object file' >&2\nexit 127\n")
    with pytest.raises(probes.GpusUnknown, match="exit code 127, and printed 'cannot open shared object file'"):
        probes.list_gpus()


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("closes", ["", "exec >&- 2>&-;"], ids=["waits", "waits without a word"])
def test_nvidia_smi_that_hangs(tmp_path: Path, closes: str) -> None:
    """One that hangs, as in a hung driver, is ended, and is an error that names it."""
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\necho '0, half of an answer'; {closes} exec sleep 60\n")
    with pytest.raises(probes.GpusUnknown, match=r"^nvidia-smi has not answered for 0\.2 s$"):
        probes.list_gpus(within_s=0.2)


@pytest.mark.parametrize("devices", [["nvidia0", "nvidiactl"], ["nvidiactl", "null"]])
def test_device_files_without_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, devices: list[str]) -> None:
    """The device file of a GPU without nvidia-smi is an error, not a host without GPUs."""
    for name in devices:
        (tmp_path / name).write_text("")
    monkeypatch.setattr(probes, "_DEVICES", str(tmp_path))
    monkeypatch.setattr(probes, "_SMI_WSL", str(tmp_path / "none"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if "nvidia0" in devices:
        with pytest.raises(probes.GpusUnknown, match=f"^there are GPUs here \\({tmp_path}/nvidia0\\), but no nvidia-smi"):
            probes.list_gpus()
    else:
        assert probes.list_gpus() == []


def test_nvidia_smi_of_wsl_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The nvidia-smi of WSL2 is found without the PATH and without /proc/driver/nvidia."""
    smi = write_smi(tmp_path, [gpu(ONE)])
    monkeypatch.setattr(probes, "_SMI_WSL", str(smi))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [gpu.index for gpu in probes.list_gpus()] == ["0"]


def test_network_bytes_are_counted() -> None:
    """A megabyte over the loopback shows in the host's counters, sent and received."""
    before = probes.read_counters()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        connection, _ = server.accept()
        with connection:
            for _ in range(16):
                client.sendall(bytes(1 << 16))
                rest = 1 << 16
                while rest:
                    rest -= len(connection.recv(rest))
    used = probes.read_counters().subtract(before)
    assert used.bytes_sent >= 1 << 20
    assert used.bytes_received >= 1 << 20


def test_vanished_interfaces_do_not_reduce_the_counts() -> None:
    """The counts of a run are not negative if an interface vanishes during it."""
    before = probes.Counters({"lo": (100, 10), "veth1": (50_000, 70_000), "veth2": (900, 90)}, cpu_s=1.0, peak_rss_bytes=5)
    after = probes.Counters({"lo": (130, 15), "veth2": (4, 2), "veth3": (7, 1)}, cpu_s=3.0, peak_rss_bytes=6)
    used = after.subtract(before)
    assert (used.bytes_sent, used.bytes_received) == (30 + 4 + 7, 5 + 2 + 1)
    assert (used.cpu_s, used.peak_rss_bytes) == (2.0, 6)


def test_counters_grow() -> None:
    """CPU time and peak memory of this process are counted in seconds and bytes."""
    before = probes.read_counters()
    sum(range(3_000_000))
    after = probes.read_counters()
    assert after.cpu_s > before.cpu_s
    assert after.peak_rss_bytes >= before.peak_rss_bytes > 1 << 20
