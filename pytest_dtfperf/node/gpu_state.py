"""The state of a host's GPUs: clocks and why they are lowered, errors, temperature, power, and other users' processes.

A separate process samples the GPUs every second or two and writes each sample as one line of JSON. It uses NVIDIA's library if
Python can import it (`pynvml`, of nvidia-ml-py), and nvidia-smi otherwise. The agent itself cannot use the library: all
processes that it forks would inherit it in use, and NCCL uses it too.
"""

from __future__ import annotations

import importlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence

from pytest_dtfperf.node import probes, processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    Reading = Mapping[str, Any]

LIBRARY_EVERY_S = 1.0
SMI_EVERY_S = 2.0  # longer, as each call loads nvidia-smi and lists all GPUs
SMI_S = 5.0  # time-out of nvidia-smi; a loaded driver answers within a tenth of a second
_READ_BYTES = 1 << 16
_LONGEST_LINE = 1 << 20
_MOST = 1e15  # of any value of a GPU; the controller rejects hosts that report much more

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


def parse_readings(rows: str, processes: str, gpus: Sequence[str]) -> list[Reading]:
    """Return a reading for each GPU of these indices, from nvidia-smi's rows of GPUs and of compute processes."""
    found: list[Reading] = []
    there = _parse_processes(processes)
    for row in rows.splitlines():
        cells = [cell.strip() for cell in row.split(",")]
        if len(cells) != len(_QUERY) or cells[0] not in gpus:
            continue
        named = dict(zip(_QUERY, cells, strict=True))
        reading: dict[str, Any] = {name: cell if name in _TEXT_COLUMNS else _parse_number(cell) for name, cell in named.items()}
        mask = _parse_mask(named["reasons"])
        reading |= {"reasons": None if mask is None else name_reasons(mask), "processes": there.get(named["uuid"], [])}
        found.append(reading)
    return found


def name_reasons(mask: int) -> list[str]:
    """Return the names of the bits that are set; a bit without a name is a hexadecimal number."""
    bits = [1 << at for at in range(mask.bit_length()) if mask >> at & 1]
    return [REASONS.get(bit, hex(bit)) for bit in bits]


def _parse_processes(rows: str) -> dict[str, list[dict[str, Any]]]:
    """Return the processes by the GPU's UUID. A process's name may contain commas."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows.splitlines():
        cells = [cell.strip() for cell in row.split(",")]
        if len(cells) >= 4 and cells[1].isdigit():
            there = {"pid": int(cells[1]), "name": ",".join(cells[2:-1]), "memory_mib": _parse_number(cells[-1])}
            found.setdefault(cells[0], []).append(there)
    return found


def _parse_number(cell: str) -> float | None:
    """Return the number; None for `[N/A]`, `[Not Supported]`, `[Unknown Error]` and other text without a possible number."""
    try:
        number = float(cell)
    except ValueError:
        return None
    return number if abs(number) < _MOST else None  # which NaN is not


def _parse_mask(cell: str) -> int | None:
    try:
        return int(cell, 16)
    except ValueError:
        return None


def _read_by_smi(gpus: Sequence[str]) -> list[Reading]:
    """Return the readings from nvidia-smi; empty if it does not answer in time."""
    answers = []
    fields = ",".join(_QUERY.values())
    for query in (f"--query-gpu={fields}", "--query-compute-apps=gpu_uuid,pid,process_name,used_memory"):
        try:
            code, answer = probes.run_program([probes.find_nvidia_smi() or "nvidia-smi", query, probes.CSV_FORMAT], SMI_S)
        except OSError:  # it hangs, or no longer exists
            return []
        answers.append(answer if code in probes.SMI_ANSWERS else "")
    return parse_readings(answers[0], answers[1], gpus)


def _read_by_library(nvml: Any, gpus: Sequence[str]) -> list[Reading]:
    """Return the readings from NVIDIA's library. Values that a GPU does not report are None."""

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
                "uuid": _decode(call_nvml("nvmlDeviceGetUUID", gpu)),
                "sm_mhz": call_nvml("nvmlDeviceGetClockInfo", gpu, nvml.NVML_CLOCK_SM),
                "sm_max_mhz": call_nvml("nvmlDeviceGetMaxClockInfo", gpu, nvml.NVML_CLOCK_SM),
                "memory_mhz": call_nvml("nvmlDeviceGetClockInfo", gpu, nvml.NVML_CLOCK_MEM),
                "memory_max_mhz": call_nvml("nvmlDeviceGetMaxClockInfo", gpu, nvml.NVML_CLOCK_MEM),
                "reasons": None if mask is None else name_reasons(mask),
                "ecc_uncorrected": call_nvml(
                    "nvmlDeviceGetTotalEccErrors", gpu, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
                ),
                "temperature_c": call_nvml("nvmlDeviceGetTemperature", gpu, nvml.NVML_TEMPERATURE_GPU),
                "power_w": None if power_mw is None else power_mw / 1000,
                "utilisation": None if used is None else used.gpu,
                "processes": [
                    {
                        "pid": each.pid,
                        "name": _decode(call_nvml("nvmlSystemGetProcessName", each.pid)),
                        "memory_mib": None if each.usedGpuMemory is None else each.usedGpuMemory >> 20,
                    }
                    for each in there
                ],
            }
        )
    return found


def _decode(output: Any) -> str:
    """Return a string of NVIDIA's library, which old versions return as bytes."""
    return output.decode(errors="replace") if isinstance(output, bytes) else str(output or "")


def choose_reader(gpus: Sequence[str]) -> tuple[Callable[[], list[Reading]], float]:
    """Return a function that reads the GPUs, and the seconds between samples. NVIDIA's library is preferred to nvidia-smi."""
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except ImportError:
        return lambda: _read_by_smi(gpus), SMI_EVERY_S
    except nvml.NVMLError:
        return lambda: _read_by_smi(gpus), SMI_EVERY_S
    return lambda: _read_by_library(nvml, gpus), LIBRARY_EVERY_S


class GpuWatch:
    """A process that samples the GPUs. `fileno` is readable when `receive` has samples to return."""

    def __init__(self, gpus: Sequence[str]) -> None:
        self._incoming, theirs = os.pipe()
        agent = os.getpid()
        self._rest = b""
        self.pid = os.fork()
        if self.pid == 0:
            _sample_until_end(agent, theirs, gpus)
        os.close(theirs)

    def fileno(self) -> int:
        return self._incoming

    def read_samples(self) -> list[tuple[float, list[Reading]]] | None:
        """Return the samples since the last call, each with its monotonic time; None once the sampling process has ended."""
        data = os.read(self._incoming, _READ_BYTES)
        if not data or len(self._rest) > _LONGEST_LINE:
            return None
        *whole, self._rest = (self._rest + data).split(b"\n")
        seen = [json.loads(line) for line in whole]
        return [(each["at_s"], each["gpus"]) for each in seen]

    def close(self) -> None:
        os.close(self._incoming)


def _sample_until_end(agent: int, line: int, gpus: Sequence[str]) -> NoReturn:
    """Sample the GPUs in this forked process until the agent has ended."""
    try:
        processes.die_with(agent)
        processes.reset_signals()
        nothing = os.open(os.devnull, os.O_RDWR)
        for fd in range(3):
            os.dup2(nothing, fd)
        processes.close_inherited_files(line)
        read_gpus, every_s = choose_reader(gpus)
        while True:
            seen = json.dumps({"at_s": time.monotonic(), "gpus": read_gpus()}, separators=(",", ":"))
            os.write(line, seen.encode() + b"\n")
            time.sleep(every_s)
    finally:  # the agent notices the end of the pipe, and continues without samples
        os._exit(0)
