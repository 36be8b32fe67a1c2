"""Writing to a process that may have stopped reading, and reading from one that may never stop writing."""

import os
import select
import selectors
import subprocess
import time
from collections.abc import Callable

LINE_BYTES = 16 << 20  # the longest line of ours is the report of a long training: 40 bytes a step, for 400,000 steps


def write_all(fd: int, data: bytes, within_s: float) -> bool:
    """Write to a non-blocking pipe; False if it was closed at the other end, or stayed full for longer than that."""
    rest = memoryview(data)
    deadline = time.monotonic() + within_s
    while rest:
        try:
            rest = rest[os.write(fd, rest) :]
        except BlockingIOError:
            if not select.select([], [fd], [], max(0.0, deadline - time.monotonic()))[1]:
                return False
        except BrokenPipeError:
            return False
    return True


class LineTooLong(Exception):
    """What is read is no line of ours."""

    def __init__(self) -> None:
        super().__init__(f"it sent more than {LINE_BYTES >> 20} MiB without the end of a line")


class Lines:
    """Cuts what arrives in pieces into whole lines."""

    def __init__(self) -> None:
        self._begun = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Those that are whole now. Raises `LineTooLong`."""
        first, *others = data.split(b"\n")
        self._begun += first
        if len(self._begun) > LINE_BYTES:
            raise LineTooLong
        if not others:
            return []
        lines = [bytes(self._begun), *others[:-1]]
        self._begun = bytearray(others[-1])
        return lines


class TooMuchOutput(Exception):
    """A command printed more than it may."""


def output_of(process: "subprocess.Popen[bytes]", most_bytes: int, is_over: Callable[[], bool]) -> tuple[bytes, bytes] | None:
    """What a command prints to its two pipes until both are closed; None if `is_over` came first.

    Looks at `is_over` at least twice a second. Raises `TooMuchOutput` once one of them has brought more than `most_bytes`.
    """
    printed = {pipe: bytearray() for pipe in (process.stdout, process.stderr) if pipe}
    with selectors.DefaultSelector() as selector:
        for pipe in printed:
            selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map():
            if is_over():
                return None
            for key, _ in selector.select(timeout=0.5):
                data = os.read(key.fd, 1 << 16)
                output = printed[key.fileobj]  # type: ignore[index]  # those that were registered
                output += data
                if len(output) > most_bytes:
                    raise TooMuchOutput
                if not data:
                    selector.unregister(key.fileobj)
    out, err = printed.values()
    return bytes(out), bytes(err)
