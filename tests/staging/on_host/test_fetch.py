"""Tests of fetching files to a host: complete, verified, once, and continued after an interruption."""

import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from pytest_dtfperf.node import wire
from pytest_dtfperf.staging import on_host
from pytest_dtfperf.staging.on_host import TRIES, FetchError, FetchJob
from pytest_dtfperf.testing.backends import wait_until
from tests.staging.on_host.file_server import SECRET, Answer, FileServer, serve_files

CONTENT = random.Random(7).randbytes(300_000)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setenv("no_proxy", "*")
    with serve_files() as server:
        yield server


def _make_file(server: FileServer, path: str, content: bytes = CONTENT, **but: Any) -> dict[str, Any]:
    """Return the controller's description of a file that the server has."""
    server.files[path] = content
    checksum = f"sha256:{hashlib.sha256(content).hexdigest()}"
    return {"path": path, "size": len(content), "checksum": checksum, "etag": '"e"', "url": server.url_of(path)} | but


def _fetch_files(folder: Path, *files: Mapping[str, Any], parallel: int = 4) -> FetchJob:
    job = FetchJob(str(folder), files, parallel=parallel)
    job.run()
    return job


def _read_files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "set"


def test_all_files_are_fetched(server: FileServer, folder: Path) -> None:
    """Files in folders, an empty file, and more files than are fetched at a time arrive unchanged, and nothing else is left."""
    contents = {f"part-{i}/file": CONTENT[i : 20_000 * i] for i in range(9)} | {"empty": b""}
    job = _fetch_files(folder, *(_make_file(server, path, content) for path, content in contents.items()))

    assert _read_files(folder) == contents
    assert (job.fetched, job.there, job.bytes) == (10, sum(map(len, contents.values())), job.there)
    assert sorted(path.name for path in folder.parent.iterdir()) == ["set", "set.lock"]


def test_existing_files_are_not_fetched_again(server: FileServer, folder: Path) -> None:
    """A second job fetches only missing files."""
    files = [_make_file(server, "one"), _make_file(server, "two", b"2")]
    _fetch_files(folder, *files)
    (folder / "two").unlink()
    server.requests.clear()

    assert _fetch_files(folder, *files).fetched == 1
    assert [request.path for request in server.requests] == ["two"]
    assert _fetch_files(folder, *files).fetched == 0
    assert len(server.requests) == 1


def test_truncated_answer_is_continued(server: FileServer, folder: Path) -> None:
    """After a connection that ends early, the next request is for the rest."""
    server.answers["file"] = [Answer(at_most=100_000), Answer(at_most=50_000)]
    _fetch_files(folder, _make_file(server, "file"))

    assert _read_files(folder) == {"file": CONTENT}
    assert [request.begins_at for request in server.find_requests("file")] == [0, 100_000, 150_000]
    assert all(request.headers["If-Match"] == '"e"' for request in server.requests)


def test_server_without_ranges_sends_the_whole_file(server: FileServer, folder: Path) -> None:
    """A complete answer to a request for the rest is accepted as the whole file."""
    server.answers["file"] = [Answer(at_most=100_000), Answer(knows_ranges=False)]
    job = _fetch_files(folder, _make_file(server, "file"))

    assert _read_files(folder) == {"file": CONTENT}
    assert job.there == len(CONTENT)


def test_transient_error_is_repeated(server: FileServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that is answered with a transient error is repeated."""
    monkeypatch.setattr(on_host, "_LONGEST_PAUSE_S", 0.0)
    server.answers["file"] = [Answer(status) for status in (503, 500, 429)]
    _fetch_files(folder, _make_file(server, "file"))

    assert _read_files(folder) == {"file": CONTENT}


def test_permanent_error_is_reported(server: FileServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a number of tries without a byte, the error names the file and the answer, and never the URL."""
    monkeypatch.setattr(on_host, "_LONGEST_PAUSE_S", 0.0)
    server.answers["file"] = [Answer(503, b"<Error><Code>SlowDown</Code><Message>Reduce.</Message></Error>")] * TRIES
    with pytest.raises(FetchError) as raised:
        _fetch_files(folder, _make_file(server, "file"))

    assert str(raised.value) == f"file: HTTP 503: SlowDown: Reduce., {TRIES} times in a row"
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (
            403,
            b"<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>",
            "HTTP 403: AccessDenied: Request has expired",
        ),
        (404, b"", "HTTP 404"),
        (412, b"", "it was replaced during the transfer. Start again"),
    ],
    ids=["expired", "gone", "replaced"],
)
def test_final_error_is_not_repeated(server: FileServer, folder: Path, status: int, body: bytes, words: str) -> None:
    """A final error is not repeated, has the message of S3, and other fetched files are kept."""
    server.answers["bad"] = [Answer(status, body)]
    with pytest.raises(FetchError, match=words) as raised:
        _fetch_files(folder, _make_file(server, "good"), _make_file(server, "bad"), parallel=1)

    assert str(raised.value) == f"bad: {words}"
    assert len(server.find_requests("bad")) == 1
    assert _read_files(folder) == {"good": CONTENT}


def test_unreachable_server_is_reported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that cannot be reached is reported with the error of the network, and without the URL."""
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(on_host, "_LONGEST_PAUSE_S", 0.0)
    with serve_files() as gone:
        file = _make_file(gone, "file")
    with pytest.raises(FetchError, match="Connection refused") as raised:
        _fetch_files(folder, file)
    assert SECRET not in str(raised.value)


def test_damaged_file_is_fetched_again(server: FileServer, folder: Path) -> None:
    """A file that arrives damaged is fetched again from its start."""
    server.answers["file"] = [Answer(changed=lambda content: b"?" + content[1:])]
    job = _fetch_files(folder, _make_file(server, "file"))

    assert _read_files(folder) == {"file": CONTENT}
    assert [request.begins_at for request in server.requests] == [0, 0]
    assert job.there == len(CONTENT)


def test_file_with_a_wrong_checksum_is_refused(server: FileServer, folder: Path) -> None:
    """A file that arrives twice with another checksum is refused, and not left."""
    with pytest.raises(FetchError, match="file has arrived twice with another checksum than S3 has"):
        _fetch_files(folder, _make_file(server, "file", checksum="sha256:00"))

    assert _read_files(folder.parent) == {"set.lock": b""}


def test_file_without_a_checksum_is_complete(server: FileServer, folder: Path) -> None:
    """A file without a checksum is fetched until it has all of its bytes."""
    server.answers["file"] = [Answer(at_most=10)]
    _fetch_files(folder, _make_file(server, "file", checksum=None))

    assert _read_files(folder) == {"file": CONTENT}


def test_partial_files_are_continued(server: FileServer, folder: Path) -> None:
    """A partial file of a killed process is continued, and one that is too long or damaged is fetched again."""
    files = [_make_file(server, name) for name in ("begun", "damaged", "too-long")]
    left = {"begun": CONTENT[:1000], "damaged": b"?" * 1000, "too-long": CONTENT + b"?"}
    os.makedirs(f"{folder}.parts")
    for path, content in left.items():
        Path(on_host._get_part_path(f"{folder}.parts", path)).write_bytes(content)
    _fetch_files(folder, *files)

    assert _read_files(folder) == dict.fromkeys(left, CONTENT)
    begins = {name: [request.begins_at for request in server.find_requests(name)] for name in left}
    assert begins == {"begun": [1000], "damaged": [1000, 0], "too-long": [0]}


@pytest.mark.parametrize("path", ["../out", "/out", "a//b", "a/../../out", "."])
def test_path_outside_of_the_folder_is_refused(server: FileServer, folder: Path, path: str) -> None:
    """A path that leads out of the folder is refused without a request."""
    with pytest.raises(FetchError, match="leads out of"):
        _fetch_files(folder, _make_file(server, "file") | {"path": path})
    assert server.requests == []


def test_too_small_disk_is_refused(server: FileServer, folder: Path) -> None:
    """Files larger than the disk are refused without a request, with the key that helps."""
    size = shutil.disk_usage(folder.parents[1]).total * 2
    with pytest.raises(FetchError, match=r"has room for .* GB, but .* GB are needed.*cache_dir"):
        _fetch_files(folder, _make_file(server, "file", size=size))
    assert server.requests == []


def test_unwritable_folder_is_named(server: FileServer, tmp_path: Path) -> None:
    """An error of the disk is reported with the folder."""
    (tmp_path / "file").touch()
    with pytest.raises(FetchError, match=f"{tmp_path}/file/set: Not a directory"):
        _fetch_files(tmp_path / "file" / "set", _make_file(server, "file"))


def test_one_of_several_jobs_fetches(server: FileServer, folder: Path) -> None:
    """One of several jobs for the same files fetches them, and the others find them."""
    files = [_make_file(server, f"file-{i}") for i in range(5)]
    jobs = [FetchJob(str(folder), files) for _ in range(4)]
    threads = [threading.Thread(target=job.run) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(job.fetched for job in jobs) == [0, 0, 0, 5]
    assert len(server.requests) == 5


class FetchProcess:
    """Control a process that fetches files."""

    def __init__(self, cache: Path, heartbeat_timeout_s: float = 60.0) -> None:
        env = {**os.environ, "XDG_CACHE_HOME": str(cache), "DTFPERF_HOST_INDEX": "3"}
        argv = [sys.executable, "-m", "pytest_dtfperf.staging.on_host", "--heartbeat-timeout-s", str(heartbeat_timeout_s)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, env=env, bufsize=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.process.kill()
        self.process.wait()
        for line in (self.process.stdin, self.process.stdout, self.process.stderr):
            if line:
                line.close()

    def order(self, order: str, **data: Any) -> None:
        assert self.process.stdin
        self.process.stdin.write(wire.encode({"order": order, **data}) + b"\n")

    def next_event(self, *wanted: str) -> dict[str, Any]:
        """Return the next event of these kinds."""
        assert self.process.stdout
        while line := self.process.stdout.readline():
            event = wire.decode(line)
            if event["event"] in wanted:
                return event
        raise AssertionError(f"it ended without {wanted}")

    def fetch(self, *files: Mapping[str, Any]) -> None:
        for file in files:
            self.order("file", file=file)
        self.order("fetch", folder="set", parallel=2)

    def read_output(self) -> str:
        """Return the output that was not read, after the end of the process."""
        out, err = self.process.communicate()
        return (out + err).decode()


def test_process_follows_orders(server: FileServer, tmp_path: Path) -> None:
    """The process sends hello, fetches into the user's cache, reports the folder, and exits when stdin is closed."""
    with FetchProcess(tmp_path) as hand:
        assert hand.next_event("hello")["host"] == 3
        hand.fetch(_make_file(server, "a/b"))
        message = hand.next_event("staged", "failed")
        folder = tmp_path / "dtfperf" / "data" / "set"
        assert message == {"event": "staged", "host": 3, "folder": str(folder), "fetched": 1, "bytes": len(CONTENT)}
        assert _read_files(folder) == {"a/b": CONTENT}
        assert hand.process.poll() is None
        assert hand.read_output() == ""
        assert hand.process.returncode == 0


def test_process_reports_progress_and_failure(server: FileServer, tmp_path: Path) -> None:
    """The process reports its progress during a slow answer, and a failure without the URL."""
    held = threading.Event()
    server.answers["slow"] = [Answer(held_until=held), Answer(404)]
    with FetchProcess(tmp_path) as hand:
        hand.fetch(_make_file(server, "slow", checksum="sha256:00"))
        progress = hand.next_event("progress")
        assert {"bytes", "moved", "waiting"} < set(progress)
        held.set()
        message = hand.next_event("staged", "failed")
        assert (message["event"], message["reason"]) == ("failed", "slow: HTTP 404")
        assert SECRET not in hand.read_output() + str(message)


@pytest.mark.parametrize("how", ["closed", "silent"])
def test_process_ends_with_its_controller(server: FileServer, tmp_path: Path, how: str) -> None:
    """The process exits in the middle of a file when stdin is closed or silent, and reports no staged file."""
    held = threading.Event()
    server.answers["slow"] = [Answer(held_until=held)]
    with FetchProcess(tmp_path, heartbeat_timeout_s=60.0 if how == "closed" else 3.0) as hand:
        hand.fetch(_make_file(server, "slow"))

        def has_requested() -> bool:
            hand.order("ping")
            return bool(server.requests)

        wait_until("it has asked for the file", has_requested)
        if how == "closed":
            assert hand.process.stdin
            hand.process.stdin.close()
        assert hand.process.wait(60) == 0
        assert hand.process.stdout
        assert b"staged" not in hand.process.stdout.read()
    held.set()


def test_killed_process_is_continued(server: FileServer, tmp_path: Path) -> None:
    """After kill -9 in the middle of a file, another process fetches the rest."""
    held = threading.Event()
    big = CONTENT * 20
    file = _make_file(server, "big", big)
    server.answers["big"] = [Answer(at_most=4_000_000), Answer(held_until=held)]
    parts = tmp_path / "dtfperf" / "data" / "set.parts"
    with FetchProcess(tmp_path) as hand:
        hand.fetch(file)
        wait_until("it waits for the rest", lambda: len(server.requests) == 2)
        hand.process.send_signal(signal.SIGKILL)
        hand.process.wait()
    held.set()
    begun = sum(path.stat().st_size for path in parts.iterdir())
    assert begun >= 4_000_000

    with FetchProcess(tmp_path) as hand:
        hand.fetch(file)
        assert hand.next_event("staged", "failed")["event"] == "staged"
    assert server.requests[-1].begins_at == begun
    assert (tmp_path / "dtfperf" / "data" / "set" / "big").read_bytes() == big
