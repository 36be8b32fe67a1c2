"""Tests of data that is brought from S3 to the hosts before a run."""

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
from tests.launch.stage import TWO_HOSTS, start_stage
from tests.s3 import NAME, S3, amazon, s3

__all__ = ["amazon", "s3"]  # fixtures

URL = f"s3://{NAME}/sets/mnist"
CONTENTS = {"images": b"0123456789" * 10_000, "labels/train": b"abc", "labels/test": b""}


def _fill_bucket(s3: S3) -> None:
    for path, content in CONTENTS.items():
        s3.put(f"sets/mnist/{path}", content, Metadata={"dtfperf-sha256": hashlib.sha256(content).hexdigest()})


def _stage_on_hosts(url: str = URL, config: ClusterConfig = TWO_HOSTS) -> tuple[Path, list[str]]:
    """Stage the data set, and return its folder on the hosts with the status lines."""
    messages: list[str] = []
    with named.open_cluster(config).allocate(Resources(devices=2)) as allocation:
        return Path(staging.stage(url, allocation, config, messages.append)), messages


def _read_files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_hosts_with_a_common_cache_fetch_once(s3: S3) -> None:
    """Hosts with a common cache fetch each file once, and all have the same folder."""
    _fill_bucket(s3)
    folder, messages = _stage_on_hosts()

    assert folder.parent == Path(os.environ["XDG_CACHE_HOME"], "dtfperf", "data")
    assert folder.name.startswith("perf-data-sets-mnist-")
    assert _read_files(folder) == CONTENTS
    assert {path: s3.count_requests("GET", f"sets/mnist/{path}") for path in CONTENTS} == {
        "images": 1,
        "labels/train": 1,
        "labels/test": 0,
    }
    assert messages[0] == f"listing {URL}"


def test_next_session_fetches_nothing(s3: S3) -> None:
    """A later session fetches nothing again, and an added file makes another data set with its own folder."""
    _fill_bucket(s3)
    first, _ = _stage_on_hosts()
    asked = s3.count_requests("GET", "sets/mnist/")
    assert _stage_on_hosts()[0] == first
    assert s3.count_requests("GET", "sets/mnist/") == asked

    s3.put("sets/mnist/more", b"more")
    second, _ = _stage_on_hosts()
    assert second != first
    assert _read_files(second) == CONTENTS | {"more": b"more"}
    assert _read_files(first) == CONTENTS


def test_hosts_with_different_caches_are_refused(s3: S3, tmp_path: Path) -> None:
    """Hosts with caches in different folders each fetch the files, and are refused with the key that helps."""
    _fill_bucket(s3)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexport XDG_CACHE_HOME={tmp_path}/of-$DTFPERF_HOST_INDEX\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    with pytest.raises(DataError, match=f"{URL} is in different folders on the hosts: .*/of-0/.*, .*/of-1/.*cache_dir"):
        _stage_on_hosts(config=dataclasses.replace(TWO_HOSTS, python=str(python)))
    assert s3.count_requests("GET", "sets/mnist/images") == 2


def test_broken_connection_is_repeated(s3: S3) -> None:
    """A connection that breaks during a file is made again, and all files arrive."""
    _fill_bucket(s3)
    fault = s3.cloud.faults.lose_answer(f"GET /{NAME}/sets/mnist/images", times=2)
    folder, _ = _stage_on_hosts()
    assert _read_files(folder) == CONTENTS
    assert len(fault.struck) == 2


def test_wrong_checksum_is_refused(s3: S3) -> None:
    """A file with another checksum is refused by each host, with the reason and without a URL."""
    _fill_bucket(s3)
    s3.put("sets/mnist/images", b"other", Metadata={"dtfperf-sha256": "00"})
    with pytest.raises(DataError) as raised:
        _stage_on_hosts()
    first, *hosts = str(raised.value).splitlines()
    assert first == f"{URL} could not be staged on all hosts:"
    assert [line.strip().partition(": ")[2] for line in hosts] == [
        "images has arrived twice with another checksum than S3 has. Upload it again"
    ] * 2
    assert "X-Amz" not in str(raised.value)


def test_empty_location_is_refused(s3: S3) -> None:
    """An empty location is refused before any host is used, with the command that fills it."""
    with pytest.raises(DataError, match=f"there is nothing below {URL}. Push it with: dtfperf data push FOLDER {URL}"):
        _stage_on_hosts(config=dataclasses.replace(TWO_HOSTS, python="/no/such/python"))


def test_public_bucket_has_a_warning(s3: S3) -> None:
    """Staging from a bucket that anyone can read gives a warning."""
    _fill_bucket(s3)
    s3.client.put_bucket_acl(Bucket=NAME, ACL="public-read")
    assert any(words.startswith(f"warning: the bucket {NAME} is public") for words in _stage_on_hosts()[1])


def test_arguments_and_environment_have_no_url(s3: S3, tmp_path: Path) -> None:
    """Neither the arguments nor the environment of a host's program have a URL."""
    _fill_bucket(s3)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/argv-$DTFPERF_HOST_INDEX; env > {tmp_path}/env-$DTFPERF_HOST_INDEX\n'
                      f'exec {sys.executable} "$@"\n')  # fmt: skip
    python.chmod(0o755)
    _stage_on_hosts(config=dataclasses.replace(TWO_HOSTS, python=str(python)))
    seen = "".join((tmp_path / f"{what}-{host}").read_text() for what in ("argv", "env") for host in (0, 1))
    assert "pytest_dtfperf.staging.on_host" in seen
    assert "X-Amz" not in seen


def test_host_that_cannot_start_is_lost(s3: S3, tmp_path: Path) -> None:
    """A host with a failing Python is lost, with its last output."""
    _fill_bucket(s3)
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no such module >&2; exit 3\n")
    python.chmod(0o755)
    with pytest.raises(HostLost, match=r"was lost while it fetched .*: the agent left with exit code 3\n    \| no such module"):
        _stage_on_hosts(config=dataclasses.replace(TWO_HOSTS, python=str(python)))


class SilentHost:
    """Stand in for a host that sends nothing."""

    hosts = (Host("deaf", "127.0.0.1"),)

    def __init__(self) -> None:
        self.closed = False

    def start(self, argv: object) -> Channel:
        return self

    def send(self, line: bytes) -> None:
        pass

    def receive(self, timeout_s: float) -> tuple[int, bytes | Lost] | None:
        return None

    def explain_silence(self, host: int) -> Lost | None:
        return None

    def close(self) -> None:
        self.closed = True


def test_silent_host_is_lost(s3: S3) -> None:
    """A host that sends nothing within the time limit is lost, with its name, and its channel is closed."""
    _fill_bucket(s3)
    deaf = SilentHost()
    config = ClusterConfig(name="deaf", limits=Limits(hello_s=0.2))
    with pytest.raises(HostLost, match=r"deaf: no more data of s3://.* have arrived for a long time"):
        staging.stage(URL, deaf, config, lambda words: None)
    assert deaf.closed


def test_run_reads_staged_files(s3: S3, tmp_path: Path) -> None:
    """A training on s3:// finds its files on the hosts, two trainings fetch them once, and one on a folder fetches nothing."""
    s3.put("scripts/worker-0.json", b'{"say": "hello"}')
    url = f"s3://{NAME}/scripts"
    with start_stage(tmp_path / "stage", TWO_HOSTS) as stage:
        stage.run(steps=1)
        assert s3.count_requests("GET", "scripts/") == 0
        for _ in range(2):
            assert stage.run(steps=2, data_dir=url).step_s.keys() == {"worker:0", "worker:1"}
    assert s3.count_requests("GET", "scripts/worker-0.json") == 1
    (folder,) = Path(os.environ["XDG_CACHE_HOME"], "dtfperf", "data").glob("*/")
    assert {path.name for path in folder.iterdir()} >= {"worker-0.json", "worker-0.pid", "ps-0.pid"}  # so all tasks got it


def test_failed_staging_is_not_repeated(s3: S3, tmp_path: Path) -> None:
    """Later runs on the same data fail with the first error and without a request to S3, and runs on other data succeed."""
    with start_stage(tmp_path / "stage", TWO_HOSTS) as stage:
        with pytest.raises(DataError) as first:
            stage.run(data_dir=URL)
        asked = len(s3.cloud.calls)
        with pytest.raises(DataError) as second:
            stage.run(data_dir=URL)
        assert str(second.value) == str(first.value)
        assert len(s3.cloud.calls) == asked
        assert stage.run(steps=1).step_s


def test_missing_boto3_names_the_extra() -> None:
    """Without boto3 the launcher can be imported, and staging fails with the extra that brings it."""
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
def test_folder_name_is_safe_and_unique(name: str) -> None:
    """The name of a data set's folder begins with the bucket, is short and safe, and differs with any property of a file."""
    file = {"path": "a", "size": 1, "etag": "e"}
    names = [staging.make_folder_name(name, files) for files in ([file], [file, file], *([file | {key: "x"}] for key in file))]
    assert len(set(names)) == len(names)
    for each in names:
        assert each.startswith("bucket-")
        assert len(each) <= 81
        assert "/" not in each
        assert each.replace("-", "").replace(".", "").isalnum()
