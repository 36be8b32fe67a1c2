"""Ports for the tasks of a run, reserved until the run ends.

A task's server binds its port itself, on all addresses, with SO_REUSEPORT (TF_GRPC_REUSE_PORT=1). Therefore the agent can hold
the same port with a socket that does not listen: no other process gets the port, and no connection arrives at the agent.
External commands may bind without SO_REUSEPORT and would be refused a port that is held: it is released as the task starts.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack

from pytest_dtfperf.node import isolation, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_MESSAGE_BYTES = 1 << 16


class PortsTaken(Exception):
    """Ports that were requested by number are not free."""

    def __init__(self, ports: Sequence[int]) -> None:
        super().__init__(f"port {', '.join(map(str, ports))} is taken")
        self.ports = list(ports)


class Reservation:
    """Ports that are reserved on all addresses of this host."""

    def __init__(self, sockets: Sequence[socket.socket]) -> None:
        self._sockets = list(sockets)

    @property
    def ports(self) -> list[int]:
        return [held.getsockname()[1] for held in self._sockets]

    @property
    def files(self) -> list[int]:
        return [held.fileno() for held in self._sockets]

    def add(self, sockets: Iterable[socket.socket]) -> None:
        self._sockets += sockets

    def release(self) -> None:
        for held in self._sockets:
            held.close()
        self._sockets.clear()


def reserve(count: int) -> Reservation:
    """Reserve `count` free ports."""
    return _bind([0] * count)


def reserve_exactly(ports: Sequence[int]) -> Reservation:
    """Reserve these ports, or raise `PortsTaken`."""
    if taken := [port for port in ports if not is_free(port)]:
        raise PortsTaken(taken)
    try:
        return _bind(ports)
    except OSError as exc:
        if exc.errno != errno.EADDRINUSE:
            raise
        # Another process has taken one in between, and may have released it again.
        raise PortsTaken([port for port in ports if not is_free(port)] or list(ports)) from exc


def reserve_in_network(network: Sequence[int], make: Callable[[], Reservation]) -> Reservation:
    """Return what `make` reserves in the network of these files (node/isolation.py), as sockets belong to one network.

    A forked process makes it, because this one could not return from that network. Raises `PortsTaken`, `OSError`.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        _reserve_in_fork(network, make, theirs)
    theirs.close()
    held, failed = Reservation([]), None
    with ours:
        while (arrived := socket.recv_fds(ours, _MESSAGE_BYTES, 1))[0]:
            message, files, _, _ = arrived
            failed = wire.decode(message)["failed"]
            held.add(socket.socket(fileno=file) for file in files)
    os.waitpid(pid, 0)
    if failed:
        held.release()
        raise PortsTaken(failed["taken"]) if "taken" in failed else OSError(failed["number"], failed["message"])
    return held


def _reserve_in_fork(network: Sequence[int], make: Callable[[], Reservation], line: socket.socket) -> NoReturn:
    """Make the reservation in the forked process, and send its sockets."""
    try:
        isolation.enter(*network)
        held = make()
        for file in held.files:
            socket.send_fds(line, [wire.encode({"failed": None})], [file])
    except PortsTaken as exc:
        line.send(wire.encode({"failed": {"taken": exc.ports}}))
    except OSError as exc:
        line.send(wire.encode({"failed": {"number": exc.errno, "message": exc.strerror}}))
    finally:
        os._exit(0)


def is_free(port: int) -> bool:
    """Return whether no process listens on this port or holds it."""
    # SO_REUSEPORT would allow a port of this user's other servers. SO_REUSEADDR is needed because connections of the last run
    # stay in TIME_WAIT for a minute.
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            with socket.socket(family) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("", port))
        except OSError as exc:
            if exc.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            if exc.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):  # a host without IPv6
                raise
    return True


def _bind(ports: Sequence[int]) -> Reservation:
    with ExitStack() as unless_all:
        sockets = []
        for port in ports:
            held = unless_all.enter_context(socket.socket())
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            # Needed because closed connections of a server without SO_REUSEPORT keep the port for a minute (TIME_WAIT). It is
            # removed after bind, as other processes with it could bind the port, too.
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind(("0.0.0.0", port))
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
            sockets.append(held)
        unless_all.pop_all()
        return Reservation(sockets)
