"""Fetch files on a host, before its first training: `python -m pytest_dtfperf.staging.on_host.fetch`.

The controller sends one line per file (path, size, checksum and a URL that is valid for some hours), then "fetch" with the name
of the folder in the user's cache. The host reports its progress, and at the end "staged" or "failed". URLs are secrets: they
come on stdin, stay in memory and are in no message. As with an agent, the end of stdin or its silence ends this process; the
next one continues with the bytes that have arrived.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import threading
import time
from collections.abc import Callable, Mapping

from pytest_dtfperf.node import wire
from pytest_dtfperf.staging.on_host.job import FetchError, FetchJob

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

BEAT_S = 1.0  # how often the host reports its progress
_TICK_S = 0.1


def get_cache_folder() -> str:
    """Return the folder of this user's data sets on this host."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    return os.path.join(given if os.path.isabs(given) else os.path.expanduser("~/.cache"), "dtfperf", "data")


class FetchProcess:
    """The fetch process: orders in, events out. One thread writes events, others fetch."""

    def __init__(self, index: int, heartbeat_timeout_s: float) -> None:
        self._index = index
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._outbox = wire.Outbox(1)
        self._files: list[Mapping[str, Any]] = []
        self._job: FetchJob | None = None
        self._over: Callable[[], None] | None = None  # reports the result
        self._reported = False

    def serve(self) -> None:
        """Execute orders until the end of stdin, or until the controller is silent for too long."""
        self._emit("hello")
        lines = wire.Lines()
        received = beat = time.monotonic()
        while True:
            if select.select([0], [], [], _TICK_S)[0]:
                data = os.read(0, 1 << 16)
                if not data:
                    return
                received = time.monotonic()
                for line in lines.feed(data):
                    self._execute(wire.decode(line))
            now = time.monotonic()
            if now - received > self._heartbeat_timeout_s:
                return
            self._outbox.flush()
            if self._over and not self._reported:
                self._reported = True
                self._over()
            elif self._job and not self._reported and now - beat >= BEAT_S and not self._outbox:
                beat = now
                self._emit("progress", bytes=self._job.there, moved=self._job.moved, waiting=self._job.waiting)

    def _execute(self, order: Mapping[str, Any]) -> None:
        match order["order"]:
            case "file":
                self._files.append(order["file"])
            case "fetch":
                self._job = FetchJob(os.path.join(get_cache_folder(), order["folder"]), self._files, parallel=order["parallel"])
                threading.Thread(target=self._run_job, args=(self._job,), daemon=True).start()

    def _run_job(self, job: FetchJob) -> None:
        try:
            job.run()
        except Exception as exc:  # the controller waits for a result in any case
            message = str(exc) if isinstance(exc, FetchError) else f"{type(exc).__name__} in {job.folder}"
            self._over = lambda: self._emit("failed", reason=message)
        else:
            self._over = lambda: self._emit("staged", folder=job.folder, fetched=job.fetched, bytes=job.bytes)

    def _emit(self, event: str, **data: Any) -> None:
        self._outbox.put(wire.encode({"event": event, "host": self._index, **data}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--heartbeat-timeout-s", type=float, default=15.0, help="exit when the controller is silent for so many seconds"
    )
    args = parser.parse_args()
    with contextlib.suppress(BrokenPipeError):
        FetchProcess(int(os.environ.get("DTFPERF_HOST_INDEX", "0")), args.heartbeat_timeout_s).serve()
    os._exit(0)  # without waiting for threads that wait for a network or a lock


if __name__ == "__main__":
    main()
