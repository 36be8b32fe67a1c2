"""One line of measurements.jsonl: a measurement, its test, and its judgements."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self

from pytest_dtfperf.baselines.comparability import list_host_differences
from pytest_dtfperf.baselines.files import SCHEMA
from pytest_dtfperf.baselines.judgement import Judgement
from pytest_dtfperf.baselines.verdict import Numbers, Verdict, sort_by_severity
from pytest_dtfperf.codec import JsonData, describe, json_field
from pytest_dtfperf.datamodel.explanation import ExperimentResult, Explanation, Limit, SweepState
from pytest_dtfperf.datamodel.measurement import Measurement, efficiency
from pytest_dtfperf.datamodel.task_report import rate
from pytest_dtfperf.records.arithmetic import flops_per_sec, share_of_peak
from pytest_dtfperf.spec import KEY_FIELDS, UNUSUAL_KEY_FIELDS, Spec

SIZE = ("gpus", "num_ps")  # what differs along a scaling curve


# They belong to a verdict that another one has replaced.
_WITHOUT_CAUSES: Mapping[str, Any] = {"explanation": None, "unexplained": "", "experiments": ()}


@dataclass(frozen=True, kw_only=True)
class Record(JsonData):
    """A measurement as a session folder stores it. `verdict` is None unless it was judged."""

    schema_rules: ClassVar[Mapping[str, Any]] = {
        "allOf": [
            {
                "if": {"properties": {"efficiency": {"type": "number"}}},
                "then": {"properties": {"anchor": {"type": "string"}}},
            }
        ]
    }

    schema: Literal[1] = field(default=SCHEMA, metadata=describe("Version of this format"))
    id: str = field(metadata=describe("Id of the measurement, for commands"))
    test: str = field(metadata=describe("pytest's node id"))
    measurement: Measurement = field(metadata=describe(is_inline=True))
    # Stored, because without a check of it the anchor depends on all other measurements of the session.
    efficiency: float | None = field(
        default=None,
        metadata=describe(
            "Scaling efficiency, rate(n) / (n x rate(1)). It may exceed 1; null: not known", above=0, at_most=1e12
        ),
    )
    anchor: str | None = field(
        default=None, metadata=describe("Id of the 1-device measurement in the efficiency's denominator; null: none")
    )
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
    experiments: Sequence[ExperimentResult] = field(
        default=(),
        metadata=describe(
            "Short runs with one change, each to confirm or refute a cause. They are not part of the measurement",
            omit_empty=True,
        ),
    )
    checks: tuple[Judgement, ...] = field(
        default=(), metadata=describe("All judgements of it. The most severe one is its verdict")
    )
    accepted: bool = field(default=False, metadata=describe("Whether its session accepted it as a baseline"))
    # pytest-rerunfailures may run a test again.
    attempt: int = field(
        default=1,
        metadata=describe("Attempt of its test that measured it, if the test was run again", omit_empty=True, at_least=1),
    )

    @property
    def comparison(self) -> Judgement | None:
        """The last judgement with a change against its baseline."""
        return next((check for check in reversed(self.checks) if check.kind == "baseline" and check.change is not None), None)

    @property
    @json_field(describe("Accepted rate of the baseline that it was last compared with; null: none", **rate))
    def baseline(self) -> float | None:
        """The rate of the baseline that it was last compared with, in images/sec."""
        return self.comparison.baseline_rate if self.comparison else None

    @property
    @json_field(describe("measured / baseline - 1, of the geometric means of their runs; null: none"))
    def change(self) -> float | None:
        """Its change against its baseline, as a fraction."""
        return self.comparison.change if self.comparison else None

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
    @json_field(describe("From images_per_sec and the model; null: an external command with unknown arithmetic", above=0))
    def flops_per_sec(self) -> float | None:
        """The operations of all its devices per second, if they are known."""
        return flops_per_sec(self.measurement)

    @property
    @json_field(describe("flops_per_sec over the peak of the devices in their data sheet; null: not known", above=0))
    def share_of_peak(self) -> float | None:
        """`flops_per_sec` over the peak of all its devices, as a fraction, if it is known."""
        return share_of_peak(self.measurement)

    @property
    @json_field(describe("images_per_sec over the rate of the limit", above=0, omit_empty=True))
    def share_of_limit(self) -> float | None:
        """Its rate over what its devices, links and memory allow, as a fraction."""
        return self.limit.share(self.images_per_sec) if self.limit else None

    @property
    def own_efficiency(self) -> float | None:
        """Along a scaling curve: on one device it is 1, by its meaning."""
        if self.efficiency:
            return self.efficiency
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

    def with_judgement(self, judgement: Judgement) -> Self:
        """Return the record with another judgement: the gravest of several verdicts stays.

        A verdict about a run outranks all comparisons, because it makes the numbers void.
        """
        known = replace(self, checks=(*self.checks, judgement))
        if judgement.kind == "efficiency" and judgement.value is not None:
            known = replace(known, efficiency=judgement.value, anchor=judgement.other)
        return known if self._is_void_by_run else known._with_graver(judgement.verdict, judgement.reason)

    def with_verdict(self, verdict: Verdict, reason: str) -> Self:
        """Return the record with a verdict that results from its runs, without a comparison."""
        if verdict.row.numbers == "void" and not self._is_void_by_run:
            return replace(self, verdict=verdict, reason=reason, **_WITHOUT_CAUSES)
        return self if self._is_void_by_run else self._with_graver(verdict, reason)

    def _with_graver(self, verdict: Verdict, reason: str) -> Self:
        is_graver = sort_by_severity(verdict) < sort_by_severity(self.verdict)
        return replace(self, verdict=verdict, reason=reason) if is_graver else self


def remove_size(label: str) -> str:
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
    void = _list_void(found)
    ones: dict[tuple[object, ...], list[Record]] = defaultdict(list)
    for record in found:
        if record.spec.gpus == 1 and record.is_valid:
            ones[configuration(record.spec)].append(record)
    return [
        record if _is_judged(record, void) else _anchor_efficiency(record, ones[configuration(record.spec)]) for record in found
    ]


def with_what_follows(records: Iterable[Record]) -> list[Record]:
    """Each as all of them leave it: with its efficiency, and without what rested on a measurement that has come to nothing."""
    return with_efficiencies(replace_void_checks(list(records)))


def replace_void_checks(records: Sequence[Record]) -> list[Record]:
    """Return each with INCONCLUSIVE in the place of what a check has found that held it against what has come to nothing since.

    Its other checks stay as they are, the one of its rate against the baseline among them; the gravest gives the verdict.
    """
    void = {record.id: record for record in records if record.is_void}
    return [record if record.is_void else _replace_void_checks(record, void) for record in records]


def _replace_void_checks(record: Record, void: Mapping[str, Record]) -> Record:
    checks = tuple(_replace_void(check, void) for check in record.checks)
    if checks == record.checks:
        return record
    gravest = min(checks, key=lambda check: sort_by_severity(check.verdict))
    by_check = record.verdict in {check.verdict for check in record.checks}
    stays = not by_check and sort_by_severity(record.verdict) <= sort_by_severity(gravest.verdict)
    if stays or (gravest.verdict, gravest.reason) == (record.verdict, record.reason):
        return replace(record, checks=checks)
    return replace(record, checks=checks, verdict=gravest.verdict, reason=gravest.reason, **_WITHOUT_CAUSES)


def _replace_void(check: Judgement, void: Mapping[str, Record]) -> Judgement:
    other = void.get(check.other) if check.other else None
    if other is None or not check.verdict.row.compared:
        return check
    reason = f"{check.kind} is not known: {other.spec.label}, which it was held against, is {other.verdict}: {other.reason}"
    without_numbers = replace(check, baseline_rate=None, value=None, low=None, high=None, noise=None, needs_runs=False)
    return replace(without_numbers, verdict=Verdict.INCONCLUSIVE, reason=reason)


def replace_void_efficiencies(records: Sequence[Record]) -> list[Record]:
    """Return each as it is, but recompute efficiencies with a measurement that has become void, from all others."""
    void = _list_void(records)
    return [
        again if record.anchor and void & {record.id, record.anchor} else record
        for record, again in zip(records, with_efficiencies(records), strict=True)
    ]


def _list_void(records: Iterable[Record]) -> set[str]:
    return {record.id for record in records if record.is_void}


def _is_judged(record: Record, void: set[str]) -> bool:
    judged = (check.other for check in record.checks if check.kind == "efficiency")
    return record.anchor is not None and not void & {record.id, record.anchor} and record.anchor in judged


def _anchor_efficiency(record: Record, ones: Sequence[Record]) -> Record:
    """Divide by the latest 1-device measurement of those with the most similar number of parameter servers."""
    value: float | None = None
    name: str | None = None
    if record.spec.gpus > 1 and record.is_valid:
        latest_first = ones[::-1]
        ordered = sorted(latest_first, key=lambda one: _compare_numbers(one.spec.num_ps, record.spec.num_ps))
        anchor = next((one for one in ordered if not _differs(one.measurement, record.measurement)), None)
        if anchor:
            value, name = efficiency(record.measurement, anchor.measurement), anchor.id
    return record if (value, name) == (record.efficiency, record.anchor) else replace(record, efficiency=value, anchor=name)


def _differs(one: Measurement, many: Measurement) -> bool:
    """Return whether they ran on different hardware or software, so that their ratio would measure those."""
    return bool(one.misplaced or many.misplaced or list_host_differences(one.fingerprint, many.fingerprint))


def _compare_numbers(one: int, many: int) -> tuple[bool, int]:
    """Return how unlike two numbers of parameter servers are: having none is unlike any number."""
    return (one == 0) != (many == 0), abs(one - many)


def select_latest(records: Iterable[Record]) -> list[Record]:
    """Return the last valid record of each spec, in the order the specs were first measured."""
    return list({record.spec: record for record in records if record.is_valid}.values())
