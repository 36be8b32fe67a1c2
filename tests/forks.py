"""A process that imports modules once for many programs of tests, and forks one process for each request.

`Forks` is the client, `requests` the server. The two agree on what a fork does and on its pipes.
"""

import atexit
import gc
import json
import multiprocessing
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests import outcomes

REPOSITORY = Path(__file__).parents[1]
LONGEST_MESSAGE = 1 << 20


# For functions of these modules: their processes are as separate as xdist's workers are, and import nothing anew.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.baselines.test_store", "tests.records.test_session"])


class Forks:
    """A module that runs as `python -m MODULE FD` and serves the requests on this socket. It ends with this process."""

    def __init__(self, module: str, environment: Mapping[str, str], before: Sequence[str] = ()) -> None:
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [*before, sys.executable, "-m", module, str(theirs.fileno())],
                cwd=REPOSITORY,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        outcomes.add_shared_child(self._process.pid)
        atexit.register(self._close)

    def ask(self, request: Mapping[str, Any], pipes: Sequence[int]) -> None:
        """Send a request with the file descriptors that the fork is to have."""
        socket.send_fds(self._line, [json.dumps(request).encode()], pipes)

    def answer(self) -> Any:
        """The next answer. Raises `AssertionError` when the process has ended."""
        answer = self._line.recv(LONGEST_MESSAGE)
        assert answer, "the process that forks has ended"
        return json.loads(answer)

    def _close(self) -> None:
        self._line.close()
        self._process.wait()


@contextmanager
def imports() -> Iterator[None]:
    """What is imported in the block is there for all forks. It is no garbage: to look for some takes a quarter of an import's
    time, and every fork would look at what is not its own, and copy it by doing so."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


def requests(line: socket.socket, most_pipes: int) -> Iterator[tuple[dict[str, Any], list[int]]]:
    """Yield each request with its file descriptors, and close these after it, until the client has closed the socket."""
    while True:
        request, pipes, _, _ = socket.recv_fds(line, LONGEST_MESSAGE, most_pipes)
        if not request:
            return
        yield json.loads(request), pipes
        for pipe in pipes:
            os.close(pipe)
