"""One line of measurements.jsonl: a measurement, the test it was made for, and what became of it."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

from pytest_dtfperf.baselines.checks import Check
from pytest_dtfperf.baselines.comparability import other_hosts
from pytest_dtfperf.baselines.files import SCHEMA
from pytest_dtfperf.baselines.verdict import Judgement, Numbers, Verdict, gravest_first
from pytest_dtfperf.codec import JsonData, describe, written
from pytest_dtfperf.datamodel.explanation import Explanation, Limit, SweepState, Tried
from pytest_dtfperf.datamodel.measurement import Measurement, efficiency
from pytest_dtfperf.datamodel.task_report import rate
from pytest_dtfperf.records.arithmetic import flops_per_sec, share_of_peak
from pytest_dtfperf.spec import KEY_FIELDS, UNUSUAL_KEY_FIELDS, Spec

SIZE = ("gpus", "num_ps")  # what differs along a scaling curve


@dataclass(frozen=True, kw_only=True)
class Efficiency(JsonData):
    """rate(n) / (n x rate(1)), and which measurement rate(1) was."""

    value: float = field(metadata=describe("The efficiency; 1 is ideal", above=0, at_most=1e12))
    anchor: str = field(metadata=describe("Id of the 1-device measurement in the denominator"))


@dataclass(frozen=True, kw_only=True)
class Compared(JsonData):
    """The baseline a measurement was held against."""

    images_per_sec: float = field(metadata=describe("Accepted rate", **rate))
    change: float = field(metadata=describe("measured / baseline - 1, of the geometric means of their runs"))
    margin: float | None = field(default=None, metadata=describe("Allowed loss of the rate, as a fraction", at_least=0))
    low: float | None = field(
        default=None,
        metadata=describe("Lower end of the interval of the change, with the probability of a miss; null: not known"),
    )
    high: float | None = field(
        default=None,
        metadata=describe("Upper end of the interval of the change, with the probability of a false alarm; null: not known"),
    )
    noise: float | None = field(
        default=None, metadata=describe("Assumed noise of a single run: coefficient of variation", at_least=0)
    )


def efficiency_of(judgement: Judgement, check: Check) -> Efficiency | None:
    """Return what a record keeps of a check of its efficiency; None where it was another check, or found none."""
    if check.kind != "efficiency" or judgement.value is None or check.other is None:
        return None
    return Efficiency(value=judgement.value, anchor=check.other.record)


def make_comparison(judgement: Judgement, check: Check) -> Compared | None:
    """Return what a record keeps of a comparison with its baseline; None where it was another check, or there was none."""
    if check.kind != "baseline" or judgement.baseline_rate is None or judgement.change is None:
        return None
    found = judgement.estimate
    is_known = found is not None and found.degrees_of_freedom > 0 and found.low > 0
    return Compared(
        images_per_sec=judgement.baseline_rate,
        change=judgement.change,
        margin=check.terms.margin,
        low=found.low - 1 if found and is_known else None,
        high=found.high - 1 if found and is_known else None,
        noise=found.spread if found else None,
    )


# For a record with a verdict that is no more: they were of that.
_WITHOUT_CAUSES: Mapping[str, Any] = {"explanation": None, "unexplained": "", "experiments": ()}


@dataclass(frozen=True, kw_only=True)
class Record(JsonData):
    """A measurement as a session folder keeps it. `verdict` is None until it is judged; many never are."""

    schema: Literal[1] = field(default=SCHEMA, metadata=describe("Version of this format"))
    id: str = field(metadata=describe("Id of the measurement, for commands"))
    test: str = field(metadata=describe("pytest's node id"))
    measurement: Measurement = field(metadata=describe(is_inline=True))
    efficiency: Efficiency | None = field(
        default=None,
        metadata=describe("Scaling efficiency, rate(n) / (n x rate(1)). It may exceed 1; null: not known"),
    )
    baseline: Compared | None = field(default=None, metadata=describe("Baseline of the comparison; null: none"))
    limit: Limit | None = field(
        default=None, metadata=describe("Highest rate that its devices, links and memory allow", omit_empty=True)
    )
    sweep: SweepState | None = field(
        default=None, metadata=describe("Search for its number of parameter servers", omit_empty=True)
    )
    verdict: Verdict | None = field(default=None, metadata=describe("Verdict; null: not judged yet"))
    reason: str | None = field(default=None, metadata=describe("Reason of the verdict, as text; null: not judged yet"))
    explanation: Explanation | None = field(
        default=None, metadata=describe("Causes of a slower rate than that of the comparison", omit_empty=True)
    )
    unexplained: str = field(default="", metadata=describe("Reason for a missing explanation", omit_empty=True))
    experiments: Sequence[Tried] = field(
        default=(),
        metadata=describe(
            "Short runs with one change, each to confirm or refute a cause. They are not part of the measurement",
            omit_empty=True,
        ),
    )
    checks: tuple[Check, ...] = field(default=(), metadata=describe("All judgements of it. The most severe one is its verdict"))
    accepted: bool = field(default=False, metadata=describe("Whether its session accepted it as a baseline"))
    # pytest-rerunfailures may run a test again.
    attempt: int = field(
        default=1,
        metadata=describe("Attempt of its test that measured it, if the test was run again", omit_empty=True, at_least=1),
    )

    @property
    def spec(self) -> Spec:
        return self.measurement.spec

    @property
    def images_per_sec(self) -> float:
        return self.measurement.images_per_sec

    @property
    def accuracy(self) -> float | None:
        """On the test set, 0 to 1, if the spec asked for it."""
        return self.measurement.accuracy

    @property
    @written(describe("Computed from images_per_sec and the model; null: an external command with unknown arithmetic", above=0))
    def flops_per_sec(self) -> float | None:
        """The operations of all its devices per second, if they are known."""
        return flops_per_sec(self.measurement)

    @property
    @written(describe("flops_per_sec over the peak of the devices in their data sheet; null: not known", above=0))
    def share_of_peak(self) -> float | None:
        """`flops_per_sec` over the peak of all its devices, as a fraction, if it is known."""
        return share_of_peak(self.measurement)

    @property
    @written(describe("images_per_sec over the rate of the limit", above=0, omit_empty=True))
    def share_of_limit(self) -> float | None:
        """Its rate over what its devices, links and memory allow, as a fraction."""
        return self.limit.share(self.images_per_sec) if self.limit else None

    @property
    def own_efficiency(self) -> float | None:
        """Along a scaling curve: on one device it is 1, by its meaning."""
        if self.efficiency:
            return self.efficiency.value
        return 1.0 if self.spec.gpus == 1 and self.is_valid else None

    @property
    def is_disturbed(self) -> bool:
        """Whether something else disturbed all its runs, judged or not, or whatever it was compared with."""
        return self._says_of_numbers == "disturbed" or bool(self.measurement.disturbances)

    @property
    def is_tainted(self) -> bool:
        """Whether that is all that speaks against its numbers, so that they may be shown as such: INVALID ones are nothing."""
        return self.is_disturbed and not self.is_void

    @property
    def is_valid(self) -> bool:
        """Whether its numbers may be built upon."""
        return self.is_sound and not self.is_disturbed

    @property
    def is_sound(self) -> bool:
        """Whether its verdict lets its numbers be built upon; `is_valid` asks what disturbed its runs, too."""
        return self._says_of_numbers == "sound"

    @property
    def is_void(self) -> bool:
        """Whether its verdict makes its numbers void, so that nothing may be computed from them."""
        return self._says_of_numbers == "void"

    @property
    def _is_void_by_run(self) -> bool:
        return self.is_void and self.verdict not in {check.verdict for check in self.checks}

    @property
    def _says_of_numbers(self) -> Numbers:
        return "sound" if self.verdict is None else self.verdict.row.numbers

    def with_judgement(
        self,
        verdict: Verdict,
        reason: str,
        *,
        baseline: Compared | None = None,
        efficiency: Efficiency | None = None,
        check: Check | None = None,
    ) -> Self:
        """Return the record with a verdict: of several verdicts the gravest stays.

        But what a later run has shown of the numbers themselves outranks whatever was, or will be, compared with them.
        """
        known = replace(
            self,
            baseline=baseline or self.baseline,
            efficiency=efficiency or self.efficiency,
            checks=(*self.checks, check) if check else self.checks,
        )
        if self._is_void_by_run:
            return known
        if check is None and verdict.row.numbers == "void":
            return replace(known, verdict=verdict, reason=reason, **_WITHOUT_CAUSES)
        is_graver = gravest_first(verdict) < gravest_first(self.verdict)
        return replace(known, verdict=verdict, reason=reason) if is_graver else known


def without_size(label: str) -> str:
    """Return a spec's label without what differs along a scaling curve: `inception3 b8 parameter_server`."""
    return " ".join(word for word in label.split() if not word.startswith(tuple(f"{name}=" for name in SIZE)))


def configuration(spec: Spec) -> tuple[object, ...]:
    """Return what is trained and how, but for the size: devices and parameter servers. A scaling curve has one."""
    names = (*KEY_FIELDS, *UNUSUAL_KEY_FIELDS, "learning_rate")  # which changes no rate, but makes another training
    return tuple(getattr(spec, name) for name in names if name not in SIZE)


def with_efficiencies(records: Iterable[Record]) -> list[Record]:
    """Return the records with the efficiencies that follow from all of them: the one place where an anchor is chosen.

    An efficiency that was judged stays as in its verdict, unless one of its two measurements has become void since.
    docs/numbers.md has the rule.
    """
    found = list(records)
    void = _void(found)
    ones: dict[tuple[object, ...], list[Record]] = defaultdict(list)
    for record in found:
        if record.spec.gpus == 1 and record.is_valid:
            ones[configuration(record.spec)].append(record)
    return [
        record if _was_judged(record, void) else _anchor_efficiency(record, ones[configuration(record.spec)])
        for record in found
    ]


def with_what_follows(records: Iterable[Record]) -> list[Record]:
    """Each as all of them leave it: with its efficiency, and without what rested on a measurement that has come to nothing."""
    return with_efficiencies(without_void_checks(list(records)))


def without_void_checks(records: Sequence[Record]) -> list[Record]:
    """Return each with INCONCLUSIVE in the place of what a check has found that held it against what has come to nothing since.

    Its other checks stay as they are, the one of its rate against the baseline among them; the gravest gives the verdict.
    """
    void = {record.id: record for record in records if record.is_void}
    return [record if record.is_void else _without_void_checks(record, void) for record in records]


def _without_void_checks(record: Record, void: Mapping[str, Record]) -> Record:
    checks = tuple(_without_void(check, void) for check in record.checks)
    if checks == record.checks:
        return record
    gravest = min(checks, key=lambda check: gravest_first(check.verdict))
    by_check = record.verdict in {check.verdict for check in record.checks}
    stays = not by_check and gravest_first(record.verdict) <= gravest_first(gravest.verdict)
    if stays or (gravest.verdict, gravest.reason) == (record.verdict, record.reason):
        return replace(record, checks=checks)
    return replace(record, checks=checks, verdict=gravest.verdict, reason=gravest.reason, **_WITHOUT_CAUSES)


def _without_void(check: Check, void: Mapping[str, Record]) -> Check:
    other = void.get(check.other.record) if check.other else None
    if other is None or not check.verdict.row.compared:
        return check
    reason = f"{check.kind} is not known: {other.spec.label}, which it was held against, is {other.verdict}: {other.reason}"
    return replace(check, verdict=Verdict.INCONCLUSIVE, reason=reason)


def without_void_efficiencies(records: Sequence[Record]) -> list[Record]:
    """Return each as it is, but recompute efficiencies with a measurement that has become void, from all others."""
    void = _void(records)
    return [
        again if record.efficiency and void & {record.id, record.efficiency.anchor} else record
        for record, again in zip(records, with_efficiencies(records), strict=True)
    ]


def _void(records: Iterable[Record]) -> set[str]:
    return {record.id for record in records if record.is_void}


def _was_judged(record: Record, void: set[str]) -> bool:
    at = record.efficiency.anchor if record.efficiency else None
    judged = (check.other.record for check in record.checks if check.kind == "efficiency" and check.other)
    return at is not None and not void & {record.id, at} and at in judged


def _anchor_efficiency(record: Record, ones: Sequence[Record]) -> Record:
    """Divide by the latest 1-device measurement of those with the most similar number of parameter servers."""
    found: Efficiency | None = None
    if record.spec.gpus > 1 and record.is_valid:
        latest_first = ones[::-1]
        ordered = sorted(latest_first, key=lambda one: _unlike(one.spec.num_ps, record.spec.num_ps))
        anchor = next((one for one in ordered if not _differs(one.measurement, record.measurement)), None)
        if anchor:
            found = Efficiency(value=efficiency(record.measurement, anchor.measurement), anchor=anchor.id)
    return record if found == record.efficiency else replace(record, efficiency=found)


def _differs(one: Measurement, many: Measurement) -> bool:
    """Return whether they ran on different hardware or software, so that their ratio would measure those."""
    return bool(one.misplaced or many.misplaced or other_hosts(one.fingerprint, many.fingerprint))


def _unlike(one: int, many: int) -> tuple[bool, int]:
    """Return how unlike two numbers of parameter servers are: having none is unlike any number."""
    return (one == 0) != (many == 0), abs(one - many)


def latest_of_each_spec(records: Iterable[Record]) -> list[Record]:
    """Return the last valid record of each spec, in the order the specs were first measured."""
    return list({record.spec: record for record in records if record.is_valid}.values())
