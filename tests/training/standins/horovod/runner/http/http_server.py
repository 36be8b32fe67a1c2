"""As horovod.runner.http.http_server, by which processes find each other. Here they also exchange all data by it."""

from collections.abc import Sequence
from multiprocessing.connection import Connection, Listener
from threading import Thread
from typing import Any

import numpy as np

KEY = b"horovod stand-in"


class RendezvousServer:
    def start(self) -> int:
        self._listener = Listener(("", 0), authkey=KEY)
        port: int = self._listener.address[1]
        return port

    def init(self, host_alloc_plan: Sequence[Any]) -> None:
        sizes = {slot.size for slot in host_alloc_plan}
        assert sizes == {len(host_alloc_plan)}
        assert [slot.rank for slot in host_alloc_plan] == [*range(len(host_alloc_plan))]
        Thread(target=self._serve, args=sizes, daemon=True).start()

    def _serve(self, size: int) -> None:
        connections = [self._listener.accept() for _ in range(size)]
        ranked = dict(sorted((connection.recv(), connection) for connection in connections))
        try:
            while True:
                _exchange(ranked)
        except EOFError:  # a process has shut down
            for connection in connections:
                connection.close()


def _exchange(ranked: dict[int, Connection]) -> None:
    """One operation: all come with (name, root or None for a mean, array), and all get the result."""
    output = [connection.recv() for connection in ranked.values()]
    names = {name for name, _, _ in output}
    arrays = [array for _, _, array in output]
    root = output[0][1]
    if len(names) > 1:
        result: Any = RuntimeError(f"processes came with different operations: {', '.join(sorted(names))}")
    else:
        result = np.mean(arrays, axis=0, dtype=arrays[0].dtype) if root is None else arrays[root]
    for connection in ranked.values():
        connection.send(result)
