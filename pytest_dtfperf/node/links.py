"""TCP measurements between hosts: reachability, round trips and throughput.

A host listens on ports that tasks would get, on all its addresses as tasks do. Another host connects and sends a request:

        reach    the listener answers with its own number, so that hosts are not confused
        echo     the listener sends back all data: round trips, timed by the caller
        stream   the listener counts the bytes that arrive by its own clock, and reports them at the end
        streams  the same, counted in successive parts. Then it continues for a while, so that no other stream of the same
                 time has the link to itself while it is still counted

The receiver counts, as bytes in a buffer of the sender have not passed the link.
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
PATIENCE_S = 10.0  # time-out of each message of the other side once it is connected
ECHO_BYTES = 64
ECHOES = 100
ECHO_S = 1.0  # limit of all echoes, on slow links
_UNCOUNTED_ECHOES = 5  # the first ones include the cost of routes, caches and sleeping cores
RAMP_S = 0.25  # before bytes are counted: TCP starts slowly, and a shaped link allows a burst at first
TAIL_S = 0.1  # after bytes were counted: concurrent streams begin some milliseconds apart
_CHUNK = 1 << 20
_REQUEST_BYTES = 200
_AT_ONCE_S = 1e-3  # two reads within this time count as simultaneous
_TRIES = 10
_AT_ONCE = 64  # concurrent attempts to connect


class Listener:
    """A server on several ports for the measurements of other hosts, until it is closed. `host` is this host's number.

    Only callers with the `token` are served, which are the hosts of one checkup.
    """

    def __init__(self, host: int, token: str, ports: Sequence[int]) -> None:
        """Listen. Port 0 is any free port. `ports` are the ports that it listens on, `taken` those used by other programs."""
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
        with caller, suppress(OSError, ValueError):  # the caller reports a missing answer
            caller.settimeout(PATIENCE_S)
            caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            token, what, *options = _read_line(caller).split()
            if token != self._token:
                return
            caller.sendall(b"%d\n" % self._host)
            if what == "echo":
                while data := caller.recv(ECHO_BYTES):
                    caller.sendall(data)
            elif what == "stream":
                _send_counts(caller, _count_bytes(caller, float(options[0])))
            elif what == "streams":
                _send_counts(caller, {"parts": _count_parts(caller, float(options[0]), int(options[1]))})


def reach(token: str, targets: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return for each target (`host`, `address`, `ports`) and port whether it is reachable, or else an `error`."""
    todo = [(each["host"], each["address"], port) for each in targets for port in each["ports"]]
    found: list[dict[str, Any]] = []

    def work() -> None:
        while True:
            try:
                host, address, port = todo.pop()
            except IndexError:
                return
            found.append({"to": host, "port": port, "error": _test_connection(token, host, address, port)})

    workers = [threading.Thread(target=work, daemon=True) for _ in range(min(_AT_ONCE, len(todo)))]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    return sorted(found, key=lambda row: (row["to"], row["port"]))


def measure(token: str, host: int, address: str, port: int, stream_s: float) -> dict[str, Any]:
    """Return the median `round_trip_s` of `echoes` round trips to another host, and `bytes` in `counted_s` of one stream."""
    try:
        with _connect(token, host, address, port, "echo") as line, _report_timeouts("a round trip has not come back"):
            times = _measure_round_trips(line)
        with _connect(token, host, address, port, f"stream {stream_s}") as line:
            counted = _send_stream(line, stream_s)
    except OSError as exc:
        return {"to": host, "error": format_error(exc)}
    return {"to": host, "round_trip_s": statistics.median(times), "echoes": len(times), **counted}


def measure_concurrently(token: str, targets: Sequence[Mapping[str, Any]], part_s: float, parts: int) -> list[dict[str, Any]]:
    """Send streams to all targets (`host`, `address`, `port`, `connections`) at once.

    Returns for each target its number (`to`), with the `parts` of all its connections together, or the `error` of one.
    """
    every = [to for to in targets for _ in range(to["connections"])]
    found: list[dict[str, Any]] = []
    senders = [threading.Thread(target=lambda to=to: found.append(_stream(token, to, part_s, parts))) for to in every]
    for each in senders:
        each.start()
    for each in senders:
        each.join()
    return [
        _add_connections([row for row in found if row["to"] == host]) for host in sorted({int(to["host"]) for to in targets})
    ]


def _add_connections(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the bytes of all connections to a host, part by part, in the time that they take at the sum of the rates."""
    if wrong := [row for row in rows if "error" in row]:
        return {"to": wrong[0]["to"], "error": wrong[0]["error"]}
    parts = []
    for of_all in zip(*(row["parts"] for row in rows), strict=True):
        count, per_s = sum(part["bytes"] for part in of_all), sum(part["bytes"] / part["counted_s"] for part in of_all)
        longest_s = max(part["counted_s"] for part in of_all)
        parts.append({"bytes": count, "counted_s": count / per_s if count else longest_s})
    return {"to": rows[0]["to"], "parts": parts}


def _stream(token: str, to: Mapping[str, Any], part_s: float, parts: int) -> dict[str, Any]:
    try:
        with _connect(token, to["host"], to["address"], to["port"], f"streams {part_s} {parts}") as line:
            return {"to": to["host"], **_send_stream(line, part_s * parts + TAIL_S)}
    except OSError as exc:
        return {"to": to["host"], "error": format_error(exc)}


def format_error(exc: OSError) -> str:
    """Return why a host cannot reach another, and the usual cause."""
    if isinstance(exc, TimeoutError):
        return f"no answer within {CONNECT_S:g} s (a firewall drops it, or there is no route)"
    if isinstance(exc, ConnectionRefusedError):
        return "refused (a firewall rejects it, or the address is another machine's)"
    if isinstance(exc, socket.gaierror):
        return f"the host cannot resolve the name ({exc.strerror})"
    return exc.strerror or str(exc) or type(exc).__name__


def _test_connection(token: str, host: int, address: str, port: int) -> str | None:
    try:
        _connect(token, host, address, port, "reach").close()
    except OSError as exc:
        return format_error(exc)
    return None


def _connect(token: str, host: int, address: str, port: int, what: str) -> socket.socket:
    """Return a connection to the listener, once it has confirmed that it is the right host. Raises `OSError`."""
    with ExitStack() as unless_it_answers:
        line = unless_it_answers.enter_context(socket.create_connection((address, port), timeout=CONNECT_S))
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line.settimeout(PATIENCE_S)
        with _report_timeouts("it accepts the connection, but sends nothing"):
            line.sendall(f"{token} {what}\n".encode())
            output = _read_line(line)
        if output != str(host):
            answering = f"host {output} of this cluster" if output.isdigit() else "another program"
            raise OSError(f"{address} is not that host: {answering} answers there")
        unless_it_answers.pop_all()
        return line


@contextmanager
def _report_timeouts(what: str) -> Iterator[None]:
    """Raise time-outs in the block with a description of what is missing."""
    try:
        yield
    except TimeoutError:
        raise OSError(f"{what} for {PATIENCE_S:g} s") from None


def _measure_round_trips(line: socket.socket) -> list[float]:
    """Return the seconds of each round trip."""
    payload = os.urandom(ECHO_BYTES)
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < _UNCOUNTED_ECHOES + ECHOES and (len(times) <= _UNCOUNTED_ECHOES or time.perf_counter() - began < ECHO_S):
        sent = time.perf_counter()
        line.sendall(payload)
        missing = ECHO_BYTES
        while missing:
            data = line.recv(missing)
            if not data:
                raise ConnectionResetError(errno.ECONNRESET, "it hung up between two round trips")
            missing -= len(data)
        times.append(time.perf_counter() - sent)
    return times[_UNCOUNTED_ECHOES:]


def _send_stream(line: socket.socket, stream_s: float) -> dict[str, Any]:
    """Send until the other side has counted enough, and return its counts. Unsent data are discarded."""
    noise = memoryview(os.urandom(_CHUNK))  # some links compress
    line.setblocking(False)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # on, for 0 s: close discards unsent data
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


def _count_bytes(line: socket.socket, stream_s: float) -> dict[str, Any]:
    """Return the bytes that arrive in `stream_s`, and the exact duration by this host's clock."""
    buffer = bytearray(_CHUNK)
    _receive(line, buffer, PATIENCE_S)
    _receive_for(line, buffer, RAMP_S)
    return _count_now(line, buffer, stream_s)


def _receive_for(line: socket.socket, buffer: bytearray, seconds: float) -> None:
    ends = time.monotonic() + seconds
    while (left := ends - time.monotonic()) > 0:
        _receive(line, buffer, left)


def _count_now(line: socket.socket, buffer: bytearray, stream_s: float) -> dict[str, Any]:
    began, had_arrived = _count_unread(line)
    count = 0
    while (left := began + stream_s - time.monotonic()) > 0:
        count += _receive(line, buffer, left)
    ended, has_arrived = _count_unread(line)
    return {"bytes": count + has_arrived - had_arrived, "counted_s": ended - began}


def _count_unread(line: socket.socket) -> tuple[float, int]:
    """Return the time, and the bytes that have arrived but were not read: a descheduled process reads late."""
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


def _read_line(connection: socket.socket) -> str:
    """Return the first line of the other side. It is read byte by byte, as another reader gets the rest."""
    output = b""
    while not output.endswith(b"\n"):
        data = connection.recv(1)
        if not data or len(output) == _REQUEST_BYTES:
            raise OSError("the program that listens there is not this checkup")
        output += data
    return output.decode(errors="replace").strip()


def _listen(port: int) -> socket.socket:
    """Listen on all addresses of this host, IPv6 and IPv4 if it has both."""
    if socket.has_dualstack_ipv6():
        with suppress(OSError):  # IPv6 is off, or the port is in use, which IPv4 then reports
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_AT_ONCE * 2)
    return socket.create_server(("", port), backlog=_AT_ONCE * 2)
