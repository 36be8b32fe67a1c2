"""Call a function in a process of its own, which may take too long, run out of memory or crash, and leaves no threads behind.

A TensorFlow that has computed with one thread never computes with more, so that each such call has a fresh process. An error
that would end the task ends only the process of the call.
"""

import json
import os
import select
import signal
import time
from collections.abc import Callable
from typing import Any, NoReturn

from pytest_dtfperf.errors import signal_name
from pytest_dtfperf.node import processes

Answer = dict[str, Any]
POLL_S = 0.05


class NoAnswer(Exception):
    """An error for a call without a result; the text has the reason."""


def format_exception(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def call_in_fork(
    function: Callable[[], Answer],
    within_s: float,
    on_poll: Callable[[], object] = lambda: None,
    format_error: Callable[[Exception], str] = format_exception,
) -> Answer:
    """Call the function in a fork, and return its result, a JSON object. Raises `NoAnswer`.

    The fork has only the calling thread of this process: locks that other threads hold at that time are never released, and
    then there is no answer within `within_s` seconds. `on_poll` is called repeatedly until the answer comes, and
    `format_error` formats errors of the function.
    """
    answer, theirs = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.close(answer)
        _run_in_fork(function, format_error, theirs, parent)
    os.close(theirs)
    deadline = time.monotonic() + within_s
    data = b""
    late = False
    with open(answer, "rb", buffering=0) as pipe:
        while not late:
            if select.select([pipe], [], [], POLL_S)[0]:
                more = pipe.read(1 << 16)
                if not more:
                    break
                data += more
            on_poll()
            late = time.monotonic() > deadline
    if late:
        os.kill(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return _read_answer(data, code, within_s if late else None)


def _read_answer(data: bytes, code: int, late_s: float | None) -> Answer:
    if late_s is not None:
        raise NoAnswer(f"no answer within {late_s:g} s")
    if code < 0:
        raise NoAnswer(f"its process was killed by {signal_name(-code)}")
    if not data:
        raise NoAnswer(f"its process ended with exit code {code}")
    found: Answer = json.loads(data)
    if "raised" in found:
        raise NoAnswer(found["raised"])
    return found


def _run_in_fork(
    function: Callable[[], Answer], format_error: Callable[[Exception], str], output: int, parent: int
) -> NoReturn:
    """Call the function in the fork, write its result to `output`, and end the process."""
    code = 1
    try:
        processes.die_with(parent)
        try:
            found = function()
        except Exception as error:
            found = {"raised": format_error(error)}
        os.write(output, json.dumps(found).encode())
        code = 0
    finally:
        os._exit(code)  # without waiting for its threads
