"""`pytest --ab`: tests compare software stacks. `train` makes runs of all of them, and `baseline` judges their differences."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import pytest

from pytest_dtfperf.baselines.judgement import Judgement
from pytest_dtfperf.compare.blocks import ABEstimate, ABPolicy, ABVerdict, judge_estimate
from pytest_dtfperf.compare.variants import Variant
from pytest_dtfperf.errors import UsageError
from pytest_dtfperf.plugin.options import Options
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.report.comparisons import TEST_VERDICTS, list_reasons
from pytest_dtfperf.session.comparison import ABComparison
from pytest_dtfperf.session.session import Session
from pytest_dtfperf.session.stacks import check_variants
from pytest_dtfperf.spec import Spec


def check_options(options: Options, config: pytest.Config) -> None:
    """Raise `UsageError` if options cannot be combined with `--ab`, or pytest-xdist runs the tests."""
    if hasattr(config, "workerinput") or config.getoption("numprocesses", None) or config.getoption("tx", None):
        raise UsageError("--ab: pytest-xdist distributes tests, and a comparison needs all runs in one process: leave out -n")
    if options.update_baselines:
        raise UsageError("--ab: a comparison of variants changes no baselines: --update-baselines is for runs of one stack")
    if options.num_ps in ("best", "sweep"):
        raise UsageError(f"--ab: a comparison needs the number of parameter servers itself, not --num-ps={options.num_ps}")


class StackComparer:
    """Compares the stacks of `--ab` in the trainings of tests. A training that was compared is not compared again."""

    def __init__(self, session: Session, variants: Sequence[Variant]) -> None:
        """Check the variants. Raises `UsageError`."""
        check_variants(variants, session.config)
        self._session = session
        self._variants = variants
        self._found: dict[Spec, list[ABComparison]] = {}
        self._failures: dict[Spec, Exception] = {}
        self._begun: set[str] = set()  # tests

    def measure(self, specs: Sequence[Spec], test: str) -> list[Record]:
        """Return the reference's measurement of each spec, after blocks of runs of all stacks.

        Raises:
            RunFailed, InvalidMeasurement, InfrastructureError: of a run of any stack.
        """
        self._begun.add(test)
        wanted = [spec for spec in dict.fromkeys(specs) if spec not in self._found]
        if wanted:
            others = len(self._variants) - 1
            later = max(0, self._session.tests - len(self._begun)) * others
            comparing = self._session.prepare_comparison(self._variants, wanted, later=later, test=test)
            comparing.carry_out(math.inf)
            for at, spec in enumerate(wanted):
                self._found[spec] = comparing.comparisons[at * others : (at + 1) * others]
                failed = (comparing.failures.get(each.id) for each in self._found[spec])
                if error := next(filter(None, failed), None):
                    self._failures[spec] = error
        for spec in specs:
            if spec in self._failures:
                raise self._failures[spec]
        return [self._make_record(spec, test) for spec in specs]

    def judge(self, record: Record) -> tuple[Judgement, list[str]]:
        """Return the gravest verdict of a training's comparisons, and the text of all."""
        compared = self._find(record)
        judged = [_judge(each, each.decision.estimate, each.verdict) for each in compared]
        return _choose_gravest(judged), [line for each in compared for line in list_reasons(each.to_record())]

    def judge_efficiency(self, record: Record, anchor: Record) -> tuple[Judgement, list[str]]:
        """Return the gravest verdict on the ratio of the variants' efficiencies to the reference's.

        The interval is that of the most different ratios of rates within the intervals of both comparisons.
        """
        judged = []
        for each, alone in zip(self._find(record), self._find(anchor), strict=True):
            estimate = _divide(each.decision.estimate, alone.decision.estimate)
            verdict = judge_estimate(estimate, ABPolicy()) if estimate else ABVerdict.INCONCLUSIVE
            judged.append(_judge(each, estimate, verdict, "efficiency: "))
        return _choose_gravest(judged), [each.reason for each in judged]

    def _find(self, record: Record) -> list[ABComparison]:
        found = [each for each in self._found.values() if each[0].id == record.id]
        if not found:
            raise UsageError(f"{record.spec.label} was not compared in this session")
        return found[0]

    def _make_record(self, spec: Spec, test: str) -> Record:
        first = self._found[spec][0]
        return Record(id=first.id, test=test, measurement=first.reference.measurement(first.runs("A")))


def skip_check(name: str) -> Callable[..., NoReturn]:
    """Return a function in place of a check that has no meaning for two stacks: it skips the test."""

    def skip(*_: Any, **__: Any) -> NoReturn:
        pytest.skip(f"baseline.{name} judges one stack, and --ab compares several")

    return skip


def _judge(comparison: ABComparison, estimate: ABEstimate | None, verdict: ABVerdict, label: str = "") -> Judgement:
    variant, reference = comparison.variant.variant.name, comparison.reference.variant.name
    reason = f"{label}{comparison.label}: {variant} is {verdict} against {reference}: {estimate or 'unknown'}"
    return Judgement(TEST_VERDICTS[verdict], reason, change=estimate.ratio - 1 if estimate else None)


def _choose_gravest(judged: Sequence[Judgement]) -> Judgement:
    """Return the gravest verdict with its change, and with the reasons of all."""
    gravest = min(judged, key=lambda each: each.verdict.severity)
    return replace(gravest, reason="; ".join(each.reason for each in judged))


def _divide(one: ABEstimate | None, other: ABEstimate | None) -> ABEstimate | None:
    """Return the ratio of two ratios, with the widest interval that both allow."""
    if one is None or other is None:
        return None
    is_known = one.high is not None and other.high is not None and other.low > 0
    return ABEstimate(
        ratio=one.ratio / other.ratio,
        low=one.low / other.high if is_known and other.high else 0.0,
        high=one.high / other.low if is_known and one.high else None,
        spread=math.hypot(one.spread, other.spread),
        blocks=min(one.blocks, other.blocks),
        order_effect=0.0,
    )
