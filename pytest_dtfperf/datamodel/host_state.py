"""The state of a host during one run, from its own counters: cores, memory, clocks and GPUs; and what disturbed the run."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_dtfperf.codec import JsonData, ValidationError, describe
from pytest_dtfperf.datamodel.explanation import CauseKind
from pytest_dtfperf.datamodel.task_report import count, seconds

MAX_CPUS = 1 << 16  # of a host
_number: dict[str, Any] = {"at_least": -1e18, "at_most": 1e18}  # far above any reading
_two_numbers: dict[str, Any] = {**_number, "min_size": 2, "max_size": 2}


@dataclass(frozen=True, kw_only=True)
class BeforeAfter(JsonData):
    """A reading before and after the run."""

    before: float | None = field(metadata=describe("Before the run; null: not known", **_number))
    after: float | None = field(metadata=describe("After it; null: not known", **_number))


@dataclass(frozen=True, kw_only=True)
class ClockReading(BeforeAfter):
    """The mean clock of the allocated cores."""

    most: float | None = field(metadata=describe("The highest clock of a core; null: not known", **_number))


@dataclass(frozen=True, kw_only=True)
class CpuTimes(JsonData):
    """Times of the cores that the run may use, within the measured steps."""

    busy_s: float = field(metadata=describe("Time of all processes on these cores", **seconds))
    own_s: float = field(metadata=describe("CPU time of the agent and its tasks", **seconds))
    controller_s: float = field(metadata=describe("CPU time of the controller, if it runs on this host", **seconds))
    steal_s: float = field(metadata=describe("Time that the hypervisor gave to others", **seconds))
    waited_s: float | None = field(
        default=None, metadata=describe("Time in which threads of the tasks waited for a core; null: not known", **seconds)
    )
    limited_s: float | None = field(
        default=None, metadata=describe("Time that a CPU quota took, summed over cores; null: not known", **seconds)
    )


@dataclass(frozen=True, kw_only=True)
class MemoryState(JsonData):
    """Free memory, and stalls for the lack of it."""

    available_mib: BeforeAfter = field(metadata=describe("Available memory", unit="MiB"))
    some_s: float | None = field(metadata=describe("Time in which a process waited for memory; null: not known", **seconds))
    full_s: float | None = field(metadata=describe("Time in which all processes waited for it; null: not known", **seconds))
    swapped_in_mib: int | None = field(metadata=describe("Memory read back from swap; null: not known", unit="MiB", **count))


@dataclass(frozen=True, kw_only=True)
class GpuReading(JsonData):
    """A sample of a GPU; null: not known."""

    index: str | None = field(default=None, metadata=describe("nvidia-smi's index", pattern="[0-9A-Za-z/.:-]{1,80}"))
    uuid: str | None = field(default=None, metadata=describe("Its UUID", pattern=".{0,100}"))
    sm_mhz: float | None = field(default=None, metadata=describe("Clock of the multiprocessors", unit="MHz", **_number))
    sm_max_mhz: float | None = field(default=None, metadata=describe("Its maximum", unit="MHz", **_number))
    memory_mhz: float | None = field(default=None, metadata=describe("Clock of the memory", unit="MHz", **_number))
    memory_max_mhz: float | None = field(default=None, metadata=describe("Its maximum", unit="MHz", **_number))
    ecc_uncorrected: float | None = field(default=None, metadata=describe("Uncorrected ECC errors since boot", **_number))
    temperature_c: float | None = field(default=None, metadata=describe("Temperature", unit="degrees Celsius", **_number))
    power_w: float | None = field(default=None, metadata=describe("Power", unit="W", **_number))
    utilisation: float | None = field(default=None, metadata=describe("Utilisation", unit="%", **_number))
    reasons: Sequence[str] | None = field(
        default=None, metadata=describe("Reasons for a lower clock, by NVML's names", pattern=".{0,60}", max_size=64)
    )


@dataclass(frozen=True, kw_only=True)
class GpuProcess(JsonData):
    """A process on a GPU."""

    pid: int = field(metadata=describe("Process id", **count))
    name: str = field(metadata=describe("Path of its program"))
    memory_mib: float | None = field(default=None, metadata=describe("Its memory on the GPU; null: not known", **_number))


@dataclass(frozen=True, kw_only=True)
class GpuSamples(JsonData):
    """The samples of a GPU within the measured steps: minimum and maximum of each value; null: not known."""

    samples: int = field(metadata=describe("Number of samples with known reasons", **count))
    reasons: Mapping[str, int] = field(
        metadata=describe("Reason for a lower clock to the samples that have it", key_pattern=".{0,60}", max_size=64, **count)
    )
    sm_mhz: Sequence[float] | None = field(default=None, metadata=describe("Clock of the multiprocessors", **_two_numbers))
    memory_mhz: Sequence[float] | None = field(default=None, metadata=describe("Clock of the memory", **_two_numbers))
    temperature_c: Sequence[float] | None = field(default=None, metadata=describe("Temperature", **_two_numbers))
    power_w: Sequence[float] | None = field(default=None, metadata=describe("Power", **_two_numbers))

    def __post_init__(self) -> None:
        for reason, number in self.reasons.items():
            if number > self.samples:
                raise ValidationError(f"at most {self.samples}, of so many samples", number, f"reasons.{reason}")


@dataclass(frozen=True, kw_only=True)
class GpuState(JsonData):
    """The state of one GPU of a run."""

    index: str = field(metadata=describe("nvidia-smi's index", pattern="[0-9A-Za-z/.:-]{1,80}"))
    before: GpuReading | None = field(metadata=describe("Last sample before the run; null: none"))
    after: GpuReading | None = field(metadata=describe("Last sample of all; null: none"))
    others: Sequence[GpuProcess] = field(
        metadata=describe("Processes on it before the run that were not the run's", max_size=4096)
    )
    during: GpuSamples = field(metadata=describe("Samples within the measured steps"))


@dataclass(frozen=True, kw_only=True)
class HostState(JsonData):
    """The state of a host within the measured steps of a run, and before and after the run."""

    machine: str = field(metadata=describe("Id of the machine; hosts may share one", pattern=".{0,60}"))
    cpus: str = field(metadata=describe("Cores that the run may use, with their siblings, as `0-3,8`"))
    cores: int = field(metadata=describe("Number of these cores", at_least=0, at_most=MAX_CPUS))
    quota: bool = field(metadata=describe("Whether a CPU quota limits the agent"))
    window_s: float = field(metadata=describe("Length of the measured steps on the host's clock", **seconds))
    cpu: CpuTimes = field(metadata=describe("Times of the cores"))
    load: BeforeAfter = field(metadata=describe("Load average of one minute"))
    memory: MemoryState = field(metadata=describe("Memory"))
    clock_mhz: ClockReading = field(metadata=describe("Clock of the cores", unit="MHz"))
    throttled_s: float | None = field(
        metadata=describe("Time in which heat lowered the clock of the core with the most of it; null: not known", **seconds)
    )
    gpus: Sequence[GpuState] = field(default=(), metadata=describe("Its GPUs that the run used", omit_empty=True, max_size=256))

    def __post_init__(self) -> None:
        found = re.fullmatch(r"(\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*)?", self.cpus, re.ASCII)
        if not found or not _are_few_enough(_parse_ranges(self.cpus)):
            raise ValidationError('ranges of cores such as "0-3,8"', self.cpus, "cpus")

    @property
    def core_numbers(self) -> frozenset[int]:
        """The cores that the run may use."""
        return frozenset(number for each in _parse_ranges(self.cpus) for number in each)


def _parse_ranges(cpus: str) -> list[range]:
    """Return the ranges of `0-3,8`, which are not expanded. One that is not ascending is empty."""
    ends = [part.partition("-") for part in cpus.split(",") if part]
    return [range(int(first), int(last or first) + 1) for first, _, last in ends]


def _are_few_enough(ranges: Sequence[range]) -> bool:
    """Return whether ranges are ascending and have at most `MAX_CPUS` cores."""
    return all(ranges) and sum(map(len, ranges)) <= MAX_CPUS


@dataclass(frozen=True, kw_only=True)
class Disturbance(JsonData):
    """A reason why a run does not show the speed of its hosts."""

    message: str = field(metadata=describe("The reason, as a phrase"))
    kind: CauseKind | None = field(default=None, metadata=describe("Kind of cause; null: of no known kind"))
    host: str | None = field(default=None, metadata=describe("Host of the cause; null: not that of one host"))
    gpu: str | None = field(default=None, metadata=describe("Index of the GPU of the cause; null: not a GPU", omit_empty=True))

    def __str__(self) -> str:
        """Return `host n3: other processes used ...` or `gpu 0 of n3: clocks lowered ...`."""
        where = f"gpu {self.gpu} of {self.host}" if self.gpu is not None else f"host {self.host}"
        return f"{where}: {self.message}" if self.host else self.message


def choose_distinct(disturbances: Iterable[Disturbance]) -> list[Disturbance]:
    """Return the first disturbance of each kind on each host: those of other runs differ only in their numbers."""
    found: dict[object, Disturbance] = {}
    for each in disturbances:
        found.setdefault((each.kind, each.host, each.gpu) if each.kind else each, each)
    return list(found.values())
