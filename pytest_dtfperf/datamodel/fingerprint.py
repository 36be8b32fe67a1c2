"""The fingerprint of a measurement: the hardware, the software and the program that it ran on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_dtfperf.codec import JsonData, describe
from pytest_dtfperf.datamodel.host_state import MAX_CPUS

COMPARED = ("hardware", "software", "program")  # parts of a fingerprint
_HASH = "[0-9a-f]{12}"
MAX_GPUS = 256  # of a host
MAX_NAME = 1000  # characters of a name
_gib: dict[str, Any] = {"unit": "GiB", "at_least": 0, "at_most": 1 << 30, "omit_empty": True}


@dataclass(frozen=True, kw_only=True)
class GpuModel(JsonData):
    """A GPU of each host."""

    name: str = field(metadata=describe("Its name, as nvidia-smi prints it", max_size=MAX_NAME))
    memory_gib: int | None = field(default=None, metadata=describe("Its memory", **_gib))


@dataclass(frozen=True, kw_only=True)
class HostHardware(JsonData):
    """The hardware of a host, as it reports it."""

    cpu: str | None = field(
        default=None, metadata=describe("Name of the processor. Must match", max_size=MAX_NAME, omit_empty=True)
    )
    cpu_kind: str | None = field(
        default=None,
        metadata=describe(
            "Design of the processor: `family 25, model 1`. Must match where known", max_size=MAX_NAME, omit_empty=True
        ),
    )
    cores: int | None = field(
        default=None, metadata=describe("Number of cores. Must match", at_least=1, at_most=MAX_CPUS, omit_empty=True)
    )
    memory_gib: int | None = field(
        default=None,
        metadata=describe("Memory. Must match to 10 % or 1 GiB", **_gib),
    )
    interconnect: str | None = field(
        default=None,
        metadata=describe(
            "Fastest link to other hosts: `InfiniBand 100 Gb/s`, `Ethernet 25 Gb/s`. Must match where known",
            max_size=MAX_NAME,
            omit_empty=True,
        ),
    )
    gpus: Sequence[GpuModel] = field(
        default_factory=list, metadata=describe("GPUs. Their names must match", max_size=MAX_GPUS, omit_empty=True)
    )


@dataclass(frozen=True, kw_only=True)
class Hardware(HostHardware):
    """The hardware of each host, with what only its cluster knows."""

    cloud: Mapping[str, str | float | bool | None] = field(
        default_factory=dict,
        metadata=describe("Instance type, zone, placement and network of a cloud's machines. Must match", omit_empty=True),
    )
    simulated: str = field(
        default="", metadata=describe("Name of the simulated cluster; missing: it was measured. Must match", omit_empty=True)
    )
    cpu_devices: int | None = field(
        default=None,
        metadata=describe("Number of devices that share the cores, if cores compute. Must match", at_least=1, omit_empty=True),
    )


@dataclass(frozen=True, kw_only=True)
class TrainedProgram(JsonData):
    """The graphs of a training, and the settings of their execution. They must match, if both are known.

    It is empty for an external command.
    """

    graph: str = field(
        default="", metadata=describe("Hash of the graphs, without names and order", pattern=_HASH, omit_empty=True)
    )
    operations: Mapping[str, int] = field(
        default_factory=dict, metadata=describe("Kind of operation to its number in the graphs", at_least=1, omit_empty=True)
    )
    settings: Mapping[str, Mapping[str, str]] = field(
        default_factory=dict, metadata=describe("By job: the settings of TensorFlow", omit_empty=True)
    )


@dataclass(frozen=True, kw_only=True)
class AllocatedNode(JsonData):
    """A host of an allocation."""

    name: str = field(metadata=describe("Its name"))
    gpus: int = field(metadata=describe("Number of its GPUs", at_least=0))
    switch: str | None = field(metadata=describe("Its network switch; null: not known"))


@dataclass(frozen=True, kw_only=True)
class AllocationCheck(JsonData):
    """The requested and the allocated hosts. If they differ, the measurement is INCOMPARABLE."""

    requested: Sequence[str] = field(metadata=describe("Requested hosts, one phrase for each property"))
    granted: Sequence[str] = field(metadata=describe("Allocated hosts, likewise"))
    nodes: Sequence[AllocatedNode] = field(metadata=describe("Each host"))
    matches: bool = field(metadata=describe("Whether they are as requested"))


@dataclass(frozen=True, kw_only=True)
class HostLoad(JsonData):
    """The state of a host before its first run."""

    load: float | None = field(
        default=None, metadata=describe("Load average of one minute; null: not known", at_least=0, at_most=1e18)
    )
    governor: str | None = field(
        default=None, metadata=describe("Frequency governor of the first core; null: not known", max_size=MAX_NAME)
    )


@dataclass(frozen=True, kw_only=True)
class HostSoftware(JsonData):
    """The versions of a host's software, as it reports them."""

    python: str = field(metadata=describe("Version of Python", max_size=MAX_NAME))
    tensorflow: str | None = field(metadata=describe("Version of TensorFlow; null: there is none", max_size=MAX_NAME))
    cuda: str | None = field(metadata=describe("Version of CUDA; null: there is none", max_size=MAX_NAME))
    kernel: str = field(metadata=describe("Version of the kernel", max_size=MAX_NAME))
    driver: str | None = field(metadata=describe("Version of the GPUs' driver; null: there is none", max_size=MAX_NAME))
    container: str = field(default="", metadata=describe("Digest of the container's image", max_size=MAX_NAME, omit_empty=True))


@dataclass(frozen=True, kw_only=True)
class HostFingerprint(JsonData):
    """The fingerprint of a host, as it reports it."""

    hardware: HostHardware = field(metadata=describe("Its hardware"))
    software: HostSoftware = field(metadata=describe("Its software"))
    state: HostLoad = field(metadata=describe("Its load"))


@dataclass(frozen=True, kw_only=True)
class Fingerprint(JsonData):
    """What a measurement ran on. Values that are not known are missing."""

    hardware: Hardware = field(default=Hardware(), metadata=describe("Hardware of each host"))
    software: Mapping[str, str | None] = field(
        default_factory=dict,
        metadata=describe("Name to version. The major versions of tensorflow and cuda must match; other changes are noted"),
    )
    program: TrainedProgram = field(default=TrainedProgram(), metadata=describe("Graph and settings of the training"))
    state: HostLoad | None = field(
        default=None, metadata=describe("Load and clocks of the hosts at that time; not compared", omit_empty=True)
    )
    placement: AllocationCheck | None = field(default=None, metadata=describe("Requested and allocated hosts", omit_empty=True))

    def select_compared(self) -> "Fingerprint":
        """Return the parts that are compared and stored in baselines, without the state of that day."""
        return Fingerprint(hardware=self.hardware, software=self.software, program=self.program)

    @property
    def is_simulated(self) -> bool:
        """Whether simulated hosts reported it: nothing was trained."""
        return bool(self.hardware.simulated)
