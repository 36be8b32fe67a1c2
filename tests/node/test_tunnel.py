"""Both ends of a tunnel, with the messages between them in the test's hands; and an agent's."""

import base64
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.node import sweep
from pytest_dtfperf.node.owner import Owner
from pytest_dtfperf.node.tunnel import SOCKET, VARIABLE, WINDOW, Connections, HostEnd, TunnelProtocolError
from tests.node.handheld import HandheldAgent

Word = dict[str, Any]


class End:
    """Some connections, and the messages that they send."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.sent: deque[Word] = deque()
        self._outside: list[socket.socket] = []
        self.connections = Connections(self.selector, lambda **word: self.sent.append(word))

    def add(self, number: int) -> socket.socket:
        """A connection; returns what is at its other side."""
        ours, theirs = socket.socketpair()
        ours.settimeout(10)
        self._outside.append(ours)
        self.connections.add(number, theirs)
        return ours

    def turn(self) -> None:
        for key, _ in self.selector.select(0.01):
            if self.selector.get_map().get(key.fd) is key:
                key.data()

    def close(self) -> None:
        self.connections.close()
        self.selector.close()
        for sock in self._outside:
            sock.close()


class Pair:
    """Two ends; every word of the one comes to the other."""

    def __init__(self) -> None:
        self.one, self.other = End(), End()

    def add(self, number: int) -> tuple[socket.socket, socket.socket]:
        return self.one.add(number), self.other.add(number)

    def turn(self) -> None:
        self.one.turn()
        self.other.turn()
        for end, peer in ((self.one, self.other), (self.other, self.one)):
            while end.sent:
                peer.connections.receive(end.sent.popleft())

    def close(self) -> None:
        self.one.close()
        self.other.close()


def carry_bytes(pair: Pair, source: socket.socket, sink: socket.socket, data: bytes) -> bytes:
    """Return the bytes that arrive, until the end."""
    source.setblocking(False)
    sink.setblocking(False)
    left, found = memoryview(data), bytearray()
    while True:
        if left:
            with suppress(BlockingIOError):
                left = left[source.send(left) :]
            if not left:
                source.shutdown(socket.SHUT_WR)
        pair.turn()
        try:
            part = sink.recv(1 << 20)
        except BlockingIOError:
            continue
        if not part:
            return bytes(found)
        found += part


def test_either_way_every_byte_comes_once_and_in_order() -> None:
    """More than a window goes both ways, and each side ends when it likes; then both have forgotten the connection."""
    data = os.urandom(3 * WINDOW + 12345)
    with closing(Pair()) as pair:
        here, there = pair.add(1)
        assert carry_bytes(pair, here, there, data) == data
        assert carry_bytes(pair, there, here, data[::-1]) == data[::-1]
        pair.turn()
        assert len(pair.one.connections) + len(pair.other.connections) == 0


def test_no_more_is_on_its_way_than_a_window() -> None:
    """Exactly WINDOW bytes are read from a peer with a slow reader, and another connection continues."""
    with closing(End()) as end:
        fast, slow = end.add(1), end.add(2)
        slow.setblocking(False)
        for _ in range(200):
            with suppress(BlockingIOError):
                slow.send(bytes(1 << 16))
            end.turn()
        assert sum(len(base64.b64decode(word["data"])) for word in end.sent) == WINDOW
        fast.send(b"hello")
        end.turn()
        assert end.sent[-1] == {"does": "data", "connection": 1, "data": "aGVsbG8="}
        end.connections.receive({"does": "took", "connection": 2, "bytes": 10})
        end.turn()
        assert len(base64.b64decode(end.sent[-1]["data"])) == 10


def test_lost_connection_is_a_reset() -> None:
    """A peer that is gone without an end is a reset connection for the other side."""
    with closing(End()) as end, socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        end.connections.add(1, server.accept()[0])
        end.connections.receive({"does": "data", "connection": 1, "data": "aGVsbG8="})
        end.connections.receive({"does": "gone", "connection": 1})
        with client, pytest.raises(ConnectionResetError):
            list(iter(lambda: client.recv(100), b""))
        assert list(end.sent) == [{"does": "gone", "connection": 1}]
        assert len(end.connections) == 0


def test_data_for_a_lost_connection_is_dropped() -> None:
    """Data that arrives for a connection of a client that is gone is dropped, without an error."""
    with closing(End()) as end:
        end.add(1).close()
        for _ in range(3):
            end.connections.receive({"does": "data", "connection": 1, "data": "aGVsbG8="})
            end.turn()
        assert [word["does"] for word in end.sent][-1] == "gone"
        end.connections.receive({"does": "end", "connection": 1})
        end.connections.receive({"does": "gone", "connection": 1})
        assert len(end.connections) == 0


def test_refused_connection_is_gone_at_once() -> None:
    """A connection that the program does not accept is reported as gone."""
    with closing(End()) as end:
        end.connections.add(1, None)
        assert list(end.sent) == [{"does": "gone", "connection": 1}]
        end.connections.receive({"does": "data", "connection": 1, "data": "aGVsbG8="})
        end.connections.receive({"does": "gone", "connection": 1})
        assert len(end.connections) == 0


FULL = base64.b64encode(bytes(48 << 10)).decode()
DATA = {"does": "data", "connection": 1, "data": FULL}
END = {"does": "end", "connection": 1}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([{"does": "end", "connection": 2}], "sent a message for connection 2, which does not exist"),
        ([DATA] * 11, "sent 49152 bytes of connection 1, where 32768 are allowed"),
        ([{**DATA, "data": ""}], "sent 0 bytes of connection 1"),
        ([{**DATA, "data": "a"}], "sent data of connection 1 that is not base64"),
        ([END, DATA], "sent 49152 bytes of connection 1"),
        ([END, END], "ended connection 1 twice"),
        ([{"does": "took", "connection": 1, "bytes": 1}], "acknowledged 1 bytes of connection 1 that it was not sent"),
        ([{"does": "took", "connection": 1, "bytes": 0}], "acknowledged 0 bytes of connection 1"),
        ([{"does": "sings", "connection": 1}], "sent 'sings' for connection 1"),
    ],
)
def test_invalid_messages_of_the_other_end_are_refused(words: list[Word], message: str) -> None:
    """A message that would need more memory than a window, or is impossible, is refused."""
    with closing(End()) as end:
        end.add(1)  # without a reader
        *allowed, last = words
        for word in allowed:
            end.connections.receive(word)
        with pytest.raises(TunnelProtocolError, match=message):
            end.connections.receive(last)


def test_no_message_follows_gone() -> None:
    """A message after "gone" is refused, also while earlier data is still being written."""
    with closing(End()) as end:
        ours = end.add(1)
        while not end.selector.get_map() or not _has_data_to_write(end):
            end.connections.receive(DATA)
        end.connections.receive(END)
        end.connections.receive({"does": "gone", "connection": 1})
        with pytest.raises(TunnelProtocolError, match="after its last one"):
            end.connections.receive(END)
        ours.setblocking(False)
        received = 0
        while len(end.connections):
            end.turn()
            with suppress(BlockingIOError):
                received += len(ours.recv(1 << 20))
        received += sum(map(len, iter(lambda: ours.recv(1 << 20), b"")))
        assert received % (48 << 10) == 0 < received


def _has_data_to_write(end: End) -> bool:
    return any(key.events & selectors.EVENT_WRITE for key in end.selector.get_map().values())


def test_host_end_waits_for_its_program(tmp_path: Path) -> None:
    """The end on a host reports once that the program listens."""
    sent: list[Word] = []
    with selectors.DefaultSelector() as selector, socket.socket(socket.AF_UNIX) as program:
        end = HostEnd(str(tmp_path), selector, lambda **word: sent.append(word))
        end.poll()
        assert sent == []
        program.bind(str(tmp_path / SOCKET))
        program.listen()
        end.poll()
        end.poll()
        assert sent == [{"does": "ready"}]


# An agent's


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder for temporary files of a path so short that sockets may be in it."""
    with tempfile.TemporaryDirectory(prefix="tu-", dir="/tmp") as folder:
        yield Path(folder)


def start_echo_task(agent: HandheldAgent) -> None:
    """Start a task that echoes the data of the tunnel."""
    task = {"host": 0, "task": "worker:0", "order": {"job": "worker", "index": 0}, "env": {}, "cpus": []}
    script = {"script": {"at": "start", "do": "echo", "what": VARIABLE}}
    agent.order("start", run="r", cold=False, tunnel=0, common=script, tasks=[task])
    agent.expect("tunnel", does="ready", run="r")


def test_agent_carries_data_of_a_program(short_folder: Path) -> None:
    """Data of a connection reaches the program's socket, and its answer comes back; the folder ends with the run."""
    with HandheldAgent(env={"TMPDIR": str(short_folder)}) as agent:
        start_echo_task(agent)
        agent.order("tunnel", run="r", does="open", connection=1)
        agent.order("tunnel", run="r", does="data", connection=1, data="aGVsbG8=")
        assert agent.expect("tunnel", does="data", connection=1)["data"] == "aGVsbG8="
        agent.order("tunnel", run="r", does="end", connection=1)
        agent.expect("tunnel", does="end", connection=1)
        agent.expect("tunnel", does="gone", connection=1)
        (folder,) = short_folder.glob("dtfperf-run-*")
        assert folder.stat().st_mode & 0o777 == 0o700
        agent.order("stop", run="r")
        agent.expect("stopped")
        assert not folder.exists()
        agent.order("tunnel", run="r", does="open", connection=2)  # too late, and no harm
        agent.order("stop", run="r")
        agent.expect("stopped")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_folder_of_an_agent_that_ends(short_folder: Path, number: int) -> None:
    """An agent that is ended removes its folder; the next sweep removes that of a killed one."""
    with HandheldAgent(env={"TMPDIR": str(short_folder)}) as agent:
        start_echo_task(agent)
        (folder,) = short_folder.glob("dtfperf-run-*")
        agent.process.send_signal(number)
        agent.process.wait()
        assert folder.exists() == (number == signal.SIGKILL)
    remove_abandoned(short_folder)
    assert not folder.exists()


def remove_abandoned(short_folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(short_folder))
        sweep.remove_abandoned_folders()


def test_only_abandoned_folders_are_removed(short_folder: Path) -> None:
    """Folders of owners that live or cannot be seen, new ones without an owner, and what is called otherwise stay."""
    me = Owner.read_own()
    owners = {"lives": me, "gone": me._replace(started=me.started - 1), "elsewhere": me._replace(boot="another")}
    for name, owner in owners.items():
        (short_folder / f"dtfperf-run-{name}").mkdir()
        (short_folder / f"dtfperf-run-{name}" / "owner").write_text(owner.text)
    for name in ("nobody", "nobody-for-a-day"):
        (short_folder / f"dtfperf-run-{name}").mkdir()
    os.utime(short_folder / "dtfperf-run-nobody-for-a-day", (0, 0))
    (short_folder / "other").mkdir()
    (short_folder / "other" / "owner").write_text(owners["gone"].text)
    (short_folder / "dtfperf-run-link").symlink_to(short_folder / "other")
    remove_abandoned(short_folder)
    kept = ["dtfperf-run-elsewhere", "dtfperf-run-link", "dtfperf-run-lives", "dtfperf-run-nobody", "other"]
    assert sorted(path.name for path in short_folder.iterdir()) == kept


FOLDER_TASK = """
import signal
from pytest_dtfperf.node import sweep

def run(order, connection):
    with sweep.make_temporary_folder():
        connection.send("ready")
        signal.pause()
"""


def test_agent_removes_folders_of_its_tasks(tmp_path: Path) -> None:
    """A task that is ended in the middle, as by Ctrl-C while it is traced, leaves no folder: its agent removes it."""
    (tmp_path / "folder_task.py").write_text(FOLDER_TASK)
    (tmp_path / "temporary").mkdir()
    search = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    with HandheldAgent(entry="folder_task:run", env={"PYTHONPATH": search, "TMPDIR": str(tmp_path / "temporary")}) as agent:
        agent.expect("hello")
        agent.start("worker:0")
        agent.expect("task", kind="ready")
        assert len(list((tmp_path / "temporary").iterdir())) == 1
        assert agent.process.stdin
        agent.process.stdin.close()
        agent.process.wait()
        assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.parametrize("long", [False, True], ids=["short", "long"])
def test_temporary_folder_ends_with_its_owner(tmp_path: Path, long: bool) -> None:
    """A temporary folder is deleted after its block; that of a killed owner by the next owner or the sweep."""
    temporary = tmp_path / ("x" * 40 if long else "x")
    temporary.mkdir()
    code = (
        "from pytest_dtfperf.node.sweep import make_temporary_folder\n"
        "with make_temporary_folder() as folder: print(folder, flush=True); input()"
    )
    command, environment = [sys.executable, "-c", code], {**os.environ, "TMPDIR": str(temporary)}
    for kill in (False, True):
        with subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as owner:
            assert owner.stdout
            folder = Path(owner.stdout.readline().decode().strip())
            assert folder.parent == temporary
            if kill:
                owner.kill()
        assert folder.exists() == kill
    subprocess.run([sys.executable, "-m", "pytest_dtfperf.node.sweep"], env=environment, check=True)
    assert list(temporary.iterdir()) == []


def test_a_folder_of_a_long_path_is_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel takes paths of sockets up to 107 characters, and a kernel of Jupyter's has one in it."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / ("x" * 40)))
    (tmp_path / ("x" * 40)).mkdir()
    folder = sweep.make_run_folder()
    try:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(f"{folder}/kernel-00000000-0000-0000-0000-000000000000-ipc-5")
        assert Path(folder).parent == Path("/tmp")
    finally:
        sweep.remove_folder(folder)
