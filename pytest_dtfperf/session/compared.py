"""A stored measurement and what it is to be held against: what it was judged by, another session, a baseline. All offline."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from pytest_dtfperf.baselines.entry import Entry
from pytest_dtfperf.baselines.store import BaselineStore
from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.errors import SessionFileError, UsageError
from pytest_dtfperf.explain.causes import Explanation, explain
from pytest_dtfperf.measurement import Measurement
from pytest_dtfperf.printable import printable
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.records.session import SessionFolder, session_folders
from pytest_dtfperf.session.evidence import of_entry, of_measurement, with_changes
from pytest_dtfperf.session.explaining import explained


def asked(session: str, measurement: str | None, results: Path) -> Sequence[Record]:
    """A session's measurements, or one by its id, also of any session in `results`; raises `UsageError` where there is none."""
    if measurement is None and not Path(session).exists() and "/" not in session:
        return [_anywhere(session, results)]
    records = SessionFolder.open(Path(session)).measurements()
    if measurement is None:
        return records
    found = [record for record in records if record.id == measurement]
    if not found:
        known = ", ".join(printable(record.id) for record in records) or "none"
        raise UsageError(f"there is no measurement {printable(measurement)} in this session: it has {known}")
    return found


def _anywhere(measurement: str, results: Path) -> Record:
    """The newest session's first. Sessions that cannot be read are passed over: one is looked for, and not they."""
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
class Other:
    """What measurements are held against."""

    records: Sequence[Record] = ()
    store: BaselineStore | None = None
    system: str | None = None  # the one file of them that was given

    @classmethod
    def at(cls, path: Path) -> Self:
        """A session's folder, a baseline file, or the folder of such. Raises `SessionFileError`, `BaselineFileError`."""
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
        """The last measurement of the same spec; the last that was traced, if one was."""
        same = [other for other in self.records if other.spec == record.spec]
        traced = [other for other in same if any(run.anatomy for run in other.measurement.all_runs)]
        return next(reversed(traced or same), None)

    def explanation(self, record: Record) -> Explanation | None:
        """Why a measurement is slower than that; None where there is nothing of its spec."""
        now, before = record.measurement, self.record_like(record)
        if before:
            other = replace(of_measurement(before.measurement), name=f"measurement {before.id}")
            then = other, before.measurement.fingerprint, before.id
        elif self.store and (entry := self._entry(self.store, now)):
            then = of_entry(entry, now), entry.fingerprint, f"the baseline of {entry.provenance.date[:10]}"
        else:
            return None
        found = explain(then[0], with_changes(of_measurement(now), then[1], now.fingerprint))
        return replace(found, against=then[2]) if found else None

    def _entry(self, store: BaselineStore, now: Measurement) -> Entry | None:
        if self.system is None:
            found = store.find_for(now)
            return found if found and found.key == now.spec.key else None
        return store.find(self.system, now.spec, now.fingerprint, len(now.hosts))


def explanation(record: Record, other: Other | None) -> Explanation | None:
    """Against something else, or else as it was told; of records of older versions as it would be told now."""
    if other:
        return other.explanation(record)
    if record.explanation:
        return Explanation.from_json(record.explanation)
    check = next((check for check in record.checks if check.verdict == record.verdict and check.kind == "baseline"), None)
    if check is None or check.verdict.row.outcome == "pass":
        return None
    high = record.baseline.high if record.baseline and check.verdict is Verdict.INCONCLUSIVE else None
    if high is not None and high >= 0:  # nothing may have been lost
        return None
    return explained(check, record.measurement, None, None)
