"""Store baselines in a folder with one JSON file per system. Files are replaced as a whole, and merged under a lock.

`BaselinePattern` selects entries: terms like `model=resnet* gpus=8`, all of which must match.
"""

import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Self, TypeVar

from pytest_dtfperf.baselines.comparability import is_same_but_for_exchange, list_hardware_differences, system_name
from pytest_dtfperf.baselines.entry import BaselineChange, CalibratedNoise, Entry
from pytest_dtfperf.baselines.files import (
    SCHEMA,
    canonical,
    content_of,
    published_folder,
    read_baseline_file,
    read_published_file,
)
from pytest_dtfperf.datamodel.fingerprint import Fingerprint
from pytest_dtfperf.datamodel.measurement import Measurement
from pytest_dtfperf.errors import BaselineFileError, UsageError, describe_unknown_name
from pytest_dtfperf.node.files import replace_file
from pytest_dtfperf.spec import KEY_FIELDS, UNUSUAL_KEY_FIELDS, Spec
from pytest_dtfperf.spec.spec import format_value

T = TypeVar("T")
LOCK_TIMEOUT_S = 60.0  # a writer needs milliseconds; a process that holds the lock for longer hangs, which is reported


class BaselineStore:
    """Reads and updates `folder/<system>.json`. Reading takes no lock: a file is replaced whole."""

    def __init__(self, folder: Path, lock_timeout_s: float = LOCK_TIMEOUT_S) -> None:
        self.folder = folder
        self._lock_timeout_s = lock_timeout_s
        self._read: dict[Path, tuple[tuple[int, int, int], dict[str, Any]]] = {}  # file -> its version, its content

    def systems(self) -> list[str]:
        """Return the systems that have a file."""
        return _systems_in(self.folder)

    def check(self) -> None:
        """Read every file. Raises `BaselineFileError` at the first that cannot be read or breaks its schema."""
        if self.folder.exists() and not self.folder.is_dir():
            raise BaselineFileError(f"{self.folder}: is no folder; baselines are kept in one, a file for each system")
        for system in self.systems():
            self._content(system)

    def check_writable(self) -> None:
        """Raise `BaselineFileError` for a file that would not be written: a link that leads out of the project."""
        for system in self.systems():
            self._written_to(self._path(system))

    def find(self, system: str, spec: Spec, fingerprint: Fingerprint | None = None, hosts: int = 1) -> Entry | None:
        """Return the latest entry for a spec: of the comparable ones, else of those on the same hardware, else of all."""
        entries = self._entries(system, spec.key)
        found = fingerprint or Fingerprint()
        same = [entry for entry in entries if fingerprint is not None and not entry.list_differences(found, hosts)]
        near = [entry for entry in entries if entry.hosts == hosts and not list_hardware_differences(entry.fingerprint, found)]
        return max(same or near or entries, key=lambda entry: entry.provenance.date, default=None)

    def find_for(self, measurement: Measurement) -> Entry | None:
        """Return the baseline of a measurement: of its spec, on its system.

        If there is none, return the latest of the same training with another variable placement or exchange. It is only for a
        message, not for a comparison.
        """
        system = system_name(measurement.fingerprint.hardware)
        found = self.find(system, measurement.spec, measurement.fingerprint, len(measurement.hosts))
        return found or self._find_other_exchange(system, measurement.spec.key)

    def _find_other_exchange(self, system: str, key: str) -> Entry | None:
        keys = [other for other in self._content(system).get("entries", {}) if is_same_but_for_exchange(other, key)]
        entries = [entry for other in keys for entry in self._entries(system, other)]
        return max(entries, key=lambda entry: entry.provenance.date, default=None)

    def entries(self, system: str) -> list[Entry]:
        keys = self._content(system).get("entries", {})
        return [entry for key in keys for entry in self._entries(system, key)]

    def rates(self) -> dict[str, list[float]]:
        """Return `Spec.key` -> images/sec of each of its baselines, on any system."""
        found: dict[str, list[float]] = {}
        for entry in (entry for system in self.systems() for entry in self.entries(system)):
            found.setdefault(entry.key, []).append(entry.images_per_sec)
        return found

    def best_num_ps(self, system: str, spec: Spec) -> int | None:
        """Return the fastest number of parameter servers of an otherwise equal training."""
        # With one server, the placement is irrelevant, and not part of the key.
        wanted = {several: _split_num_ps(spec.replace(num_ps=1 + several).key)[0] for several in (False, True)}
        rates: dict[int, float] = {}
        for key, found in self._content(system).get("entries", {}).items():
            rest, num_ps = _split_num_ps(key)
            if rest == wanted[num_ps > 1]:
                rates[num_ps] = max(statistics.median(entry["samples"]) for entry in found)
        return max(rates, key=lambda num_ps: (rates[num_ps], -num_ps), default=None)

    def margin(self, system: str) -> float | None:
        """Return the largest loss of rate that a system's file allows; None: not set."""
        found: float | None = self._get_thresholds(system).get("margin")
        return found

    def get_least_efficiency(self, system: str, model: str, gpus: int) -> float | None:
        """Return the least efficiency in a system's file for a model on exactly so many devices; None: not set."""
        rows = self._get_thresholds(system).get("efficiency", ())
        return next((row["at_least"] for row in rows if (row["model"], row["gpus"]) == (model, gpus)), None)

    def systems_with_thresholds(self) -> list[str]:
        """Return the systems with values for `margin` or `least_efficiency`."""
        known = {*self.systems(), *_systems_in(published_folder())}
        return sorted(system for system in known if self._get_thresholds(system))

    def update(self, system: str, changes: Iterable[Entry]) -> list[BaselineChange]:
        """Replace or add only these entries, and return the changes.

        A file that cannot be read is never overwritten. Raises `BaselineFileError`.
        """
        return self._rewrite(system, lambda stored: [_put(stored.setdefault(entry.key, []), entry) for entry in changes])

    def calibrate(self, system: str, found: Iterable[tuple[Entry, CalibratedNoise]]) -> list[BaselineChange]:
        """Store the noise of these entries: one that was replaced in between keeps its new samples.

        Missing entries are skipped. Raises `BaselineFileError`.
        """
        return self._rewrite(
            system,
            lambda stored: [
                _put(stored[each.key], replace(each, noise=calibrated))
                for entry, calibrated in found
                for each in stored.get(entry.key, [])
                if not each.list_differences(entry.fingerprint, entry.hosts)
            ],
        )

    def uncalibrate(self, system: str, entries: Iterable[Entry]) -> list[Entry]:
        """Remove the noise of these entries, and return those that had any.

        A changed entry is left unchanged. Raises `BaselineFileError`.
        """
        return self._rewrite(
            system,
            lambda stored: [
                _exchange(stored[entry.key], entry, [replace(entry, noise=None)])
                for entry in entries
                if entry.noise and entry in stored.get(entry.key, ())
            ],
        )

    def remove(self, system: str, entries: Iterable[Entry]) -> list[Entry]:
        """Remove these entries, and the file if nothing else is left in it; return the removed ones.

        Published results, thresholds and notes stay. A changed entry stays, too. Raises
        `BaselineFileError`.
        """
        return self._rewrite(
            system,
            lambda stored: [_exchange(stored[entry.key], entry, []) for entry in entries if entry in stored.get(entry.key, ())],
        )

    def _rewrite(self, system: str, change: Callable[[dict[str, list[Entry]]], list[T]]) -> list[T]:
        path = self._path(system)
        target = self._written_to(path)
        with self._locked():
            data = self._content(system) or {"schema": SCHEMA, "system": system}
            stored = {
                key: [Entry.from_json({"key": key, **entry}) for entry in found]
                for key, found in data.get("entries", {}).items()
            }
            made = change(stored)
            entries = {key: [entry.to_file_json() for entry in found] for key, found in stored.items() if found}
            data = {
                **{name: value for name, value in data.items() if name != "entries"},
                **({"entries": entries} if entries else {}),
            }
            if set(data) == {"schema", "system"}:
                for each in {target, path}:
                    each.unlink(missing_ok=True)
                return made
            text = canonical(data)
            content_of(text, path)  # fails before a file is written that could not be read again
            with replace_file(target) as file:
                file.write(text.encode())
        return made

    def _entries(self, system: str, key: str) -> list[Entry]:
        return [Entry.from_json({"key": key, **entry}) for entry in self._content(system).get("entries", {}).get(key, ())]

    def _get_thresholds(self, system: str) -> Mapping[str, Any]:
        """Return the thresholds in its own file, else those in the package for a published system of that name."""
        own: Mapping[str, Any] | None = self._content(system).get("thresholds")
        if own is not None:
            return own
        published = published_folder() / f"{system}.json"
        thresholds: Mapping[str, Any] = read_published_file(published).get("thresholds", {}) if published.exists() else {}
        return thresholds

    def _content(self, system: str) -> dict[str, Any]:
        return self._content_of_file(self._path(system))

    def _content_of_file(self, path: Path) -> dict[str, Any]:
        """Return the file's content, read again only if the file was replaced. Empty if there is none."""
        try:
            stat = path.stat()
        except FileNotFoundError:
            return {}
        except OSError as exc:
            raise BaselineFileError(f"{path}: cannot be read: {exc.strerror}") from exc
        version = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        if path not in self._read or self._read[path][0] != version:
            self._read[path] = (version, read_baseline_file(path))
        return self._read[path][1]

    def _path(self, system: str) -> Path:
        return self.folder / f"{system}.json"

    def _written_to(self, path: Path) -> Path:
        """Return the file that is replaced: for a link, its target. Raises `BaselineFileError`."""
        if not path.is_symlink():
            return path
        target, project = path.resolve(), self.folder.resolve().parent
        if not target.is_relative_to(project):
            raise BaselineFileError(
                f"{path}: it is a link to {target}, outside of {project}, and is not written through. Put the file itself "
                f"there, or name its folder: --baselines={target.parent}"
            )
        return target

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the folder, so that xdist workers and parallel sessions merge instead of overwriting each other."""
        from filelock import FileLock, Timeout

        lock = self.folder / ".lock"  # the kernel unlocks it when its holder ends in any way
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(lock, timeout=self._lock_timeout_s):
                yield
        except Timeout as exc:
            raise BaselineFileError(
                f"{lock}: another process has held the baselines for {self._lock_timeout_s:.0f} s; end it and accept again"
            ) from exc
        except NotImplementedError as exc:  # raised by filelock
            raise BaselineFileError(f"{lock}: this file system has no locks; keep baselines on another (--baselines)") from exc
        except OSError as exc:
            raise BaselineFileError(f"{self.folder}: baselines cannot be written: {exc.strerror or exc}") from exc


def _systems_in(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.json") if not path.name.startswith("."))


def _split_num_ps(key: str) -> tuple[str, int]:
    found = re.search(r"\bnum_ps=(\d+)", key)
    assert found is not None, key
    return key.replace(found[0], "num_ps=*"), int(found[1])


def _exchange(entries: list[Entry], old: Entry, new: Sequence[Entry]) -> Entry:
    """Replace the old entry by the new ones, and return the old one."""
    index = entries.index(old)
    entries[index : index + 1] = new
    return old


def _put(entries: list[Entry], new: Entry) -> BaselineChange:
    """Replace the comparable entry, keeping its calibrated noise, or add one."""
    for index, old in enumerate(entries):
        if not old.list_differences(new.fingerprint, new.hosts):
            entries[index] = new.with_noise_of(old)
            return BaselineChange(old, entries[index])
    entries.append(new)
    return BaselineChange(None, new)


PATTERN_FIELDS = (*KEY_FIELDS, *UNUSUAL_KEY_FIELDS)
PATTERN_DEFAULTS = {field.name: format_value(field.default) for field in fields(Spec) if field.name in UNUSUAL_KEY_FIELDS}


@dataclass(frozen=True)
class BaselinePattern:
    """Conditions on a key: fields of a spec and their values, which may contain *, ? and [...] as in shells."""

    wanted: Mapping[str, str]

    @classmethod
    def parse(cls, patterns: Iterable[str]) -> Self:
        """Parse the terms of a pattern. Raises `UsageError` for an invalid or empty one."""
        wanted: dict[str, str] = {}
        for word in (part for text in patterns for part in text.split()):
            name, equals, value = word.partition("=")
            if not equals or not value:
                raise UsageError(f"{word!r} is no FIELD=VALUE: write FIELD=VALUE, as model=resnet50 or gpus=8")
            if name not in PATTERN_FIELDS:
                raise UsageError(describe_unknown_name("field of a spec", name, PATTERN_FIELDS))
            if name in wanted:
                raise UsageError(f"{name} is given twice, {wanted[name]} and {value}: both must match. Use *, ? or [...]")
            wanted[name] = value
        if not wanted:
            raise UsageError("give a pattern of baselines, as model=resnet50 or gpus=8; model=* is all of them")
        return cls(wanted)

    def matches(self, key: str) -> bool:
        """Return whether the key matches; omitted fields have their defaults."""
        fields = dict(word.split("=", 1) for word in key.split(" "))
        return all(fnmatchcase({**PATTERN_DEFAULTS, **fields}[name], value) for name, value in self.wanted.items())
