"""Patience with a controller that does not answer: one that is restarted, or whose backup takes over, is away for minutes."""

import time
from collections.abc import Callable
from itertools import count
from typing import TypeVar

from pytest_dtfperf.clusters.slurm.client import ControllerDown
from pytest_dtfperf.node.backoff import pause_s

OUTAGE_S = 600.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0

Answer = TypeVar("Answer")


def through_outages(ask: Callable[[], Answer], on_status: Callable[[str], object]) -> Answer:
    """What `ask` answers, asked again and again while the controller is away. Raises `ControllerAway` after `OUTAGE_S`."""
    began = time.monotonic()
    for asked in count(1):
        try:
            return ask()
        except ControllerDown as exc:
            if time.monotonic() - began > OUTAGE_S:
                raise
            on_status(f"{exc}: asking again for up to {OUTAGE_S / 60:.0f} minutes")
            time.sleep(pause_s(asked, _FIRST_PAUSE_S, _LONGEST_PAUSE_S, growth=1.1))
    raise AssertionError("it is asked for ever")
