"""Who may use a place now."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_dtfperf.clusters import lease as leases
from pytest_dtfperf.clusters.lease import Owner, lease
from pytest_dtfperf.errors import AllocationError

HOLD = """
import sys, time
from pathlib import Path
from pytest_dtfperf.clusters.lease import Owner, lease
with lease("local", 1, Owner.me("s", "test_other"), print, folder=Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


class Holder:
    """Another process that holds the only slot until it is let go, or killed."""

    def __init__(self, folder: Path) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdin=pipe, stdout=pipe)
        assert self.process.stdout
        assert self.process.stdout.readline() == b"held\n"

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


def nobody_waits(owner: Owner, waited_s: float) -> None:
    raise AssertionError(f"waited for {owner}")


def me() -> Owner:
    return Owner.me(session="s1", what="test_mine")


def test_free_slot_is_taken_at_once(tmp_path: Path) -> None:
    """A place that nobody uses is there without waiting, again and again."""
    for _ in range(2):
        with lease("local", 1, me(), nobody_waits, folder=tmp_path) as slot:
            assert slot == 0


def test_each_slot_has_one_holder(tmp_path: Path) -> None:
    """A place with two slots serves two at once, each with a number of its own."""
    with (
        lease("big", 2, me(), nobody_waits, folder=tmp_path) as one,
        lease("big", 2, me(), nobody_waits, folder=tmp_path) as two,
    ):
        assert {one, two} == {0, 1}


def test_places_do_not_disturb_each_other(tmp_path: Path) -> None:
    """Different clusters have different locks, whatever their names look like."""
    with lease("a/b", 1, me(), nobody_waits, folder=tmp_path), lease("ab", 1, me(), nobody_waits, folder=tmp_path):
        pass


@pytest.mark.parametrize("end", ["let_go", "kill"])
def test_who_waits_learns_for_whom_and_gets_it(tmp_path: Path, end: str) -> None:
    """A waiting process is told who holds the place, and has it as soon as the holder lets go or is killed."""
    holder = Holder(tmp_path)
    told: list[Owner] = []

    def on_wait(owner: Owner, waited_s: float) -> None:
        told.append(owner)
        getattr(holder, end)()

    with lease("local", 1, me(), on_wait, folder=tmp_path):
        pass
    assert [(owner.pid, owner.what) for owner in told] == [(holder.process.pid, "test_other")]
    assert f"process {holder.process.pid} (test_other, since " in str(told[0])


def test_interrupted_wait_holds_nothing(tmp_path: Path) -> None:
    """Who gives up waiting leaves the place as it was."""
    holder = Holder(tmp_path)

    def give_up(owner: Owner, waited_s: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), lease("local", 1, me(), give_up, folder=tmp_path):
        pass
    holder.let_go()
    with lease("local", 1, me(), nobody_waits, folder=tmp_path):
        pass


def test_failure_inside_frees_the_slot(tmp_path: Path) -> None:
    """A lease ends with its block, however that ends."""
    with pytest.raises(ValueError, match="inside"), lease("local", 1, me(), nobody_waits, folder=tmp_path):
        raise ValueError("inside")
    with lease("local", 1, me(), nobody_waits, folder=tmp_path):
        pass


def test_runtime_folder_is_this_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks lie where no other user can put theirs."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = leases.runtime_folder()
    assert folder.parent == tmp_path
    assert folder.stat().st_uid == os.getuid()
    assert folder.stat().st_mode & 0o077 == 0


def test_strange_runtime_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that is only a link to somewhere is not trusted."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "dtfperf").symlink_to(tmp_path / "elsewhere")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with pytest.raises(AllocationError, match="is not a folder of this user"):
        leases.runtime_folder()
