"""Fetching files to a host: whole, verified, once, and gone on with after whatever came between."""

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
from tests.staging.on_host.file_server import SECRET, Answer, FileServer, file_server

CONTENT = random.Random(7).randbytes(300_000)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setenv("no_proxy", "*")
    with file_server() as server:
        yield server


def _file(server: FileServer, path: str, content: bytes = CONTENT, **but: Any) -> dict[str, Any]:
    """Return the controller's description of a file that the server has."""
    server.files[path] = content
    checksum = f"sha256:{hashlib.sha256(content).hexdigest()}"
    return {"path": path, "size": len(content), "checksum": checksum, "etag": '"e"', "url": server.url_of(path)} | but


def _fetched(folder: Path, *files: Mapping[str, Any], parallel: int = 4) -> FetchJob:
    job = FetchJob(str(folder), files, parallel=parallel)
    job.run()
    return job


def _below(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "set"


def test_brings_all_files(server: FileServer, folder: Path) -> None:
    """Files in folders, an empty one and more than are fetched at a time arrive as they are, and nothing else is left."""
    contents = {f"part-{i}/file": CONTENT[i : 20_000 * i] for i in range(9)} | {"empty": b""}
    job = _fetched(folder, *(_file(server, path, content) for path, content in contents.items()))

    assert _below(folder) == contents
    assert (job.fetched, job.there, job.bytes) == (10, sum(map(len, contents.values())), job.there)
    assert sorted(path.name for path in folder.parent.iterdir()) == ["set", "set.lock"]


def test_what_is_there_is_not_asked_for(server: FileServer, folder: Path) -> None:
    """A second job fetches only what is missing."""
    files = [_file(server, "one"), _file(server, "two", b"2")]
    _fetched(folder, *files)
    (folder / "two").unlink()
    server.requests.clear()

    assert _fetched(folder, *files).fetched == 1
    assert [request.path for request in server.requests] == ["two"]
    assert _fetched(folder, *files).fetched == 0
    assert len(server.requests) == 1


def test_a_truncated_answer_is_gone_on_with(server: FileServer, folder: Path) -> None:
    """Where a connection ends early, the next request asks for the rest alone."""
    server.answers["file"] = [Answer(at_most=100_000), Answer(at_most=50_000)]
    _fetched(folder, _file(server, "file"))

    assert _below(folder) == {"file": CONTENT}
    assert [request.begins_at for request in server.asked_for("file")] == [0, 100_000, 150_000]
    assert all(request.headers["If-Match"] == '"e"' for request in server.requests)


def test_a_server_without_ranges_is_asked_from_the_start(server: FileServer, folder: Path) -> None:
    """An answer that begins at the beginning although the rest was asked for is taken for what it is."""
    server.answers["file"] = [Answer(at_most=100_000), Answer(knows_ranges=False)]
    job = _fetched(folder, _file(server, "file"))

    assert _below(folder) == {"file": CONTENT}
    assert job.there == len(CONTENT)


def test_passing_errors_are_waited_for(server: FileServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is asked too much, or has a bad moment, is asked again."""
    monkeypatch.setattr(on_host, "_LONGEST_PAUSE_S", 0.0)
    server.answers["file"] = [Answer(status) for status in (503, 500, 429)]
    _fetched(folder, _file(server, "file"))

    assert _below(folder) == {"file": CONTENT}


def test_errors_that_stay_are_told(server: FileServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After some tries without a byte it is given up, and the message names the file and the error but never the URL."""
    monkeypatch.setattr(on_host, "_LONGEST_PAUSE_S", 0.0)
    server.answers["file"] = [Answer(503, b"<Error><Code>SlowDown</Code><Message>Reduce.</Message></Error>")] * TRIES
    with pytest.raises(FetchError) as told:
        _fetched(folder, _file(server, "file"))

    assert str(told.value) == f"file: HTTP 503: SlowDown: Reduce., {TRIES} times in a row"
    assert SECRET not in str(told.value)


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
def test_errors_that_no_waiting_helps(server: FileServer, folder: Path, status: int, body: bytes, words: str) -> None:
    """What stays wrong is asked once, quoted from S3, and the other files stay for the next time."""
    server.answers["bad"] = [Answer(status, body)]
    with pytest.raises(FetchError, match=words) as told:
        _fetched(folder, _file(server, "good"), _file(server, "bad"), parallel=1)

    assert str(told.value) == f"bad: {words}"
    assert len(server.asked_for("bad")) == 1
    assert _below(folder) == {"good": CONTENT}


def test_nobody_listens(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that cannot be reached is reported with the network's own error."""
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(on_host, "_LONGEST_PAUSE_S", 0.0)
    with file_server() as gone:
        file = _file(gone, "file")
    with pytest.raises(FetchError, match="Connection refused") as told:
        _fetched(folder, file)
    assert SECRET not in str(told.value)


def test_a_wrong_checksum_is_fetched_once_more(server: FileServer, folder: Path) -> None:
    """What arrives damaged is thrown away and fetched from the start; it never gets its name."""
    server.answers["file"] = [Answer(changed=lambda content: b"?" + content[1:])]
    job = _fetched(folder, _file(server, "file"))

    assert _below(folder) == {"file": CONTENT}
    assert [request.begins_at for request in server.requests] == [0, 0]
    assert job.there == len(CONTENT)


def test_a_wrong_checksum_is_refused(server: FileServer, folder: Path) -> None:
    """A file that has another content than it should is not there in the end."""
    with pytest.raises(FetchError, match="file has arrived twice with another checksum than S3 has"):
        _fetched(folder, _file(server, "file", checksum="sha256:00"))

    assert _below(folder.parent) == {"set.lock": b""}


def test_a_file_without_a_checksum_is_known_by_its_size(server: FileServer, folder: Path) -> None:
    """Where S3 knows none, all bytes must have come."""
    server.answers["file"] = [Answer(at_most=10)]
    _fetched(folder, _file(server, "file", checksum=None))

    assert _below(folder) == {"file": CONTENT}


def test_begun_files_are_gone_on_with(server: FileServer, folder: Path) -> None:
    """What a killed process has left of a file is not fetched again; what is too long or damaged is."""
    files = [_file(server, name) for name in ("begun", "damaged", "too-long")]
    left = {"begun": CONTENT[:1000], "damaged": b"?" * 1000, "too-long": CONTENT + b"?"}
    os.makedirs(f"{folder}.parts")
    for path, content in left.items():
        Path(on_host._get_part_path(f"{folder}.parts", path)).write_bytes(content)
    _fetched(folder, *files)

    assert _below(folder) == dict.fromkeys(left, CONTENT)
    begins = {name: [request.begins_at for request in server.asked_for(name)] for name in left}
    assert begins == {"begun": [1000], "damaged": [1000, 0], "too-long": [0]}


@pytest.mark.parametrize("path", ["../out", "/out", "a//b", "a/../../out", "."])
def test_no_path_leads_out(server: FileServer, folder: Path, path: str) -> None:
    """A file's name cannot lead out of the folder."""
    with pytest.raises(FetchError, match="leads out of"):
        _fetched(folder, _file(server, "file") | {"path": path})
    assert server.requests == []


def test_a_full_disk_is_told_before(server: FileServer, folder: Path) -> None:
    """What cannot have room is not begun."""
    size = shutil.disk_usage(folder.parents[1]).total * 2
    with pytest.raises(FetchError, match=r"has room for .* GB, but .* GB are needed.*cache_dir"):
        _fetched(folder, _file(server, "file", size=size))
    assert server.requests == []


def test_a_folder_that_cannot_be_made(server: FileServer, tmp_path: Path) -> None:
    """The disk's own errors are reported with the folder."""
    (tmp_path / "file").touch()
    with pytest.raises(FetchError, match=f"{tmp_path}/file/set: Not a directory"):
        _fetched(tmp_path / "file" / "set", _file(server, "file"))


def test_one_process_at_a_time(server: FileServer, folder: Path) -> None:
    """Of many that want the same at once, one fetches and the others wait and find it."""
    files = [_file(server, f"file-{i}") for i in range(5)]
    jobs = [FetchJob(str(folder), files) for _ in range(4)]
    threads = [threading.Thread(target=job.run) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(job.fetched for job in jobs) == [0, 0, 0, 5]
    assert len(server.requests) == 5


class Hand:
    """A fetching process in the hand of a test."""

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

    def next(self, *wanted: str) -> dict[str, Any]:
        """The next event of these."""
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

    def words(self) -> str:
        """All it has said and not been asked for, once it has ended."""
        out, err = self.process.communicate()
        return (out + err).decode()


def test_orders_and_answers(server: FileServer, tmp_path: Path) -> None:
    """It sends hello, fetches into the user's cache, reports the folder, and leaves when its line is closed."""
    with Hand(tmp_path) as hand:
        assert hand.next("hello")["host"] == 3
        hand.fetch(_file(server, "a/b"))
        told = hand.next("staged", "failed")
        folder = tmp_path / "dtfperf" / "data" / "set"
        assert told == {"event": "staged", "host": 3, "folder": str(folder), "fetched": 1, "bytes": len(CONTENT)}
        assert _below(folder) == {"a/b": CONTENT}
        assert hand.process.poll() is None
        assert hand.words() == ""
        assert hand.process.returncode == 0


def test_it_tells_how_far_it_is_and_what_went_wrong(server: FileServer, tmp_path: Path) -> None:
    """While an answer takes its time it reports so every second; a failure's message has no URL, also on stderr."""
    held = threading.Event()
    server.answers["slow"] = [Answer(held_until=held), Answer(404)]
    with Hand(tmp_path) as hand:
        hand.fetch(_file(server, "slow", checksum="sha256:00"))
        progress = hand.next("progress")
        assert {"bytes", "moved", "waiting"} < set(progress)
        held.set()
        told = hand.next("staged", "failed")
        assert (told["event"], told["reason"]) == ("failed", "slow: HTTP 404")
        assert SECRET not in hand.words() + str(told)


@pytest.mark.parametrize("how", ["closed", "silent"])
def test_it_ends_with_its_controller(server: FileServer, tmp_path: Path, how: str) -> None:
    """A closed line ends it in the midst of a file; so does a line that stays silent. It sends nothing more."""
    held = threading.Event()
    server.answers["slow"] = [Answer(held_until=held)]
    with Hand(tmp_path, heartbeat_timeout_s=60.0 if how == "closed" else 3.0) as hand:
        hand.fetch(_file(server, "slow"))

        def asked() -> bool:
            hand.order("ping")
            return bool(server.requests)

        wait_until("it has asked for the file", asked)
        if how == "closed":
            assert hand.process.stdin
            hand.process.stdin.close()
        assert hand.process.wait(60) == 0
    held.set()


def test_killed_it_is_gone_on_with(server: FileServer, tmp_path: Path) -> None:
    """After kill -9 in the midst of a file, another process takes over the lock and asks for the rest."""
    held = threading.Event()
    big = CONTENT * 20
    file = _file(server, "big", big)
    server.answers["big"] = [Answer(at_most=4_000_000), Answer(held_until=held)]
    parts = tmp_path / "dtfperf" / "data" / "set.parts"
    with Hand(tmp_path) as hand:
        hand.fetch(file)
        wait_until("it waits for the rest", lambda: len(server.requests) == 2)
        hand.process.send_signal(signal.SIGKILL)
        hand.process.wait()
    held.set()
    begun = sum(path.stat().st_size for path in parts.iterdir())
    assert begun >= 4_000_000

    with Hand(tmp_path) as hand:
        hand.fetch(file)
        assert hand.next("staged", "failed")["event"] == "staged"
    assert server.requests[-1].begins_at == begun
    assert (tmp_path / "dtfperf" / "data" / "set" / "big").read_bytes() == big
