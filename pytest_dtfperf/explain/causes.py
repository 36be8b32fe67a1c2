"""Why a step takes longer than it did: what is known of both sides in, causes in seconds out, which add up to the change.

    explain(then, now)      the one entry point

A cause's seconds are the step's: what would be gained without it. They are found on the step as a model (`model.py`): put the
suspect's times into the good step, take them out of the bad one, and all the ways between. What these seconds do not reach of
the step's measured change is not explained, and said to be so; what is smaller than the noise is not claimed.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from pytest_dtfperf.explain.evidence import Evidence
from pytest_dtfperf.plain import Plain

SCHEMA = 1

Confidence = Literal["high", "medium", "low"]

_SURE = 2.0  # standard errors: 19 of 20 means of what is alike differ by less
_ASSUMED = 0.05  # of a step, where a single run does not tell how much runs scatter
_LEAST_OF_STEP = 0.01  # however well runs agree: nobody looks for less


@dataclass(frozen=True)
class Cause(Plain):
    """Something that makes a step longer."""

    kind: str  # one of `KINDS`
    seconds: float  # of a step
    share: float  # of the step's change
    location: str | None  # a task, a host, or a link as in ps:0>worker:1; None: the whole cluster
    words: str  # one line
    evidence: Sequence[str]  # what speaks for it, a line each
    confidence: Confidence
    next: str | None  # the command that looks further


@dataclass(frozen=True)
class Explanation(Plain):
    """Why a step takes longer."""

    causes: Sequence[Cause]  # the largest first
    step_s: float  # now
    baseline_step_s: float  # then
    unexplained_s: float  # what is left of the change; negative where something became shorter meanwhile
    noise_s: float  # what is smaller is no cause
    notes: Sequence[str] = field(default_factory=list)  # what is missing, and would have told more

    @property
    def change_s(self) -> float:
        return self.step_s - self.baseline_step_s

    @property
    def explained_s(self) -> float:
        return sum(cause.seconds for cause in self.causes)

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **super().to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Of what was held against `baselines/schema/explanation.json`."""
        return super().from_json({name: value for name, value in data.items() if name != "schema"})


# What a cause may be, and what it means, in words for docs/causes.md.
KINDS: Mapping[str, str] = {
    "compute": "the arithmetic takes longer: of all, of one host or one device",
    "input": "steps wait for their next batch",
    "link": "bytes take longer between two tasks or hosts",
    "server": "a parameter server answers or updates more slowly",
    "straggler": "one worker is late for another reason than its arithmetic or its links",
    "waiting": "workers wait for each other in turn, or for the update",
    "others": "somebody else has the cores that the training was to have",
    "clock": "a lower clock, for heat, power or a setting",
    "memory": "there is too little memory, or others use its bandwidth",
    "software": "versions differ",
    "program": "another graph, or other settings",
    "host": "Python and TensorFlow's own host code take longer on all workers",
}


def explain(then: Evidence, now: Evidence) -> Explanation | None:
    """Causes of what a step takes longer now than then; None where one side's step is not known."""
    steps = _step_s(then), _step_s(now)
    if steps[0] is None or steps[1] is None:
        return None
    return Explanation([], steps[1], steps[0], steps[1] - steps[0], noise_s(then, now, steps[0]))


def noise_s(then: Evidence, now: Evidence, step_s: float) -> float:
    """By how much two such sides differ by chance: twice the standard error of the difference of their runs' steps."""
    error = math.hypot(_error_s(then.step_s, step_s), _error_s(now.step_s, step_s))
    return max(_SURE * error, _LEAST_OF_STEP * step_s)


def _error_s(steps_s: Sequence[float], step_s: float) -> float:
    if len(steps_s) < 2:
        return _ASSUMED * step_s
    return statistics.stdev(steps_s) / math.sqrt(len(steps_s))


def _step_s(side: Evidence) -> float | None:
    if side.step_s:
        return statistics.median(side.step_s)
    return side.anatomy.wall_s if side.anatomy else None
