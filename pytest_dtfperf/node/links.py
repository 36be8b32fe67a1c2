"""Host to host over TCP: which hosts reach each other, how long a round trip takes, and how much goes through.

A host listens on ports that it would give to tasks, on all its addresses as tasks do. Another connects and names its host
and what it wants:

        reach    the listener answers with its own number, so that no host is taken for another
        echo     the listener sends back what it gets: round trips, timed by the caller
        stream   the listener counts what arrives by its own clock, and reports at the end how much came in how long
    streams  the same, counted in parts one after the other; then it goes on for a while, so that no other stream of the same
             moment has the link to itself while it is counted still

What is counted where it arrives cannot be what still waits in a buffer of the sender.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import select
import socket
import statistics
import struct
import termios
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CONNECT_S = 5.0  # a lost SYN is sent again after 1 s and after 3 s
PATIENCE_S = 10.0  # for a word of the other side once it is there
ECHO_BYTES = 64
ECHOES = 100
ECHO_S = 1.0  # ... but no longer than this, on lines where each takes long
_UNCOUNTED_ECHOES = 5  # the first ones pay for routes, caches and sleeping cores
RAMP_S = 0.25  # before bytes are counted: TCP starts slowly, and a shaped link gives its burst away at first
TAIL_S = 0.1  # after bytes were counted: streams of one moment begin some milliseconds apart
_CHUNK = 1 << 20
_REQUEST_BYTES = 200
_AT_ONCE_S = 1e-3  # two things that happen within this are of one time
_TRIES = 10
_AT_ONCE = 64  # connections that are tried side by side


class Listener:
    """Ports of this host: connections to them are served until it is closed. `host` is this one's number.

    Only callers with the `token` are served: the hosts of one checkup get it, and no others.
    """

    def __init__(self, host: int, token: str, ports: Sequence[int]) -> None:
        """Port 0 is any free one. `ports` are those it listens on, `taken` those that others have."""
        self._host = host
        self._token = token
        self._sockets: list[socket.socket] = []
        self.taken: list[int] = []
        for port in ports:
            try:
                self._sockets.append(_listen(port))
            except OSError as exc:
                if exc.errno not in (errno.EADDRINUSE, errno.EACCES):
                    raise
                self.taken.append(port)
        self.ports: list[int] = [each.getsockname()[1] for each in self._sockets]
        for each in self._sockets:
            threading.Thread(target=self._accept, args=(each,), daemon=True).start()

    def close(self) -> None:
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits in accept
            each.close()

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                caller, _ = listening.accept()
            except OSError as exc:
                if listening.fileno() < 0 or exc.errno in (errno.EBADF, errno.EINVAL):  # closed
                    return
                continue  # the caller has hung up already
            threading.Thread(target=self._serve, args=(caller,), daemon=True).start()

    def _serve(self, caller: socket.socket) -> None:
        with caller, suppress(OSError, ValueError):  # the caller sees that there is no answer, and reports it
            caller.settimeout(PATIENCE_S)
            caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            token, what, *options = _line(caller).split()
            if token != self._token:
                return
            caller.sendall(b"%d\n" % self._host)
            if what == "echo":
                while data := caller.recv(ECHO_BYTES):
                    caller.sendall(data)
            elif what == "stream":
                _send_counts(caller, _count(caller, float(options[0])))
            elif what == "streams":
                _send_counts(caller, {"parts": _count_parts(caller, float(options[0]), int(options[1]))})


def reach(token: str, targets: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return whether each target (`host`, `address`, `ports`) can be reached on each of its ports; with an `error` if not."""
    todo = [(each["host"], each["address"], port) for each in targets for port in each["ports"]]
    found: list[dict[str, Any]] = []

    def work() -> None:
        while True:
            try:
                host, address, port = todo.pop()
            except IndexError:
                return
            found.append({"to": host, "port": port, "error": _try(token, host, address, port)})

    workers = [threading.Thread(target=work, daemon=True) for _ in range(min(_AT_ONCE, len(todo)))]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    return sorted(found, key=lambda row: (row["to"], row["port"]))


def measure(token: str, host: int, address: str, port: int, stream_s: float) -> dict[str, Any]:
    """Round trips to another host, then one stream to it: `round_trip_s` (median) of `echoes`, `bytes` in `counted_s`."""
    try:
        with _call(token, host, address, port, "echo") as line, _report_timeouts("a round trip has not come back"):
            times = _echoes(line)
        with _call(token, host, address, port, f"stream {stream_s}") as line:
            counted = _pour(line, stream_s)
    except OSError as exc:
        return {"to": host, "error": format_error(exc)}
    return {"to": host, "round_trip_s": statistics.median(times), "echoes": len(times), **counted}


def measure_at_once(token: str, targets: Sequence[Mapping[str, Any]], part_s: float, parts: int) -> list[dict[str, Any]]:
    """A stream to each target (`host`, `address`, `port`), all at the same time: `parts`, each of `bytes` in `counted_s`."""
    found: list[dict[str, Any]] = []
    senders = [threading.Thread(target=lambda to=to: found.append(_stream(token, to, part_s, parts))) for to in targets]
    for each in senders:
        each.start()
    for each in senders:
        each.join()
    return sorted(found, key=lambda row: int(row["to"]))


def _stream(token: str, to: Mapping[str, Any], part_s: float, parts: int) -> dict[str, Any]:
    try:
        with _call(token, to["host"], to["address"], to["port"], f"streams {part_s} {parts}") as line:
            return {"to": to["host"], **_pour(line, part_s * parts + TAIL_S)}
    except OSError as exc:
        return {"to": to["host"], "error": format_error(exc)}


def format_error(exc: OSError) -> str:
    """Return what kept one host from talking to another, and what that usually means."""
    if isinstance(exc, TimeoutError):
        return f"no answer within {CONNECT_S:g} s (a firewall drops it, or there is no way there)"
    if isinstance(exc, ConnectionRefusedError):
        return "refused (a firewall rejects it, or the address is another machine's)"
    if isinstance(exc, socket.gaierror):
        return f"the name is not known there ({exc.strerror})"
    return exc.strerror or str(exc) or type(exc).__name__


def _try(token: str, host: int, address: str, port: int) -> str | None:
    try:
        _call(token, host, address, port, "reach").close()
    except OSError as exc:
        return format_error(exc)
    return None


def _call(token: str, host: int, address: str, port: int, what: str) -> socket.socket:
    """Return a connection to the listener, once it has confirmed that it is the host that is meant. Raises `OSError`."""
    with ExitStack() as unless_it_answers:
        line = unless_it_answers.enter_context(socket.create_connection((address, port), timeout=CONNECT_S))
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line.settimeout(PATIENCE_S)
        with _report_timeouts("it takes the connection, but sends nothing"):
            line.sendall(f"{token} {what}\n".encode())
            output = _line(line)
        if output != str(host):
            answering = f"host {output} of this cluster" if output.isdigit() else "somebody else"
            raise OSError(f"{address} is not that host: {answering} answers there")
        unless_it_answers.pop_all()
        return line


@contextmanager
def _report_timeouts(what: str) -> Iterator[None]:
    """Describe what has not happened in time, and not only that something has not."""
    try:
        yield
    except TimeoutError:
        raise OSError(f"{what} for {PATIENCE_S:g} s") from None


def _echoes(line: socket.socket) -> list[float]:
    """Return seconds that each round trip took."""
    word = os.urandom(ECHO_BYTES)
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < _UNCOUNTED_ECHOES + ECHOES and (len(times) <= _UNCOUNTED_ECHOES or time.perf_counter() - began < ECHO_S):
        sent = time.perf_counter()
        line.sendall(word)
        missing = ECHO_BYTES
        while missing:
            data = line.recv(missing)
            if not data:
                raise ConnectionResetError(errno.ECONNRESET, "it hung up between two round trips")
            missing -= len(data)
        times.append(time.perf_counter() - sent)
    return times[_UNCOUNTED_ECHOES:]


def _pour(line: socket.socket, stream_s: float) -> dict[str, Any]:
    """Send until the other side has counted enough; what it counted. What then still waits to be sent is thrown away."""
    noise = memoryview(os.urandom(_CHUNK))  # some lines compress
    line.setblocking(False)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # on, for 0 s: close throws away
    deadline = time.monotonic() + RAMP_S + stream_s + PATIENCE_S
    at = 0
    output = b""
    while not output.endswith(b"\n"):
        readable, writable, _ = select.select([line], [line], [], max(0.0, deadline - time.monotonic()))
        if time.monotonic() > deadline:
            raise OSError(f"nothing has gone through for {PATIENCE_S:g} s")
        if readable:
            data = line.recv(_REQUEST_BYTES)
            if not data:
                raise ConnectionResetError(errno.ECONNRESET, "it hung up in the middle of the stream")
            output += data
        elif writable:
            with suppress(BlockingIOError):
                at = (at + line.send(noise[at:])) % _CHUNK
    counted: dict[str, Any] = json.loads(output)
    return counted


def _send_counts(caller: socket.socket, counted: Mapping[str, Any]) -> None:
    caller.sendall(json.dumps(counted).encode() + b"\n")
    while caller.recv(_CHUNK):  # until the sender has read that and hangs up
        pass


def _count_parts(line: socket.socket, part_s: float, parts: int) -> list[dict[str, Any]]:
    buffer = bytearray(_CHUNK)
    _receive(line, buffer, PATIENCE_S)
    _receive_for(line, buffer, RAMP_S)
    found = [_count_now(line, buffer, part_s) for _ in range(parts)]
    _receive_for(line, buffer, TAIL_S)
    return found


def _count(line: socket.socket, stream_s: float) -> dict[str, Any]:
    """Return bytes that arrive in `stream_s`, and how long that was by this clock."""
    buffer = bytearray(_CHUNK)
    _receive(line, buffer, PATIENCE_S)
    _receive_for(line, buffer, RAMP_S)
    return _count_now(line, buffer, stream_s)


def _receive_for(line: socket.socket, buffer: bytearray, seconds: float) -> None:
    ends = time.monotonic() + seconds
    while (left := ends - time.monotonic()) > 0:
        _receive(line, buffer, left)


def _count_now(line: socket.socket, buffer: bytearray, stream_s: float) -> dict[str, Any]:
    began, had_arrived = _waiting(line)
    count = 0
    while (left := began + stream_s - time.monotonic()) > 0:
        count += _receive(line, buffer, left)
    ended, has_arrived = _waiting(line)
    return {"bytes": count + has_arrived - had_arrived, "counted_s": ended - began}


def _waiting(line: socket.socket) -> tuple[float, int]:
    """Now, and how many bytes have arrived by now that have not been read: a process that lost its core is behind with that."""
    for _ in range(_TRIES):
        before = time.monotonic()
        count: int = struct.unpack("i", fcntl.ioctl(line.fileno(), termios.FIONREAD, b"\0" * 4))[0]
        after = time.monotonic()
        if after - before < _AT_ONCE_S:
            break
    return before, count


def _receive(line: socket.socket, buffer: bytearray, within_s: float) -> int:
    if not select.select([line], [], [], within_s)[0]:
        return 0
    count = line.recv_into(buffer)
    if not count:
        raise ConnectionResetError(errno.ECONNRESET, "it hung up in the middle of the stream")
    return count


def _line(connection: socket.socket) -> str:
    """Return the first line of the other side. Byte by byte: another reader takes what follows it."""
    output = b""
    while not output.endswith(b"\n"):
        data = connection.recv(1)
        if not data or len(output) == _REQUEST_BYTES:
            raise OSError("what listens there is not this checkup")
        output += data
    return output.decode(errors="replace").strip()


def _listen(port: int) -> socket.socket:
    """Listen on all addresses of this host, of both families where it has both."""
    if socket.has_dualstack_ipv6():
        with suppress(OSError):  # switched off; or the port is taken, as IPv4 then finds, too
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_AT_ONCE * 2)
    return socket.create_server(("", port), backlog=_AT_ONCE * 2)
