"""What a host is made of, and what it counts. Reads /proc and /sys; imports nothing heavy, starts nothing but nvidia-smi."""

from __future__ import annotations

import os
import resource
import select
import signal
import sys
import time
from collections.abc import Mapping, Sequence

from pytest_dtfperf.node import interconnect

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_GIB = 1 << 30
_CPUINFO = "/proc/cpuinfo"
_KINDS = (("cpu family", "model"), ("cpu implementer", "cpu part"))  # of x86, of ARM
_COLUMNS = ("index", "name", "memory.total", "driver_version", "uuid")  # of nvidia-smi; a line of fewer is a warning of its
# Its exit codes when it has answered. 14: "infoROM is corrupted", which keeps no GPU from computing (NVIDIA/gpu-operator#285).
SMI_ANSWERS = (0, 14)
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
        """What was used between the two; the peak is still the whole process's.

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
    """Bytes (sent, received) of each interface of this host, the loopback included: tasks on one host talk over it."""
    found = {}
    with open("/proc/net/dev") as file:
        for line in file.readlines()[2:]:
            name, _, rest = line.partition(":")
            numbers = rest.split()
            found[name.strip()] = (int(numbers[8]), int(numbers[0]))
    return found


class Gpu:
    """One GPU as nvidia-smi lists it, or one of the parts that MIG cuts it into, which computes as a GPU of its own."""

    def __init__(self, index: str, name: str, memory_mib: int, driver: str) -> None:
        self.index = index  # as CUDA_VISIBLE_DEVICES names it: a number; of a part its UUID
        self.name = name
        self.memory_mib = memory_mib
        self.driver = driver


def gpus(within_s: float = NVIDIA_SMI_S) -> list[Gpu]:
    """The GPUs of this host that this process may use (CUDA_VISIBLE_DEVICES, which Slurm sets too).

    Raises `ValueError` where nvidia-smi answers and tells of none, or not of a part (MIG) that is named: GPUs that cannot be
    listed are not taken for none.
    """
    if not any(os.access(os.path.join(folder, "nvidia-smi"), os.X_OK) for folder in os.get_exec_path()):
        return []
    query = ["nvidia-smi", f"--query-gpu={','.join(_COLUMNS)}", "--format=csv,noheader,nounits"]
    code, answer = ask(query, within_s)
    if code not in SMI_ANSWERS:  # the tool without a driver, or a driver without a GPU
        return []
    lines = [[word.strip() for word in line.split(",")] for line in answer.splitlines()]
    rows = [words for words in lines if len(words) == len(_COLUMNS)]
    if answer.strip() and not rows:
        raise ValueError(f"nvidia-smi lists no GPU, and says: {answer.strip().splitlines()[0]}")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    allowed = None if visible is None else [word.strip() for word in visible.split(",")]
    listed = [
        (uuid, Gpu(index, name, int(memory) if memory.isdigit() else 0, driver)) for index, name, memory, driver, uuid in rows
    ]
    if allowed is None:
        return [gpu for _, gpu in listed]
    whole = [gpu for uuid, gpu in listed if gpu.index in allowed or uuid in allowed]
    wanted = [word for word in allowed if word.startswith("MIG-")]
    return whole + _parts(wanted, dict(listed), within_s) if wanted else whole


def _parts(wanted: Sequence[str], whole: Mapping[str, Gpu], within_s: float) -> list[Gpu]:
    """Parts of GPUs (MIG) by their UUIDs, as `nvidia-smi -L` lists them below each, with their memory in their profile's name:

        GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-e86cb44c-6756-fd30-cd4a-1e6da3caf9b0)
          MIG 3g.20gb     Device  0: (UUID: MIG-c7384736-a75d-5afc-978f-d2f1294409fd)

    Before driver 470 a UUID was MIG-GPU-e86cb44c-.../1/0. What `--query-gpu` tells is of whole GPUs alone.
    """
    _, answer = ask(["nvidia-smi", "-L"], within_s)
    found: dict[str, Gpu] = {}
    of: Gpu | None = None
    for words in filter(None, map(str.split, answer.splitlines())):
        uuid = words[-1].rstrip(")")
        if words[0] == "GPU":
            of = whole.get(uuid)
        elif words[0] == "MIG" and of:
            gib = words[1].partition(".")[2].partition("gb")[0]
            found[uuid] = Gpu(uuid, f"{of.name} MIG {words[1]}", 1024 * int(gib) if gib.isdigit() else 0, of.driver)
    if missing := [word for word in wanted if word not in found]:
        raise ValueError(
            f"CUDA_VISIBLE_DEVICES names {', '.join(missing)}, but nvidia-smi -L lists {', '.join(found) or 'no part of a GPU'}"
        )
    return [found[word] for word in wanted]


def ask(command: list[str], within_s: float) -> tuple[int, str]:
    """A program's exit code and what it prints. Raises `TimeoutError`. To import subprocess would take longer than this."""
    answer, theirs = os.pipe()
    nothing = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
    silence = (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0)
    pid = os.posix_spawnp(command[0], command, os.environ, file_actions=[nothing, (os.POSIX_SPAWN_DUP2, theirs, 1), silence])
    os.close(theirs)
    deadline = time.monotonic() + within_s
    output = b""
    with open(answer, "rb", buffering=0) as pipe:
        while select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0] and (data := pipe.read(1 << 16)):
            output += data
    late = time.monotonic() > deadline
    if late:
        os.kill(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if late:
        raise TimeoutError(f"{command[0]} has not answered for {within_s:g} s")
    return code, output.decode(errors="replace")


def fingerprint(found: list[Gpu]) -> dict[str, Any]:
    """Who this host is: what never changes, what an upgrade changes, and what changes by the minute."""
    model, kind = cpu()
    return {
        "hardware": {
            "cpu": model,
            "cpu_kind": kind,
            "cores": os.cpu_count(),
            "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIB),
            "interconnect": interconnect.fastest(),
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
    """What the first processor is called, `AMD EPYC 9R14`, and which design it is, as it says itself: `family 25, model 1`, of
    ARM `implementer 0x41, part 0xd40`.

    Names do not always tell: `AMD EPYC` is all that some hypervisors say, of processors of which one computes four times as
    fast as the other; and most of ARM have none, so that they are called by their architecture. None where the kernel does not
    tell the design.
    """
    told = {}
    with open(_CPUINFO) as file:
        for line in file:
            if not line.strip():
                break
            name, _, value = line.partition(":")
            told[name.strip().lower()] = " ".join(value.split())
    kinds = [
        ", ".join(f"{name.removeprefix('cpu ')} {told[name]}" for name in words)
        for words in _KINDS
        if all(told.get(name) for name in words)
    ]
    return told.get("model name") or os.uname().machine, kinds[0] if kinds else None


def tensorflow_version() -> str | None:
    """Importing it takes seconds, and the agent must never do so."""
    return _version_of(_TENSORFLOWS)


def cuda_version() -> str | None:
    """Of the CUDA that was installed beside TensorFlow, as `tensorflow[and-cuda]` does; None where it is the host's own."""
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
            if kind in (".dist-info", ".egg-info") and (words := whole.split("-"))[0] in packages:
                return words[1]
    return None


def governor() -> str | None:
    """How the first core chooses its clock (`performance`, `powersave`, ...), where the machine tells."""
    try:
        with open("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") as file:
            return file.read().strip()
    except OSError:  # virtual machines have none
        return None


def load() -> float:
    """Runnable processes, averaged over the last minute."""
    return round(os.getloadavg()[0], 2)
