"""The report of one task after a run: the only part of the data model that hosts need."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_dtfperf.codec import JsonData, describe

MAX_COUNT = 10**18  # of any count in a run

seconds: dict[str, Any] = {"unit": "s", "at_least": 0, "at_most": 1e12}
count: dict[str, Any] = {"at_least": 0, "at_most": MAX_COUNT}
fraction: dict[str, Any] = {"at_least": 0, "at_most": 1}
rate: dict[str, Any] = {"unit": "images/sec", "at_least": 1e-9, "at_most": 1e12}


@dataclass(frozen=True, kw_only=True)
class StepGraph(JsonData):
    """The graph that TensorFlow runs in a step, without names and order."""

    hash: str = field(metadata=describe("Hash of its operations and their connections", pattern="[0-9a-f]{8,128}"))
    operations: Mapping[str, int] = field(metadata=describe("Kind of operation to its number", **count))


@dataclass(frozen=True, kw_only=True)
class Score(JsonData):
    """The score on the whole test set."""

    images: int = field(metadata=describe("Number of images of the test set", at_least=1))
    loss: float = field(metadata=describe("Mean cross-entropy over the images", is_finite=False))
    # The weight decay's part is its factor times half the sum of squares of all variables that decay.
    total_loss: float = field(metadata=describe("Loss with the weight decay", is_finite=False))
    top_1: float = field(
        metadata=describe(
            "Fraction of the images with the highest score for the right class; a tie counts as wrong", **fraction
        )
    )
    top_5: float = field(
        metadata=describe("Fraction of the images with the right class among the five highest scores", **fraction)
    )


@dataclass(frozen=True, kw_only=True)
class Evaluation(JsonData):
    """An evaluation on the test set, within training or after it."""

    step: int = field(metadata=describe("Trained steps before the evaluation, warm-up included", at_least=1))
    trained_s: float = field(
        metadata=describe("Duration of the measured steps before it, on the chief's clock, without evaluations", **seconds)
    )
    score: Score = field(metadata=describe("Result of the evaluation"))


@dataclass(frozen=True, kw_only=True)
class NetworkFacts(JsonData):
    """The properties of an own model, as determined by the task that trained it."""

    image_shape: Sequence[int] = field(metadata=describe("Height, width, channels", **count))
    classes: int = field(metadata=describe("Number of its classes", **count))
    parameters: int = field(metadata=describe("Number of values in all of its variables", **count))
    trained_parameters: int = field(metadata=describe("Number of values that replicas exchange", **count))
    multiply_adds: int | None = field(
        default=None, metadata=describe("Multiply-adds of the forward pass, per image; null: not known", at_least=0)
    )
    uncounted: str = field(default="", metadata=describe("Reason for unknown multiply-adds"))
    variables: Mapping[str, Sequence[int]] = field(
        default_factory=dict, metadata=describe("Trained variables to their shapes; not kept in records", omit_empty=True)
    )


@dataclass(frozen=True, kw_only=True)
class TaskReport(JsonData):
    """The report of one task after a run. All times are on the task's own monotonic clock."""

    job: str = field(metadata=describe("Kind of task: ps or worker", pattern=r"[a-z]{1,16}"))
    index: int = field(metadata=describe("Number of the task within its job", at_least=0, at_most=999_999))
    num_devices: int = field(default=0, metadata=describe("Devices of the task", **count))
    step_s: Sequence[float] = field(
        default=(), metadata=describe("Durations of the measured steps of this worker; empty for a ps", **seconds)
    )
    elapsed_s: float = field(
        default=0.0,
        metadata=describe("From the common start to this worker's end; asynchronous: to the end of the last worker", **seconds),
    )
    loss: Sequence[float] = field(default=(), metadata=describe("Losses, one per measured step", is_finite=False))
    startup_s: Mapping[str, float] = field(
        default_factory=dict, metadata=describe("Phase to its duration: server, build, session, first_step, warmup", **seconds)
    )
    bytes_sent: int = field(
        default=0,
        metadata=describe("Bytes sent by the task's host, all interfaces, within the measured steps", unit="bytes", **count),
    )
    bytes_received: int = field(default=0, metadata=describe("Bytes received, likewise", unit="bytes", **count))
    peak_rss_bytes: int = field(default=0, metadata=describe("Largest resident memory of the task", unit="bytes", **count))
    cpu_s: float = field(default=0.0, metadata=describe("User and system time within the measured steps", **seconds))
    devices: Sequence[str] = field(default=(), metadata=describe("Devices of the gradients, as placed by TensorFlow"))
    evaluations: Sequence[Evaluation] = field(
        default=(), metadata=describe("Evaluations of the chief, if the spec requests them")
    )
    variable_bytes: Mapping[str, int] = field(
        default_factory=dict, metadata=describe("Device to the bytes of variables placed there", unit="bytes", **count)
    )
    graph: StepGraph | None = field(default=None, metadata=describe("The graph of a step", omit_empty=True))
    settings: Mapping[str, str] = field(
        default_factory=dict, metadata=describe("TensorFlow's settings that are not in the graph")
    )
    reported_rate: str | None = field(default=None, metadata=describe("The images/sec that an external command printed"))
    unclear_rate: str | None = field(default=None, metadata=describe("Reason for an invalid printed rate", omit_empty=True))
    last_lines: Sequence[str] = field(
        default=(), metadata=describe("Output of a program without a printed rate, or the invalid line")
    )
    images: float = field(
        default=0.0,
        metadata=describe("Images of this worker in the steps that a program reports", omit_empty=True, at_least=0),
    )
    window_s: float = field(
        default=0.0,
        metadata=describe(
            "From the end of its warm-up to that of its last step, including the time between steps",
            omit_empty=True,
            **seconds,
        ),
    )
    window_at_s: float = field(
        default=0.0,
        metadata=describe("From its start until that window; programs are started together", omit_empty=True, **seconds),
    )
    impossible_steps: str | None = field(
        default=None, metadata=describe("Reason for refusing its reported steps", omit_empty=True)
    )
    network: NetworkFacts | None = field(
        default=None, metadata=describe("Properties of the chief's own model", omit_empty=True)
    )

    @property
    def name(self) -> str:
        return f"{self.job}:{self.index}"
