"""Patience with a controller that does not answer: one that is restarted, or whose backup takes over, is away for minutes."""

import time
from collections.abc import Callable
from typing import TypeVar

from pytest_dtfperf.clusters.slurm.client import ControllerAway

OUTAGE_S = 600.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0

Answer = TypeVar("Answer")


def through_outages(ask: Callable[[], Answer], tell: Callable[[str], object]) -> Answer:
    """What `ask` answers, asked again and again while the controller is away. Raises `ControllerAway` after `OUTAGE_S`."""
    began = time.monotonic()
    while True:
        try:
            return ask()
        except ControllerAway as exc:
            away_s = time.monotonic() - began
            if away_s > OUTAGE_S:
                raise
            tell(f"{exc}: asking again for up to {OUTAGE_S / 60:.0f} minutes")
            time.sleep(min(max(_FIRST_PAUSE_S, away_s / 10), _LONGEST_PAUSE_S))
