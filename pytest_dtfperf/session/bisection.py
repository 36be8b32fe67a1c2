"""Search the candidate that made training slower, by blocks of runs against the first candidate on the same hosts.

`bisection.json` in the session's folder has all candidates, blocks and the result. It is written after every block and every
failed build, and a later session continues from it.
"""

import json
import math
import random
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_dtfperf.baselines.files import SCHEMA
from pytest_dtfperf.compare.bisection import (
    BisectionDecision,
    BisectionEnd,
    BisectionPolicy,
    BisectionPosterior,
    Change,
    Observation,
    compute_posterior,
    decide_bisection,
)
from pytest_dtfperf.compare.blocks import ORDERS, Block, draw_orders
from pytest_dtfperf.compare.variants import Variant
from pytest_dtfperf.datamodel.explanation import Explanation
from pytest_dtfperf.datamodel.measurement import Run
from pytest_dtfperf.errors import (
    AllocationError,
    AllocationOver,
    BuildFailed,
    InvalidMeasurement,
    RunFailed,
    SessionFileError,
    UsageError,
    get_first_line,
)
from pytest_dtfperf.formats import change, format_count
from pytest_dtfperf.session.comparison import explain_difference
from pytest_dtfperf.session.context import SessionContext
from pytest_dtfperf.session.stacks import ComparedStack, StackRunner, align_workers, find_equal
from pytest_dtfperf.spec import Spec

FILE = "bisection.json"
FEWEST = 3  # candidates: of two, the second one is the change
MOST_WARM = 4  # stacks with agents at a time: each has TensorFlow in memory on every host
USUAL_BLOCK_S, USUAL_BUILD_S, USUAL_START_S = 60.0, 120.0, 15.0  # assumed until they are measured
MOST_DISTURBED = 5  # blocks in sequence
RUNNERS_UP = 3
MOST_NAMED = 3  # candidates of one change
NOT_BEGUN = BisectionDecision(BisectionEnd.UNDECIDED, "no block was made", True)


@dataclass(frozen=True)
class Candidate:
    """A software stack of the series.

    Attributes:
        title: a description, such as the subject of a commit; empty: the name is shown.
    """

    variant: Variant
    title: str = ""

    def __str__(self) -> str:
        return self.title or self.variant.name


@dataclass(frozen=True)
class CandidateBlock:
    """A block of one candidate against the first one."""

    candidate: int
    block: Block

    @property
    def observation(self) -> Observation:
        sample = self.block.sample
        return Observation(self.candidate, sample.log_ratio, sample.reference_first)

    def to_json(self) -> dict[str, Any]:
        runs = [run.to_json() for run in self.block.runs]
        return {"candidate": self.candidate, "order": self.block.order, "runs": runs}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "CandidateBlock":
        if data["order"] not in ORDERS:
            raise ValueError(f"order: {data['order']}")
        return cls(int(data["candidate"]), Block(data["order"], [Run.from_json(each) for each in data["runs"]]))


@dataclass(eq=False)
class StackBisection:
    """The candidates, their blocks, and the result.

    Attributes:
        sides: the stack and the training of each candidate.
        broken: candidates that cannot be built or do not run, with the reason.
        resumed: the id of the session that it continues; empty: none.
        explanation: the causes of the first change, if it is slower or faster.
    """

    session: SessionContext
    candidates: Sequence[Candidate]
    spec: Spec
    policy: BisectionPolicy
    seed: int
    on_block: Callable[[str], object]
    id: str = field(default_factory=lambda: secrets.token_hex(6))
    blocks: list[CandidateBlock] = field(default_factory=list)
    disturbed: int = 0
    broken: dict[int, str] = field(default_factory=dict)
    decision: BisectionDecision = NOT_BEGUN
    resumed: str = ""
    explanation: Explanation | None = None
    unexplained: str = ""

    def __post_init__(self) -> None:
        if len(self.candidates) < FEWEST:
            raise UsageError(
                f"a bisection needs {FEWEST} candidates, and there are {len(self.candidates)}: dtfperf ab compares two"
            )
        names = [each.variant.name for each in self.candidates]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise UsageError(f"candidate {twice} is defined twice: give each a name of its own")
        self._runner = StackRunner(self.session, "bisect", [each.variant for each in self.candidates])
        if equal := find_equal(self._runner.stacks):
            raise UsageError(f"candidates {' and '.join(equal)} are equal: leave one of them out")
        self.sides = [ComparedStack(each.variant, self._runner.prepare(each.variant, self.spec)) for each in self.candidates]
        align_workers(self.sides, self.session.config)
        self._largest = max((each.spec for each in self.sides), key=lambda spec: spec.num_ps)
        generator = random.Random(self.seed)
        self._orders = [draw_orders(generator) for _ in self.candidates]
        self._block_s: list[float] = []
        self._build_s: list[float] = []
        self._warm: list[int] = []  # the latest one last
        self._posterior: BisectionPosterior | None = None

    def resume(self, folder: Path) -> None:
        """Continue from another session's blocks. Raises `UsageError` if it had other candidates or another training."""
        path = folder / FILE
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            blocks = [CandidateBlock.from_json(each) for each in data["blocks"]]
            broken = {int(number): str(why) for number, why in data["broken"].items()}
            before = [each["settings"] for each in data["candidates"]], data["spec"]
            if unknown := {*broken, *(each.candidate for each in blocks)} - set(range(1, len(before[0]))):
                raise ValueError(f"candidate {min(unknown)} is none of {len(before[0])}")
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SessionFileError(f"{path} is no bisection: {get_first_line(error)}") from error
        if before[0] != [each.variant.settings for each in self.candidates]:
            raise UsageError(f"{path} has other candidates: repeat the command of that session, with --resume")
        if before[1] != self.spec.to_json():
            raise UsageError(f"{path} is of another training: repeat the command of that session, with --resume")
        self.blocks, self.broken, self.resumed = blocks, broken, folder.name
        for each in blocks:
            next(self._orders[each.candidate])
        if blocks:
            self._decide()

    @property
    def posterior(self) -> BisectionPosterior:
        if self._posterior is None:
            seen = [each.observation for each in self.blocks if not each.block.disturbances]
            self._posterior = compute_posterior(len(self.candidates), seen, self.broken)
        return self._posterior

    @property
    def is_measured(self) -> bool:
        """Whether there is an undisturbed block."""
        return any(not each.block.disturbances for each in self.blocks)

    @property
    def changes(self) -> list[Change]:
        """The most probable changes, in order; none if good and bad are equal or nothing was measured."""
        if not self.is_measured or self.decision.end is BisectionEnd.NO_DIFFERENCE:
            return []
        return self.posterior.describe_changes(self.policy.confidence)

    @property
    def runners_up(self) -> list[tuple[int, float]]:
        """The most probable candidates besides the changes, with their probabilities."""
        within = {each for found in self.changes for each in range(found.first, found.last + 1)}
        others = ((at, float(each)) for at, each in enumerate(self.posterior.inclusion) if at and at not in within)
        return sorted(others, key=lambda each: -each[1])[:RUNNERS_UP]

    def describe(self, found: Change) -> str:
        """Return the names of the candidates that a change can be."""
        names = [str(each) for each in self.candidates[found.first : found.last + 1]]
        return " or ".join(names) if len(names) <= MOST_NAMED else f"one of {len(names)}, from {names[0]} to {names[-1]}"

    def carry_out(self, time_limit_s: float) -> None:
        """Measure candidates until the change is found, or blocks or time are spent.

        Raises:
            BuildFailed: the first or the last candidate cannot be built.
            AllocationError: no hosts are allocated, or the agents of these two do not start.
            RunFailed, InvalidMeasurement, InfrastructureError: of a run of these two.
        """
        ends_s = time.monotonic() + time_limit_s
        last = len(self.candidates) - 1
        if not self.decision.is_open:
            self._write()
            return
        for each in (0, last):
            self._build(each)
        with self.session.measuring(self._largest, "dtfperf bisect"):
            self.session.allocations.allocate(self._largest)
            for each in (0, last):
                self._warm_up(each)
            while self.decision.is_open:
                if time.monotonic() + max(self._block_s, default=0.0) > ends_s:
                    self.decision = BisectionDecision(self.decision.end, "the time limit was reached", False)
                    break
                chosen = self.posterior.choose_next(self._compute_costs(), self._list_warm())
                try:
                    self._measure(chosen)
                except AllocationOver:
                    raise
                except (BuildFailed, UsageError, AllocationError, RunFailed, InvalidMeasurement) as error:
                    if chosen == last or self._runner.current == self.candidates[0].variant.name:
                        raise
                    self.broken[chosen] = str(error)
                    self._decide()  # if no other candidate is left, this ends the search
                    self._runner.end_agents(self.candidates[chosen].variant.name)
                    self.on_block(f"{self.candidates[chosen]} is skipped: {error}")
                self._write()
            self._explain()
            self._write()

    def _measure(self, number: int) -> None:
        self._build(number)
        self._warm_up(number)
        began_s = time.monotonic()
        block = self._runner.make_block(
            next(self._orders[number]), self.sides[0], self.sides[number], runs=2 * self.policy.max_blocks
        )
        self._block_s.append(time.monotonic() - began_s)
        self.blocks.append(CandidateBlock(number, block))
        name, ratio = str(self.candidates[number]), change(math.expm1(block.sample.log_ratio))
        if block.disturbances:
            self.disturbed += 1
            self.on_block(f"{name}: {ratio}, disturbed: {block.disturbances[0]}")
            if self.disturbed >= MOST_DISTURBED:
                reason = f"{format_count(MOST_DISTURBED, 'block')} in sequence were disturbed: {block.disturbances[0]}"
                self.decision = BisectionDecision(self.decision.end, reason, False)
            return
        self.disturbed = 0
        self._decide()
        likely = max(range(1, len(self.candidates)), key=lambda each: self.posterior.inclusion[each])
        self.on_block(
            f"{name}: {ratio}; most probable: {self.candidates[likely]}, {100 * self.posterior.inclusion[likely]:.0f} %"
        )

    def _decide(self) -> None:
        self._posterior = None
        if self.is_measured:
            made = sum(not each.block.disturbances for each in self.blocks)
            self.decision = decide_bisection(self.posterior, self.policy, made)

    def _build(self, number: int) -> None:
        is_built = self._runner.is_built(self.candidates[number].variant.name)
        began_s = time.monotonic()
        self._runner.build(self.sides[number])
        if not is_built:
            self._build_s.append(time.monotonic() - began_s)

    def _warm_up(self, number: int) -> None:
        """Start a candidate's agents, and end the least recently used ones if too many stacks have agents."""
        self._warm = [*(each for each in self._warm if each != number), number]
        ends = (0, len(self.candidates) - 1)
        while len(self._warm) > MOST_WARM:
            oldest = next(each for each in self._warm if each not in ends)
            self._warm.remove(oldest)
            self._runner.end_agents(self.candidates[oldest].variant.name)
        self._runner.start_agents(self.candidates[number].variant.name, self._largest)

    def _list_warm(self) -> list[int]:
        return [at for at, each in enumerate(self.candidates) if self._runner.is_warm(each.variant.name)]

    def _compute_costs(self) -> dict[int, float]:
        """Return the seconds that a block of each candidate takes, including its build."""
        block_s = _mean(self._block_s, USUAL_BLOCK_S)
        build_s = _mean(self._build_s, USUAL_BUILD_S)
        found = {}
        for at, each in enumerate(self.candidates):
            start_s = 0.0 if self._runner.is_warm(each.variant.name) else USUAL_START_S
            found[at] = block_s + start_s + (0.0 if self._runner.is_built(each.variant.name) else build_s)
        return found

    def _explain(self) -> None:
        """Explain the first change by a short traced run of its candidates and of the candidate before it."""
        if self.decision.end not in (BisectionEnd.FOUND, BisectionEnd.SEVERAL) or self.session.settings.explain == "never":
            return
        found = self.changes[0]
        before, after = ((self.sides[each], self._list_runs(each)) for each in (found.first - 1, found.last))
        if not (before[1] and after[1]):
            return
        fast, slow = (before, after) if found.ratio < 1 else (after, before)
        self.explanation, self.unexplained = explain_difference(self._runner, fast, slow, 1)

    def _list_runs(self, number: int) -> list[Run]:
        """Return the undisturbed runs of a candidate."""
        letter = "B" if number else "A"
        return [
            run
            for each in self.blocks
            if not each.block.disturbances and number in (0, each.candidate)
            for side, run in zip(each.block.order, each.block.runs, strict=True)
            if side == letter
        ]

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "id": self.id,
            "resumed": self.resumed or None,
            "spec": self.spec.to_json(),
            "candidates": [
                {
                    "name": each.variant.name,
                    "title": each.title,
                    "settings": each.variant.settings,
                    "probability": float(self.posterior.inclusion[at]) if self.is_measured else None,
                    "fingerprint": self.sides[at].fingerprint.to_json(),
                }
                for at, each in enumerate(self.candidates)
            ],
            "broken": {str(number): why for number, why in self.broken.items()},
            "result": self.decision.end,
            "reason": self.decision.reason,
            "changes": [
                {
                    "candidates": [self.candidates[at].variant.name for at in range(each.first, each.last + 1)],
                    "ratio": each.ratio,
                    "low": each.low,
                    "high": each.high,
                }
                for each in self.changes
            ],
            "noise": self.posterior.noise if self.is_measured else None,
            "policy": self.policy.to_json(),
            "seed": self.seed,
            "explanation": self.explanation.to_json() if self.explanation else None,
            "unexplained": self.unexplained,
            "blocks": [each.to_json() for each in self.blocks],
        }

    def _write(self) -> None:
        self.session.folder.write(FILE, (json.dumps(self.to_json(), ensure_ascii=False) + "\n").encode())


def _mean(values: Sequence[float], usual: float) -> float:
    return math.fsum(values) / len(values) if values else usual
