"""Toy tasks with servers: each listens at its port, as TensorFlow does, and answers the first bytes as gRPC does."""

import socket
import threading
from collections.abc import Mapping
from typing import Any

from pytest_dtfperf.node.wire import Connection
from tests.launch.stranger import SETTINGS_FRAME
from tests.node import toy_task

ENTRY = f"{__name__}:run"


def run(order: dict[str, Any], connection: Connection) -> None:
    threading.Thread(target=_serve, args=(_create_server(order),), daemon=True).start()
    toy_task.run(order, connection)


def _create_server(order: Mapping[str, Any]) -> socket.socket:
    """Create the server at once, since the server of a ready task exists."""
    _, _, port = order["cluster"][order["job"]][order["index"]].rpartition(":")
    return socket.create_server(("", int(port)), reuse_port=True)  # which its agent holds for it


def _serve(server: socket.socket) -> None:
    while True:
        line, _ = server.accept()
        with line:
            line.recv(64)
            line.sendall(SETTINGS_FRAME)
