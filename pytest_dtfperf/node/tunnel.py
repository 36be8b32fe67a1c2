"""A tunnel: connections carried as messages between controller and agent. Both ends use this module.

    browser -- TCP, loopback --> controller == orders, events ==> agent -- Unix socket --> program

The controller gives each connection a number. For a connection each end sends

    open   a client has connected: only the controller, and first
    data   bytes in base64, at most WINDOW of them unacknowledged
        took   so many bytes were passed on to their reader, and as many more may be sent
    end    no more data will come from this end
    gone   no more messages will come from this end: after both have sent it, the number is free

Therefore each end keeps at most WINDOW bytes of a connection, however slow the reader is, and no reader delays others. A
message against these rules raises `TunnelProtocolError`.
"""

from __future__ import annotations

import binascii
import os
import selectors
import socket
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress

from pytest_dtfperf.node import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Send = Callable[..., object]

VARIABLE = "DTFPERF_TUNNEL"  # the path of the socket on which the program may listen
SOCKET = "socket"  # its name in the run's folder
WINDOW = 512 << 10  # bytes; allows 5 MB/s with a round trip of 0.1 s
CHUNK = 48 << 10  # bytes of one message: 64 KiB of base64
_ABORT = struct.pack("ii", 1, 0)  # SO_LINGER: an incomplete transfer ends with a reset


class TunnelProtocolError(wire.WireError):
    """The other end has sent a message that the protocol does not allow."""


class Connections:
    """All connections of one end. `send(does=..., connection=..., ...)` sends a message to the other end.

    Their sockets are registered with `selector`, each with a function to call when it is ready.
    """

    def __init__(self, selector: selectors.BaseSelector, send: Send) -> None:
        self._selector = selector
        self._send = send
        self._all: dict[int, _Connection] = {}

    def __len__(self) -> int:
        return len(self._all)

    def add(self, number: int, sock: socket.socket | None) -> None:
        """Add a new connection; None: the listener refuses it."""
        if number in self._all:
            raise TunnelProtocolError(f"opened connection {number} twice")
        self._all[number] = _Connection(number, sock, self._selector, self._send, self._all.pop)

    def receive(self, message: Mapping[str, Any]) -> None:
        """Handle a message of the other end, which is validated. Raises `TunnelProtocolError`."""
        connection = self._all.get(message["connection"])
        if connection is None:
            raise TunnelProtocolError(f"sent a message for connection {message['connection']}, which does not exist")
        connection.receive(message)

    def close(self) -> None:
        """Close all connections without a message: the other end notices the end of the tunnel itself."""
        for connection in self._all.values():
            connection.close()
        self._all.clear()


class _Connection:
    """A connection between a socket of this end and the messages of the other end."""

    def __init__(
        self,
        number: int,
        sock: socket.socket | None,
        selector: selectors.BaseSelector,
        send: Send,
        forget: Callable[[int], object],
    ) -> None:
        self._number = number
        self._socket = sock
        self._selector = selector
        self._send = send
        self._forget = forget
        self._send_window = self._receive_window = WINDOW
        self._unwritten = bytearray()
        self._unreported_bytes = 0  # bytes that were passed on since the last "took"
        self._is_readable = True  # data may still come from the socket
        self._end_received = self._gone_received = self._gone_sent = False
        if sock is None:
            self._finish()
        else:
            sock.setblocking(False)
            self._watch()

    def receive(self, message: Mapping[str, Any]) -> None:
        does = message["does"]
        if self._gone_received:
            raise TunnelProtocolError(f"sent a message for connection {self._number} after its last one")
        if does == "data":
            self._receive_data(message["data"])
        elif does == "took":
            if not 0 < message["bytes"] <= WINDOW - self._send_window:
                raise TunnelProtocolError(
                    f"acknowledged {message['bytes']} bytes of connection {self._number} that it was not sent"
                )
            self._send_window += message["bytes"]
        elif does == "end":
            if self._end_received:
                raise TunnelProtocolError(f"ended connection {self._number} twice")
            self._end_received = True
        elif does == "gone":
            self._gone_received, self._is_readable = True, False
            if not self._end_received:
                self._abort()
        else:
            raise TunnelProtocolError(f"sent {does!r} for connection {self._number}")
        self._write()
        self._update()

    def close(self) -> None:
        sock, self._socket = self._socket, None
        if sock is not None:
            with suppress(KeyError):
                self._selector.unregister(sock)
            sock.close()

    def _ready(self) -> None:
        self._write()
        self._read_socket()
        self._update()

    def _receive_data(self, encoded: str) -> None:
        try:
            data = binascii.a2b_base64(encoded)
        except binascii.Error as exc:
            raise TunnelProtocolError(f"sent data of connection {self._number} that is not base64") from exc
        if self._end_received or not 0 < len(data) <= self._receive_window:
            raise TunnelProtocolError(
                f"sent {len(data)} bytes of connection {self._number}, where {self._receive_window} are allowed"
            )
        self._receive_window -= len(data)
        if self._socket is not None:
            self._unwritten += data

    def _write(self) -> None:
        while self._unwritten and self._socket is not None:
            try:
                written = self._socket.send(self._unwritten)
            except BlockingIOError:
                break
            except OSError:
                self._abort()
                return
            del self._unwritten[:written]
            self._unreported_bytes += written
        if self._unreported_bytes >= WINDOW // 2 and not self._end_received:
            self._receive_window += self._unreported_bytes
            self._emit("took", bytes=self._unreported_bytes)
            self._unreported_bytes = 0

    def _read_socket(self) -> None:
        if self._socket is None or not self._is_readable or not self._send_window:
            return
        try:
            data = self._socket.recv(min(CHUNK, self._send_window))
        except BlockingIOError:
            return
        except OSError:
            self._abort()
            return
        if data:
            self._send_window -= len(data)
            self._emit("data", data=binascii.b2a_base64(data, newline=False).decode())
        else:
            self._is_readable = False
            self._emit("end")

    def _abort(self) -> None:
        """Reset the connection, so that its end does not look like a proper one."""
        if self._socket is not None:
            with suppress(OSError):
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
        self._finish()

    def _finish(self) -> None:
        self.close()
        self._is_readable = False
        self._unwritten.clear()
        if not self._gone_sent:
            self._gone_sent = True
            self._emit("gone")

    def _update(self) -> None:
        """Update the socket and the registration after reading, writing or receiving."""
        if self._socket is not None and self._end_received and not self._unwritten:
            if self._is_readable:
                with suppress(OSError):  # a closed socket is noticed when it is read
                    self._socket.shutdown(socket.SHUT_WR)
            else:
                self._finish()
        self._watch()
        if self._gone_sent and self._gone_received:
            self._forget(self._number)

    def _watch(self) -> None:
        """Register for the events that this connection can handle now."""
        if self._socket is None:
            return
        events = selectors.EVENT_READ if self._is_readable and self._send_window else 0
        events |= selectors.EVENT_WRITE if self._unwritten else 0
        key = self._selector.get_map().get(self._socket)
        if key is None and events:
            self._selector.register(self._socket, events, self._ready)
        elif key is not None and not events:
            self._selector.unregister(self._socket)
        elif key is not None and key.events != events:
            self._selector.modify(self._socket, events, self._ready)

    def _emit(self, does: str, **more: Any) -> None:
        self._send(does=does, connection=self._number, **more)


class HostEnd:
    """The agent's end of a tunnel. It connects to the program's socket once the program listens."""

    def __init__(self, folder: str, selector: selectors.BaseSelector, send: Send) -> None:
        self.path = os.path.join(folder, SOCKET)
        self._send = send
        self._connections = Connections(selector, send)
        self._ready = False

    def poll(self) -> None:
        """Send "ready" once the program listens. Called repeatedly."""
        if not self._ready and (sock := self._connect()):
            sock.close()
            self._ready = True
            self._send(does="ready")

    def receive(self, message: Mapping[str, Any]) -> None:
        if message["does"] == "open":
            self._connections.add(message["connection"], self._connect())
        else:
            self._connections.receive(message)

    def close(self) -> None:
        self._connections.close()

    def _connect(self) -> socket.socket | None:
        sock = socket.socket(socket.AF_UNIX)
        sock.setblocking(False)  # refused at once if the program's backlog is full
        try:
            sock.connect(self.path)
        except OSError:
            sock.close()
            return None
        return sock
