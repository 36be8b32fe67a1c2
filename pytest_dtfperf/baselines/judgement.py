"""The judgement of a measurement: the question with all its inputs, so that it can be repeated offline, and the answer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar, Literal, Self, get_args

from pytest_dtfperf.baselines.entry import Entry
from pytest_dtfperf.baselines.references import Reference
from pytest_dtfperf.baselines.terms import ComparisonPolicy
from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.codec import JsonData, describe
from pytest_dtfperf.datamodel.task_report import rate
from pytest_dtfperf.stats.comparison import Answer, RatioEstimate

Kind = Literal["baseline", "published", "efficiency", "overhead", "accuracy", "learning"]
_OF_TWO: Sequence[Kind] = ("efficiency", "overhead", "learning")  # checks of two measurements


@dataclass(frozen=True, kw_only=True)
class PublishedRate(JsonData):
    """The properties of a published rate that a comparison needs."""

    system: str = field(metadata=describe("System of the published rate"))
    citation: str = field(metadata=describe("Source of the published rate"))
    images_per_sec: float = field(metadata=describe("Published rate", **rate))
    gpu: str | None = field(metadata=describe("Type of its GPUs; null: none, or not known"))
    cpu: str | None = field(metadata=describe("Type of its processor; null: not known"))
    gpus_per_node: int = field(metadata=describe("GPUs of one node", at_least=0))

    @classmethod
    def from_reference(cls, reference: Reference) -> Self:
        machine = reference.machine
        return cls(
            system=reference.system,
            citation=reference.citation,
            images_per_sec=reference.images_per_sec,
            gpu=machine.gpu,
            cpu=machine.cpu,
            gpus_per_node=machine.gpus_per_node,
        )


def _require_if(kinds: Sequence[Kind], properties: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the rule of JSON Schema that judgements of these kinds have such properties."""
    return {
        "if": {"properties": {"kind": {"enum": list(kinds)}}},
        "then": {"required": [*properties], "properties": properties},
    }


@dataclass(frozen=True)
class Judgement(JsonData):
    """A verdict with its reasons, and all inputs of the judgement. Numbers are None if the verdict does not depend on them.

    The functions that compare fill in the answer, and `checks.ask` adds the question. A history stores no question.
    """

    schema_rules: ClassVar[Mapping[str, Any]] = {
        "allOf": [
            _require_if(get_args(Kind), {"terms": {"type": "object"}}),
            _require_if(["published"], {"published": {"type": "object"}}),
            _require_if(_OF_TWO, {"other": {"type": "string"}, "other_runs": {"type": "integer"}}),
            _require_if([*_OF_TWO, "accuracy"], {"terms": {"properties": {"threshold": {"type": "number"}}}}),
        ]
    }

    verdict: Verdict = field(metadata=describe("Verdict of the check"))
    reason: str = field(metadata=describe("Reason of the verdict, as text"))
    _: KW_ONLY
    kind: Kind = field(default="baseline", metadata=describe("Kind of the comparison"))
    terms: ComparisonPolicy | None = field(default=None, metadata=describe("Settings of the comparison"))
    # Later runs may belong to other checks.
    runs: int = field(default=0, metadata=describe("Number of runs of the measurement at that time", at_least=1))
    entry: Entry | None = field(default=None, metadata=describe("Its baseline at that time, with its key; null: none"))
    other: str | None = field(
        default=None, metadata=describe("Id of the other measurement: the anchor, or the synthetic input; null: none")
    )
    other_runs: int | None = field(
        default=None, metadata=describe("Number of runs of the other measurement at that time; null: none", at_least=1)
    )
    other_entry: Entry | None = field(
        default=None, metadata=describe("Baseline of the other measurement at that time; null: none")
    )
    published: PublishedRate | None = field(default=None, metadata=describe("The published rate of the comparison; null: none"))
    baseline_rate: float | None = field(
        default=None,
        metadata=describe("Rate of the baseline, the published rate, or the other measurement; null: none", **rate),
    )
    change: float | None = field(
        default=None,
        metadata=describe("measured / baseline_rate - 1, of the geometric means of their runs; null: not of a rate"),
    )
    value: float | None = field(
        default=None,
        metadata=describe("The judged efficiency, overhead, accuracy or ratio of steps, as a fraction; null: none"),
    )
    low: float | None = field(
        default=None, metadata=describe("Lower end of the interval of the change or of the value; null: not known")
    )
    high: float | None = field(
        default=None, metadata=describe("Upper end of the interval of the change or of the value; null: not known")
    )
    noise: float | None = field(
        default=None,
        metadata=describe("Assumed noise of a single run: coefficient of variation; null: none", at_least=0),
    )
    needs_runs: bool = field(default=False, metadata=describe("Whether further runs may be decisive", omit_empty=True))

    @property
    def margin(self) -> float | None:
        """The allowed loss of the rate, as a fraction, if it is known."""
        return self.terms.margin if self.terms else None


def describe_estimate(estimate: RatioEstimate, convert: Callable[[float], float]) -> dict[str, Any]:
    """Return the fields of a judgement that follow from an estimated ratio of rates.

    Args:
        convert: Returns the change or the value of a ratio.
    """
    low, high = estimate.convert_interval(convert) or (None, None)
    needs_runs = estimate.answer in (Answer.OPEN, Answer.UNCONFIRMED)
    return {"low": low, "high": high, "noise": estimate.spread, "needs_runs": needs_runs}
