"""Links between hosts: here between listeners of this process, on its own address."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from pytest_dtfperf.node import links

HERE = "127.0.0.1"
STREAM_S = 0.3


@pytest.fixture
def listener() -> Iterator[links.Listener]:
    """Host 1, listening on two ports."""
    listener = links.Listener(1, "token", [0, 0])
    yield listener
    listener.close()


def target(host: int, *ports: int, address: str = HERE) -> dict[str, object]:
    return {"host": host, "address": address, "ports": list(ports)}


def test_open_ports_are_reached(listener: links.Listener) -> None:
    """Every port with a listener is reached, and the answers come in order."""
    found = links.reach("token", [target(1, *listener.ports)])
    assert found == [{"to": 1, "port": port, "error": None} for port in sorted(listener.ports)]


def test_closed_port_is_refused(listener: links.Listener) -> None:
    """A connection to a port without a listener is refused, with the possible reasons."""
    with socket.create_server((HERE, 0)) as taken:
        port = taken.getsockname()[1]
    (found,) = links.reach("token", [target(1, port)])
    assert found["error"].startswith("refused (a firewall rejects it")


def test_a_host_is_not_taken_for_another(listener: links.Listener) -> None:
    """The listener identifies itself: two hosts of one address are distinguished."""
    (found,) = links.reach("token", [target(7, listener.ports[0])])
    assert found["error"] == "127.0.0.1 is not that host: host 1 of this cluster answers there"


def test_strangers_are_not_served(listener: links.Listener) -> None:
    """A caller without the token of this checkup gets no answer."""
    (found,) = links.reach("another", [target(1, listener.ports[0])])
    assert found["error"] == "the program that listens there is not this checkup"


@pytest.mark.parametrize("output", [b"SSH-2.0-OpenSSH_9.2\r\n", b"x" * 1000, b""])
def test_other_programs_are_recognised(output: bytes) -> None:
    """Another program on that port, with any answer, is not taken for the host."""
    with socket.create_server((HERE, 0)) as stranger:

        def answer() -> None:
            caller, _ = stranger.accept()
            with caller:
                caller.recv(100)
                caller.sendall(output)

        thread = threading.Thread(target=answer)
        thread.start()
        (found,) = links.reach("token", [target(1, stranger.getsockname()[1])])
        thread.join()
    assert found["error"] in (
        "127.0.0.1 is not that host: another program answers there",
        "the program that listens there is not this checkup",
        "Connection reset by peer",
    )


def test_unknown_name(listener: links.Listener) -> None:
    """An address that is an unknown name is an error of this one target."""
    found = links.reach("token", [target(0, 1, address="no.such.host.invalid"), target(1, listener.ports[0])])
    assert found[0]["error"].startswith("the host cannot resolve the name")
    assert found[1]["error"] is None


def test_many_targets_side_by_side(listener: links.Listener) -> None:
    """Every one of very many attempts has its answer."""
    found = links.reach("token", [target(1, *listener.ports)] * 150)
    assert len(found) == 300
    assert all(each["error"] is None for each in found)


def test_measured_are_round_trips_and_bytes(listener: links.Listener) -> None:
    """Round trips have a median over the requested number; bytes are counted over no less than the requested time."""
    found = links.measure("token", 1, HERE, listener.ports[0], STREAM_S)
    assert found["to"] == 1
    assert 0 < found["round_trip_s"] < links.PATIENCE_S
    assert 1 <= found["echoes"] <= links.ECHOES
    assert found["bytes"] > 0
    assert found["counted_s"] >= STREAM_S


def test_two_links_at_once(listener: links.Listener) -> None:
    """A listener serves several at once, each with its own count."""
    found: list[dict[str, object]] = []

    def measure() -> None:
        found.append(links.measure("token", 1, HERE, listener.ports[0], STREAM_S))

    both = [threading.Thread(target=measure) for _ in range(2)]
    for each in both:
        each.start()
    for each in both:
        each.join()
    assert all("error" not in each for each in found)
    assert len(found) == 2


def test_streams_of_one_moment(listener: links.Listener) -> None:
    """Streams to several at once are counted in parts, each over its time; one that cannot be is an error of its own."""
    with ExitStack() as ends:
        third = links.Listener(2, "token", [0])
        ends.callback(third.close)
        targets = [
            {"host": 1, "address": HERE, "port": listener.ports[0], "connections": 1},
            {"host": 2, "address": HERE, "port": third.ports[0], "connections": 1},
            {"host": 3, "address": HERE, "port": third.ports[0], "connections": 1},
        ]
        first, second, wrong = links.measure_concurrently("token", targets, 0.05, 3)
    for found in (first, second):
        assert len(found["parts"]) == 3
        assert all(part["bytes"] > 0 and part["counted_s"] >= 0.05 for part in found["parts"])
    assert wrong == {"to": 3, "error": "127.0.0.1 is not that host: host 2 of this cluster answers there"}


def test_connections_of_a_stream_are_added_up(listener: links.Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream of three connections has the bytes of all of them, in the time that they take at the sum of their rates."""
    counts = iter([[(100, 0.1)], [(300, 0.1)], [(200, 0.2)]])
    lock = threading.Lock()

    def count_parts(*_: object) -> list[dict[str, float]]:
        with lock:
            return [{"bytes": count, "counted_s": seconds} for count, seconds in next(counts)]

    monkeypatch.setattr(links, "_count_parts", count_parts)
    (found,) = links.measure_concurrently(
        "token", [{"host": 1, "address": HERE, "port": listener.ports[0], "connections": 3}], 0.05, 1
    )
    assert found == {"to": 1, "parts": [{"bytes": 600, "counted_s": pytest.approx(600 / 5000)}]}


def test_failed_connection_fails_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream with one failed connection is an error, because the others' bytes are not the whole rate."""
    rows = iter([{"to": 1, "parts": [{"bytes": 100, "counted_s": 0.1}]}, {"to": 1, "error": "refused"}])
    monkeypatch.setattr(links, "_stream", lambda *_: next(rows))
    found = links.measure_concurrently("token", [{"host": 1, "address": HERE, "port": 1, "connections": 2}], 0.05, 1)
    assert found == [{"to": 1, "error": "refused"}]


def test_counted_bytes_are_those_that_arrived() -> None:
    """The receiver counts the bytes that arrive in its counting time."""
    ours, theirs = socket.socketpair()
    theirs.settimeout(links.PATIENCE_S)
    over = threading.Event()
    sent = [0]

    def send() -> None:
        while not over.is_set():
            ours.sendall(b"x" * 10_000)
            sent[0] += 10_000
            over.wait(0.01)

    thread = threading.Thread(target=send)
    thread.start()
    with ours, theirs:
        began = time.monotonic()
        counted = links._count_bytes(theirs, STREAM_S)
        whole_s = time.monotonic() - began
        over.set()
        thread.join()
    assert 0 < counted["bytes"] <= sent[0]
    assert STREAM_S <= counted["counted_s"] <= whole_s - links.RAMP_S


def test_a_host_that_hangs_up_is_an_error() -> None:
    """A host that is gone in the middle of a measurement is an error, and no rate."""
    with socket.create_server((HERE, 0)) as host:

        def answer() -> None:
            with host.accept()[0] as caller:
                caller.recv(100)
                caller.sendall(b"1\n")

        thread = threading.Thread(target=answer)
        thread.start()
        found = links.measure("token", 1, HERE, host.getsockname()[1], STREAM_S)
        thread.join()
    assert found["to"] == 1
    assert found.keys() == {"to", "error"}


def test_ports_that_are_taken_are_named() -> None:
    """A port that another process has is reported, and the others are listened on."""
    with ExitStack() as ends, socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        listener = links.Listener(0, "token", [0, port])
        ends.callback(listener.close)
        assert listener.taken == [port]
        assert len(listener.ports) == 1


def test_closed_listener_releases_its_ports() -> None:
    """The ports of a closed listener are free again."""
    listener = links.Listener(1, "token", [0])
    listener.close()
    (found,) = links.reach("token", [target(1, *listener.ports)])
    assert found["error"]


@pytest.mark.parametrize(
    "error, words",
    [
        (TimeoutError(), "no answer within 5 s (a firewall drops it, or there is no route)"),
        (ConnectionRefusedError(111, "Connection refused"), "refused (a firewall rejects it"),
        (OSError(113, "No route to host"), "No route to host"),
        (OSError("it says nothing"), "it says nothing"),
    ],
)
def test_errors_are_explained(error: OSError, words: str) -> None:
    """The kernel's error of a connection is shown with what it usually means."""
    assert links.format_error(error).startswith(words)
