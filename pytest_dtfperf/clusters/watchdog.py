"""A small process beside pytest that cleans up when pytest is gone without a word, killed with SIGKILL for instance."""

import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import ClassVar, Self

_LEAVE_S = 2.0


class Watchdog:
    """For a `with` block: a process of a session of its own, at the end of a pipe.

    It runs `argv`, which is to read one line from its stdin, and to leave if that is "over". Any other end of the pipe, at the
    latest that of this process, means: there is something to be cleaned up. So does the end of the block, unless the watchdog
    was cancelled before: whoever asked for hosts may have been interrupted before it learnt that it got them.
    """

    _at_work: ClassVar[list[subprocess.Popen[bytes]]] = []  # nobody waits for those; but dropped, a Popen complains

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        self._argv = argv
        self._environment = environment
        self._needed = True

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=self._environment,
            start_new_session=True,
        )
        return self

    def cancel(self) -> None:
        """There is nothing left to clean up."""
        self._needed = False

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin
        with suppress(BrokenPipeError):
            self._process.stdin.write(b"" if self._needed else b"over\n")
            self._process.stdin.close()
        if self._needed:
            self._at_work.append(self._process)
            return
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_LEAVE_S)
        self._process.kill()
        self._process.wait()
