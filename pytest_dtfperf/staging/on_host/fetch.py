"""Brings files to a host: `python -m pytest_dtfperf.staging.on_host.fetch`, once on every host, before anything trains there.

The controller sends one line per file (path, size, checksum and a URL that is good for some hours), then "fetch" with the name
of the folder under the user's cache; the host answers with how far it is, and at last with "staged" or "failed". A URL is a
secret while it lasts: it comes on stdin, stays in memory and is in no message. As with an agent, the end of stdin or its
silence ends this process; what was fetched until then is gone on with the next time.
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
from pytest_dtfperf.staging.on_host.job import FetchJob, Trouble

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

BEAT_S = 1.0  # how often the host reports its progress
_TICK_S = 0.1


def cache_folder() -> str:
    """Return the folder of this user's data sets on this host."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    return os.path.join(given if os.path.isabs(given) else os.path.expanduser("~/.cache"), "dtfperf", "data")


class FetchingHost:
    """This process: orders in, events out. All writing is done by one thread, all fetching by others."""

    def __init__(self, index: int, heartbeat_timeout_s: float) -> None:
        self._index = index
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._outbox = wire.Outbox(1)
        self._files: list[Mapping[str, Any]] = []
        self._job: FetchJob | None = None
        self._over: Callable[[], None] | None = None  # reports the result
        self._reported = False

    def serve(self) -> None:
        """Serve orders until the controller closes the line, or is silent."""
        self._emit("hello")
        lines = wire.Lines()
        heard = beat = time.monotonic()
        while True:
            if select.select([0], [], [], _TICK_S)[0]:
                data = os.read(0, 1 << 16)
                if not data:
                    return
                heard = time.monotonic()
                for line in lines.feed(data):
                    self._obey(wire.decode(line))
            now = time.monotonic()
            if now - heard > self._heartbeat_timeout_s:
                return
            self._outbox.flush()
            if self._over and not self._reported:
                self._reported = True
                self._over()
            elif self._job and not self._reported and now - beat >= BEAT_S and not self._outbox:
                beat = now
                self._emit("progress", bytes=self._job.there, moved=self._job.moved, waiting=self._job.waiting)

    def _obey(self, order: Mapping[str, Any]) -> None:
        match order["order"]:
            case "file":
                self._files.append(order["file"])
            case "fetch":
                self._job = FetchJob(os.path.join(cache_folder(), order["folder"]), self._files, parallel=order["parallel"])
                threading.Thread(target=self._carry_out, args=(self._job,), daemon=True).start()

    def _carry_out(self, job: FetchJob) -> None:
        try:
            job.run()
        except Exception as exc:  # whatever it is, the controller waits for a word
            message = str(exc) if isinstance(exc, Trouble) else f"{type(exc).__name__} in {job.folder}"
            self._over = lambda: self._emit("failed", reason=message)
        else:
            self._over = lambda: self._emit("staged", folder=job.folder, fetched=job.fetched, bytes=job.bytes)

    def _emit(self, event: str, **data: Any) -> None:
        self._outbox.put(wire.encode({"event": event, "host": self._index, **data}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--heartbeat-timeout-s", type=float, default=15.0, help="leave when the controller is silent for so long"
    )
    args = parser.parse_args()
    with contextlib.suppress(BrokenPipeError):
        FetchingHost(int(os.environ.get("DTFPERF_HOST_INDEX", "0")), args.heartbeat_timeout_s).serve()
    os._exit(0)  # threads that wait for a network or a lock are not waited for


if __name__ == "__main__":
    main()
