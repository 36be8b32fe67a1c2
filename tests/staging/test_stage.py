"""Data brought from S3 to the hosts before a run reads them."""

import dataclasses
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_dtfperf.clusters import named
from pytest_dtfperf.clusters.named import ClusterConfig, Limits
from pytest_dtfperf.clusters.protocol import Channel, Host, Lost, Resources
from pytest_dtfperf.errors import DataError, HostLost
from pytest_dtfperf.staging import stage as staging
from tests.launch.stage import TWO_HOSTS, staged
from tests.s3 import NAME, S3, amazon, s3

__all__ = ["amazon", "s3"]  # fixtures

URL = f"s3://{NAME}/sets/mnist"
CONTENTS = {"images": b"0123456789" * 10_000, "labels/train": b"abc", "labels/test": b""}


def _fill(s3: S3) -> None:
    for path, content in CONTENTS.items():
        s3.put(f"sets/mnist/{path}", content, Metadata={"dtfperf-sha256": hashlib.sha256(content).hexdigest()})


def _stage(url: str = URL, config: ClusterConfig = TWO_HOSTS) -> tuple[Path, list[str]]:
    """The folder on the hosts, and the status lines until then."""
    told: list[str] = []
    with named.open_cluster(config).allocate(Resources(devices=2)) as allocation:
        return Path(staging.stage(url, allocation, config, told.append)), told


def _below(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_two_hosts_of_one_cache_fetch_once(s3: S3) -> None:
    """Hosts with a common cache bring each file there once, and all get the same folder in it."""
    _fill(s3)
    folder, told = _stage()

    assert folder.parent == Path(os.environ["XDG_CACHE_HOME"], "dtfperf", "data")
    assert folder.name.startswith("perf-data-sets-mnist-")
    assert _below(folder) == CONTENTS
    assert {path: s3.asked("GET", f"sets/mnist/{path}") for path in CONTENTS} == {
        "images": 1,
        "labels/train": 1,
        "labels/test": 0,
    }
    assert told[0] == f"listing {URL}"


def test_the_next_session_fetches_nothing(s3: S3) -> None:
    """What an earlier session has brought is there; a file that is added makes another set, in a folder of its own."""
    _fill(s3)
    first, _ = _stage()
    asked = s3.asked("GET", "sets/mnist/")
    assert _stage()[0] == first
    assert s3.asked("GET", "sets/mnist/") == asked

    s3.put("sets/mnist/more", b"more")
    second, _ = _stage()
    assert second != first
    assert _below(second) == CONTENTS | {"more": b"more"}
    assert _below(first) == CONTENTS


def test_every_host_with_a_cache_of_its_own_fetches(s3: S3, tmp_path: Path) -> None:
    """A host with a cache elsewhere than the others' cannot share one folder: that is reported, with what helps."""
    _fill(s3)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexport XDG_CACHE_HOME={tmp_path}/of-$DTFPERF_HOST_INDEX\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    with pytest.raises(DataError, match=f"{URL} is in different folders on the hosts: .*/of-0/.*, .*/of-1/.*cache_dir"):
        _stage(config=dataclasses.replace(TWO_HOSTS, python=str(python)))
    assert s3.asked("GET", "sets/mnist/images") == 2


def test_a_lost_answer_is_gone_on_with(s3: S3) -> None:
    """A connection that breaks on the way to a host is made again."""
    _fill(s3)
    fault = s3.cloud.faults.lose_answer(f"GET /{NAME}/sets/mnist/images", times=2)
    folder, _ = _stage()
    assert _below(folder) == CONTENTS
    assert len(fault.struck) == 2


def test_a_wrong_checksum_is_refused(s3: S3) -> None:
    """A file that is not what was uploaded is refused by the hosts, each named with the reason, and no URL."""
    _fill(s3)
    s3.put("sets/mnist/images", b"other", Metadata={"dtfperf-sha256": "00"})
    with pytest.raises(DataError) as told:
        _stage()
    first, *hosts = str(told.value).splitlines()
    assert first == f"{URL} could not be staged on all hosts:"
    assert [line.strip().partition(": ")[2] for line in hosts] == [
        "images has arrived twice with another checksum than S3 has. Upload it again"
    ] * 2
    assert "X-Amz" not in str(told.value)


def test_nothing_there(s3: S3) -> None:
    """An empty place is reported before any host is used, with the command that fills it."""
    with pytest.raises(DataError, match=f"there is nothing below {URL}. Push it with: dtfperf data push FOLDER {URL}"):
        _stage()


def test_a_public_bucket_is_warned_of(s3: S3) -> None:
    """Training on a bucket that everybody can read gives a warning."""
    _fill(s3)
    s3.client.put_bucket_acl(Bucket=NAME, ACL="public-read")
    assert any(words.startswith(f"warning: the bucket {NAME} is public") for words in _stage()[1])


def test_no_secret_reaches_a_host_but_by_its_line(s3: S3, tmp_path: Path) -> None:
    """Neither a host's arguments nor its environment hold a URL."""
    _fill(s3)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/argv-$DTFPERF_HOST_INDEX; env > {tmp_path}/env-$DTFPERF_HOST_INDEX\n'
                      f'exec {sys.executable} "$@"\n')  # fmt: skip
    python.chmod(0o755)
    _stage(config=dataclasses.replace(TWO_HOSTS, python=str(python)))
    seen = "".join((tmp_path / f"{what}-{host}").read_text() for what in ("argv", "env") for host in (0, 1))
    assert "pytest_dtfperf.staging.on_host" in seen
    assert "X-Amz" not in seen


def test_a_host_that_cannot_start_is_lost(s3: S3, tmp_path: Path) -> None:
    """A host with a Python that fails is named with its last output."""
    _fill(s3)
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no such module >&2; exit 3\n")
    python.chmod(0o755)
    with pytest.raises(HostLost, match=r"was lost while it fetched .*: the agent left with exit code 3\n    \| no such module"):
        _stage(config=dataclasses.replace(TWO_HOSTS, python=str(python)))


class Deaf:
    """A host that sends nothing."""

    hosts = (Host("deaf", "127.0.0.1"),)

    def __init__(self) -> None:
        self.closed = False

    def start(self, argv: object) -> Channel:
        return self

    def send(self, line: bytes) -> None:
        pass

    def receive(self, timeout_s: float) -> tuple[int, bytes | Lost] | None:
        return None

    def why_silent(self, host: int) -> Lost | None:
        return None

    def close(self) -> None:
        self.closed = True


def test_a_silent_host_is_not_waited_for(s3: S3) -> None:
    """A host that sends nothing for as long as it may is given up by name, and its line is closed."""
    _fill(s3)
    deaf = Deaf()
    config = ClusterConfig(name="deaf", limits=Limits(hello_s=0.2))
    with pytest.raises(HostLost, match=r"deaf: no more data of s3://.* have arrived for a long time"):
        staging.stage(URL, deaf, config, lambda words: None)
    assert deaf.closed


def test_a_run_reads_what_was_brought(s3: S3, tmp_path: Path) -> None:
    """A training on s3:// finds its files on the hosts; two trainings bring them once; one on a folder brings nothing."""
    s3.put("scripts/worker-0.json", b'{"say": "hello"}')
    url = f"s3://{NAME}/scripts"
    with staged(tmp_path / "stage", TWO_HOSTS) as stage:
        stage.run(steps=1)
        assert s3.asked("GET", "scripts/") == 0
        for _ in range(2):
            assert stage.run(steps=2, data_dir=url).step_s.keys() == {"worker:0", "worker:1"}
    assert s3.asked("GET", "scripts/worker-0.json") == 1
    (folder,) = Path(os.environ["XDG_CACHE_HOME"], "dtfperf", "data").glob("*/")
    assert {path.name for path in folder.iterdir()} >= {"worker-0.json", "worker-0.pid", "ps-0.pid"}  # so they were told it


def test_what_cannot_be_brought_is_asked_once(s3: S3, tmp_path: Path) -> None:
    """Every later run on the same data fails with the first one's error, without asking again; others go on."""
    with staged(tmp_path / "stage", TWO_HOSTS) as stage:
        with pytest.raises(DataError) as first:
            stage.run(data_dir=URL)
        asked = len(s3.cloud.calls)
        with pytest.raises(DataError) as second:
            stage.run(data_dir=URL)
        assert str(second.value) == str(first.value)
        assert len(s3.cloud.calls) == asked
        assert stage.run(steps=1).step_s


def test_without_boto3() -> None:
    """Where boto3 is not installed, the extra that brings it is named; where no data lie in S3, it is not missed."""
    code = (
        "import sys; sys.modules['boto3'] = None\n"
        "from pytest_dtfperf.launch import launcher\nfrom pytest_dtfperf.staging import stage\n"
        f"stage.stage('{URL}', None, None, print)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.stderr.splitlines()[-1] == (
        f'pytest_dtfperf.errors.DataError: {URL} needs boto3, which is not installed: pip install "pytest-dtfperf[ec2]"'
    )


@pytest.mark.parametrize("name", ["s3://bucket/a/b", "s3://bucket/" + "x" * 300, "s3://bucket/ü/../$(x) y"])
def test_folder_names(name: str) -> None:
    """A data set's folder is named readably and safely, and by its content: any file that differs makes another name."""
    file = {"path": "a", "size": 1, "etag": "e"}
    names = [staging.make_folder_name(name, files) for files in ([file], [file, file], *([file | {key: "x"}] for key in file))]
    assert len(set(names)) == len(names)
    for each in names:
        assert each.startswith("bucket-")
        assert len(each) <= 81
        assert "/" not in each
        assert each.replace("-", "").replace(".", "").isalnum()
