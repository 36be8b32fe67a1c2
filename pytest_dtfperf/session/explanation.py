"""Explain a judgement that is not green, from the profiles of its two sides, or a stored record, offline."""

import json
import shlex
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

from pytest_dtfperf.baselines import comparability
from pytest_dtfperf.baselines.comparability import list_program_differences
from pytest_dtfperf.baselines.entry import Entry
from pytest_dtfperf.baselines.judgement import Judgement
from pytest_dtfperf.baselines.store import BaselineStore
from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.datamodel.explanation import CauseKind, Explanation
from pytest_dtfperf.datamodel.fingerprint import Fingerprint
from pytest_dtfperf.datamodel.measurement import Measurement, Run
from pytest_dtfperf.errors import SessionFileError, UsageError
from pytest_dtfperf.explain.causes import explain
from pytest_dtfperf.explain.measurement_profile import MeasurementProfile
from pytest_dtfperf.formats import printable
from pytest_dtfperf.launch.agents import CHIEF
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.records.session import SessionFolder, session_folders


def profile_measurement(measurement: Measurement, cluster: str | None = None) -> MeasurementProfile:
    """Return the profile of a measurement; `cluster` is a name for the suggested commands."""
    run, traced = _choose_run(measurement), measurement.traced_run
    images = compute_images_per_step(measurement)
    return MeasurementProfile(
        step_s=[images / rate for rate in measurement.rates] if images else [],
        step_breakdown=traced.step_breakdown if traced else None,
        worker_timings=run.worker_timings,
        probes=measurement.probes,
        states=run.state,
        disturbances=measurement.disturbances,  # discarded runs are not part of these seconds
        hosts=run.task_hosts,
        sleeps=measurement.injected_slowdowns,
        cluster=cluster,
        coordinated=measurement.spec.mode.coordinated,
        in_lockstep=measurement.spec.in_lockstep,
        is_own_program=bool(measurement.spec.command),
        graph=measurement.fingerprint.program.graph or None,
    )


def profile_entry(entry: Entry, measurement: Measurement) -> MeasurementProfile:
    """Return the profile of the baseline of this measurement."""
    spec, images = measurement.spec, compute_images_per_step(measurement)
    return MeasurementProfile(
        step_s=[images / rate for rate in entry.samples] if images else [],
        step_breakdown=entry.step_breakdown,
        worker_timings=entry.worker_timings,
        probes=entry.probes,
        coordinated=spec.mode.coordinated,
        in_lockstep=spec.in_lockstep,
        is_own_program=bool(spec.command),
        graph=entry.fingerprint.program.graph or None,
    )


def add_changes(
    profile: MeasurementProfile, before: Fingerprint, after: Fingerprint, *, program: bool = True
) -> MeasurementProfile:
    """Return the profile with the differences between two fingerprints.

    Args:
        program: whether both should train with the same graph.
    """
    return replace(
        profile,
        program_changes=list_program_differences(before, after) if program else [],
        software_changes=comparability.software_changes(before.software, after.software),
        hardware_changes=comparability.hardware_differences(before.hardware, after.hardware),
    )


def _choose_run(measurement: Measurement) -> Run:
    """Return the last traced run, or else the last one with step timestamps, or else the last."""
    last_first = [*reversed(measurement.samples), *reversed(measurement.runs)]
    known = (run for wanted in ("step_breakdown", "worker_timings") for run in last_first if getattr(run, wanted))
    return next(known, last_first[0])


def compute_images_per_step(measurement: Measurement) -> float | None:
    """Return the images that all devices train in a step: by a program's reported steps, if any. None: unknown."""
    spec = measurement.spec
    run = next((run for run in reversed(measurement.samples) if run.step_s.get(CHIEF)), None) if spec.command else None
    if run:
        return run.images_per_sec * statistics.fmean(run.step_s[CHIEF])
    return spec.gpus * spec.batch_size or None


class CheckWording(NamedTuple):
    """The names of a comparison's other side in messages."""

    against: str
    name: str
    when: str


# Checks that compare the step times of two trainings, which should be equal: of the baseline; of one device
# alone; of the same training without reading its input.
AGAINST = {
    "baseline": CheckWording("its baseline", "the baseline", "in the baseline"),
    "efficiency": CheckWording("the anchor, on one device", "the anchor", "in the anchor"),
    "overhead": CheckWording(
        "the same training with synthetic input", "the training with synthetic input", "with synthetic input"
    ),
}


def describe_cause(
    judgement: Judgement, measurement: Measurement, other: Measurement | None, cluster: str | None
) -> dict[str, Any]:
    """Return the fields for the record: `explanation`, or `unexplained` with the reason; empty without a change to explain.

    Args:
        cluster: the options with which suggested commands find it, such as `--cluster=daint`; None: none are suggested.
    """
    verdict = judgement.verdict
    if verdict.row.numbers == "void" or judgement.kind not in AGAINST or not _has_loss(judgement):
        return {}
    try:
        checked = None if measurement.fingerprint.is_simulated else cluster  # the doctor refuses simulated hosts
        found = explain_judgement(judgement, measurement, other, checked)
        if found and cluster:
            found = replace(found, search=suggest_search(found, measurement, cluster))
        json.dumps(found and found.to_json(), allow_nan=False)  # in the form in which it is written
    except Exception as error:  # a failed explanation must not lose the verdict
        return {"unexplained": f"cannot be explained: {type(error).__name__}: {' '.join(str(error).split())}"}
    return {"explanation": found} if found else {}


def explain_judgement(
    judgement: Judgement, measurement: Measurement, other: Measurement | None, cluster: str | None
) -> Explanation | None:
    """Return why a measurement is slower; None if there is nothing to compare it with, or it is not slower."""
    sides = _profile_sides(judgement, measurement, other, cluster)
    found = explain(*sides) if sides else None
    if found is None or found.change_s <= 0:
        return None
    if judgement.kind == "efficiency" and found.causes and (hosts := _shared_hosts(measurement)):
        found = _remove_sharing(found, hosts, measurement)
    return replace(found, against=AGAINST[judgement.kind].against)


def suggest_search(found: Explanation, measurement: Measurement, cluster: str) -> str:
    """Return the command that searches slow hosts with a training; empty if no cause is at one of several hosts."""
    is_at_host = any(cause.location and cause.kind.row.isolate for cause in found.causes)
    words = measurement.spec.to_arguments()
    if not (is_at_host and words and len(measurement.hosts) > 1) or measurement.injected_slowdowns:
        return ""
    return f"{shlex.join(['dtfperf', 'isolate', *words])} {cluster}"


def _has_loss(judgement: Judgement) -> bool:
    """Return whether there may be a loss to explain: of an undecided comparison, if its known interval has only losses.

    Without a compared value, nothing shows that there is no loss.
    """
    if judgement.verdict is not Verdict.INCONCLUSIVE:
        return judgement.verdict.row.outcome != "pass"
    if judgement.change is None and judgement.value is None:
        return True
    if judgement.low is None or judgement.high is None:
        return False
    if judgement.kind == "overhead":
        return judgement.low > 0
    return judgement.high < (1 if judgement.kind == "efficiency" else 0)


def _shared_hosts(measurement: Measurement) -> Sequence[str]:
    """Return the hosts without GPUs on machines where several devices compute: these share its memory bus and caches."""
    if measurement.fingerprint.hardware.gpus:
        return []
    run = measurement.runs[-1]
    machine_of = {host: run.state[host].machine if host in run.state else host for host in run.task_hosts.values()}
    devices: Counter[str] = Counter()
    for task, host in run.task_hosts.items():
        devices[machine_of[host]] += run.task_devices.get(task, int(task.startswith("worker:")))
    return [host for host, machine in machine_of.items() if devices[machine] > 1]


def _remove_sharing(found: Explanation, hosts: Sequence[str], measurement: Measurement) -> Explanation:
    """Return the explanation without the causes that a single device on a host does not have.

    A device that computes, sends or receives beside others takes longer. An injected slow-down is none of these causes.
    """
    kept = [
        each for each in found.causes if each.kind == CauseKind.STRAGGLER and each.location in measurement.injected_slowdowns
    ]
    dropped_s = sum(each.seconds for each in found.causes if each not in kept)
    note = (
        f"the devices of {', '.join(hosts)} are cores that share a memory bus: each of them is slower beside the others than "
        "alone, so that no cause is named against one device"
    )
    return replace(found, causes=kept, unexplained_s=found.unexplained_s + dropped_s, notes=[*found.notes, note])


def _profile_sides(
    judgement: Judgement, measurement: Measurement, other: Measurement | None, cluster: str | None
) -> tuple[MeasurementProfile, MeasurementProfile] | None:
    current = profile_measurement(measurement, cluster)
    if judgement.kind == "baseline":
        if (entry := judgement.entry) is None:
            return None
        return profile_entry(entry, measurement), add_changes(current, entry.fingerprint, measurement.fingerprint)
    if other is None:
        return None
    names = AGAINST[judgement.kind]
    baseline = replace(profile_measurement(other, cluster), name=names.name, when=names.when)
    return baseline, add_changes(current, other.fingerprint, measurement.fingerprint, program=False)


def find_records(session: str, measurement: str | None, results: Path) -> Sequence[Record]:
    """Return a session's measurements, or one by its id, also of any session in `results`. Raises `UsageError`."""
    if measurement is None and not Path(session).exists() and "/" not in session:
        return [_find_record(session, results)]
    records = SessionFolder.open(Path(session)).measurements()
    if measurement is None:
        return records
    found = [record for record in records if record.id == measurement]
    if not found:
        known = ", ".join(printable(record.id) for record in records) or "none"
        raise UsageError(f"there is no measurement {printable(measurement)} in this session: it has {known}")
    return found


def _find_record(measurement: str, results: Path) -> Record:
    """Search the newest session first. Sessions that cannot be read are skipped."""
    folders = session_folders(results) if results.is_dir() else []
    for folder in reversed(folders):
        try:
            found = [record for record in folder.measurements() if record.id == measurement]
        except SessionFileError:
            continue
        if found:
            return found[0]
    raise UsageError(
        f"{printable(measurement)} is neither a session's folder nor the id of a measurement of one in {results}/; "
        "give the folder, or folder and id"
    )


@dataclass(frozen=True)
class ComparisonSource:
    """The reference of stored measurements: another session, or baselines."""

    records: Sequence[Record] = ()
    store: BaselineStore | None = None
    system: str | None = None  # the single file that was given

    @classmethod
    def read_path(cls, path: Path) -> Self:
        """Read a session's folder, a baseline file, or a folder of those. Raises `SessionFileError`, `BaselineFileError`."""
        if path.is_file():
            store = BaselineStore(path.parent)
            store.entries(path.stem)
            return cls(store=store, system=path.stem)
        if path.is_dir() and not (path / "session.json").exists() and any(path.glob("*.json")):
            store = BaselineStore(path)
            store.check()
            return cls(store=store)
        return cls(records=SessionFolder.open(path).measurements())

    def record_like(self, record: Record) -> Record | None:
        """Return the last measurement of the same spec; the last traced one, if there is one."""
        same = [other for other in self.records if other.spec == record.spec]
        traced = [other for other in same if any(run.step_breakdown for run in other.measurement.all_runs)]
        return next(reversed(traced or same), None)

    def explanation(self, record: Record) -> Explanation | None:
        """Return why a measurement is slower than the reference; None if that lacks its spec."""
        current, other = record.measurement, self.record_like(record)
        if other:
            against, before = other.id, other.measurement.fingerprint
            name = f"measurement {against}"
            baseline = replace(profile_measurement(other.measurement), name=name, when=f"in {name}")
        elif self.store and (entry := self._entry(self.store, current)):
            against, before = f"the baseline of {entry.provenance.date[:10]}", entry.fingerprint
            baseline = profile_entry(entry, current)
        else:
            return None
        found = explain(baseline, add_changes(profile_measurement(current), before, current.fingerprint))
        return replace(found, against=against) if found else None

    def _entry(self, store: BaselineStore, measurement: Measurement) -> Entry | None:
        if self.system is None:
            found = store.find_for(measurement)
            return found if found and found.key == measurement.spec.key else None
        return store.find(self.system, measurement.spec, measurement.fingerprint, len(measurement.hosts))


def explain_record(record: Record, other: ComparisonSource | None) -> Explanation | None:
    """Return the explanation against a reference. Without one, return the recorded explanation, or a new one."""
    if other:
        return other.explanation(record)
    if record.explanation:
        return record.explanation
    check = next((check for check in record.checks if check.verdict == record.verdict and check.kind == "baseline"), None)
    if check is None or not _has_loss(check):
        return None
    return explain_judgement(check, record.measurement, None, None)
