"""The hardware, software and counters of a host. Reads /proc and /sys, imports nothing slow, and starts only nvidia-smi."""

from __future__ import annotations

import os
import re
import resource
import select
import signal
import sys
import time
from collections.abc import Mapping, Sequence

from pytest_dtfperf.node import interfaces
from pytest_dtfperf.node.host_state import read_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_GIB = 1 << 30
_CPUINFO = "/proc/cpuinfo"
_KINDS = (("cpu family", "model"), ("cpu implementer", "cpu part"))  # of x86, of ARM
_COLUMNS = ("index", "name", "memory.total", "driver_version", "uuid")  # of nvidia-smi; a line with fewer is a warning
_MIG_MODE = "mig.mode.current"  # a column that nvidia-smi before driver 450 refuses with exit code 2
CSV_FORMAT = "--format=csv,noheader,nounits"
# Its exit codes of valid answers. 14: "infoROM is corrupted", although the GPU can compute (NVIDIA/gpu-operator#285).
SMI_ANSWERS = (0, 14)
# Its exit codes where there is no GPU: 6, "No devices were found"; 9, no driver is loaded. With others there may be some.
_SMI_NO_GPUS = (6, 9)
_SMI_REFUSES = 2
_SMI_WSL = "/usr/lib/wsl/lib/nvidia-smi"  # on WSL2, where a login over SSH does not have it on its PATH
_DEVICE_FILE = re.compile(r"nvidia[0-9]+")
_DEVICES = "/dev"
# Values of CUDA_VISIBLE_DEVICES that hide all GPUs on purpose: empty, a negative number, Slurm's value, and common words.
_HIDES_ALL = re.compile(r"\s*(-(?!0).*|NoDevFiles|none|void)?\s*", re.IGNORECASE | re.DOTALL)
_NUMBER = re.compile(r"[+-]?[0-9]+")  # CUDA reads a number as strtol does: "1x" is 1
_MOST_QUOTED = 300
_END_POLL_S = 0.01
NVIDIA_SMI_S = 20.0  # the first call on a host without persistence mode initialises every GPU
_TENSORFLOWS = ("tensorflow", "tensorflow_cpu", "tensorflow_rocm", "tf_nightly", "tf_nightly_cpu")  # all provide `tensorflow`
_CUDAS = ("nvidia_cuda_runtime", "nvidia_cuda_runtime_cu13", "nvidia_cuda_runtime_cu12", "nvidia_cuda_runtime_cu11")


class Counters:
    """The network traffic and CPU time up to now."""

    def __init__(self, network: dict[str, tuple[int, int]], cpu_s: float, peak_rss_bytes: int) -> None:
        self.network = network  # interface -> bytes sent and received by this host since the interface came
        self.cpu_s = cpu_s  # user and system time of this process
        self.peak_rss_bytes = peak_rss_bytes  # of this process

    @property
    def bytes_sent(self) -> int:
        return sum(sent for sent, _ in self.network.values())

    @property
    def bytes_received(self) -> int:
        return sum(received for _, received in self.network.values())

    def subtract(self, before: Counters) -> Counters:
        """Return the difference to earlier counters; the peak of the memory is still that of the whole process.

        The bytes of interfaces that have disappeared, such as those of containers, are not counted. One that has appeared
        again under its old name has counted from 0.
        """
        network = {name: _compute_growth(before.network.get(name, (0, 0)), now) for name, now in self.network.items()}
        return Counters(network, self.cpu_s - before.cpu_s, self.peak_rss_bytes)


def _compute_growth(before: tuple[int, int], now: tuple[int, int]) -> tuple[int, int]:
    if now[0] < before[0] or now[1] < before[1]:
        return now
    return now[0] - before[0], now[1] - before[1]


def read_counters() -> Counters:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return Counters(read_network_bytes(), usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)  # Linux counts it in KiB


def read_network_bytes() -> dict[str, tuple[int, int]]:
    """Return the bytes (sent, received) of each interface, including the loopback, which tasks of one host use."""
    found = {}
    with open("/proc/net/dev") as file:
        for line in file.readlines()[2:]:
            name, _, rest = line.partition(":")
            numbers = rest.split()
            found[name.strip()] = (int(numbers[8]), int(numbers[0]))
    return found


WITHOUT_GPUS = 'To measure on its cores, set device = "cpu" in clusters.toml.'


class GpusUnknown(Exception):
    """The GPUs of a host cannot be listed; the message has the reason. This does not mean that there are none."""


class Gpu:
    """A GPU as nvidia-smi lists it, or a MIG device, which is a part of a GPU that computes as a GPU of its own."""

    def __init__(self, index: str, name: str, memory_mib: int, driver: str, visible_as: str | None = None) -> None:
        self.index = index  # nvidia-smi's number; of a part its UUID
        self.name = name
        self.memory_mib = memory_mib
        self.driver = driver
        self.visible_as = visible_as or index  # its name in CUDA_VISIBLE_DEVICES


def list_gpus(within_s: float = NVIDIA_SMI_S, environ: Mapping[str, str] | None = None) -> list[Gpu]:
    """Return the GPUs that a process with this environment can use, in the order in which CUDA numbers them.

    Each MIG device counts as a GPU, and a GPU in MIG mode does not.

    Raises:
        GpusUnknown: The GPUs cannot be listed, or CUDA_VISIBLE_DEVICES names none that exists.
    """
    environ = os.environ if environ is None else environ
    named = environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None and hides_all_gpus(named):
        return []
    try:
        whole, parts = _list_gpus(within_s, environ)
    except OSError as exc:  # a TimeoutError among them
        raise GpusUnknown(str(exc)) from exc
    if not whole or named is None:
        return [gpu for uuid, gpu in whole.items() for gpu in parts.get(uuid, [gpu])]
    return _select_visible(named, environ.get("CUDA_DEVICE_ORDER", ""), whole, parts)


def hides_all_gpus(named: str) -> bool:
    """Return whether a value of CUDA_VISIBLE_DEVICES hides all GPUs on purpose, and does not merely name a missing one."""
    return bool(_HIDES_ALL.fullmatch(named))


def find_nvidia_smi(environ: Mapping[str, str] | None = None) -> str | None:
    """Return the path of nvidia-smi; None if it is not installed."""
    paths = [os.path.join(folder, "nvidia-smi") for folder in os.get_exec_path(environ)]
    return next((path for path in [*paths, _SMI_WSL] if os.access(path, os.X_OK) and os.path.isfile(path)), None)


def _list_gpus(within_s: float, environ: Mapping[str, str]) -> tuple[dict[str, Gpu], dict[str, list[Gpu]]]:
    """Return all GPUs by UUID, and the MIG devices of each GPU in MIG mode, which may be none."""
    smi = find_nvidia_smi(environ)
    if smi is None:
        if files := sorted(name for name in os.listdir(_DEVICES) if _DEVICE_FILE.fullmatch(name)):
            raise GpusUnknown(
                f"there are GPUs here ({_DEVICES}/{files[0]}), but no nvidia-smi to list them. Install it; in a container add "
                "`utility` to NVIDIA_DRIVER_CAPABILITIES"
            )
        return {}, {}
    columns = ",".join(_COLUMNS)
    code, answer = run_program([smi, f"--query-gpu={columns},{_MIG_MODE}", CSV_FORMAT], within_s, environ)
    if code == _SMI_REFUSES or "not a valid field" in answer:
        code, answer = run_program([smi, f"--query-gpu={columns}", CSV_FORMAT], within_s, environ)
    if code in _SMI_NO_GPUS:
        return {}, {}
    rows = [cells for cells in _split_rows(answer) if len(cells) in (len(_COLUMNS), len(_COLUMNS) + 1) and cells[0].isdecimal()]
    if code in SMI_ANSWERS and not rows and re.search("no devices (were )?found", answer, re.IGNORECASE):
        return {}, {}
    if code not in SMI_ANSWERS or not rows:
        raise GpusUnknown(_format_smi_failure(code, answer))
    code, answer = run_program([smi, "-L"], within_s, environ)
    if code not in SMI_ANSWERS:
        raise GpusUnknown(_format_smi_failure(code, answer))
    parts = _parse_mig_devices(answer, {cells[4]: cells[1] for cells in rows}, rows[0][3])
    parts = {**{cells[4]: [] for cells in rows if cells[5:] == ["Enabled"]}, **parts}
    whole = {
        uuid: Gpu(
            index,
            name,
            int(memory) if memory.isdigit() else 0,
            driver,
            # CUDA's numbers of GPUs beside those in MIG mode are not documented.
            uuid if parts else index,
        )
        for index, name, memory, driver, uuid, *_ in rows
    }
    return whole, parts


def _split_rows(answer: str) -> list[list[str]]:
    return [[word.strip() for word in line.split(",")] for line in answer.splitlines()]


def _format_smi_failure(code: int, answer: str) -> str:
    """Return how nvidia-smi ended, and the beginning of its output, on one line."""
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    quoted = " ".join(answer.split())[:_MOST_QUOTED]
    return f"nvidia-smi {how}, and printed {quoted!r}" if quoted else f"nvidia-smi {how}, and printed nothing"


def _parse_mig_devices(answer: str, names: Mapping[str, str], driver: str) -> dict[str, list[Gpu]]:
    """Return the MIG devices of each GPU, as `nvidia-smi -L` lists them. The profile's name contains the memory.

        GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-e86cb44c-6756-fd30-cd4a-1e6da3caf9b0)
          MIG 3g.20gb     Device  0: (UUID: MIG-c7384736-a75d-5afc-978f-d2f1294409fd)

    Before driver 470 a UUID was MIG-GPU-e86cb44c-.../1/0. `--query-gpu` reports only whole GPUs.
    """
    found: dict[str, list[Gpu]] = {}
    gpu_uuid = ""
    for fields in filter(None, map(str.split, answer.splitlines())):
        uuid = fields[-1].rstrip(")")
        if fields[0] == "GPU":
            gpu_uuid = uuid
        elif fields[0] == "MIG" and gpu_uuid in names:
            gib = re.search(r"([0-9]+)gb", fields[1])
            part = Gpu(uuid, f"{names[gpu_uuid]} MIG {fields[1]}", 1024 * int(gib[1]) if gib else 0, driver)
            found.setdefault(gpu_uuid, []).append(part)
    return found


def _select_visible(named: str, order: str, whole: Mapping[str, Gpu], parts: Mapping[str, Sequence[Gpu]]) -> list[Gpu]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES names, by CUDA's rules.

    All items are of the kind of the first: numbers, or UUIDs, which may be unique prefixes. The first item that names no GPU
    ends the list, and a GPU that is named twice empties it (observed in PyTorch's pull request 92315). For a GPU in MIG mode
    CUDA uses its first MIG device. A missing MIG device is an error.
    """
    devices = [word.strip() for word in named.split(",")]
    all_parts = {part.index: part for each in parts.values() for part in each}
    numbers = not devices[0].startswith(("GPU-", "MIG-"))
    if numbers and len({gpu.name for gpu in whole.values()}) > 1 and order not in ("", "PCI_BUS_ID"):
        raise GpusUnknown(
            f"the GPUs of CUDA_VISIBLE_DEVICES={named} are unknown with CUDA_DEVICE_ORDER={order}, because this host has "
            "several kinds of GPUs. Name them by UUID (nvidia-smi -L), or set CUDA_DEVICE_ORDER=PCI_BUS_ID"
        )
    found: list[Gpu] = []
    why = ""
    for word in devices:
        gpu = _find_numbered_gpu(word, whole, parts) if numbers else _find_gpu_by_uuid(word, whole, parts, all_parts)
        if gpu is None and word.startswith("MIG-") and not numbers:
            raise GpusUnknown(
                f"CUDA_VISIBLE_DEVICES names {word}, but nvidia-smi -L lists {', '.join(all_parts) or 'no part of a GPU'}"
            )
        if gpu is None:
            break
        if gpu in found:
            found, why = [], f" ({word} is named twice)"
            break
        found.append(gpu)
    if not found:
        there = ", ".join(f"{gpu.index} ({uuid})" for uuid, gpu in whole.items())
        raise GpusUnknown(
            f"CUDA_VISIBLE_DEVICES={named} shows CUDA no GPU{why}, but nvidia-smi lists {there}. "
            "Name some of them, or unset it; an empty one hides all"
        )
    return found


def _find_numbered_gpu(word: str, whole: Mapping[str, Gpu], parts: Mapping[str, Sequence[Gpu]]) -> Gpu | None:
    number = _NUMBER.match(word)
    index = str(int(number[0])) if number else None
    return next((_get_usable(uuid, gpu, parts) for uuid, gpu in whole.items() if gpu.index == index), None)


def _find_gpu_by_uuid(
    word: str, whole: Mapping[str, Gpu], parts: Mapping[str, Sequence[Gpu]], all_parts: Mapping[str, Gpu]
) -> Gpu | None:
    if not word.startswith(("GPU-", "MIG-")):
        return None
    if word in all_parts:
        return all_parts[word]
    among: Mapping[str, Gpu] = all_parts if word.startswith("MIG-") else whole
    begin_so = [uuid for uuid in among if uuid.startswith(word)]
    if len(begin_so) != 1:
        return None
    return _get_usable(begin_so[0], among[begin_so[0]], parts)


def _get_usable(uuid: str, gpu: Gpu, parts: Mapping[str, Sequence[Gpu]]) -> Gpu | None:
    """Return the GPU, or the first MIG device of a GPU in MIG mode; None if it has none."""
    return next(iter(parts[uuid]), None) if uuid in parts else gpu


def run_program(command: list[str], within_s: float, environ: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Return the exit code and the output of a program, without the slow import of subprocess.

    Raises:
        TimeoutError: The program does not end within `within_s` seconds.
        OSError: The program cannot be started.
    """
    answer, theirs = os.pipe()
    nothing = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
    outputs = [(os.POSIX_SPAWN_DUP2, theirs, 1), (os.POSIX_SPAWN_DUP2, theirs, 2)]
    try:
        pid = os.posix_spawnp(command[0], command, os.environ if environ is None else environ, file_actions=[nothing, *outputs])
    except OSError:
        os.close(answer)
        raise
    finally:
        os.close(theirs)
    deadline = time.monotonic() + within_s
    output = b""
    with open(answer, "rb", buffering=0) as pipe:
        while select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0] and (data := pipe.read(1 << 16)):
            output += data
    ended, status = os.waitpid(pid, os.WNOHANG)
    while not ended and time.monotonic() < deadline:
        time.sleep(_END_POLL_S)
        ended, status = os.waitpid(pid, os.WNOHANG)
    if not ended:
        # A process that hangs in the driver survives this, and is not waited for.
        os.kill(pid, signal.SIGKILL)
        time.sleep(_END_POLL_S)
        os.waitpid(pid, os.WNOHANG)
        raise TimeoutError(f"{os.path.basename(command[0])} has not answered for {within_s:g} s")
    return os.waitstatus_to_exitcode(status), output.decode(errors="replace")


def read_fingerprint(found: list[Gpu]) -> dict[str, Any]:
    """Return the identity of this host: permanent hardware, software that upgrades change, and the current state."""
    model, kind = read_cpu()
    return {
        "hardware": {
            "cpu": model,
            "cpu_kind": kind,
            "cores": os.cpu_count(),
            "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIB),
            "interconnect": interfaces.find_fastest(),
            "gpus": [{"name": gpu.name, "memory_gib": round(gpu.memory_mib / 1024)} for gpu in found],
        },
        "software": {
            "python": sys.version.split()[0],
            "tensorflow": find_tensorflow_version(),
            "cuda": find_cuda_version(),
            "kernel": os.uname().release,
            "driver": found[0].driver if found else None,
        },
        "state": {"load": read_load(), "governor": read_governor()},
    }


def read_cpu() -> tuple[str, str | None]:
    """Return the first processor's name, `AMD EPYC 9R14`, and its design.

    The design is `family 25, model 1`, or for ARM `implementer 0x41, part 0xd40`; None if the kernel does not report it. It is
    needed because some hypervisors report only `AMD EPYC` for processors that differ fourfold in speed. Most ARM processors
    have no name: the name is then the architecture.
    """
    fields = {}
    with open(_CPUINFO) as file:
        for line in file:
            if not line.strip():
                break
            name, _, value = line.partition(":")
            fields[name.strip().lower()] = " ".join(value.split())
    kinds = [
        ", ".join(f"{name.removeprefix('cpu ')} {fields[name]}" for name in names)
        for names in _KINDS
        if all(fields.get(name) for name in names)
    ]
    return fields.get("model name") or os.uname().machine, kinds[0] if kinds else None


def find_tensorflow_version() -> str | None:
    """Return the version of TensorFlow without importing it, which takes seconds; None if it is not installed."""
    return _find_version(_TENSORFLOWS)


def find_cuda_version() -> str | None:
    """Return the version of CUDA that `tensorflow[and-cuda]` installs; None if CUDA is the host's own."""
    return _find_version(_CUDAS)


def _find_version(packages: Sequence[str]) -> str | None:
    """Return the version of the first of these packages that is installed, from the name of its metadata."""
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")
        except OSError:  # a zip, or nothing
            continue
        for name in names:
            whole, kind = os.path.splitext(name)
            if kind in (".dist-info", ".egg-info") and (name_parts := whole.split("-"))[0] in packages:
                return name_parts[1]
    return None


def read_governor() -> str | None:
    """Return the first core's frequency governor (`performance`, `powersave`, ...); None in most virtual machines."""
    return read_file("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")


def read_load() -> float:
    """Return the number of runnable processes, averaged over the last minute."""
    return round(os.getloadavg()[0], 2)
