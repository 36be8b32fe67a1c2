"""Tests of agents and tasks in containers: bubblewrap on the host's own files, and Charliecloud in an image."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_dtfperf.clusters import named
from pytest_dtfperf.errors import AllocationError, ClusterFileError
from pytest_dtfperf.node.container import ContainerError, make_command, read_digest
from tests.launch.image import make_image
from tests.launch.stage import CONFIG, start_stage

BUBBLEWRAP = "bwrap --dev-bind / / --die-with-parent"
NAMESPACES = "bwrap --dev-bind / / --proc /proc --unshare-pid --unshare-ipc --die-with-parent --"
ENGINE = """#!/bin/sh
# Answers as Docker and Podman do.
if [ "$1 $2" = "image inspect" ]; then
    [ "$5" = "site/tf:2" ] && echo sha256:0123 && exit 0
    echo "Error: No such image: $5" >&2
    exit 1
fi
exit 1
"""


def make_config(container: str, start: str = "warm") -> named.ClusterConfig:
    return replace(CONFIG, container=container, container_python=sys.executable, start=start)


@pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed: apt-get install bubblewrap")
@pytest.mark.parametrize("container", [f"{BUBBLEWRAP} --", NAMESPACES], ids=["the host's namespaces", "process ids of its own"])
@pytest.mark.parametrize("start", ["warm", "cold"])
def test_bubblewrap_trains_and_ends(container: str, start: str, tmp_path: Path) -> None:
    """Tasks train twice in a container, also with its own process ids, and no process of it is left."""
    with start_stage(tmp_path, make_config(container, start=start)) as stage:
        assert stage.run(num_ps=1).images_per_sec > 0
        assert stage.run(num_ps=1).images_per_sec > 0
    marked = subprocess.run(["pgrep", "-f", f"^bwrap.*{tmp_path}"], capture_output=True, check=False)
    assert marked.stdout == b""


@pytest.mark.skipif(not shutil.which("ch-run"), reason="Charliecloud is not installed: apt-get install charliecloud")
def test_image_digest_is_in_the_fingerprint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks train in an image, with its digest in the fingerprint, and another file in it changes the digest."""
    monkeypatch.setenv("USER", "root")
    config = make_config(make_image(tmp_path / "image"))
    digests = []
    for name in ("first", "second"):
        (tmp_path / "image" / "var" / name).touch()
        with start_stage(tmp_path / name, config) as stage:
            assert stage.run(num_ps=1).images_per_sec > 0
            digests.append(str(stage.launcher.fingerprint.software["container"]))
    assert digests[0].startswith("folder sha256:")
    assert digests[0] != digests[1]


@pytest.mark.parametrize(
    ("container", "line"),
    [
        ("no-such-runner exec image.sif", "container: this host has no program no-such-runner: install it"),
        ("env exec /no/such/image.sif", "container: this host has no image /no/such/image.sif"),
    ],
    ids=["no runner", "no image"],
)
def test_missing_runner_or_image_is_one_line(container: str, line: str, tmp_path: Path) -> None:
    """Without the runner or the image the agent does not start, and the reason is one line."""
    with pytest.raises(AllocationError, match=line), start_stage(tmp_path, make_config(container)):
        pass


def test_engine_gets_the_names_of_our_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Apptainer's command is the text itself, and an engine gets the names of variables to pass. A missing image is refused."""
    monkeypatch.chdir(tmp_path)
    Path("tf.sif").write_bytes(b"image")
    for name in ("apptainer", "podman"):
        Path(name).write_text(ENGINE)
        Path(name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    passed = {"DTFPERF_SESSION": "s", "PYTHONPATH": "/p", "XDG_CACHE_HOME": "/c"}
    environment: Mapping[str, str] = {**passed, "SECRET": "x", "DTFPERF_HISTORY": "postgresql://me:secret@host/perf"}
    sha256 = "6105d6cc76af400325e94d588ce511be5bfdbb73b437dc51eca43917d7a43e3d"
    assert make_command("apptainer exec --nv tf.sif", ["python3", "-m", "a"], environment) == [
        f"{tmp_path}/apptainer", "exec", "--nv", "tf.sif", "python3", "-m", "a", "--container", f"tf.sif sha256:{sha256}",
    ]  # fmt: skip
    assert make_command("podman run --rm -i site/tf:2", ["python3"], environment) == [
        f"{tmp_path}/podman", "run", "--env", "DTFPERF_SESSION", "--env", "PYTHONPATH", "--env", "XDG_CACHE_HOME",
        "--rm", "-i", "site/tf:2", "python3", "--container", "site/tf:2 sha256:0123",
    ]  # fmt: skip
    with pytest.raises(ContainerError, match="podman has no image site/tf:3: Error: No such image: site/tf:3"):
        make_command("podman run site/tf:3", ["python3"], environment)


def test_digest_is_kept_until_the_image_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The digest of an image file is kept until the file changes, and other arguments have none."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    image = tmp_path / "tf.sif"
    image.write_bytes(b"one")
    first = read_digest(str(image))
    (kept,) = (tmp_path / "cache" / "dtfperf" / "images").iterdir()
    kept.write_text(json.dumps({**json.loads(kept.read_text()), "sha256": "remembered"}))
    assert read_digest(str(image)) == "tf.sif sha256:remembered"
    image.write_bytes(b"another")
    assert read_digest(str(image)) not in (first, "tf.sif sha256:remembered")
    assert read_digest("--nv") is None
    assert read_digest("/") is None


@pytest.mark.parametrize("text", ["", "apptainer", "apptainer exec 'image"])
def test_invalid_container_is_refused(text: str, tmp_path: Path) -> None:
    """A text that is no command line of a program and an argument is refused."""
    file = tmp_path / "clusters.toml"
    file.write_text(f'[c]\nbackend = "local"\ncontainer = "{text}"\n')
    with pytest.raises(ClusterFileError, match="container must be a command line of a program and at least one argument"):
        named.load(file)
