"""The client of the plugin's zygote, and the program that stands in for `python` where forks replace it.

    python -IS fork.py SOCKET ARGV     as `python ARGV`: with its streams, its signals and its end

It imports nothing that takes time.
"""

import json
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any, NoReturn

PYTHON = "ZYGOTE_PYTHON"  # a variable: what starts a fork in the place of `python`
LONGEST_ANSWER = 64
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def ask(address: str, request: Mapping[str, Any], streams: Sequence[int]) -> tuple[socket.socket, int]:
    """Request a fork, and return the socket for its exit code, and its process id, or 0 if it would differ from a process.

    A fork is killed if its socket is closed before it ends.
    """
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    line.connect(address)
    socket.send_fds(line, [json.dumps(request).encode()], streams)
    return line, answer(line)


def answer(line: socket.socket) -> int:
    found = line.recv(LONGEST_ANSWER)
    assert found, "the process that forks has ended"
    return int(found)


def stand_in(address: str, *words: str) -> NoReturn:
    """Be `python WORDS`."""
    argv = words[1:] if words[0] == "-u" else words  # what is written through pipes of its own needs no such word
    ours = {"pid": os.getpid(), "group": os.getpgrp(), "cwd": os.getcwd(), "env": dict(os.environ)}
    request = {"argv": argv, "orig_argv": words, **ours}
    line, pid = ask(address, request, [0, 1, 2])
    if not pid:
        os.execv(sys.executable, [sys.executable, *words])

    def pass_on(number: int, frame: FrameType | None) -> None:
        os.kill(pid, number)

    for number in PASSED_ON:
        signal.signal(number, pass_on)
    code = answer(line)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code in PASSED_ON else None
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    stand_in(*sys.argv[1:])
