"""Reserved ports."""

import socket
from collections.abc import Iterator

import pytest

from pytest_dtfperf.node import ports


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A process that listens as gRPC does: with SO_REUSEADDR and SO_REUSEPORT."""
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        server.bind(("0.0.0.0", 0))
        server.listen()
        yield server


def serve_on(port: int) -> socket.socket:
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    server.bind(("0.0.0.0", port))
    server.listen()
    return server


def test_reserved_ports_are_different_and_usable() -> None:
    """Two reservations share no port, and a server with SO_REUSEPORT can listen where one is held, and is reached."""
    first, second = ports.reserve(3), ports.reserve(3)
    assert len({*first.ports, *second.ports}) == 6
    with serve_on(first.ports[0]) as server, socket.create_connection(("127.0.0.1", first.ports[0])) as client:
        connection, _ = server.accept()
        with connection:
            client.sendall(b"x")
            assert connection.recv(1) == b"x"
    first.release()
    second.release()


def test_held_port_is_not_free() -> None:
    """A port that is held counts as taken until it is released."""
    held = ports.reserve(1)
    (port,) = held.ports
    assert not ports.is_free(port)
    held.release()
    assert ports.is_free(port)


def test_forgotten_server_is_noticed(listener: socket.socket) -> None:
    """A port with a listener is refused, even if SO_REUSEPORT would allow a second one."""
    port = listener.getsockname()[1]
    serve_on(port).close()  # it would
    with pytest.raises(ports.PortsTaken, match=f"port {port} is taken") as taken:
        ports.reserve_exactly([port])
    assert taken.value.ports == [port]


def test_ipv6_listener_is_noticed() -> None:
    """A server on the IPv6 wildcard alone takes the port, too, because TensorFlow binds both."""
    with socket.socket(socket.AF_INET6) as server:
        server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        server.bind(("::", 0))
        server.listen()
        assert not ports.is_free(server.getsockname()[1])


def test_port_of_the_last_run_is_free_again(listener: socket.socket) -> None:
    """Connections that linger in TIME_WAIT do not keep a fixed port from the next run."""
    port = listener.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port)) as client:
        listener.accept()[0].close()  # the server's side closes first, so the lingering is on its port
        assert client.recv(1) == b""
    listener.close()
    ports.reserve_exactly([port]).release()


def test_port_of_a_server_without_reuseport_is_free_again() -> None:
    """Connections of `dtfperf doctor` without SO_REUSEPORT keep no fixed port; one that is held is not free."""
    with socket.create_server(("0.0.0.0", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            server.accept()[0].close()
            assert client.recv(1) == b""
    held = ports.reserve_exactly([port])
    assert not ports.is_free(port)
    held.release()


def test_failed_reservation_holds_nothing(listener: socket.socket) -> None:
    """The other ports of a reservation with a taken port stay free."""
    spare = ports.reserve(1)
    (free,) = spare.ports
    spare.release()
    with pytest.raises(ports.PortsTaken):
        ports.reserve_exactly([free, listener.getsockname()[1]])
    assert ports.is_free(free)


def test_a_port_that_is_taken_after_it_was_checked_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that takes a port between the check and the reservation is an answer of its own, and not the agent's end."""
    with socket.socket() as holder:
        holder.bind(("0.0.0.0", 0))
        port = holder.getsockname()[1]
        answers = [True, False]  # when it is checked, and when it was taken
        monkeypatch.setattr(ports, "is_free", lambda _: answers.pop(0))
        with pytest.raises(ports.PortsTaken, match=f"port {port} is taken"):
            ports.reserve_exactly([port])
