"""What dead sessions have left on this machine: agents where it is a host, and programs that are the line to other hosts."""

import threading
from collections.abc import Sequence
from contextlib import suppress

from pytest_dtfperf.node import sweep

SWEEP_S = 20.0  # looking through /proc takes a hundredth of a second; only a process that cannot be killed takes longer


def sweep_here(sessions: Sequence[str] = (), *, abandoned: bool = False) -> None:
    """End them. A sweep that fails or hangs must not keep anybody from going on."""

    def work() -> None:
        with suppress(OSError):
            sweep.sweep(sessions, abandoned=abandoned)

    thread = threading.Thread(target=work, name="dtfperf-sweep", daemon=True)
    thread.start()
    thread.join(SWEEP_S)
