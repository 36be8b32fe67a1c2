"""measurements.jsonl while its session goes on: a record is appended anew each time it changes, and its last line counts.

So a change costs what its own record is long, however many there are, and a writer that is killed leaves all earlier lines.
When the session ends, one line a record is left (`SessionFolder.finish`).
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pytest_dtfperf.errors import SessionFileError
from pytest_dtfperf.records.record import Record, configuration, with_what_follows
from pytest_dtfperf.records.stored import content_of, whole_lines
from pytest_dtfperf.spec import Spec

MOST_SUPERSEDED_BYTES = 1 << 24  # that a file keeps until its session ends, or as much as what counts, if that is more


class Journal:
    """The records of one file, kept in memory: `refresh` reads only what has been appended since, by whichever process."""

    def __init__(self, path: Path, read: Callable[[int, bytes], Record]) -> None:
        """`read` makes a record of a line, given its number."""
        self._path = path
        self._read = read
        self._forget()

    def _forget(self) -> None:
        self.records: dict[str, Record] = {}  # id -> record as it is now, in the order in which they were added
        self._by_spec: dict[Spec, list[str]] = defaultdict(list)
        self._by_configuration: dict[tuple[object, ...], list[str]] = defaultdict(list)
        self._position: dict[str, int] = {}
        self._bytes: dict[str, int] = {}  # of each record's last line
        self.superseded_bytes = 0  # of lines with records that have later lines
        self._lines = 0
        self._end = 0
        self._last_line = b""

    def refresh(self) -> None:
        """Read what was appended since the last time; all of it, where the file is another by now.

        A last line without its newline is what a killed writer leaves, and is passed over. Raises `SessionFileError` for any
        other line that is no record.
        """
        appended = self._read_appended()
        if appended is None:
            self._forget()
            appended = content_of(self._path)
        for line in whole_lines(appended):
            record = self._read(self._lines + 1, line)
            if record.id not in self.records:
                self._position[record.id] = len(self._position)
                self._by_spec[record.spec].append(record.id)
                self._by_configuration[configuration(record.spec)].append(record.id)
            self.records[record.id] = record
            self.superseded_bytes += self._bytes.get(record.id, 0)
            self._bytes[record.id] = len(line)
            self._lines, self._end, self._last_line = self._lines + 1, self._end + len(line), line

    def _read_appended(self) -> bytes | None:
        """Return what is behind the last line that was read; None where that line is not in its place any more."""
        if not self._last_line or not self._path.is_file():
            return None
        try:
            with self._path.open("rb", buffering=0) as file:
                file.seek(self._end - len(self._last_line))
                content = file.read()
        except OSError as exc:
            raise SessionFileError(f"{self._path} cannot be read: {exc.strerror}") from exc
        return content[len(self._last_line) :] if content.startswith(self._last_line) else None

    def of_spec(self, spec: Spec) -> list[Record]:
        """Return the records of exactly this spec, in the order in which they were added."""
        return [self.records[each] for each in self._by_spec.get(spec, ())]

    @property
    def is_mostly_superseded(self) -> bool:
        return self.superseded_bytes > max(self._end // 2, MOST_SUPERSEDED_BYTES)

    def with_what_follows(self, changed: Mapping[str, Record]) -> dict[str, Record]:
        """Return the changed records and those that change with them, as `with_what_follows` of all records has them."""
        records = {**self.records, **changed}
        affected = records.keys() if any(record.is_void for record in changed.values()) else self._find_affected_ids(changed)
        bases = {each for record_id in affected for each in self._bases(records[record_id]) if each in records}
        context = sorted({*affected, *bases}, key=lambda each: self._position.get(each, len(records)))
        followed = {record.id: record for record in with_what_follows(records[each] for each in context)}
        return {each: followed[each] for each in context if each in affected and followed[each] is not self.records.get(each)}

    def _find_affected_ids(self, changed: Mapping[str, Record]) -> set[str]:
        """Return the ids of those that may change with them: one device's measurement is the anchor of its curve's others."""
        curves = [self._curve(record) for record in changed.values() if record.spec.gpus == 1]
        return {*changed, *(each for curve in curves for each in curve if self.records[each].spec.gpus > 1)}

    def _bases(self, record: Record) -> list[str]:
        """Return the ids of all that its efficiency and its checks may rest on."""
        sides = [check.other.record for check in record.checks if check.other]
        anchors = [each for each in self._curve(record) if self.records[each].spec.gpus == 1] if record.spec.gpus > 1 else []
        return [*sides, *anchors, *([record.efficiency.anchor] if record.efficiency else [])]

    def _curve(self, record: Record) -> Sequence[str]:
        return self._by_configuration.get(configuration(record.spec), ())
