"""What the GPUs of a host are doing: clocks and why they are lowered, errors, heat, power, and other users' processes.

A process of its own looks every second or two and writes what it sees as one line of JSON. It asks NVIDIA's library where
Python can import it (`pynvml`, of nvidia-ml-py), and nvidia-smi elsewhere. In the agent itself that library could not be used:
whatever is forked from there would find it in use, and NCCL uses it too.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from pytest_dtfperf.node import probes, processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    Reading = Mapping[str, Any]

LIBRARY_EVERY_S = 1.0
SMI_EVERY_S = 2.0  # each time it is loaded anew, and finds all GPUs
SMI_S = 5.0  # a loaded driver answers within a tenth of a second; one that does not by then is not waited for
_READ_BYTES = 1 << 16
_LONGEST_LINE = 1 << 20
_MOST = 1e15  # of whatever a GPU counts or measures; the controller rejects hosts that report much more

# Why a clock is lower than it could be, by bit: the NVML API Reference's NvmlClocksEventReasons (once "ThrottleReasons").
REASONS = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}

# nvidia-smi's name of each part of a reading. Since driver 535 it prints "clocks_event_reasons", and still takes the old name.
_QUERY = {
    "index": "index",
    "uuid": "uuid",
    "sm_mhz": "clocks.sm",
    "sm_max_mhz": "clocks.max.sm",
    "memory_mhz": "clocks.mem",
    "memory_max_mhz": "clocks.max.mem",
    "reasons": "clocks_throttle_reasons.active",
    "ecc_uncorrected": "ecc.errors.uncorrected.volatile.total",
    "temperature_c": "temperature.gpu",
    "power_w": "power.draw",
    "utilisation": "utilization.gpu",
}
_TEXT_COLUMNS = ("index", "uuid")
_FORMAT = "--format=csv,noheader,nounits"


# What nvidia-smi writes


def readings(rows: str, processes: str, gpus: Sequence[str]) -> list[Reading]:
    """One per GPU of these indices, of the two answers of nvidia-smi: of the GPUs, and of the processes that compute there."""
    found: list[Reading] = []
    there = _processes(processes)
    for row in rows.splitlines():
        cells = [cell.strip() for cell in row.split(",")]
        if len(cells) != len(_QUERY) or cells[0] not in gpus:
            continue
        named = dict(zip(_QUERY, cells, strict=True))
        reading: dict[str, Any] = {name: cell if name in _TEXT_COLUMNS else _number(cell) for name, cell in named.items()}
        mask = _mask(named["reasons"])
        reading |= {"reasons": None if mask is None else reasons(mask), "processes": there.get(named["uuid"], [])}
        found.append(reading)
    return found


def reasons(mask: int) -> list[str]:
    """Return the names of the bits that are set; of a bit that is too new to have one, its number."""
    bits = [1 << at for at in range(mask.bit_length()) if mask >> at & 1]
    return [REASONS.get(bit, hex(bit)) for bit in bits]


def _processes(rows: str) -> dict[str, list[dict[str, Any]]]:
    """Return processes by the GPU's UUID. A process's name may hold commas."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows.splitlines():
        cells = [cell.strip() for cell in row.split(",")]
        if len(cells) >= 4 and cells[1].isdigit():
            there = {"pid": int(cells[1]), "name": ",".join(cells[2:-1]), "memory_mib": _number(cells[-1])}
            found.setdefault(cells[0], []).append(there)
    return found


def _number(cell: str) -> float | None:
    """Return a number; None for `[N/A]`, `[Not Supported]`, `[Unknown Error]` and other text without a possible number."""
    try:
        number = float(cell)
    except ValueError:
        return None
    return number if abs(number) < _MOST else None  # which NaN is not


def _mask(cell: str) -> int | None:
    try:
        return int(cell, 16)
    except ValueError:
        return None


# Looking


def _by_smi(gpus: Sequence[str]) -> list[Reading]:
    """Empty where nvidia-smi does not answer, or not in time."""
    answers = []
    fields = ",".join(_QUERY.values())
    for query in (f"--query-gpu={fields}", "--query-compute-apps=gpu_uuid,pid,process_name,used_memory"):
        try:
            code, answer = probes.ask([probes.nvidia_smi() or "nvidia-smi", query, _FORMAT], SMI_S)
        except OSError:  # it hangs, or is there no more
            return []
        answers.append(answer if code in probes.SMI_ANSWERS else "")
    return readings(answers[0], answers[1], gpus)


def _by_library(nvml: Any, gpus: Sequence[str]) -> list[Reading]:
    """Return the readings from NVIDIA's library. What a GPU does not know is None."""

    def call_nvml(ask: str, *arguments: Any) -> Any:
        try:
            return getattr(nvml, ask)(*arguments)
        except nvml.NVMLError:
            return None

    found: list[Reading] = []
    for index in gpus:
        if (gpu := call_nvml("nvmlDeviceGetHandleByIndex", int(index))) is None:
            continue
        mask = call_nvml("nvmlDeviceGetCurrentClocksThrottleReasons", gpu)
        power_mw, used = call_nvml("nvmlDeviceGetPowerUsage", gpu), call_nvml("nvmlDeviceGetUtilizationRates", gpu)
        there = call_nvml("nvmlDeviceGetComputeRunningProcesses", gpu) or []
        found.append(
            {
                "index": index,
                "uuid": _text(call_nvml("nvmlDeviceGetUUID", gpu)),
                "sm_mhz": call_nvml("nvmlDeviceGetClockInfo", gpu, nvml.NVML_CLOCK_SM),
                "sm_max_mhz": call_nvml("nvmlDeviceGetMaxClockInfo", gpu, nvml.NVML_CLOCK_SM),
                "memory_mhz": call_nvml("nvmlDeviceGetClockInfo", gpu, nvml.NVML_CLOCK_MEM),
                "memory_max_mhz": call_nvml("nvmlDeviceGetMaxClockInfo", gpu, nvml.NVML_CLOCK_MEM),
                "reasons": None if mask is None else reasons(mask),
                "ecc_uncorrected": call_nvml(
                    "nvmlDeviceGetTotalEccErrors", gpu, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
                ),
                "temperature_c": call_nvml("nvmlDeviceGetTemperature", gpu, nvml.NVML_TEMPERATURE_GPU),
                "power_w": None if power_mw is None else power_mw / 1000,
                "utilisation": None if used is None else used.gpu,
                "processes": [
                    {
                        "pid": each.pid,
                        "name": _text(call_nvml("nvmlSystemGetProcessName", each.pid)),
                        "memory_mib": None if each.usedGpuMemory is None else each.usedGpuMemory >> 20,
                    }
                    for each in there
                ],
            }
        )
    return found


def _text(output: Any) -> str:
    """Old versions of the library answer in bytes."""
    return output.decode(errors="replace") if isinstance(output, bytes) else str(output or "")


def way_to_read(gpus: Sequence[str]) -> tuple[Callable[[], list[Reading]], float]:
    """NVIDIA's library, if there is one that works, or nvidia-smi; and the seconds from one sample to the next."""
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except ImportError:
        return lambda: _by_smi(gpus), SMI_EVERY_S
    except nvml.NVMLError:
        return lambda: _by_smi(gpus), SMI_EVERY_S
    return lambda: _by_library(nvml, gpus), LIBRARY_EVERY_S


class GpuWatch:
    """The process that looks, and what it has seen. `fileno` is readable when there is something to `hear`."""

    def __init__(self, gpus: Sequence[str]) -> None:
        self._incoming, theirs = os.pipe()
        agent = os.getpid()
        self._rest = b""
        self.pid = os.fork()
        if self.pid == 0:
            _watch(agent, theirs, gpus)
        os.close(theirs)

    def fileno(self) -> int:
        return self._incoming

    def hear(self) -> list[tuple[float, list[Reading]]] | None:
        """Return the samples since the last call, with their monotonic times. None: the sampling process has ended."""
        data = os.read(self._incoming, _READ_BYTES)
        if not data or len(self._rest) > _LONGEST_LINE:
            return None
        *whole, self._rest = (self._rest + data).split(b"\n")
        seen = [json.loads(line) for line in whole]
        return [(each["at_s"], each["gpus"]) for each in seen]

    def close(self) -> None:
        os.close(self._incoming)


def _watch(agent: int, line: int, gpus: Sequence[str]) -> NoReturn:
    """Sample the GPUs in a process of its own, until the agent is gone."""
    try:
        processes.die_with(agent)
        _part_from_agent(line)
        read_gpus, every_s = way_to_read(gpus)
        while True:
            seen = json.dumps({"at_s": time.monotonic(), "gpus": read_gpus()}, separators=(",", ":"))
            os.write(line, seen.encode() + b"\n")
            time.sleep(every_s)
    finally:  # a pipe without a reader, or any error: the agent sees that it is over, and trains on without
        os._exit(0)


def _part_from_agent(line: int) -> None:
    """Its own signals, and none of the agent's files."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(nothing, fd)
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2 and fd != line:
            with suppress(OSError):  # the one that listed them
                os.close(fd)
