"""Compare software stacks by blocks of runs on the same hosts, until each verdict is decided.

The agents of all stacks run beside each other on the hosts, and only one trains at a time. `comparisons.jsonl` in the session's
folder has a line for each comparison, and is written after every block.
"""

import json
import math
import random
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pytest_dtfperf.baselines.comparability import list_program_differences, software_changes
from pytest_dtfperf.clusters.capacity import compute_need, count_hosts_for
from pytest_dtfperf.compare.blocks import (
    ABPolicy,
    ABVerdict,
    Block,
    BlockSample,
    Decision,
    compute_detectable,
    decide,
    draw_orders,
    estimate_prior,
    share_error,
)
from pytest_dtfperf.compare.record import (
    COMPARISONS_FILE,
    LOGS_OF_COMPARISONS,
    BlockRecord,
    ComparisonRecord,
    SideRecord,
    compute_mean_rate,
    list_runs,
    select_blocks,
)
from pytest_dtfperf.compare.variants import Variant, list_differences
from pytest_dtfperf.datamodel.explanation import Explanation
from pytest_dtfperf.datamodel.fingerprint import Fingerprint
from pytest_dtfperf.datamodel.measurement import Run
from pytest_dtfperf.errors import DtfPerfError, InfrastructureError, InvalidMeasurement, RunFailed, UsageError, get_first_line
from pytest_dtfperf.explain.causes import explain
from pytest_dtfperf.session.context import SessionContext
from pytest_dtfperf.session.explanation import add_changes, profile_measurement
from pytest_dtfperf.session.stacks import ComparedStack, StackRunner, align_workers, check_variants
from pytest_dtfperf.spec import Spec

NOT_BEGUN = Decision(ABVerdict.INCONCLUSIVE, "no block was made", None, True)
VERDICT_OF_ERROR: Mapping[type[DtfPerfError], ABVerdict] = {
    InvalidMeasurement: ABVerdict.INVALID,
    RunFailed: ABVerdict.FAILED,
    InfrastructureError: ABVerdict.INFRASTRUCTURE,
}


@dataclass(eq=False)
class ABComparison:
    """The comparison of a variant with the reference in one training, with all blocks and the verdict.

    Attributes:
        differences: the settings that differ, as `KEY: VALUE -> VALUE`.
        error: the largest probability of a wrong verdict, of those of the session.
        explanation: the causes of the slower side, if there is one.
    """

    reference: ComparedStack
    variant: ComparedStack
    differences: Sequence[str]
    policy: ABPolicy
    seed: int
    orders: Iterator[str] = field(repr=False)
    id: str = field(default_factory=lambda: secrets.token_hex(6))
    blocks: list[Block] = field(default_factory=list)
    decision: Decision = NOT_BEGUN
    error: float = 0.0
    explanation: Explanation | None = None
    unexplained: str = ""

    @property
    def verdict(self) -> ABVerdict:
        return self.decision.verdict

    @property
    def label(self) -> str:
        return self.reference.spec.label

    @property
    def changes(self) -> list[str]:
        """The differences of the software and of the trained graphs, as the hosts reported them, one phrase each."""
        before, after = self.reference.fingerprint, self.variant.fingerprint
        if Fingerprint() in (before, after):
            return []
        return [*software_changes(before.software, after.software), *list_program_differences(before, after)]

    @property
    def detectable(self) -> float | None:
        """The smallest difference, as a fraction, that all allowed blocks find in 9 of 10 cases; None: unknown."""
        estimate = self.decision.estimate
        return compute_detectable(estimate, self.policy, self.error) if estimate else None

    @property
    def samples(self) -> list[BlockSample]:
        """The log-ratios of undisturbed blocks."""
        return [block.sample for block in self.blocks if not block.disturbances]

    def runs(self, side: str) -> list[Run]:
        """Return the runs of "A" or "B" in undisturbed blocks; in all blocks if there are no others."""
        return list_runs(select_blocks(self.blocks), side)

    def to_record(self) -> ComparisonRecord:
        """Return the record for comparisons.jsonl and reports."""
        return ComparisonRecord(
            id=self.id,
            spec=self.reference.spec,
            reference=self._make_side(self.reference, "A"),
            variant=self._make_side(self.variant, "B"),
            differences=self.differences,
            changes=self.changes,
            verdict=self.verdict,
            reason=self.decision.reason,
            estimate=self.decision.estimate,
            detectable=self.detectable,
            error=self.error,
            policy=self.policy,
            seed=self.seed,
            explanation=self.explanation,
            unexplained=self.unexplained,
            blocks=[BlockRecord(order=block.order, runs=block.runs) for block in self.blocks],
        )

    def _make_side(self, side: ComparedStack, letter: str) -> SideRecord:
        return SideRecord(
            name=side.variant.name,
            settings=side.variant.settings,
            spec=side.spec,
            images_per_sec=compute_mean_rate(self.runs(letter)),
            fingerprint=side.fingerprint,
        )


class StackComparing:
    """Makes the blocks of comparisons. Invalid variants and specs are refused before anything is started."""

    def __init__(
        self,
        session: SessionContext,
        variants: Sequence[Variant],
        specs: Sequence[Spec],
        *,
        policy: ABPolicy,
        seed: int | None = None,
        same: bool = False,
        earlier: Sequence[ABComparison] = (),
        later: int = 0,
        test: str = "dtfperf ab",
    ) -> None:
        """Check variants and specs.

        Args:
            earlier: the session's earlier comparisons, which have used a part of its error.
            later: how many further ones will probably follow: each keeps as much of the error as one of these gets.
            test: shown to other sessions while they wait.

        Raises:
            UsageError: variants are equal, or a variant cannot train a spec.
        """
        if session.settings.update_baselines:
            raise UsageError("a comparison of variants changes no baselines: --update-baselines is for runs of one stack")
        if not specs:
            raise UsageError('a comparison needs a training: compare(variants, [session.spec("mnist")])')
        if not same:
            check_variants(variants, session.config)
        self._session = session
        self._variants = variants
        self._policy = policy
        self._seed = secrets.randbits(32) if seed is None else seed
        self._random = random.Random(self._seed)
        self._earlier = earlier
        self._later = later
        self._test = test
        self.failures: dict[str, Exception] = {}  # by a comparison's id: the error that ended it
        self._runner = StackRunner(session, LOGS_OF_COMPARISONS, variants)
        self.comparisons = [self._make_comparison(spec, each) for spec in specs for each in variants[1:]]
        trained = (side.spec for each in self.comparisons for side in (each.reference, each.variant))
        self._largest = max(trained, key=lambda spec: (self._count_hosts(spec), spec.gpus))

    def _count_hosts(self, spec: Spec) -> int:
        config = self._session.config
        return count_hosts_for(config, compute_need(config, spec.gpus, spec.num_ps))

    def _make_comparison(self, spec: Spec, variant: Variant) -> ABComparison:
        reference = self._variants[0]
        first, second = (ComparedStack(each, self._runner.prepare(each, spec)) for each in (reference, variant))
        align_workers((first, second), self._session.config)
        differences = list_differences(reference, variant, self._session.config)
        return ABComparison(first, second, differences, self._policy, self._seed, draw_orders(self._random))

    def carry_out(self, time_limit_s: float, clock: Callable[[], float] = time.monotonic) -> list[ABComparison]:
        """Make blocks until all comparisons are decided or the time is spent, by a clock in seconds, and return them.

        Raises:
            AllocationError: no hosts are allocated, or a variant's agents do not start.
        """
        for side in (side for each in self.comparisons for side in (each.reference, each.variant)):
            self._runner.build(side)
        began_s = clock()
        with self._session.measuring(self._largest, self._test):
            self._start_agents()
            self._make_blocks(began_s + time_limit_s, clock)
            for each in self.comparisons:
                self._explain(each)
            self._write()
        return self.comparisons

    def _start_agents(self) -> None:
        """Start the agents of all variants, so that one that cannot start is known before the first run."""
        self._session.allocations.allocate(self._largest)
        for each in self._variants:
            self._runner.start_agents(each.name, self._largest)

    def _make_blocks(self, ends_s: float, clock: Callable[[], float]) -> None:
        """Make a block of each open comparison in turn, in an order that is drawn for each round."""
        slowest_s = 0.0
        while open_ones := [each for each in self.comparisons if each.decision.is_open]:
            for each in self._random.sample(open_ones, len(open_ones)):
                if not each.decision.is_open:
                    continue
                began_s = clock()
                if began_s + slowest_s > ends_s:
                    self._end_all("the time limit was reached")
                    return
                self._make_block(each)
                slowest_s = max(slowest_s, clock() - began_s)

    def _make_block(self, comparison: ABComparison) -> None:
        """Make four runs, and decide. A failed run ends only its comparison."""
        order = next(comparison.orders)
        try:
            block = self._runner.make_block(order, comparison.reference, comparison.variant, runs=2 * self._policy.max_blocks)
        except (RunFailed, InvalidMeasurement, InfrastructureError) as error:
            verdict = next(verdict for kind, verdict in VERDICT_OF_ERROR.items() if isinstance(error, kind))
            self.failures[comparison.id] = error
            comparison.decision = Decision(verdict, str(error), comparison.decision.estimate, False)
        else:
            comparison.blocks.append(block)
            self._decide_all()
        self._write()

    def _decide_all(self) -> None:
        """Decide each open comparison: one that finds a difference leaves more of the error to the others."""
        everything = [*self._earlier, *self.comparisons]
        used = math.fsum(each.error for each in self._earlier if not each.verdict.is_difference)
        left = replace(self._policy, error=max(self._policy.error - used, self._policy.error / len(everything)))
        while True:
            differences = sum(each.verdict.is_difference for each in self.comparisons)
            error = share_error(left, comparisons=self._later + len(self.comparisons), differences=differences)
            prior = estimate_prior(each.samples for each in everything)
            for each in self.comparisons:
                if each.decision.is_open and each.blocks:
                    each.error = error
                    each.decision = decide(each.blocks, self._policy, error, prior)
            if differences == sum(each.verdict.is_difference for each in self.comparisons):
                return

    def _end_all(self, why: str) -> None:
        for each in self.comparisons:
            if each.decision.is_open:
                each.decision = replace(each.decision, reason=f"{why}: {each.decision.reason}", is_open=False)
        self._write()

    def _explain(self, comparison: ABComparison) -> None:
        """Explain the slower side by a short traced run of each."""
        if not comparison.verdict.is_difference or self._session.settings.explain == "never":
            return
        sides = [(comparison.reference, "A"), (comparison.variant, "B")]
        if comparison.verdict is ABVerdict.FASTER:
            sides.reverse()
        fast, slow = ((side, comparison.runs(letter)) for side, letter in sides)
        comparison.explanation, comparison.unexplained = explain_difference(
            self._runner, fast, slow, 2 * self._policy.max_blocks
        )

    def _write(self) -> None:
        records = [each.to_record() for each in [*self._earlier, *self.comparisons]]
        lines = [json.dumps(each.to_json(), ensure_ascii=False) + "\n" for each in records]
        self._session.folder.write(COMPARISONS_FILE, "".join(lines).encode())


def explain_difference(
    runner: StackRunner, fast: tuple[ComparedStack, Sequence[Run]], slow: tuple[ComparedStack, Sequence[Run]], runs: int
) -> tuple[Explanation | None, str]:
    """Return the causes of the slower stack, from a short traced run of each, or the reason why they are unknown."""
    try:
        for side, _ in (fast, slow):
            if not side.spec.command:
                side.traced = runner.run(side, runs, traced=True)
        faster, slower = (side.measurement(made) for side, made in (fast, slow))
        name = fast[0].variant.name
        baseline = replace(profile_measurement(faster), name=name, when=f"with {name}")
        found = explain(baseline, add_changes(profile_measurement(slower), faster.fingerprint, slower.fingerprint))
        explanation = replace(found, against=name) if found else None
        json.dumps(explanation and explanation.to_json(), allow_nan=False)
    except Exception as error:  # a failed explanation must not lose the verdict
        return None, f"cannot be explained: {type(error).__name__}: {get_first_line(error)}"
    return explanation, ""
