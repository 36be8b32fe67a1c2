"""The acceptance of measurements as baselines by --update-baselines, and the reasons for refusals."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pytest_dtfperf.baselines.comparability import system_name
from pytest_dtfperf.baselines.compare import hint, join_disturbances
from pytest_dtfperf.baselines.entry import BaselineChange, Entry, Provenance
from pytest_dtfperf.baselines.judgement import Judgement
from pytest_dtfperf.baselines.store import BaselineStore
from pytest_dtfperf.baselines.verdict import LEAST_RUNS
from pytest_dtfperf.datamodel.measurement import Measurement

Mode = Literal["all", "new"]  # "new": only if nothing comparable is stored


@dataclass(frozen=True)
class Candidate:
    """A measurement with its judgement against its baseline, and its provenance."""

    measurement: Measurement
    judgement: Judgement
    provenance: Provenance


@dataclass(frozen=True)
class Acceptance:
    """The baselines that were written, and the refused ones with the reasons."""

    changes: Sequence[BaselineChange]
    refused: Sequence[tuple[Candidate, str]]
    mode: Mode = "all"

    @property
    def is_fruitless(self) -> bool:
        """Whether nothing was written although baselines were requested: with "new", only missing ones count."""
        wanted = (one for one, _ in self.refused if self.mode == "all" or one.judgement.verdict.lacks_baseline)
        return not self.changes and any(wanted)

    @property
    def loosened_baselines(self) -> list[BaselineChange]:
        """The changes after which more measurements pass than before."""
        return [change for change in self.changes if change.loosens]


def explain_refusal(judgement: Judgement, measurement: Measurement, mode: Mode, reason: str | None = None) -> str | None:
    """Return why this measurement may not become a baseline; None if it may. `reason` is the user's, for a regression."""
    verdict = judgement.verdict
    if measurement.injected_slowdowns:
        return "an injected slow-down is no baseline"
    if measurement.misplaced:
        return f"it ran on other hosts than requested ({measurement.misplaced})"
    if measurement.disturbances:
        return f"all its runs were disturbed ({join_disturbances(measurement.disturbances)}){hint(measurement.disturbances)}"
    if not verdict.may_become_baseline:
        return f"{verdict}: {judgement.reason}"
    if len(measurement.rates) < LEAST_RUNS:
        undisturbed = "undisturbed " if len(measurement.rates) < len(measurement.runs) else ""
        return f"it has a single {undisturbed}run, and a baseline needs at least {LEAST_RUNS}"
    if verdict.needs_reason and not reason:
        return f'{verdict}: {judgement.reason}; a slower baseline is accepted only with --allow-regression="why"'
    if mode == "new" and not verdict.lacks_baseline:
        return f"{verdict}: it has a baseline already, and only new ones were asked for"
    return None


def accept(store: BaselineStore, candidates: Iterable[Candidate], *, mode: Mode, reason: str | None = None) -> Acceptance:
    """Write the accepted measurements, each into the file of its system."""
    refused: list[tuple[Candidate, str]] = []
    by_system: dict[str, list[Entry]] = {}
    for candidate in candidates:
        why_not = explain_refusal(candidate.judgement, candidate.measurement, mode, reason)
        if why_not:
            refused.append((candidate, why_not))
        else:
            system = system_name(candidate.measurement.fingerprint.hardware)
            stated = reason if _is_slower(candidate.judgement) else None
            entry = Entry.from_measurement(candidate.measurement, replace(candidate.provenance, reason=stated))
            by_system.setdefault(system, []).append(entry)
    changes = [change for system, entries in by_system.items() for change in store.update(system, entries)]
    return Acceptance(changes, refused, mode)


def _is_slower(judgement: Judgement) -> bool:
    """Return whether the measurement is slower, so that its acceptance needs a reason."""
    return judgement.verdict.needs_reason or (judgement.change is not None and judgement.change < 0)
