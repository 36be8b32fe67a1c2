"""One line of measurements.jsonl: a measurement, the test it was made for, and what became of it."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from pytest_dtfperf.baselines.checks import Check
from pytest_dtfperf.baselines.comparability import other_hosts
from pytest_dtfperf.baselines.files import SCHEMA
from pytest_dtfperf.baselines.verdict import Judgement, Numbers, Verdict, gravest_first
from pytest_dtfperf.codec import JsonData
from pytest_dtfperf.datamodel.explanation import Explanation, Limit, SweepState, Tried
from pytest_dtfperf.datamodel.measurement import Measurement, efficiency
from pytest_dtfperf.records.arithmetic import flops_per_sec, share_of_peak
from pytest_dtfperf.spec import KEY_FIELDS, UNUSUAL_KEY_FIELDS, Spec

SIZE = ("gpus", "num_ps")  # what differs along a scaling curve


@dataclass(frozen=True, kw_only=True)
class Efficiency(JsonData):
    """rate(n) / (n x rate(1)), and which measurement rate(1) was."""

    value: float
    anchor: str  # id of the 1-device record of the same session


@dataclass(frozen=True, kw_only=True)
class Compared(JsonData):
    """The baseline a measurement was held against."""

    images_per_sec: float
    change: float  # measured / baseline - 1, of the geometric means of their runs
    margin: float | None = None  # how much slower is still no regression, as a part of the baseline
    low: float | None = None  # the change is at least this, but for a miss; None: not known
    high: float | None = None  # the change is at most this, but for a false alarm; None: not known
    noise: float | None = None  # of a single run, as assumed: its coefficient of variation


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

    id: str
    test: str  # pytest's node id
    measurement: Measurement
    efficiency: Efficiency | None = None
    baseline: Compared | None = None
    verdict: Verdict | None = None
    reason: str | None = None
    checks: tuple[Check, ...] = ()  # all judgements of it, with what they rest on; the gravest gave it its verdict
    accepted: bool = False  # its session has made it a baseline
    attempt: int = 1  # of its test, which pytest-rerunfailures may run again: the attempt that measured it
    limit: Limit | None = None  # the highest rate that its resources allow, if it was computed
    sweep: SweepState | None = None  # how its number of parameter servers was found, with --num-ps=sweep
    explanation: Explanation | None = None  # why it is slower, if that is known
    unexplained: str = ""  # why that is not known
    experiments: Sequence[Tried] = ()  # on causes, with --diagnose

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

    def to_json(self) -> dict[str, Any]:
        limit = {"limit": self.limit.to_json(), "share_of_limit": self.share_of_limit} if self.limit else {}
        why = {
            "explanation": self.explanation and self.explanation.to_json(),
            "unexplained": self.unexplained,
            "experiments": [each.to_json() for each in self.experiments],
        }
        return {
            "schema": SCHEMA,
            "id": self.id,
            "test": self.test,
            **self.measurement.to_json(),
            "flops_per_sec": flops_per_sec(self.measurement),
            "share_of_peak": share_of_peak(self.measurement),
            "efficiency": self.efficiency and self.efficiency.to_json(),
            "baseline": self.baseline and self.baseline.to_json(),
            **limit,
            **({"sweep": self.sweep.to_json()} if self.sweep else {}),
            "verdict": self.verdict,
            "reason": self.reason,
            **{name: value for name, value in why.items() if value},
            "checks": [check.to_json() for check in self.checks],
            "accepted": self.accepted,
            **({"attempt": self.attempt} if self.attempt > 1 else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Return the record, or a `KeyError`, `TypeError`, `ValueError` or `SpecError` if `data` is none."""
        if data["schema"] != SCHEMA:
            raise ValueError(f"schema is {data['schema']!r}, this version reads {SCHEMA}")
        own = {field.name: data[field.name] for field in fields(cls) if field.name in data}
        return super().from_json(own | {"measurement": data})


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
