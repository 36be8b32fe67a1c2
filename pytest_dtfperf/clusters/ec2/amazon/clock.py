"""Amazon's time, as its answers tell it. This machine's may be wrong by days, and must not end what is others'."""

import time
from email.utils import parsedate_to_datetime
from typing import Any


class Clock:
    """Heard with every answer (`listen`), and carried on by a clock that nobody sets."""

    def __init__(self) -> None:
        self._ahead_s: float | None = None  # of the seconds since this machine's start

    def listen(self, client: Any) -> None:
        """Hear the time in all that a boto3 client is answered."""

        def hear(http_response: Any, **_: Any) -> None:
            self.hear(http_response.headers.get("Date"))

        client.meta.events.register("after-call", hear, unique_id="dtfperf-clock")

    def hear(self, date: str | None) -> None:
        """The header of one answer: `Tue, 31 Jan 2026 02:15:03 GMT`. One that is no date tells nothing."""
        try:
            stated = parsedate_to_datetime(date or "")
        except ValueError:
            return
        self._ahead_s = stated.timestamp() - _running_s()

    def now(self) -> float | None:
        """Seconds since 1970; None before Amazon has answered anything."""
        return None if self._ahead_s is None else _running_s() + self._ahead_s


def _running_s() -> float:
    """Also while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
