"""One line of comparisons.jsonl: two software stacks, their blocks of runs, and the verdict."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pytest_dtfperf.baselines.files import SCHEMA
from pytest_dtfperf.codec import JsonData, describe
from pytest_dtfperf.compare.blocks import ORDERS, ABEstimate, ABPolicy, ABVerdict, Block
from pytest_dtfperf.compare.variants import Setting
from pytest_dtfperf.datamodel.explanation import Explanation
from pytest_dtfperf.datamodel.fingerprint import Fingerprint
from pytest_dtfperf.datamodel.measurement import Run
from pytest_dtfperf.datamodel.task_report import rate
from pytest_dtfperf.spec import Spec

COMPARISONS_FILE = "comparisons.jsonl"
RUNS = len(ORDERS[0])  # of a block


@dataclass(frozen=True, kw_only=True)
class SideRecord(JsonData):
    """One of the two stacks."""

    name: str = field(metadata=describe("Name of the variant"))
    settings: Mapping[str, Setting] = field(metadata=describe("Its settings"))
    spec: Spec = field(metadata=describe("What it trained"))
    images_per_sec: float | None = field(metadata=describe("Geometric mean of its runs; null: there are none", **rate))
    fingerprint: Fingerprint = field(metadata=describe("Of the hosts and their software"))


@dataclass(frozen=True, kw_only=True)
class BlockRecord(JsonData):
    """Four runs in turn."""

    order: str = field(metadata=describe("A is the reference, B the variant", pattern="|".join(ORDERS)))
    runs: Sequence[Run] = field(metadata=describe("The runs in this order", min_size=RUNS, max_size=RUNS))


@dataclass(frozen=True, kw_only=True)
class ComparisonRecord(JsonData):
    """A variant against the reference in one training."""

    schema: int = field(default=SCHEMA, metadata=describe("Version of the file's format", at_least=1, at_most=SCHEMA))
    id: str = field(metadata=describe("Of the comparison"))
    spec: Spec = field(metadata=describe("What the reference trained"))
    reference: SideRecord = field(metadata=describe("The reference"))
    variant: SideRecord = field(metadata=describe("The variant"))
    differences: Sequence[str] = field(metadata=describe("Settings that differ, as `KEY: VALUE -> VALUE`"))
    changes: Sequence[str] = field(metadata=describe("Other versions and another graph, as the hosts reported them"))
    verdict: ABVerdict = field(metadata=describe("The verdict"))
    reason: str = field(metadata=describe("Reason of the verdict"))
    estimate: ABEstimate | None = field(metadata=describe("Ratio of the rates; null: no undisturbed block"))
    detectable: float | None = field(
        metadata=describe("Smallest difference that all allowed blocks find in 9 of 10 cases, as a fraction", at_least=0)
    )
    error: float = field(metadata=describe("Largest probability of a wrong verdict", at_least=0, at_most=1))
    policy: ABPolicy = field(metadata=describe("The limits of the session"))
    seed: int = field(metadata=describe("Of the random orders"))
    explanation: Explanation | None = field(metadata=describe("Causes of the slower side's time"))
    unexplained: str = field(metadata=describe("Reason for the absence of causes"))
    blocks: Sequence[BlockRecord] = field(metadata=describe("The blocks, in their order"))

    @property
    def counted_blocks(self) -> Sequence[Block]:
        """The undisturbed blocks; all if there are no others."""
        return select_blocks([Block(each.order, each.runs) for each in self.blocks])

    @property
    def hosts(self) -> list[str]:
        """The hosts of its runs."""
        return list(dict.fromkeys(host for block in self.blocks for run in block.runs for host in run.hosts))


LOGS_OF_COMPARISONS = "ab"  # begins the names of their folders of logs


def make_log_name(label: str, spec: Spec, stack: str) -> str:
    """Return the name of the logs of a stack's runs, in place of a test's."""
    return f"{label} {spec.label} {stack}"


def select_blocks(blocks: Sequence[Block]) -> Sequence[Block]:
    """Return the undisturbed blocks; all if there are no others."""
    return [block for block in blocks if not block.disturbances] or blocks


def list_runs(blocks: Sequence[Block], side: str) -> list[Run]:
    """Return the runs of "A" or "B"."""
    return [run for block in blocks for each, run in zip(block.order, block.runs, strict=True) if each == side]


def compute_mean_rate(runs: Sequence[Run]) -> float | None:
    """Return the geometric mean of the images per second; None: no runs."""
    return math.exp(math.fsum(math.log(run.images_per_sec) for run in runs) / len(runs)) if runs else None
