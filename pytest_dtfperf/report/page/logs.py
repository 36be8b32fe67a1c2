"""What tasks said last, read from a session's folder: a few lines of each, however long a log is."""

import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from pytest_dtfperf.printable import printable_bytes
from pytest_dtfperf.records.logs import path_safe
from pytest_dtfperf.records.session import SessionFolder
from pytest_dtfperf.report.page.view import Log, WithoutMeasurement

LINES, SIZE_BYTES = 25, 6_000  # of each log, from its end
FILES = 6  # of a test's last run
TOTAL_BYTES = 30_000  # of a session: where more have failed, their logs stay in the folder alone


def read_tails(folder: SessionFolder, tests: Collection[str]) -> Mapping[str, Sequence[Log]]:
    """Of each test's last run; of the first tests, as far as the room reaches."""
    return _limit_size((test, _read_run_tails(folder.path, folder.logs_of(test))) for test in tests)


def find_tests_without_measurement(folder: SessionFolder, measured: Collection[str]) -> list[WithoutMeasurement]:
    """Tests whose tasks have said something and that have no measurement: they failed before there was one."""
    known = {path_safe(test) for test in measured}
    found = (path for path in _list_folder(folder.path / "logs") if path.name not in known)
    logs = _limit_size((path.name, _read_run_tails(folder.path, path)) for path in found)
    return [WithoutMeasurement(name, tail) for name, tail in logs.items()]


def _limit_size(found: Iterable[tuple[str, Sequence[Log]]]) -> dict[str, Sequence[Log]]:
    kept: dict[str, Sequence[Log]] = {}
    room = TOTAL_BYTES
    for name, tail in found:
        room -= sum(len(line) for log in tail for line in log.lines)
        if room < 0:
            break
        if tail:
            kept[name] = tail
    return kept


def _read_run_tails(root: Path, logs: Path) -> list[Log]:
    runs = sorted((path for path in _list_folder(logs) if path.name.isdecimal()), key=lambda path: int(path.name))
    if not runs:
        return []
    files = [path for path in _list_folder(runs[-1]) if path.name.endswith(".log")]
    return [log for path in files if (log := _read_tail(root, path))][:FILES]


def _list_folder(folder: Path) -> Iterator[Path]:
    """What is there, by name; nothing where that cannot be told."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    yield from (folder / name for name in names)


def _read_tail(root: Path, path: Path) -> Log | None:
    """None of what is empty, no file, or cannot be read: reading a pipe would wait for ever."""
    try:
        size = os.stat(path, follow_symlinks=False)
        if not stat.S_ISREG(size.st_mode) or not size.st_size:
            return None
        with path.open("rb") as file:
            file.seek(max(0, size.st_size - SIZE_BYTES))
            lines = file.read(SIZE_BYTES).split(b"\n")
    except OSError:
        return None
    kept = [line for line in lines if line.strip()][-LINES:]
    shown = sum(len(line) + 1 for line in kept)
    return Log(path.relative_to(root).as_posix(), [printable_bytes(line) for line in kept], max(0, size.st_size - shown))
