"""What a host is made of, and what it counts. Reads /proc and /sys; imports nothing heavy, starts nothing but nvidia-smi."""

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

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_GIB = 1 << 30
_CPUINFO = "/proc/cpuinfo"
_KINDS = (("cpu family", "model"), ("cpu implementer", "cpu part"))  # of x86, of ARM
_COLUMNS = ("index", "name", "memory.total", "driver_version", "uuid")  # of nvidia-smi; a line of fewer is a warning of its
_MIG_MODE = "mig.mode.current"  # a column that nvidia-smi before driver 450 does not know, and refuses with exit code 2
_FORMAT = "--format=csv,noheader,nounits"
# Its exit codes when it has answered. 14: "infoROM is corrupted", which keeps no GPU from computing (NVIDIA/gpu-operator#285).
SMI_ANSWERS = (0, 14)
# Its exit codes where there is no GPU: 6, "No devices were found"; 9, no driver is loaded. With others there may be some.
_SMI_NO_GPUS = (6, 9)
_SMI_REFUSES = 2
_SMI_WSL = "/usr/lib/wsl/lib/nvidia-smi"  # on WSL2, where a login over SSH does not have it on its PATH
_DEVICE_FILE = re.compile(r"nvidia[0-9]+")
_DEVICES = "/dev"
# CUDA_VISIBLE_DEVICES that hides all GPUs on purpose: empty, a negative number, Slurm's word, and what people write.
_HIDES_ALL = re.compile(r"\s*(-(?!0).*|NoDevFiles|none|void)?\s*", re.IGNORECASE | re.DOTALL)
_NUMBER = re.compile(r"[+-]?[0-9]+")  # CUDA reads a number as strtol does: "1x" is 1
_MOST_QUOTED = 300
_END_POLL_S = 0.01
NVIDIA_SMI_S = 20.0  # the first call on a host without persistence mode initialises every GPU
_TENSORFLOWS = ("tensorflow", "tensorflow_cpu", "tensorflow_rocm", "tf_nightly", "tf_nightly_cpu")  # all provide `tensorflow`
_CUDAS = ("nvidia_cuda_runtime", "nvidia_cuda_runtime_cu13", "nvidia_cuda_runtime_cu12", "nvidia_cuda_runtime_cu11")


class Counters:
    """What has been used up to now."""

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

    def since(self, before: Counters) -> Counters:
        """Return what was used between the two; the peak is still the whole process's.

        Interfaces come and go, those of containers for one. One that has gone takes its bytes with it, which are not counted
        then; one that has come anew under its old name has counted from 0.
        """
        network = {name: _grown(before.network.get(name, (0, 0)), now) for name, now in self.network.items()}
        return Counters(network, self.cpu_s - before.cpu_s, self.peak_rss_bytes)


def _grown(before: tuple[int, int], now: tuple[int, int]) -> tuple[int, int]:
    if now[0] < before[0] or now[1] < before[1]:
        return now
    return now[0] - before[0], now[1] - before[1]


def counters() -> Counters:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return Counters(network_bytes(), usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)  # Linux counts it in KiB


def network_bytes() -> dict[str, tuple[int, int]]:
    """Return bytes (sent, received) of each interface of this host, the loopback included: tasks on one host talk over it."""
    found = {}
    with open("/proc/net/dev") as file:
        for line in file.readlines()[2:]:
            name, _, rest = line.partition(":")
            numbers = rest.split()
            found[name.strip()] = (int(numbers[8]), int(numbers[0]))
    return found


WITHOUT_GPUS = 'To measure on its cores, set device = "cpu" in clusters.toml.'


class GpusUnknown(Exception):
    """The GPUs of a host cannot be listed; the message has the reason. They are never taken for none."""


class Gpu:
    """One GPU as nvidia-smi lists it, or one of the parts (MIG) that it is cut into, which computes as a GPU of its own."""

    def __init__(self, index: str, name: str, memory_mib: int, driver: str, visible_as: str | None = None) -> None:
        self.index = index  # nvidia-smi's number; of a part its UUID
        self.name = name
        self.memory_mib = memory_mib
        self.driver = driver
        self.visible_as = visible_as or index  # its name in CUDA_VISIBLE_DEVICES


def gpus(within_s: float = NVIDIA_SMI_S, environ: Mapping[str, str] | None = None) -> list[Gpu]:
    """Return the GPUs of this host that a process with this environment may use, in the order in which CUDA counts them.

    The dry run, runs, the doctor and `dtfperf init` all count by this. A GPU that is cut into parts (MIG) is none; each of its
    parts is one. Raises `GpusUnknown` where GPUs cannot be listed, or CUDA_VISIBLE_DEVICES names none that is there.
    """
    environ = os.environ if environ is None else environ
    named = environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None and hides_all(named):
        return []
    try:
        whole, parts = _list_gpus(within_s, environ)
    except OSError as exc:  # a TimeoutError among them
        raise GpusUnknown(str(exc)) from exc
    if not whole or named is None:
        return [gpu for uuid, gpu in whole.items() for gpu in parts.get(uuid, [gpu])]
    return _visible(named, environ.get("CUDA_DEVICE_ORDER", ""), whole, parts)


def hides_all(named: str) -> bool:
    """Return whether a value of CUDA_VISIBLE_DEVICES is meant to hide all GPUs, and does not merely name none that is there."""
    return bool(_HIDES_ALL.fullmatch(named))


def nvidia_smi(environ: Mapping[str, str] | None = None) -> str | None:
    """Return the path of nvidia-smi, or None where it is not installed."""
    paths = [os.path.join(folder, "nvidia-smi") for folder in os.get_exec_path(environ)]
    return next((path for path in [*paths, _SMI_WSL] if os.access(path, os.X_OK) and os.path.isfile(path)), None)


def _list_gpus(within_s: float, environ: Mapping[str, str]) -> tuple[dict[str, Gpu], dict[str, list[Gpu]]]:
    """Return all GPUs by their UUIDs, and the parts of those that are cut into parts (MIG), which may be none."""
    smi = nvidia_smi(environ)
    if smi is None:
        if files := sorted(name for name in os.listdir(_DEVICES) if _DEVICE_FILE.fullmatch(name)):
            raise GpusUnknown(
                f"there are GPUs here ({_DEVICES}/{files[0]}), but no nvidia-smi to list them. Install it; in a container have "
                "`utility` in NVIDIA_DRIVER_CAPABILITIES"
            )
        return {}, {}
    columns = ",".join(_COLUMNS)
    code, answer = ask([smi, f"--query-gpu={columns},{_MIG_MODE}", _FORMAT], within_s, environ)
    if code == _SMI_REFUSES or "not a valid field" in answer:
        code, answer = ask([smi, f"--query-gpu={columns}", _FORMAT], within_s, environ)
    if code in _SMI_NO_GPUS:
        return {}, {}
    rows = [cells for cells in _cells(answer) if len(cells) in (len(_COLUMNS), len(_COLUMNS) + 1) and cells[0].isdecimal()]
    if code in SMI_ANSWERS and not rows and re.search("no devices (were )?found", answer, re.IGNORECASE):
        return {}, {}
    if code not in SMI_ANSWERS or not rows:
        raise GpusUnknown(_format_smi_failure(code, answer))
    code, answer = ask([smi, "-L"], within_s, environ)
    if code not in SMI_ANSWERS:
        raise GpusUnknown(_format_smi_failure(code, answer))
    parts = _parts(answer, {cells[4]: cells[1] for cells in rows}, rows[0][3])
    parts = {**{cells[4]: [] for cells in rows if cells[5:] == ["Enabled"]}, **parts}
    whole = {
        uuid: Gpu(
            index,
            name,
            int(memory) if memory.isdigit() else 0,
            driver,
            # How CUDA numbers the GPUs beside those that are cut into parts is written nowhere.
            uuid if parts else index,
        )
        for index, name, memory, driver, uuid, *_ in rows
    }
    return whole, parts


def _cells(answer: str) -> list[list[str]]:
    return [[word.strip() for word in line.split(",")] for line in answer.splitlines()]


def _format_smi_failure(code: int, answer: str) -> str:
    """Return how nvidia-smi ended, and the beginning of its output, on one line."""
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    quoted = " ".join(answer.split())[:_MOST_QUOTED]
    return f"nvidia-smi {how}, and printed {quoted!r}" if quoted else f"nvidia-smi {how}, and printed nothing"


def _parts(answer: str, names: Mapping[str, str], driver: str) -> dict[str, list[Gpu]]:
    """Return the parts (MIG) of each GPU, as `nvidia-smi -L` lists them below it, with their memory in their profile's name:

        GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-e86cb44c-6756-fd30-cd4a-1e6da3caf9b0)
          MIG 3g.20gb     Device  0: (UUID: MIG-c7384736-a75d-5afc-978f-d2f1294409fd)

    Before driver 470 a UUID was MIG-GPU-e86cb44c-.../1/0. `--query-gpu` reports whole GPUs alone.
    """
    found: dict[str, list[Gpu]] = {}
    of = ""
    for fields in filter(None, map(str.split, answer.splitlines())):
        uuid = fields[-1].rstrip(")")
        if fields[0] == "GPU":
            of = uuid
        elif fields[0] == "MIG" and of in names:
            gib = re.search(r"([0-9]+)gb", fields[1])
            part = Gpu(uuid, f"{names[of]} MIG {fields[1]}", 1024 * int(gib[1]) if gib else 0, driver)
            found.setdefault(of, []).append(part)
    return found


def _visible(named: str, order: str, whole: Mapping[str, Gpu], parts: Mapping[str, Sequence[Gpu]]) -> list[Gpu]:
    """Return those that CUDA_VISIBLE_DEVICES names, by CUDA's own rules.

    What the first word is, all are: numbers, or UUIDs, of which the beginning is enough where no other GPU's begins so. The
    first word that names none ends the list, and a GPU that is named twice empties it (so the driver, as observed in PyTorch's
    pull request 92315). Of a GPU that is cut into parts CUDA takes the first part. A part that is not there is an error.
    """
    devices = [word.strip() for word in named.split(",")]
    all_parts = {part.index: part for each in parts.values() for part in each}
    numbers = not devices[0].startswith(("GPU-", "MIG-"))
    if numbers and len({gpu.name for gpu in whole.values()}) > 1 and order not in ("", "PCI_BUS_ID"):
        raise GpusUnknown(
            f"which GPUs CUDA_VISIBLE_DEVICES={named} names is not known with CUDA_DEVICE_ORDER={order}, for they are of "
            "several kinds. Name them by UUID (nvidia-smi -L), or set CUDA_DEVICE_ORDER=PCI_BUS_ID"
        )
    found: list[Gpu] = []
    why = ""
    for word in devices:
        gpu = _find_numbered_gpu(word, whole, parts) if numbers else _with_uuid(word, whole, parts, all_parts)
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
    return next((_first(uuid, gpu, parts) for uuid, gpu in whole.items() if gpu.index == index), None)


def _with_uuid(
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
    return _first(begin_so[0], among[begin_so[0]], parts)


def _first(uuid: str, gpu: Gpu, parts: Mapping[str, Sequence[Gpu]]) -> Gpu | None:
    """Return the GPU, or the first part of one that is cut into parts; None where it has no part yet."""
    return next(iter(parts[uuid]), None) if uuid in parts else gpu


def ask(command: list[str], within_s: float, environ: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Return a program's exit code and what it prints. Raises `OSError`, of which `TimeoutError` is one.

    To import subprocess would take longer than this.
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
        # One that hangs in the driver does not even end by this, and is not waited for.
        os.kill(pid, signal.SIGKILL)
        time.sleep(_END_POLL_S)
        os.waitpid(pid, os.WNOHANG)
        raise TimeoutError(f"{os.path.basename(command[0])} has not answered for {within_s:g} s")
    return os.waitstatus_to_exitcode(status), output.decode(errors="replace")


def fingerprint(found: list[Gpu]) -> dict[str, Any]:
    """Return the identity of this host: what never changes, what an upgrade changes, and what changes by the minute."""
    model, kind = cpu()
    return {
        "hardware": {
            "cpu": model,
            "cpu_kind": kind,
            "cores": os.cpu_count(),
            "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIB),
            "interconnect": interfaces.fastest(),
            "gpus": [{"name": gpu.name, "memory_gib": round(gpu.memory_mib / 1024)} for gpu in found],
        },
        "software": {
            "python": sys.version.split()[0],
            "tensorflow": tensorflow_version(),
            "cuda": cuda_version(),
            "kernel": os.uname().release,
            "driver": found[0].driver if found else None,
        },
        "state": {"load": load(), "governor": governor()},
    }


def cpu() -> tuple[str, str | None]:
    """Return the first processor's name, `AMD EPYC 9R14`, and its design as it reports it: `family 25, model 1`, of
    ARM `implementer 0x41, part 0xd40`.

    Names are not always enough: some hypervisors report only `AMD EPYC`, of processors of which one computes four times as
    fast as the other; and most of ARM have none, so that they are called by their architecture. None where the kernel does not
    show the design.
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


def tensorflow_version() -> str | None:
    """Importing it takes seconds, and the agent must never do so."""
    return _version_of(_TENSORFLOWS)


def cuda_version() -> str | None:
    """Return the version of the CUDA beside TensorFlow, as `tensorflow[and-cuda]` installs; None where it is the host's own."""
    return _version_of(_CUDAS)


def _version_of(packages: Sequence[str]) -> str | None:
    """The version of whichever of these is installed, read from the name of its metadata."""
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


def governor() -> str | None:
    """Return how the first core chooses its clock (`performance`, `powersave`, ...), where the machine reports it."""
    try:
        with open("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") as file:
            return file.read().strip()
    except OSError:  # virtual machines have none
        return None


def load() -> float:
    """Runnable processes, averaged over the last minute."""
    return round(os.getloadavg()[0], 2)
