"""A tunnel: connections carried as messages over the line between controller and agent. Both its ends are made of this.

    browser -- TCP, loopback --> controller == orders, events ==> agent -- Unix socket --> program

Each connection has a number, which the controller gives. Of a connection each side sends

    open   somebody has connected: the controller alone, first
    data   bytes, in base64. No more than WINDOW of them are on their way at any time
        took   so many of these bytes have been passed on to their reader: as many more may come
    end    no more data will come from this side
    gone   nothing at all will come from this side, the last word of each: then the number is forgotten

So neither end ever keeps more than WINDOW bytes of one connection, however slow its reader is, and no reader keeps others from
reading. A message that breaks this raises `Violation`.
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

VARIABLE = "DTFPERF_TUNNEL"  # gives a program the path of the socket that it may listen at
SOCKET = "socket"  # ... in the run's folder
WINDOW = 512 << 10  # 5 MB/s over a line with a round trip of 0.1 s
CHUNK = 48 << 10  # bytes of one message: 64 KiB of base64
_ABORT = struct.pack("ii", 1, 0)  # SO_LINGER: what is cut short ends as a reset, and not like what is whole


class Violation(wire.WireError):
    """The other end sends a message that the protocol does not allow."""


class Connections:
    """All connections of one end. `send` sends the other end a message: `send(does=..., connection=..., ...)`.

    Their sockets are registered with `selector`, each with a function to call when it is ready.
    """

    def __init__(self, selector: selectors.BaseSelector, send: Send) -> None:
        self._selector = selector
        self._send = send
        self._all: dict[int, _Connection] = {}

    def __len__(self) -> int:
        return len(self._all)

    def add(self, number: int, sock: socket.socket | None) -> None:
        """Add a new connection; None: its listener refuses it."""
        if number in self._all:
            raise Violation(f"opened connection {number} twice")
        self._all[number] = _Connection(number, sock, self._selector, self._send, self._all.pop)

    def hear(self, word: Mapping[str, Any]) -> None:
        """A word of the other end, of its right form. Raises `Violation`."""
        connection = self._all.get(word["connection"])
        if connection is None:
            raise Violation(f"spoke of connection {word['connection']}, which is not there")
        connection.hear(word)

    def close(self) -> None:
        """Close all, without a message: the other end learns it otherwise."""
        for connection in self._all.values():
            connection.close()
        self._all.clear()


class _Connection:
    """One connection, from this end's socket to the messages of the other end."""

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
        self._may_send = self._may_come = WINDOW
        self._unwritten = bytearray()
        self._unreported_bytes = 0  # bytes that were passed on since the last "took"
        self._reads = True  # data may still come from the socket
        self._heard_end = self._heard_gone = self._gone_sent = False
        if sock is None:
            self._leave()
        else:
            sock.setblocking(False)
            self._watch()

    def hear(self, word: Mapping[str, Any]) -> None:
        does = word["does"]
        if self._heard_gone:
            raise Violation(f"spoke of connection {self._number} after its last word of it")
        if does == "data":
            self._take(word["data"])
        elif does == "took":
            if not 0 < word["bytes"] <= WINDOW - self._may_send:
                raise Violation(f"took {word['bytes']} bytes of connection {self._number}, which it was not sent")
            self._may_send += word["bytes"]
        elif does == "end":
            if self._heard_end:
                raise Violation(f"ended connection {self._number} twice")
            self._heard_end = True
        elif does == "gone":
            self._heard_gone, self._reads = True, False
            if not self._heard_end:
                self._abort()
        else:
            raise Violation(f"reports {does!r} of connection {self._number}")
        self._write()
        self._settle()

    def close(self) -> None:
        sock, self._socket = self._socket, None
        if sock is not None:
            with suppress(KeyError):
                self._selector.unregister(sock)
            sock.close()

    def _ready(self) -> None:
        self._write()
        self._read_socket()
        self._settle()

    def _take(self, encoded: str) -> None:
        try:
            data = binascii.a2b_base64(encoded)
        except binascii.Error as exc:
            raise Violation(f"sent data of connection {self._number} that is no base64") from exc
        if self._heard_end or not 0 < len(data) <= self._may_come:
            raise Violation(f"sent {len(data)} bytes of connection {self._number}, and {self._may_come} may come")
        self._may_come -= len(data)
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
        if self._unreported_bytes >= WINDOW // 2 and not self._heard_end:
            self._may_come += self._unreported_bytes
            self._emit("took", bytes=self._unreported_bytes)
            self._unreported_bytes = 0

    def _read_socket(self) -> None:
        if self._socket is None or not self._reads or not self._may_send:
            return
        try:
            data = self._socket.recv(min(CHUNK, self._may_send))
        except BlockingIOError:
            return
        except OSError:
            self._abort()
            return
        if data:
            self._may_send -= len(data)
            self._emit("data", data=binascii.b2a_base64(data, newline=False).decode())
        else:
            self._reads = False
            self._emit("end")

    def _abort(self) -> None:
        """Close it in a way that cannot be taken for its proper end."""
        if self._socket is not None:
            with suppress(OSError):
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
        self._leave()

    def _leave(self) -> None:
        self.close()
        self._reads = False
        self._unwritten.clear()
        if not self._gone_sent:
            self._gone_sent = True
            self._emit("gone")

    def _settle(self) -> None:
        """What follows from what has been written, read and heard."""
        if self._socket is not None and self._heard_end and not self._unwritten:
            if self._reads:
                with suppress(OSError):  # that it is closed is found out when it is read from
                    self._socket.shutdown(socket.SHUT_WR)
            else:
                self._leave()
        self._watch()
        if self._gone_sent and self._heard_gone:
            self._forget(self._number)

    def _watch(self) -> None:
        """Be called when there is something to do, and not otherwise."""
        if self._socket is None:
            return
        events = selectors.EVENT_READ if self._reads and self._may_send else 0
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
    """An agent's end: connects to the program's socket, once it is there."""

    def __init__(self, folder: str, selector: selectors.BaseSelector, send: Send) -> None:
        self.path = os.path.join(folder, SOCKET)
        self._send = send
        self._connections = Connections(selector, send)
        self._ready = False

    def poll(self) -> None:
        """Send "ready" once, when the program listens. To be called now and then."""
        if not self._ready and (sock := self._connect()):
            sock.close()
            self._ready = True
            self._send(does="ready")

    def hear(self, word: Mapping[str, Any]) -> None:
        if word["does"] == "open":
            self._connections.add(word["connection"], self._connect())
        else:
            self._connections.hear(word)

    def close(self) -> None:
        self._connections.close()

    def _connect(self) -> socket.socket | None:
        sock = socket.socket(socket.AF_UNIX)
        sock.setblocking(False)  # a socket of a program that accepts no more refuses at once
        try:
            sock.connect(self.path)
        except OSError:
            sock.close()
            return None
        return sock
