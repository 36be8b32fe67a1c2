"""Measure the rate of a repeated call: the median of several windows, and their spread.

The median is used, and not the best: a permanent limit of a host, such as a quota or other processes, limits a training, too,
and is in most windows; a short disturbance is in few. A window is as long as the period of Linux' CPU quotas, so that all
windows have the same part of a quota.
"""

import os
import statistics
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

WINDOW_S = 0.1  # the default of cpu.max and cpu.cfs_period_us
REPEATS = 5
LEAST_REPEATS = 3  # fewer do not show their spread
WITHIN_S = 4.0  # for all repeats; after that three are enough
TOO_LONG_S = 10.0  # the limit for three repeats

How = Mapping[str, float | str]
Reading = Mapping[str, Any]


def measure_repeatedly(
    call: Callable[[], object],
    units: float,
    how: How,
    *,
    cores: int | None,
    warm_up_s: float = 0.0,
    clock: Callable[[], float] = time.perf_counter,
    cpu_clock: Callable[[], float] = time.process_time,
) -> Reading:
    """Measure how many units of work per second `call` does, if each call does `units` of them.

    `cores` is the number of cores that it may use; None where it does not use this host's cores. `clock` and `cpu_clock` return
    seconds. Raises `TimeoutError` where three windows of 0.1 s take more than 10 s.
    """
    began = clock()
    call()  # the first one allocates and compiles
    while clock() < began + warm_up_s:
        call()
    began, cpu_s = clock(), cpu_clock()
    rates: list[float] = []
    while len(rates) < (REPEATS if clock() < began + WITHIN_S else LEAST_REPEATS):
        if clock() > began + TOO_LONG_S:
            raise TimeoutError(f"{len(rates)} repeats took {clock() - began:.0f} s")
        rates.append(_measure_window(call, clock) * units)
    taken_s = clock() - began
    per_s = statistics.median(rates)
    return {
        "per_s": per_s,
        "spread": (max(rates) - min(rates)) / 2 / per_s,
        "repeats": len(rates),
        "how": dict(how),
        "cpu_share": min(2.0, (cpu_clock() - cpu_s) / taken_s / cores) if cores else None,
    }


def _measure_window(call: Callable[[], object], clock: Callable[[], float]) -> float:
    """Return the calls per second in one window."""
    count, began = 0, clock()
    while True:
        call()
        count += 1
        elapsed_s = clock() - began
        if elapsed_s >= WINDOW_S:
            return count / elapsed_s


BUFFER_BYTES = 64 << 20  # of each core, twice, unless all together would be more than
MOST_BYTES = 1 << 30
_LEAST_LEFT = 4  # a probe may use a quarter of the free memory, so that other processes have enough


def measure_memory(cores: int, free_bytes: int | None) -> Reading:
    """Measure memory bandwidth: bytes read and written per second by all cores together.

    Raises `MemoryError` where too little memory is free, and `TimeoutError`.
    """
    size = min(BUFFER_BYTES, MOST_BYTES // cores // 2)
    if free_bytes is not None and 2 * size * cores > free_bytes // _LEAST_LEFT:
        raise MemoryError(f"{free_bytes >> 20} MiB are free, and it takes {2 * size * cores * _LEAST_LEFT >> 20}")
    copiers = [_Copier(size) for _ in range(cores)]
    for each in copiers:
        each.start()

    def copy() -> None:
        for each in copiers:
            each.go.set()
        for each in copiers:
            each.done.wait()
            each.done.clear()

    return measure_repeatedly(copy, 2.0 * size * cores, {"threads": cores, "bytes": 2 * size * cores}, cores=cores)


class _Copier(threading.Thread):
    """A thread that copies on one core: numpy releases the interpreter's lock while it copies."""

    def __init__(self, size: int) -> None:
        super().__init__(daemon=True)
        self.go, self.done = threading.Event(), threading.Event()
        self._size = size

    def run(self) -> None:
        source, target = np.ones(self._size, np.uint8), np.empty(self._size, np.uint8)
        while True:
            self.go.wait()
            self.go.clear()
            np.copyto(target, source)
            self.done.set()


def drop_cached_files(folder: str) -> None:
    """Remove all files below a folder from the page cache, so that they are read from their disk again.

    Changed parts of files are written to the disk first, because the kernel keeps them otherwise. Files that this user cannot
    read stay.
    """
    for path in Path(folder).expanduser().rglob("*"):
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            try:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
