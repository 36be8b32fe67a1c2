"""The first program on a host: it stores the bundle completely or not at all."""

import os
import time
from pathlib import Path

import pytest

from pytest_dtfperf.clusters.ssh.bootstrap import make_bundle
from pytest_dtfperf.node import boot
from tests.node.bare_host import BareHost


def test_bundle_is_sent_once(tmp_path: Path) -> None:
    """A bundle is requested and stored the first time, and found afterwards."""
    with BareHost(tmp_path) as host:
        host.header()
        assert host.next() == {"at": "bundle"}
        host.send(make_bundle().data)
        assert host.next() == {"at": "ready"}
    assert [each.name for each in (tmp_path / ".cache" / "dtfperf").iterdir()] == [make_bundle().name]
    with BareHost(tmp_path) as host:
        host.header()
        assert host.next() == {"at": "ready"}


def test_programs_import_the_bundle(tmp_path: Path) -> None:
    """Programs on the host import the bundle before other modules of that name, also those in the user's home."""
    (tmp_path / "pytest_dtfperf").mkdir()
    (tmp_path / "pytest_dtfperf" / "__init__.py").write_text("raise SystemExit('not this one')")
    (tmp_path / "json.py").write_text("raise SystemExit('not this one')")
    with BareHost(tmp_path) as host:
        host.wait_until_ready()
        host.run("python3", "-c", "import pytest_dtfperf; print(pytest_dtfperf.__file__)")
        assert host.line() == str(host.cache / make_bundle().name / "pytest_dtfperf" / "__init__.py")


def test_python_path_of_the_host_stays(tmp_path: Path) -> None:
    """The host's own PYTHONPATH comes after the bundle."""
    with BareHost(tmp_path, PYTHONPATH="/some/where") as host:
        host.wait_until_ready()
        host.run("python3", "-c", "import os; print(os.environ['PYTHONPATH'])")
        assert host.line() == f"{host.cache / make_bundle().name}:/some/where"


def test_damaged_bundle_is_refused(tmp_path: Path) -> None:
    """A bundle that does not match its name is not stored."""
    with BareHost(tmp_path) as host:
        host.header()
        assert host.next() == {"at": "bundle"}
        host.send(make_bundle().data[:-1] + b"?")
        assert host.next() == {"failed": "bundle", "why": "it was damaged on the way"}
        assert host.next() is None
    assert not (tmp_path / ".cache").exists()


@pytest.mark.parametrize("sent", [0, 1000])
def test_end_of_the_line_leaves_nothing(tmp_path: Path, sent: int) -> None:
    """A controller that goes away before all was sent leaves neither process nor file."""
    with BareHost(tmp_path) as host:
        host.header()
        assert host.next() == {"at": "bundle"}
        host.send(make_bundle().data[:sent])
        host.hang_up()
        assert host.next() is None
        assert host.wait_for_end()[0] == 0
    assert not (tmp_path / ".cache").exists()


def test_two_at_once(tmp_path: Path) -> None:
    """Two that keep the same bundle at the same time do not disturb each other."""
    with BareHost(tmp_path) as one, BareHost(tmp_path) as other:
        for host in (one, other):
            host.header()
        assert one.next() == other.next() == {"at": "bundle"}
        for host in (one, other):
            host.send(make_bundle().data)
        assert one.next() == other.next() == {"at": "ready"}
    assert [each.name for each in (tmp_path / ".cache" / "dtfperf").iterdir()] == [make_bundle().name]


def test_old_bundles_are_thrown_away(tmp_path: Path) -> None:
    """A bundle that was not used for a month is removed; a newer one and what is no bundle stay."""
    cache = tmp_path / ".cache" / "dtfperf"
    for name in ("bundle-old", "bundle-new", "uv-old"):
        (cache / name).mkdir(parents=True)
    for name in ("bundle-old", "uv-old"):
        os.utime(cache / name, (0, time.time() - boot.UNUSED_S - 60))
    with BareHost(tmp_path) as host:
        host.wait_until_ready()
    assert {each.name for each in cache.iterdir()} == {"bundle-new", "uv-old", make_bundle().name}


def test_old_bundle_that_vanishes_is_ignored(tmp_path: Path) -> None:
    """A bundle that another host of the same home removes at the same time does not prevent a new one."""
    cache = tmp_path / ".cache" / "dtfperf"
    cache.mkdir(parents=True)
    (cache / "bundle-gone").symlink_to("nowhere")
    with BareHost(tmp_path) as host:
        host.wait_until_ready()
    assert (cache / make_bundle().name).is_dir()


def test_host_without_a_cache(tmp_path: Path) -> None:
    """A host without a cache uses a temporary folder, which is deleted at the end."""
    unusable = tmp_path / "file"
    unusable.touch()
    with BareHost(tmp_path, XDG_CACHE_HOME=str(unusable), TMPDIR=str(tmp_path)) as host:
        host.wait_until_ready()
        assert list(tmp_path.glob("dtfperf-*"))
        host.run("true")
        assert host.wait_for_end()[0] == 0
    assert not list(tmp_path.glob("dtfperf-*"))


def test_folders_of_the_cluster_file_are_made(tmp_path: Path) -> None:
    """Variables in the folders of the cluster file are replaced by the host's values, and the folders are made."""
    (tmp_path / "home").mkdir()
    folders = {"XDG_CACHE_HOME": "$SCRATCH/${WHO}/cache", "TMPDIR": "~/tmp"}
    with BareHost(tmp_path / "home", SCRATCH=str(tmp_path), WHO="me") as host:
        host.wait_until_ready(folders=folders)
        host.run("sh", "-c", "echo $TMPDIR $XDG_CACHE_HOME")
        assert host.line() == f"{tmp_path}/home/tmp {tmp_path}/me/cache"
    assert (tmp_path / "me" / "cache" / "dtfperf" / make_bundle().name).is_dir()
    assert not (tmp_path / "home" / ".cache").exists()


@pytest.mark.parametrize(
    "folder, shown, why",
    [
        ("/proc/no", "/proc/no", "No such file or directory"),
        ("/scratch/$DTFPERF_NOT_SET", "/scratch/$DTFPERF_NOT_SET", "a variable in it is not set on this host"),
    ],
    ids=["read-only", "unknown variable"],
)
def test_unusable_folders_are_named(tmp_path: Path, folder: str, shown: str, why: str) -> None:
    """The host reports the folder with the reason, and runs nothing."""
    with BareHost(tmp_path) as host:
        assert host.ready_after(folders={"TMPDIR": folder}) == [{"failed": "folder", "folder": shown, "why": why}]


def test_the_folder_is_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """XDG_CACHE_HOME sets the folder if it is absolute; otherwise it is ~/.cache."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert boot.get_cache_folder() == str(tmp_path / "cache" / "dtfperf")
    for useless in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", useless)
        assert boot.get_cache_folder() == str(tmp_path / "home" / ".cache" / "dtfperf")
