"""What was accepted as baselines, and what was not, in words. Values in, text out."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pytest_dtfperf.baselines.accept import Acceptance
from pytest_dtfperf.formats import change, rate
from pytest_dtfperf.records.record import Record


@dataclass(frozen=True)
class AcceptedBaseline:
    """A baseline that --update-baselines wrote. `old` is None where there was none."""

    label: str
    old: float | None  # images/sec
    new: float

    def __str__(self) -> str:
        if self.old is None:
            return f"{self.label}: new, {rate(self.new)}"
        return f"{self.label}: {rate(self.old)} -> {rate(self.new)} ({change(self.new / self.old - 1)})"


def list_accepted_baselines(acceptance: Acceptance | None, records: Iterable[Record]) -> list[AcceptedBaseline]:
    """The baselines that are others now; `records`: what was measured."""
    label = {record.spec.key: record.spec.label for record in records}
    return [
        AcceptedBaseline(label[each.new.key], each.old.images_per_sec if each.old else None, each.new.images_per_sec)
        for each in (acceptance.changes if acceptance else ())
    ]


def list_acceptance_remarks(acceptance: Acceptance | None, records: Iterable[Record]) -> Sequence[str]:
    """What else is to be said of baselines than which were written."""
    if not acceptance:
        return []
    label = {record.spec.key: record.spec.label for record in records}
    refused = [f"not accepted: {one.measurement.spec.label}: {why}" for one, why in acceptance.refused]
    kept = [
        f"still as calibrated on {each.kept_noise.date[:10]}: the noise of {label[each.new.key]}; "
        "measure it anew (dtfperf baselines calibrate), or forget it (dtfperf baselines uncalibrate)"
        for each in acceptance.changes
        if each.kept_noise
    ]
    looser = [
        f"LOOSENED: {label[each.new.key]}: what failed before passes from now on, so this session does not end with 0"
        for each in acceptance.loosened
    ]
    fruitless = ["NOTHING ACCEPTED: no measurement may become a baseline, so this session does not end with 0"]
    return [*refused, *kept, *looser, *(fruitless if acceptance.is_fruitless else [])]
