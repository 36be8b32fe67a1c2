"""The fingerprint of a measurement: the hardware, the software and the program that it ran on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_dtfperf.codec import JsonData, SparseData, describe

COMPARED = ("hardware", "software", "program")  # parts of a fingerprint
_HASH = "[0-9a-f]{12}"


@dataclass(frozen=True, kw_only=True)
class GpuModel(SparseData):
    """A GPU of each host."""

    name: str = field(metadata=describe("Its name, as nvidia-smi prints it"))
    memory_gib: int | None = field(default=None, metadata=describe("Its memory", unit="GiB", at_least=0, omit_empty=True))


@dataclass(frozen=True, kw_only=True)
class Hardware(SparseData):
    """The hardware of each host."""

    cpu: str | None = field(default=None, metadata=describe("Name of the processor. Must match", omit_empty=True))
    cpu_kind: str | None = field(
        default=None,
        metadata=describe("Design of the processor: `family 25, model 1`. Must match where known", omit_empty=True),
    )
    cores: int | None = field(default=None, metadata=describe("Number of cores. Must match", at_least=1, omit_empty=True))
    memory_gib: int | None = field(
        default=None, metadata=describe("Memory. Must match to 10 % or 1 GiB", unit="GiB", at_least=0, omit_empty=True)
    )
    interconnect: str | None = field(
        default=None,
        metadata=describe(
            "Fastest link to other hosts: `InfiniBand 100 Gb/s`, `Ethernet 25 Gb/s`. Must match where known", omit_empty=True
        ),
    )
    gpus: Sequence[GpuModel] = field(default=(), metadata=describe("GPUs. Their names must match", omit_empty=True))
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
class TrainedProgram(SparseData):
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
    training: str = field(
        default="",
        metadata=describe(
            "In records of early versions: hash of the code of the built-in training. Noted only",
            pattern=_HASH,
            omit_empty=True,
        ),
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
class Fingerprint(SparseData):
    """What a measurement ran on. A part that is not known is missing."""

    hardware: Hardware = field(default=Hardware(), metadata=describe("Hardware of each host", omit_empty=True))
    software: Mapping[str, str | None] = field(
        default_factory=dict,
        metadata=describe(
            "Name to version. The major versions of tensorflow and cuda must match; other changes are noted", omit_empty=True
        ),
    )
    program: TrainedProgram = field(
        default=TrainedProgram(), metadata=describe("Graph and settings of the training", omit_empty=True)
    )
    state: Mapping[str, Any] = field(
        default_factory=dict, metadata=describe("Load and clocks of the hosts at that time; not compared", omit_empty=True)
    )
    placement: AllocationCheck | None = field(default=None, metadata=describe("Requested and allocated hosts", omit_empty=True))

    def select_compared(self) -> "Fingerprint":
        """Return the parts that are compared and stored in baselines, without the state of that day."""
        return Fingerprint(hardware=self.hardware, software=self.software, program=self.program, empty_keys=COMPARED)

    @property
    def is_simulated(self) -> bool:
        """Whether simulated hosts reported it: nothing was trained."""
        return bool(self.hardware.simulated)
