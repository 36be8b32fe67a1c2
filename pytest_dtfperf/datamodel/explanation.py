"""What is concluded about a measurement beside its verdict: its limit, the causes of its loss, and experiments on these."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from pytest_dtfperf.codec import JsonData, describe
from pytest_dtfperf.datamodel.task_report import rate
from pytest_dtfperf.row_enum import RowEnum

Resource = Literal["cores", "gpus", "link", "memory"]  # it limits a rate
CORES: Resource = "cores"
GPUS: Resource = "gpus"
LINK: Resource = "link"
MEMORY: Resource = "memory"

_count_of_servers: dict[str, Any] = {"key_pattern": r"[1-9][0-9]{0,8}"}
SHORT_RUN = r"[1-9][0-9]{0,8} servers, [1-9][0-9]{0,8} steps"


@dataclass(frozen=True, kw_only=True)
class Bound(JsonData):
    """The least time that one resource of one host takes for a step."""

    resource: Resource = field(metadata=describe("The resource that is limited"))
    host: str = field(metadata=describe("The host of the resource"))
    step_s: float = field(metadata=describe("The least duration of a step", unit="s", above=0))
    needs: str = field(metadata=describe("Amount of the resource that a step takes, and that the host has"))


@dataclass(frozen=True, kw_only=True)
class Limit(JsonData):
    """The highest rate that devices, links and memory allow (`limits/limit.py`)."""

    images_per_sec: float | None = field(
        default=None, metadata=describe("The highest rate; null: not known", unit="images/sec", above=0)
    )
    bounds: Sequence[Bound] = field(
        default=(), metadata=describe("For each resource the host with the longest time for a step, the longest first")
    )
    unknown: Mapping[str, str] = field(
        default_factory=dict, metadata=describe("Resource to the reason for leaving it, or that of some hosts, out")
    )

    @property
    def binding(self) -> Bound | None:
        """The resource that sets the limit."""
        return self.bounds[0] if self.bounds else None

    def share(self, images_per_sec: float) -> float | None:
        """Return the fraction of the limit that a rate is."""
        return None if self.images_per_sec is None else images_per_sec / self.images_per_sec


@dataclass(kw_only=True)
class SweepState(JsonData):
    """How the number of parameter servers was found (`session/sweep.py`)."""

    most: int = field(metadata=describe("The largest number that was considered", at_least=1))
    tried: dict[str, float] = field(
        default_factory=dict,
        metadata=describe("Servers and measured steps of each short run to its rate", key_pattern=SHORT_RUN, **rate),
    )
    predicted: dict[str, float] = field(
        default_factory=dict, metadata=describe("Number of servers to the predicted rate", **_count_of_servers, **rate)
    )
    failed: dict[str, str] = field(
        default_factory=dict, metadata=describe("Number of servers to the reason for its exclusion", **_count_of_servers)
    )


Trial = Literal[
    "synthetic input", "no exchange", "own work alone", "forward only", "another host", "other placement"
]  # what `explain/experiments.py` changes in a training


@dataclass(frozen=True, kw_only=True)
class CauseKindRow:
    """The commands and experiments that investigate one kind of cause further."""

    trials: Sequence[Trial]  # experiments that confirm or refute it, the most conclusive first
    doctor: bool = False  # `dtfperf doctor` can show it on its hosts or links
    isolate: bool = False  # one host or link can have it, and the others not, so that `dtfperf isolate` finds that one


class CauseKind(RowEnum):
    """The kinds of causes of a longer step: docs/causes.md. A kind is a row here."""

    row: CauseKindRow

    # The arithmetic takes longer: on all hosts, on one host or on one device.
    COMPUTE = ("compute", CauseKindRow(trials=("another host", "own work alone", "forward only"), doctor=True, isolate=True))
    # Steps wait for their next batch, or compute on cores that decoding uses.
    INPUT = ("input", CauseKindRow(trials=("synthetic input",), doctor=True))
    # Bytes take longer between two tasks or hosts.
    LINK = ("link", CauseKindRow(trials=("another host", "no exchange"), doctor=True, isolate=True))
    # A parameter server answers or updates more slowly.
    SERVER = ("server", CauseKindRow(trials=("another host", "other placement", "no exchange"), doctor=True, isolate=True))
    # One worker is late before it begins a step, for another reason than its arithmetic or its links, or for an unknown one.
    STRAGGLER = ("straggler", CauseKindRow(trials=("another host", "own work alone"), isolate=True))
    # Workers wait for each other in turn, or for the update.
    WAITING = ("waiting", CauseKindRow(trials=("no exchange",)))
    # Other processes use the cores of the training.
    OTHERS = ("others", CauseKindRow(trials=("another host",), doctor=True, isolate=True))
    # A lower clock, because of heat, power or a setting.
    CLOCK = ("clock", CauseKindRow(trials=("another host", "own work alone"), doctor=True, isolate=True))
    # There is too little memory, or other processes use its bandwidth.
    MEMORY = ("memory", CauseKindRow(trials=("another host", "own work alone"), doctor=True, isolate=True))
    # Versions differ.
    SOFTWARE = ("software", CauseKindRow(trials=("own work alone",)))
    # Another graph, or other settings.
    PROGRAM = ("program", CauseKindRow(trials=("own work alone", "forward only")))
    # Other hosts, of another kind.
    HARDWARE = ("hardware", CauseKindRow(trials=("another host", "own work alone"), isolate=True))
    # Python and TensorFlow's own host code take longer on all workers.
    HOST = ("host", CauseKindRow(trials=("own work alone",)))


class Confidence(StrEnum):
    """How well the evidence supports a cause: docs/causes.md."""

    HIGH = "high"  # evidence that does not come from the same seconds supports it
    MEDIUM = "medium"
    LOW = "low"  # there is no baseline, or something else may be the cause


Outcome = Literal["confirmed", "refuted", "open"]


@dataclass(frozen=True)
class Cause(JsonData):
    """Something that makes a step longer."""

    kind: CauseKind = field(metadata=describe("Kind of cause: docs/causes.md"))
    seconds: float = field(metadata=describe("Increase of a step", unit="s"))
    share: float = field(metadata=describe("Fraction of the step's change"))
    location: str | None = field(metadata=describe("A task, a host, or a link as in ps:0>worker:1; null: the whole cluster"))
    words: str = field(metadata=describe("The cause in one line"))
    evidence: Sequence[str] = field(metadata=describe("Data that support it, one line each"))
    confidence: Confidence = field(metadata=describe("Confidence"))
    next: str | None = field(metadata=describe("The command to investigate further"))


@dataclass(frozen=True)
class Explanation(JsonData):
    """Why a step takes longer than in the baseline (`explain/causes.py`)."""

    causes: Sequence[Cause] = field(metadata=describe("Causes, the largest first"))
    step_s: float = field(metadata=describe("Current duration of a step", unit="s", above=0))
    baseline_step_s: float = field(metadata=describe("Duration of a step in the baseline", unit="s", above=0))
    unexplained_s: float = field(metadata=describe("The rest of the change; negative: something else became shorter", unit="s"))
    noise_s: float = field(metadata=describe("Noise: a smaller increase is no cause", unit="s", at_least=0))
    notes: Sequence[str] = field(default_factory=list, metadata=describe("Data that are missing for a better explanation"))
    against: str = field(default="", metadata=describe("Other side of the comparison; empty: not known"))
    search: str = field(
        default="",
        metadata=describe(
            "The command that searches slow hosts with this training; empty: no cause is at a host", omit_empty=True
        ),
    )

    @property
    def change_s(self) -> float:
        return self.step_s - self.baseline_step_s

    @property
    def explained_s(self) -> float:
        return sum(cause.seconds for cause in self.causes)


@dataclass(frozen=True)
class ExperimentResult(JsonData):
    """The result of an experiment on a cause: the same training with one thing changed (`explain/experiments.py`)."""

    kind: CauseKind = field(metadata=describe("Kind of the cause"))
    location: str | None = field(metadata=describe("A task, host or link; null: the whole cluster"))
    trial: str = field(metadata=describe("The change of the training"))
    step_s: float | None = field(metadata=describe("Duration of a step of the experiment; null: no result", unit="s"))
    instead_of_s: float = field(metadata=describe("Duration of a step of the measurement", unit="s"))
    outcome: Outcome = field(metadata=describe("Result for the cause"))
    words: str = field(metadata=describe("The result in one line"))
