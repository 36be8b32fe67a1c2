"""Data sets from S3 on every host of an allocation, brought there before the first run that reads them.

Each host fetches for itself, all at once, with URLs that are good for some hours: no credentials leave this machine. Where
hosts share a file system, one fetches and the others wait. What a host has from an earlier session is not fetched again.
"""

import hashlib
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from pytest_dtfperf.clusters.named import ClusterConfig, python
from pytest_dtfperf.clusters.protocol import Allocation, Channel, Lost
from pytest_dtfperf.errors import AllocationError, DataError, HostLost
from pytest_dtfperf.formats import format_count, printable
from pytest_dtfperf.messages.received import MessageError, MessageReceiver, given_up, with_last_lines
from pytest_dtfperf.messages.tables import FETCH
from pytest_dtfperf.node import wire
from pytest_dtfperf.node.module_command import module_command
from pytest_dtfperf.spec import Spec

S3 = "s3://"
PARALLEL = 8  # files at a time on each host
PING_S = 1.0
STATUS_S = 1.0  # how often the progress is shown
_SETTLE_S = 2.0  # where one host fails, others often do for the same reason

OnStatus = Callable[[str], object]


class Staging:
    """What an allocation's hosts have been brought, each place once; and what could not be, so as to ask but once."""

    def __init__(self, allocation: Allocation, config: ClusterConfig, on_status: OnStatus) -> None:
        self._allocation = allocation
        self._config = config
        self._on_status = on_status
        self._folders: dict[str, str] = {}
        self._refused: dict[str, DataError] = {}

    def is_needed(self, spec: Spec) -> bool:
        """Return whether hosts must be brought something before this can be trained."""
        return is_remote(spec) and spec.data_dir not in self._folders and spec.data_dir not in self._refused

    def on_hosts(self, spec: Spec) -> Spec:
        """Return the same training, reading from the hosts' own folder. Raises `DataError`, `HostLost`, `AllocationError`."""
        if not is_remote(spec):
            return spec
        url = str(spec.data_dir)
        if url in self._refused:
            raise DataError(str(self._refused[url]))
        if url not in self._folders:
            try:
                self._folders[url] = stage(url, self._allocation, self._config, self._on_status)
            except DataError as refusal:
                self._refused[url] = refusal
                raise
        return spec.but(data_dir=self._folders[url])


def is_remote(spec: Spec) -> bool:
    return spec.data_dir is not None and spec.data_dir.startswith(S3)


def stage(url: str, allocation: Allocation, config: ClusterConfig, on_status: OnStatus) -> str:
    """Bring what is below `url` to all hosts; gives the folder there, which is the same on each.

    Raises `DataError` where that cannot be, `HostLost`, `AllocationError`.
    """
    on_status(f"looking at {url}")
    files = _sign_urls(url, on_status)
    channel = allocation.start(
        module_command(
            python(config), "pytest_dtfperf.staging.on_host.fetch", "--heartbeat-timeout-s", str(config.heartbeat_timeout_s)
        )
    )
    try:
        with _kept_alive(channel):
            names = [host.name for host in allocation.hosts]
            return _Fetching(url, files, channel, names, config, on_status).carry_out()
    finally:
        channel.close()


def _sign_urls(url: str, on_status: OnStatus) -> list[dict[str, Any]]:
    """Return all files, each with all that a host needs to fetch it."""
    try:
        from pytest_dtfperf.staging.bucket import Bucket
    except ModuleNotFoundError as exc:
        raise DataError(f'{url} needs {exc.name}, which is not installed: pip install "pytest-dtfperf[ec2]"') from exc
    bucket = Bucket.open(url)
    for warning in bucket.warnings:
        on_status(f"warning: {warning}")
    found = bucket.files()
    if not found:
        raise DataError(f"there is nothing below {url}. Push it with: dtfperf data push FOLDER {url}")
    return [
        {"path": file.path, "size": file.size, "etag": file.etag, "checksum": checksum, "url": bucket.url(file)}
        for file, checksum in zip(found, bucket.checksums(found), strict=True)
    ]


def folder_name(url: str, files: Iterable[Mapping[str, Any]]) -> str:
    """Return the name of a data set on the hosts: another one after any change of a file, for no folder ever changes."""
    listed = sorted((file["path"], file["size"], file["etag"]) for file in files)
    digest = hashlib.sha256(json.dumps([url, listed]).encode()).hexdigest()[:16]
    return f"{re.sub(r'[^A-Za-z0-9.-]+', '-', url.removeprefix(S3)).strip('-.')[:64]}-{digest}"


class _Fetching:
    """The conversation with the hosts."""

    def __init__(
        self,
        url: str,
        files: Sequence[Mapping[str, Any]],
        channel: Channel,
        names: Sequence[str],
        config: ClusterConfig,
        on_status: OnStatus,
    ) -> None:
        self._url = url
        self._files = files
        self._channel = channel
        self._names = names
        self._limits = config.limits
        self._on_status = on_status
        self._receiver = MessageReceiver(FETCH, len(names))
        self._bytes: dict[int, int] = {}
        self._moved: dict[int, int] = {}
        self._folders: dict[int, str] = {}
        self._failed: dict[int, str] = {}
        self._due = dict.fromkeys(range(len(names)), time.monotonic() + self._limits.hello_s)  # when a host must have moved on
        self._reported_s = 0.0

    def carry_out(self) -> str:
        with suppress(HostLost):  # their last messages have the reason
            for file in self._files:
                self._channel.send(wire.encode({"order": "file", "file": file}))
            folder = folder_name(self._url, self._files)
            self._channel.send(wire.encode({"order": "fetch", "folder": folder, "parallel": PARALLEL}))
        failed_at = None
        while len(self._folders) + len(self._failed) < len(self._names):
            if arrived := self._channel.receive(STATUS_S):
                self._hear(*arrived)
            failed_at = failed_at or (time.monotonic() if self._failed else None)
            if failed_at and time.monotonic() > failed_at + _SETTLE_S:
                break
            self._check_time()
            self._report_progress()
        if self._failed:
            raise DataError(f"{self._url} was not brought to all hosts:" + "".join(map(self._failure, sorted(self._failed))))
        return self._common_folder()

    def _hear(self, host: int, line: bytes | Lost) -> None:
        if host in self._folders or host in self._failed:
            return
        if isinstance(line, Lost):
            what = f"{self._names[host]} was lost while it fetched {self._url}: {printable(line.description)}"
            raise HostLost(with_last_lines(what, self._receiver.last_lines(host)))
        try:
            event = self._receiver.receive(host, line)
        except MessageError as exc:
            raise HostLost(given_up(self._names[host], str(exc))) from exc
        if event is None:
            return
        match event["event"]:
            case "hello":
                self._due[host] = time.monotonic() + self._limits.progress_s
            case "progress":
                if event["waiting"] or self._moved.get(host) != event["moved"]:
                    self._due[host] = time.monotonic() + self._limits.progress_s
                self._bytes[host], self._moved[host] = event["bytes"], event["moved"]
            case "staged":
                self._folders[host] = event["folder"]
                self._bytes[host] = event["bytes"]
            case "failed":
                self._failed[host] = event["reason"]

    def _check_time(self) -> None:
        now = time.monotonic()
        late = [host for host in self._due if now > self._due[host] and host not in self._folders and host not in self._failed]
        if late:
            raise HostLost(
                with_last_lines(
                    f"{', '.join(self._names[host] for host in late)}: nothing more of {self._url} has come for a long time. "
                    "If that is right, raise limits.progress_s in clusters.toml",
                    self._receiver.last_lines(late[0]),
                )
            )

    def _report_progress(self) -> None:
        if time.monotonic() < self._reported_s + STATUS_S:
            return
        self._reported_s = time.monotonic()
        of = sum(file["size"] for file in self._files) * len(self._names) or 1
        done = sum(self._bytes.values()) / of
        self._on_status(
            f"bringing {self._url} to {format_count(len(self._names), 'host')}: "
            f"{done:.0%} of {of / len(self._names) / 1e6:.1f} MB each"
        )

    def _failure(self, host: int) -> str:
        return f"\n    {self._names[host]}: {self._failed[host]}"

    def _common_folder(self) -> str:
        folders = sorted(set(self._folders.values()))
        if len(folders) > 1:
            raise DataError(
                f"{self._url} lies in different folders on the hosts: {', '.join(folders)}. Tasks get one: give all hosts "
                "the same home or set `cache_dir` in clusters.toml"
            )
        return folders[0]


@contextmanager
def _kept_alive(channel: Channel) -> Iterator[None]:
    """The hosts' heartbeat, as long as this process runs."""
    over = threading.Event()

    def ping() -> None:
        with suppress(HostLost, AllocationError):  # the listener notices it too
            while not over.wait(PING_S):
                channel.send(wire.encode({"order": "ping"}))

    pulse = threading.Thread(target=ping, name="dtfperf-staging", daemon=True)
    pulse.start()
    try:
        yield
    finally:
        over.set()
        pulse.join()
