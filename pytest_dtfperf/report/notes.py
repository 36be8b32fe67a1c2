"""Notes below and above the table of a session: reasons of verdicts, how to accept, accepted baselines, error rates."""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_dtfperf.baselines.accept import Acceptance
from pytest_dtfperf.baselines.compare import find_other_hardware, hint
from pytest_dtfperf.baselines.judgement import PublishedRate
from pytest_dtfperf.baselines.references import references_for
from pytest_dtfperf.baselines.verdict import LEAST_RUNS, Verdict, sort_by_severity
from pytest_dtfperf.formats import change, percent, rate
from pytest_dtfperf.limits.hints import find_hint
from pytest_dtfperf.predict.inputs import find_advice
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.records.stored import Budget

CHECKS_OF_RATES = ("baseline", "published", "efficiency", "overhead")  # checks that use rates


@dataclass(frozen=True)
class VerdictReason:
    """The reason of a verdict, once for all measurements that share it."""

    verdict: Verdict
    message: str
    records: Sequence[Record]

    def __str__(self) -> str:
        if len(self.records) > 1:
            return f"{self.verdict} ({len(self.records)} measurements): {self.message}"
        label = self.records[0].spec.label
        return f"{self.verdict}: {self.message}" if label in self.message else f"{self.verdict}: {label}: {self.message}"


def collect_reasons(records: Iterable[Record]) -> list[VerdictReason]:
    """Return the reasons of all verdicts that are not green, the gravest first."""
    found: dict[tuple[Verdict, str], list[Record]] = {}
    for record in sorted(records, key=lambda record: sort_by_severity(record.verdict)):
        verdict = record.verdict
        if verdict and verdict.row.outcome != "pass" and verdict.row.says_why and record.reason and not record.accepted:
            found.setdefault((verdict, record.reason), []).append(record)
    return [VerdictReason(verdict, message, group) for (verdict, message), group in found.items()]


def suggest_accepting(records: Sequence[Record], *, is_next_shown: bool = False) -> list[str]:
    """Return a line for measurements that still have no baseline; empty if there are none.

    Measurements on other hosts than requested, or with an injected slowdown, cannot be baselines.

    Args:
        is_next_shown: Whether the command that accepts them is shown elsewhere (`list_next_steps`).
    """
    stored = {record.spec.key for record in records if record.accepted}  # by another measurement of the same training
    left = [record for record in records if record.spec.key not in stored and _has_no_baseline(record)]
    new = [each for each in left if not (each.measurement.misplaced or each.measurement.injected_slowdowns)]
    disturbed = [each for each in new if each.measurement.disturbances]
    lines = []
    if acceptable := [each for each in new if each not in disturbed]:
        how = f"Accept what was measured with the same command and --update-baselines=new{_add_repeats(acceptable)}"
        effect = (
            "Later sessions are judged by accepted rates" if is_next_shown else f"{how}: later sessions are compared with it"
        )
        lines.append(f"{_count_without_baseline(len(acceptable))} {effect}")
    if disturbed:
        reasons = disturbed[0].measurement.disturbances
        none = f"None can be made, for every run was disturbed: {reasons[0]}{hint(reasons)}"
        lines.append(f"{_count_without_baseline(len(disturbed))} {none}")
    return lines


def list_next_steps(records: Sequence[Record], command: Sequence[str], cluster: str) -> list[tuple[str, str]]:
    """Return up to three commands that lead on from a session with measurements that lack a baseline, and what each does.

    Args:
        command: the command that was run.
        cluster: the name of the cluster.
    """
    lacking = [
        record
        for record in records
        if not record.accepted
        and _has_no_baseline(record)
        and not (record.is_disturbed or record.measurement.injected_slowdowns)
    ]
    if not lacking:
        return []
    arguments = [Path(command[0]).name, *command[1:]]
    again = shlex.join(word for word in arguments if not word.startswith(("--update-baselines", "--explain")))
    steps = [
        (f"{again} --update-baselines=new{_add_repeats(lacking)}", "accept these rates"),
        (f"{again} --explain=always", "see where the time goes"),
    ]
    if not any(record.measurement.fingerprint.is_simulated for record in lacking):
        steps.append((f"dtfperf doctor --cluster={shlex.quote(cluster)}", "check the hosts"))
    return steps


def _add_repeats(records: Iterable[Record]) -> str:
    """Return the option that a baseline needs where a measurement has too few runs for one."""
    return f" --repeats={LEAST_RUNS}" if any(len(each.measurement.runs) < LEAST_RUNS for each in records) else ""


def list_hints(records: Iterable[Record]) -> list[str]:
    """Return what is likely the cause of slow measurements, and what would help most, a line each, without duplicates."""
    return list(dict.fromkeys(f"Hint (no verdict): {text}" for record in records for text in list_hints_of(record)))


def list_hints_of(record: Record) -> list[str]:
    """Return the likely cause of a measurement far below the limit of its hosts, and the change that would help most."""
    return [text for text in (find_hint(record), find_advice(record)) if text]


def list_published_rates(records: Iterable[Record]) -> list[str]:
    """Return a line for each measurement without a baseline that has a published rate of the same training on equal GPUs."""
    return list(dict.fromkeys(filter(None, map(_describe_published_rate, records))))


def _describe_published_rate(record: Record) -> str | None:
    spec, hardware = record.spec, record.measurement.fingerprint.hardware
    if not (_has_no_baseline(record) and record.is_valid and hardware.gpus):
        return None
    of_training = [
        each
        for each in references_for(spec)
        if (each.batch_size, each.gpus, each.precision, each.data) == (spec.batch_size, spec.gpus, spec.precision, spec.data)
        and not find_other_hardware(PublishedRate.from_reference(each), hardware)
    ]
    nearest = min(
        of_training,
        key=lambda each: (each.variable_update != spec.variable_update, each.num_ps != spec.num_ps, -each.images_per_sec),
        default=None,
    )
    if nearest is None:
        return None
    difference = change(record.images_per_sec / nearest.images_per_sec - 1)
    return (
        f"Published (no verdict): {spec.label}: {rate(nearest.images_per_sec)} images/sec on {nearest.title}, "
        f"{nearest.citation}: here {difference}"
    )


def _count_without_baseline(number: int) -> str:
    return f"{number} measurement{'s have' if number > 1 else ' has'} no baseline."


def _has_no_baseline(record: Record) -> bool:
    """Return whether the comparison with a baseline was not possible: other checks are INCOMPARABLE for other reasons."""
    verdicts = {check.verdict for check in record.checks if check.kind == "baseline"} if record.checks else {record.verdict}
    return any(verdict and verdict.lacks_baseline for verdict in verdicts)


def list_injected_slowdowns(records: Iterable[Record]) -> list[str]:
    """Return each distinct set of sleeps that were injected into steps."""
    slept = (record.measurement.injected_slowdowns for record in records)
    message = (
        ", ".join(f"{task} slept {sleep_s:g} s in every step" for task, sleep_s in sorted(found.items())) for found in slept
    )
    return sorted(set(message) - {""})


def list_error_rates(records: Iterable[Record], budget: Budget | None) -> list[str]:
    """Return the rate of false alarms of such a session; empty if nothing was compared."""
    compared = any(
        check.kind in CHECKS_OF_RATES and check.verdict.row.compared for record in records for check in record.checks
    )
    if not compared or not budget or not budget.tests:
        return []
    share = f", a budget shared by {budget.tests} tests" if budget.tests > 1 else ""
    part = percent(budget.false_alarms)
    rule = f"at most {part} of such sessions turn red where no rate is worse than its margin allows{share}"
    return [f"False alarms: {rule}. What is REGRESSED, one more run has confirmed."]


@dataclass(frozen=True)
class AcceptedBaseline:
    """A baseline that --update-baselines wrote. `old` is None if there was none."""

    label: str
    old: float | None  # images/sec
    new: float

    def __str__(self) -> str:
        if self.old is None:
            return f"{self.label}: new, {rate(self.new)}"
        return f"{self.label}: {rate(self.old)} -> {rate(self.new)} ({change(self.new / self.old - 1)})"


def list_accepted_baselines(acceptance: Acceptance | None, records: Iterable[Record]) -> list[AcceptedBaseline]:
    """Return the baselines that have changed; `records`: the measurements of the session."""
    label = {record.spec.key: record.spec.label for record in records}
    return [
        AcceptedBaseline(label[each.new.key], each.old.images_per_sec if each.old else None, each.new.images_per_sec)
        for each in (acceptance.changes if acceptance else ())
    ]


def list_acceptance_remarks(acceptance: Acceptance | None, records: Iterable[Record]) -> Sequence[str]:
    """Return remarks on baselines that were refused, kept their noise, or were loosened."""
    if not acceptance:
        return []
    label = {record.spec.key: record.spec.label for record in records}
    refused = [f"not accepted: {one.measurement.spec.label}: {why}" for one, why in acceptance.refused]
    kept = [
        f"still as calibrated on {each.kept_noise.date[:10]}: the noise of {label[each.new.key]}; "
        "measure it again (dtfperf baselines calibrate), or remove it (dtfperf baselines uncalibrate)"
        for each in acceptance.changes
        if each.kept_noise
    ]
    looser = [
        f"LOOSENED: {label[each.new.key]}: what failed before passes from now on, so this session does not end with 0"
        for each in acceptance.loosened_baselines
    ]
    fruitless = ["NOTHING ACCEPTED: no measurement may become a baseline, so this session does not end with 0"]
    return [*refused, *kept, *looser, *(fruitless if acceptance.is_fruitless else [])]
