"""The folder of baselines: one JSON file per system, read whole, written whole, merged under a lock."""

import re
import statistics
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pytest_dtfperf.baselines.canonical import canonical, write_atomically
from pytest_dtfperf.baselines.entry import Change, Entry
from pytest_dtfperf.baselines.system import system_name
from pytest_dtfperf.baselines.validation import parse
from pytest_dtfperf.errors import BaselineFileError, unknown_name
from pytest_dtfperf.measurement import Measurement
from pytest_dtfperf.spec import KEY_FIELDS, UNUSUAL_KEY_FIELDS, Spec

SCHEMA = 1
LOCK_TIMEOUT_S = 60.0  # a writer needs milliseconds; whoever holds the lock for longer is stuck, and the user must be told


class BaselineStore:
    """Reads and updates `folder/<system>.json`. Reading takes no lock: a file is replaced whole."""

    def __init__(self, folder: Path, lock_timeout_s: float = LOCK_TIMEOUT_S) -> None:
        self.folder = folder
        self._lock_timeout_s = lock_timeout_s
        self._read: dict[str, tuple[tuple[int, int, int], dict[str, Any]]] = {}  # system -> version of its file, its content

    def systems(self) -> list[str]:
        """The systems that have a file."""
        return sorted(path.stem for path in self.folder.glob("*.json") if not path.name.startswith("."))

    def check(self) -> None:
        """Read every file. Raises `BaselineFileError` at the first that breaks its schema."""
        for system in self.systems():
            self._content(system)

    def find(self, system: str, spec: Spec, hardware: Mapping[str, Any] | None = None, hosts: int = 1) -> Entry | None:
        """What is stored for a spec: measured on so many hosts of that hardware if there is any, else the latest."""
        entries = self._entries(system, spec.key)
        same = [entry for entry in entries if hardware is not None and not entry.foreign_to(hardware, hosts)]
        return max(same or entries, key=lambda entry: entry.provenance.date, default=None)

    def find_for(self, measurement: Measurement) -> Entry | None:
        """The baseline of a measurement: of its spec, on the system it ran on."""
        hardware = measurement.fingerprint.get("hardware", {})
        return self.find(system_name(hardware), measurement.spec, hardware, len(measurement.hosts))

    def best_num_ps(self, system: str, spec: Spec) -> int | None:
        """The number of parameter servers with which this training, otherwise the same, was fastest."""
        wanted = _split_num_ps(spec.key)[0]
        rates: dict[int, float] = {}
        for key, found in self._content(system).get("entries", {}).items():
            rest, num_ps = _split_num_ps(key)
            if rest == wanted:
                rates[num_ps] = max(statistics.median(entry["samples"]) for entry in found)
        return max(rates, key=lambda num_ps: (rates[num_ps], -num_ps), default=None)

    def update(self, system: str, changes: Iterable[Entry]) -> list[Change]:
        """Replace or add these entries and nothing else, and say what was there before."""
        with self._locked():
            data = self._content(system) or {"schema": SCHEMA, "system": system}
            stored = {key: [Entry.from_json(key, entry) for entry in found] for key, found in data.get("entries", {}).items()}
            made = [_put(stored.setdefault(entry.key, []), entry) for entry in changes]
            data = data | {"entries": {key: [entry.to_json() for entry in found] for key, found in stored.items()}}
            text = canonical(data)
            parse("baseline", text, str(self._path(system)))  # what this cannot read again is not written
            write_atomically(self._path(system), text)
        return made

    def _entries(self, system: str, key: str) -> list[Entry]:
        return [Entry.from_json(key, entry) for entry in self._content(system).get("entries", {}).get(key, ())]

    def _content(self, system: str) -> dict[str, Any]:
        """The file's content, read again only if it is another file. Empty if there is none."""
        path = self._path(system)
        try:
            stat = path.stat()
        except FileNotFoundError:
            return {}
        version = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        if system not in self._read or self._read[system][0] != version:
            self._read[system] = (version, read_baseline_file(path))
        return self._read[system][1]

    def _path(self, system: str) -> Path:
        return self.folder / f"{system}.json"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the folder, so that xdist workers and parallel sessions merge instead of overwriting each other."""
        from filelock import FileLock, Timeout

        self.folder.mkdir(parents=True, exist_ok=True)
        lock = self.folder / ".lock"  # the kernel frees it when its holder dies, however it dies
        try:
            with FileLock(lock, timeout=self._lock_timeout_s):
                yield
        except Timeout as exc:
            raise BaselineFileError(
                f"{lock}: another process has held the baselines for {self._lock_timeout_s:.0f} s; end it and accept again"
            ) from exc


def read_baseline_file(path: Path) -> dict[str, Any]:
    """Read and check one file. Raises `BaselineFileError`, in one line."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise BaselineFileError(f"{path}: cannot be read: {exc}") from exc
    data: dict[str, Any] = parse("baseline", text, str(path))
    if data["system"] != path.stem:
        raise BaselineFileError(
            f"{path}: system is {data['system']!r}, but the file's name says {path.stem!r}; they must agree"
        )
    for key in data.get("entries", {}):
        _check_key(key, path)
    for number, series in enumerate(data.get("references", [])):
        if series["source"] not in data.get("sources", {}):
            what = unknown_name("source", series["source"], data.get("sources", {}))
            raise BaselineFileError(f"{path}: references[{number}].source: {what}")
    return data


def _check_key(key: str, path: Path) -> None:
    """A key that no spec can have would never be found again, and nobody would be told."""
    names = [word.partition("=")[0] for word in key.split(" ")]
    for name in names:
        if name not in (*KEY_FIELDS, *UNUSUAL_KEY_FIELDS):
            what = unknown_name("field of a spec", name, (*KEY_FIELDS, *UNUSUAL_KEY_FIELDS))
            raise BaselineFileError(f'{path}: entries["{key}"]: {what}')
    if names != [*KEY_FIELDS, *(name for name in UNUSUAL_KEY_FIELDS if name in names)]:
        raise BaselineFileError(
            f'{path}: entries["{key}"]: a key is {" ".join(f"{name}=..." for name in KEY_FIELDS)}, then what is not as usual, '
            "in the order of the spec's fields"
        )


def _split_num_ps(key: str) -> tuple[str, int]:
    found = re.search(r"\bnum_ps=(\d+)", key)
    assert found is not None, key
    return key.replace(found[0], "num_ps=*"), int(found[1])


def _put(entries: list[Entry], new: Entry) -> Change:
    """Replace the entry of the same hardware on as many hosts, or add one."""
    for place, old in enumerate(entries):
        if not old.foreign_to(new.hardware, new.hosts):
            entries[place] = new
            return Change(old, new)
    entries.append(new)
    return Change(None, new)
