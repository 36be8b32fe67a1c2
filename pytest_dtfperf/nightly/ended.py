"""pytest as a process of the night: it runs until it ends, the deadline passes, or a signal comes."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TextIO

from pytest_dtfperf.errors import exit_words
from pytest_dtfperf.history.where import masked
from pytest_dtfperf.session import signals

USAGE, DEADLINE = 4, 124  # pytest's own; timeout(1)'s
GRACE_S = 60.0  # teardown stops agents on every host and gives an allocation back; a slow scheduler takes half of that

OUTCOMES = {
    0: "All tests passed.",
    1: "Tests failed.",
    2: "pytest was interrupted.",
    3: "pytest itself broke.",
    USAGE: "pytest refused its options.",
    5: "No test was collected.",
}


def run(
    argv: Sequence[str], *, deadline_s: float, lock: int, output: TextIO | None = None, grace_s: float = GRACE_S
) -> tuple[int, str]:
    """Run pytest to its end, or end it; returns the night's exit code and what happened.

    `lock`: a descriptor it inherits. `output`: what it prints to; our own stdout by default.
    """
    print(f"nightly: {masked(' '.join(argv))}", flush=True)
    with _noted_signals() as received:
        ends_at_s = time.monotonic() + deadline_s
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=output, process_group=0, pass_fds=[lock])
        while process.poll() is None and not received and time.monotonic() < ends_at_s:
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=min(1.0, max(0.0, ends_at_s - time.monotonic())))
        code = process.poll()
        if code is None:
            _end(process, grace_s)
        _kill_group(process)
    if received:
        return 128 + received[0], f"{signal.Signals(received[0]).name} came, and pytest was ended."
    if code is None:
        return DEADLINE, f"The deadline of {deadline_s / 60:g} min passed, and pytest was ended."
    if code < 0:
        return 128 - code, f"pytest {exit_words(code)}."
    return code, OUTCOMES.get(code, f"pytest ended with exit code {code}.")


@contextmanager
def _noted_signals() -> Iterator[list[int]]:
    """Note the signals that ask us to end, instead of ending with pytest left running; but what nohup has ignored stays so."""
    received: list[int] = []
    restore = signals.install(lambda number, frame: received.append(number), (signal.SIGINT, *signals.NUMBERS))
    try:
        yield received
    finally:
        restore()


def _end(process: subprocess.Popen[bytes], grace_s: float) -> None:
    """Ask pytest to end and let its teardown run: only pytest itself, for its agents and xdist workers are its own to end."""
    process.send_signal(signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=grace_s)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """End what pytest left behind, or could not end of itself."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
