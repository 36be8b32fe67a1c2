"""Locks of hosts: order, holders, tickets, folders, and the death of processes at any time."""

import contextlib
import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from pytest_dtfperf.clusters import locks as host_lock
from pytest_dtfperf.clusters.locks import LockHolder, LockWait, lock_hosts
from pytest_dtfperf.errors import AllocationError
from pytest_dtfperf.node import processes
from pytest_dtfperf.testing.backends import wait_until
from tests.full_disk import full_behind
from tests.node.namespaces import in_pid_namespace, why_not

# Prints when it waits and when it has the hosts; releases them when its stdin ends.
TAKE = """
import sys
from pathlib import Path
from pytest_dtfperf.clusters.locks import LockHolder, lock_hosts
folder, *hosts = sys.argv[1:]
with lock_hosts(hosts, 1, LockHolder.make_own("s", "test_other"), lambda wait: print("waits", flush=True), folder=Path(folder)):
    print("held", flush=True)
    sys.stdin.read()
"""


class Other:
    """Another process that wants hosts."""

    def __init__(self, folder: Path, *names: str, before: Sequence[str] = ()) -> None:
        argv = [*before, sys.executable, "-c", TAKE, str(folder), *names]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait_until(self, given: bytes) -> None:
        """Wait for a line of the process; earlier lines are skipped."""
        assert self.process.stdout
        while (line := self.process.stdout.readline()) != given + b"\n":
            assert line, "it has ended"

    def kill(self) -> None:
        self.process.kill()
        self.end()

    def let_go(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.end()

    def end(self) -> None:
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                pipe.close()


@contextmanager
def hold_elsewhere(folder: Path, *names: str, says: bytes = b"held", before: Sequence[str] = ()) -> Iterator[Other]:
    """Another process that has the hosts, or waits for them."""
    other = Other(folder, *(names or ["here"]), before=before)
    try:
        other.wait_until(says)
        yield other
    finally:
        other.kill()


def fail_on_wait(wait: LockWait) -> None:
    raise AssertionError(f"waited: {wait}")


def me() -> LockHolder:
    return LockHolder.make_own(session="s1", purpose="test_mine")


def tickets(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_free_host_is_locked_at_once(tmp_path: Path) -> None:
    """A free host is available without waiting, repeatedly, and leaves no files."""
    for _ in range(2):
        with lock_hosts(["here"], 1, me(), fail_on_wait, folder=tmp_path):
            assert len(tickets(tmp_path)) == 1
    assert tickets(tmp_path) == []


def test_host_with_two_slots_serves_two(tmp_path: Path) -> None:
    """Two processes hold a host with two slots, and the third waits for both."""
    waits: list[LockWait] = []

    def give_up(wait: LockWait) -> None:
        waits.append(wait)
        raise KeyboardInterrupt

    with (
        lock_hosts(["big"], 2, me(), fail_on_wait, folder=tmp_path),
        lock_hosts(["big"], 2, me(), fail_on_wait, folder=tmp_path),
        pytest.raises(KeyboardInterrupt),
        lock_hosts(["big"], 2, me(), give_up, folder=tmp_path),
    ):
        pass
    assert len(waits[0].holders) == 2
    assert tickets(tmp_path) == []


def test_different_hosts_have_different_tickets(tmp_path: Path) -> None:
    """Different hosts have different tickets, even if their names are similar."""
    names = ["a/b", "a_b", "ab", "a.0000000001.holds", "x" * 300]
    for one in names:
        for other in names:
            if one != other:
                with (
                    lock_hosts([one], 1, me(), fail_on_wait, folder=tmp_path),
                    lock_hosts([other], 1, me(), fail_on_wait, folder=tmp_path),
                ):
                    pass


@pytest.mark.parametrize("end", ["let_go", "kill"])
def test_waiting_process_is_shown_the_holder_and_gets_the_host(tmp_path: Path, end: str) -> None:
    """A waiting process is shown the holder, and gets the host when it is released or killed; neither leaves files."""
    waits: list[LockWait] = []
    with hold_elsewhere(tmp_path) as holder:

        def on_wait(wait: LockWait) -> None:
            waits.append(wait)
            getattr(holder, end)()

        with lock_hosts(["here"], 1, me(), on_wait, folder=tmp_path):
            assert len(tickets(tmp_path)) == 1
    (held_by,) = waits[0].holders
    assert held_by
    assert (held_by.owner.pid, held_by.purpose) == (holder.pid, "test_other")
    assert re.fullmatch(rf"held by process {holder.pid} \(test_other since \d\d:\d\d:\d\d\)", str(waits[0]))
    assert tickets(tmp_path) == []


def test_first_come_first_served(tmp_path: Path) -> None:
    """The first process is served first, independent of later ones and of how often they poll."""
    served: list[int] = []
    with hold_elsewhere(tmp_path) as holder:
        waiting = []
        for number in range(3):
            thread = threading.Thread(target=_be_served, args=(tmp_path, number, served))
            thread.start()
            waiting.append(thread)
            wait_until("its ticket is drawn", partial(_are, tmp_path, number + 2))
        holder.let_go()
        for thread in waiting:
            thread.join()
    assert served == [0, 1, 2]


def _are(folder: Path, count: int) -> bool:
    return len(tickets(folder)) == count


def _be_served(folder: Path, number: int, served: list[int]) -> None:
    with lock_hosts(["here"], 1, me(), lambda wait: None, folder=folder):
        served.append(number)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_dead_or_stopped_waiter_is_skipped(tmp_path: Path, number: signal.Signals) -> None:
    """An earlier process that was killed or stopped while it waited is skipped."""
    with hold_elsewhere(tmp_path) as holder, hold_elsewhere(tmp_path, "here", says=b"waits") as waiter:
        os.kill(waiter.pid, number)
        wait_until("it is so", lambda: (seen := processes.inspect(waiter.pid)) is None or seen.state in ("T", "Z"))

        def on_wait(wait: LockWait) -> None:
            holder.let_go()

        with lock_hosts(["here"], 1, me(), on_wait, folder=tmp_path):
            if number is signal.SIGSTOP:
                os.kill(waiter.pid, signal.SIGCONT)  # it goes on waiting: the host is taken
                assert len([name for name in tickets(tmp_path) if name.endswith(".holds")]) == 1
        if number is signal.SIGSTOP:
            waiter.wait_until(b"held")


def test_wait_shows_earlier_tickets_and_duration(tmp_path: Path) -> None:
    """All earlier tickets are shown, and from the first minute on the duration, in a text that changes seldom."""
    waits: list[LockWait] = []

    def give_up(wait: LockWait) -> None:
        waits.append(wait)
        raise KeyboardInterrupt

    with (
        hold_elsewhere(tmp_path),
        hold_elsewhere(tmp_path, "here", says=b"waits"),
        pytest.raises(KeyboardInterrupt),
        lock_hosts(["here"], 1, me(), give_up, folder=tmp_path),
    ):
        pass
    assert (len(waits[0].holders), waits[0].ahead) == (1, 1)
    assert str(LockWait([], 0, 3.0)) == "free at any moment"
    assert [str(LockWait([], 2, waited_s)).partition(", ")[2] for waited_s in (59.0, 60.0, 119.0, 300.0, 10_000.0)] == [
        "2 came before",
        "2 came before, for 1 min by now",
        "2 came before, for 1 min by now",
        "2 came before, for 4 min by now",
        "2 came before, for 2 h 08 min by now",
    ]


def test_several_hosts_are_locked_together(tmp_path: Path) -> None:
    """A process that holds several hosts blocks those that want one of them, and no others."""
    waits: list[LockWait] = []
    with hold_elsewhere(tmp_path, "host-1", "host-2") as holder:
        with lock_hosts(["host-3"], 1, me(), fail_on_wait, folder=tmp_path):
            pass

        def on_wait(wait: LockWait) -> None:
            waits.append(wait)
            holder.let_go()

        with lock_hosts(["host-3", "host-2"], 1, me(), on_wait, folder=tmp_path):
            pass
    assert waits


def test_hosts_in_any_order_are_no_deadlock(tmp_path: Path) -> None:
    """Processes that want the same hosts in different orders all get them."""
    names = ["a", "b", "c"]
    served: list[str] = []

    def want(order: Sequence[str]) -> None:
        for _ in range(5):
            with lock_hosts(order, 1, me(), lambda wait: None, folder=tmp_path):
                served.append("".join(order))

    threads = [threading.Thread(target=want, args=([*names[turn:], *names[:turn]],)) for turn in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(served) == 15
    assert tickets(tmp_path) == []


def test_interrupted_wait_holds_nothing(tmp_path: Path) -> None:
    """An interrupted wait leaves the host unlocked."""
    with hold_elsewhere(tmp_path) as holder:

        def give_up(wait: LockWait) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt), lock_hosts(["here"], 1, me(), give_up, folder=tmp_path):
            pass
        holder.let_go()
        with lock_hosts(["here"], 1, me(), fail_on_wait, folder=tmp_path):
            pass


def test_a_full_disk_is_no_obstacle(tmp_path: Path) -> None:
    """If a holder's name cannot be written, hosts are still locked and released."""
    mine = lock_hosts(["here"], 1, LockHolder.make_own("s", "test_a"), lambda wait: None, folder=tmp_path)
    with full_behind(tmp_path / "none"), mine:
        (ticket,) = tmp_path.iterdir()
        assert ticket.read_bytes() == b""
    assert list(tmp_path.iterdir()) == []


def test_failure_in_the_block_releases_the_host(tmp_path: Path) -> None:
    """A lock ends with its block, also after an error."""
    with pytest.raises(ValueError, match="inside"), lock_hosts(["here"], 1, me(), fail_on_wait, folder=tmp_path):
        raise ValueError("inside")
    with lock_hosts(["here"], 1, me(), fail_on_wait, folder=tmp_path):
        pass


ENDLESS = "x" * (1 << 20)
FAR = json.dumps({"owner": "vm::1:1:1", "session": "s", "what": "w", "since": 1e300})  # no time that there is


@pytest.mark.parametrize("note", ["", "{", "[1]", '{"owner": 1}', "\0" * 100, "[" * 100_000, ENDLESS, FAR])
def test_a_damaged_note(tmp_path: Path, note: str) -> None:
    """A ticket with damaged text still holds its host, and a waiting process is shown that."""
    waits: list[LockWait] = []
    with hold_elsewhere(tmp_path) as holder:
        (ticket,) = tmp_path.iterdir()
        ticket.write_text(note)

        def on_wait(wait: LockWait) -> None:
            waits.append(wait)
            holder.let_go()

        with lock_hosts(["here"], 1, me(), on_wait, folder=tmp_path):
            pass
    assert str(waits[0]) == "held by a process that left no name"


def test_tickets_of_dead_processes_are_swept(tmp_path: Path) -> None:
    """Tickets of dead processes for any host are deleted when the next ticket is drawn; foreign files stay."""
    with hold_elsewhere(tmp_path, "once") as holder:
        holder.kill()
    (tmp_path / "foreign").write_text("")
    assert len(tickets(tmp_path)) == 2
    with lock_hosts(["here"], 1, me(), fail_on_wait, folder=tmp_path):
        pass
    assert tickets(tmp_path) == ["foreign"]


@pytest.mark.skipif(bool(why_not()), reason=why_not() or "")
def test_another_pid_namespace(tmp_path: Path) -> None:
    """Containers that share the folder wait for each other, though neither sees the other's processes."""
    waits: list[LockWait] = []
    with hold_elsewhere(tmp_path, before=in_pid_namespace()) as holder:

        def on_wait(wait: LockWait) -> None:
            waits.append(wait)
            holder.let_go()

        with lock_hosts(["here"], 1, me(), on_wait, folder=tmp_path):
            pass
    assert waits
    assert tickets(tmp_path) == []


def test_holding_time_starts_with_the_allocation(tmp_path: Path) -> None:
    """The displayed time starts with the allocation, not with the wait."""
    began, before = LockHolder(me().owner, "s", "w", since=0.0), time.time()
    with lock_hosts(["here"], 1, began, fail_on_wait, folder=tmp_path):
        (ticket,) = tmp_path.iterdir()
        assert before <= json.loads(ticket.read_text())["since"] <= time.time()


def test_runtime_folder_is_this_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tickets are in a folder in which no other user can write."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = host_lock.find_lock_folder()
    assert folder.parent == tmp_path
    assert folder.stat().st_uid == os.getuid()
    assert folder.stat().st_mode & 0o077 == 0


def test_strange_runtime_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that is only a link to somewhere is not trusted."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "dtfperf").symlink_to(tmp_path / "elsewhere")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with pytest.raises(AllocationError, match="is not a folder of this user"):
        host_lock.make_runtime_folder()


def test_a_folder_for_several_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DTFPERF_LOCKS names a folder that users and containers share; a missing one is refused with a message."""
    monkeypatch.setenv("DTFPERF_LOCKS", str(tmp_path))
    assert host_lock.find_lock_folder() == tmp_path
    with lock_hosts(["here"], 1, me(), fail_on_wait):
        (ticket,) = tmp_path.iterdir()
        assert ticket.stat().st_mode & 0o777 == 0o644
    monkeypatch.setenv("DTFPERF_LOCKS", str(tmp_path / "none"))
    with pytest.raises(AllocationError, match=r"DTFPERF_LOCKS = '.*/none' is no folder that this user may write to"):
        host_lock.find_lock_folder()


@pytest.mark.parametrize("file", ["runtime", "runtime/dtfperf"])
def test_unusable_runtime_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    """A file in place of the runtime folder or its parent is named in one line with the setting."""
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).touch()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    with pytest.raises(AllocationError, match=r"runtime/dtfperf, where .*[Ss]et XDG_RUNTIME_DIR"):
        host_lock.make_runtime_folder()


def test_a_folder_that_vanishes(tmp_path: Path) -> None:
    """An unusable folder is reported with the setting to change."""
    with (
        pytest.raises(AllocationError, match=r"gone, where sessions wait for each other, cannot be used: No such file"),
        lock_hosts(["here"], 1, me(), fail_on_wait, folder=tmp_path / "gone"),
    ):
        pass


def first_ticket(folder: Path) -> str:
    """Return the name of the first ticket for `here`, while its process holds the host."""
    with lock_hosts(["here"], 1, me(), fail_on_wait, folder=folder):
        (name,) = tickets(folder)
    return name


@pytest.mark.parametrize("state", ["waits", "holds"])
@pytest.mark.parametrize("kind", ["fifo", "folder", "link", "socket"])
def test_files_that_are_no_tickets_are_ignored(tmp_path: Path, kind: str, state: str) -> None:
    """A pipe, folder, link or socket with a ticket's name is ignored and blocks no process."""
    strange = tmp_path / first_ticket(tmp_path).replace("holds", state)
    with socket.socket(socket.AF_UNIX) as listening, contextlib.chdir(tmp_path):
        match kind:
            case "fifo":
                os.mkfifo(strange)
            case "folder":
                strange.mkdir()
            case "link":
                strange.symlink_to("/dev/zero")
            case "socket":
                listening.bind(strange.name)
        with lock_hosts(["here"], 1, me(), fail_on_wait, folder=tmp_path):
            pass
        assert tickets(tmp_path) == ([strange.name] if kind == "folder" else [])


def test_tickets_of_more_digits_count(tmp_path: Path) -> None:
    """Ticket 10,000,000,000 counts as later than ticket 9,999,999,999, so that one host has one holder."""
    last = tmp_path / first_ticket(tmp_path).replace("0000000001.holds", "9999999999.waits")
    waits: list[LockWait] = []
    with last.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with hold_elsewhere(tmp_path, says=b"waits") as other:
            assert [name for name in tickets(tmp_path) if name.endswith("10000000000.waits")]
            last.unlink()
            other.wait_until(b"held")

            def on_wait(wait: LockWait) -> None:
                waits.append(wait)
                other.let_go()

            with lock_hosts(["here"], 1, me(), on_wait, folder=tmp_path):
                assert len(waits) == 1


def test_folder_that_stays_locked_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that keeps the folder's own lock causes an error instead of an endless wait."""
    monkeypatch.setattr(host_lock, "LOCK_TIMEOUT_S", 0.0)
    handle = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with (
            pytest.raises(AllocationError, match="another process has kept the folder itself locked"),
            lock_hosts(["here"], 1, me(), fail_on_wait, folder=tmp_path),
        ):
            pass
    finally:
        os.close(handle)
