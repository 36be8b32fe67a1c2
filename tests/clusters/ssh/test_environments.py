"""Environments of hosts over SSH: a home without write access, and interpreters that differ between kinds of hosts."""

import subprocess
import sys
from contextlib import closing
from itertools import islice
from pathlib import Path

import pytest

from pytest_dtfperf.clusters.protocol import Resources
from pytest_dtfperf.clusters.ssh.bootstrap import make_bundle
from pytest_dtfperf.clusters.ssh.cluster import Ssh
from pytest_dtfperf.errors import AllocationError
from pytest_dtfperf.testing.backends import PATIENCE_S
from tests.clusters.ssh.conftest import NewLab
from tests.clusters.ssh.test_conformance import ROOT
from tests.launch.isolated import SMALL, TRAINING
from tests.launch.stage import start_stage
from tests.machines.network import MachineError

READ_ONLY = "mount --bind home home && mount -o remount,bind,ro home"
SEES_FILES = [f"export PYTHONPATH={ROOT}"]


def test_training_with_a_read_only_home(new_lab: NewLab, tmp_path: Path) -> None:
    """A training on a read-only home writes only into cache_dir and scratch_dir."""
    lab = new_lab(1, namespaces=True, before=READ_ONLY)
    folders = {"cache_dir": f"{tmp_path}/$USER/cache", "scratch_dir": f"{tmp_path}/$USER/tmp"}
    config = lab.config(setup=SEES_FILES, entry=TRAINING.entry, limits=TRAINING.limits, **folders)
    with start_stage(tmp_path, config) as stage:
        run = stage.run(**SMALL, gpus=1, steps=5)
    assert len(run.loss) == 5
    with pytest.raises(MachineError, match="Read-only file system"):
        lab["m1"].run("touch", str(lab["m1"].home / "file"))
    assert (tmp_path / "root" / "cache" / "dtfperf" / make_bundle().name).is_dir()
    assert list((tmp_path / "root" / "tmp").iterdir()) == []


def test_unusable_cache_folder_is_refused_in_one_line(new_lab: NewLab) -> None:
    """A cache_dir in a read-only home is refused with host, folder and reason."""
    lab = new_lab(1, namespaces=True, before=READ_ONLY)
    with (
        pytest.raises(AllocationError, match=r"m1 has no folder .*/home/caches: Read-only file system.*`cache_dir`") as refusal,
        Ssh(lab.config(cache_dir="~/caches")).allocate(Resources(devices=1)),
    ):
        pass
    assert "\n" not in str(refusal.value)


def test_interpreters_by_kind_of_host(new_lab: NewLab, tmp_path: Path) -> None:
    """A set-up line activates the environment of each kind of host, and `python` is the interpreter there."""
    lab = new_lab(2, namespaces=True)
    for kind in ("m1", "m2"):
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / kind], check=True)
    config = lab.config(
        python="python",
        setup=[f"case $(hostname) in m1) . {tmp_path}/m1/bin/activate;; *) . {tmp_path}/m2/bin/activate;; esac"],
    )
    show = ["python", "-c", "import sys; print(sys.prefix, flush=True); sys.stdin.read()"]
    with Ssh(config).allocate(Resources(devices=2)) as allocation, closing(allocation.start(show)) as channel:
        received = filter(None, (channel.receive(PATIENCE_S) for _ in range(20)))  # None: a part of a line has come
        assert sorted(islice(received, 2)) == [(host, f"{tmp_path}/{kind}".encode()) for host, kind in enumerate(("m1", "m2"))]
