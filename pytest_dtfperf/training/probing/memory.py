"""How many bytes a second go through a host's memory when all cores copy, as a parameter server does that adds up gradients."""

import threading

import numpy as np

from pytest_dtfperf.training.probing.readings import Reading, repeated

BUFFER_BYTES = 64 << 20  # that each core copies from and to, unless all would take more than
MOST_BYTES = 1 << 30
_LEAST_LEFT = 4  # a probe must not make others wait for memory: a quarter of what is free


def of_all(cores: int, free_bytes: int | None) -> Reading:
    """Bytes read and bytes written per second. Raises `MemoryError` where there is too little of it, and `TimeoutError`."""
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

    return repeated(copy, 2.0 * size * cores, {"threads": cores, "bytes": 2 * size * cores}, cores=cores)


class _Copier(threading.Thread):
    """One core's part. numpy lets others run while it copies."""

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
