"""Staging: bring data sets from S3 to every host of an allocation before the first run that reads them.

Each host fetches the files with URLs that are valid for some hours, so that no credentials leave this machine. Of hosts with a
shared file system, one fetches and the others wait. Files of an earlier session are not fetched again.
"""

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pytest_dtfperf.clusters.named import ClusterConfig, get_python
from pytest_dtfperf.clusters.protocol import Allocation, Channel, Lost, send_heartbeats
from pytest_dtfperf.errors import DataError, HostLost
from pytest_dtfperf.formats import format_count, printable
from pytest_dtfperf.messages import MessageError, MessageReceiver, append_last_lines, format_given_up
from pytest_dtfperf.messages.programs import FETCH, FetchEnd, FetchFailure, FetchHello, FetchProgress
from pytest_dtfperf.node import wire
from pytest_dtfperf.node.module_command import make_module_command
from pytest_dtfperf.spec import Spec

S3 = "s3://"
PARALLEL = 8  # files at a time on each host
STATUS_S = 1.0  # how often the progress is shown
_SETTLE_S = 2.0  # after a first failure, as others often follow for the same reason

OnStatus = Callable[[str], object]


class Staging:
    """The data sets on an allocation's hosts. Each is staged once; a failure is not repeated either."""

    def __init__(self, allocation: Allocation, config: ClusterConfig, on_status: OnStatus) -> None:
        self._allocation = allocation
        self._config = config
        self._on_status = on_status
        self._folders: dict[str, str] = {}
        self._refused: dict[str, DataError] = {}

    def is_needed(self, spec: Spec) -> bool:
        """Return whether data must be staged before this training."""
        return is_remote(spec) and spec.data_dir not in self._folders and spec.data_dir not in self._refused

    def stage_spec(self, spec: Spec) -> Spec:
        """Return the same training with the hosts' own folder. Raises `DataError`, `HostLost`, `AllocationError`."""
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
        return spec.replace(data_dir=self._folders[url])


def is_remote(spec: Spec) -> bool:
    return spec.data_dir is not None and spec.data_dir.startswith(S3)


def stage(url: str, allocation: Allocation, config: ClusterConfig, on_status: OnStatus) -> str:
    """Stage the files below `url` on all hosts, and return their folder. Raises `DataError`, `HostLost`, `AllocationError`.

    Raises `DataError` where that cannot be, `HostLost`, `AllocationError`.
    """
    on_status(f"listing {url}")
    files = _sign_urls(url, on_status)
    channel = allocation.start(
        make_module_command(
            get_python(config), "pytest_dtfperf.staging.on_host", "--heartbeat-timeout-s", str(config.heartbeat_timeout_s)
        )
    )
    try:
        with send_heartbeats(channel):
            names = [host.name for host in allocation.hosts]
            return _FetchController(url, files, channel, names, config, on_status).run()
    finally:
        channel.close()


def _sign_urls(url: str, on_status: OnStatus) -> list[dict[str, Any]]:
    """Return the orders for all files: path, size, checksum and URL."""
    try:
        from pytest_dtfperf.staging.bucket import Bucket
    except ModuleNotFoundError as exc:
        raise DataError(f'{url} needs {exc.name}, which is not installed: pip install "pytest-dtfperf[ec2]"') from exc
    bucket = Bucket.open(url)
    for warning in bucket.warnings:
        on_status(f"warning: {warning}")
    found = bucket.list_files()
    if not found:
        raise DataError(f"there is nothing below {url}. Push it with: dtfperf data push FOLDER {url}")
    return [
        {"path": file.path, "size": file.size, "etag": file.etag, "checksum": checksum, "url": bucket.url(file)}
        for file, checksum in zip(found, bucket.checksums(found), strict=True)
    ]


def make_folder_name(url: str, files: Iterable[Mapping[str, Any]]) -> str:
    """Return the name of a data set on the hosts. It changes with any file, as folders never change."""
    listed = sorted((file["path"], file["size"], file["etag"]) for file in files)
    digest = hashlib.sha256(json.dumps([url, listed]).encode()).hexdigest()[:16]
    return f"{re.sub(r'[^A-Za-z0-9.-]+', '-', url.removeprefix(S3)).strip('-.')[:64]}-{digest}"


class _FetchController:
    """The controller of the fetch processes on the hosts."""

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

    def run(self) -> str:
        with suppress(HostLost):  # their last messages have the reason
            for file in self._files:
                self._channel.send(wire.encode({"order": "file", "file": file}))
            folder = make_folder_name(self._url, self._files)
            self._channel.send(wire.encode({"order": "fetch", "folder": folder, "parallel": PARALLEL}))
        failed_at = None
        while len(self._folders) + len(self._failed) < len(self._names):
            if arrived := self._channel.receive(STATUS_S):
                self._receive(*arrived)
            failed_at = failed_at or (time.monotonic() if self._failed else None)
            if failed_at and time.monotonic() > failed_at + _SETTLE_S:
                break
            self._check_time()
            self._report_progress()
        if self._failed:
            failures = "".join(map(self._format_failure, sorted(self._failed)))
            raise DataError(f"{self._url} could not be staged on all hosts:{failures}")
        return self._get_common_folder()

    def _receive(self, host: int, line: bytes | Lost) -> None:
        if host in self._folders or host in self._failed:
            return
        if isinstance(line, Lost):
            what = f"{self._names[host]} was lost while it fetched {self._url}: {printable(line.description)}"
            raise HostLost(append_last_lines(what, self._receiver.last_lines(host)))
        try:
            message = self._receiver.receive(host, line)
        except MessageError as exc:
            raise HostLost(format_given_up(self._names[host], str(exc))) from exc
        match message:
            case FetchHello():
                self._due[host] = time.monotonic() + self._limits.progress_s
            case FetchProgress():
                if message.waiting or self._moved.get(host) != message.moved:
                    self._due[host] = time.monotonic() + self._limits.progress_s
                self._bytes[host], self._moved[host] = message.bytes, message.moved
            case FetchEnd():
                self._folders[host] = message.folder
                self._bytes[host] = message.bytes
            case FetchFailure():
                self._failed[host] = message.reason

    def _check_time(self) -> None:
        now = time.monotonic()
        late = [host for host in self._due if now > self._due[host] and host not in self._folders and host not in self._failed]
        if late:
            raise HostLost(
                append_last_lines(
                    f"{', '.join(self._names[host] for host in late)}: no more data of {self._url} have arrived for a long "
                    "time. If that is expected, increase limits.progress_s in clusters.toml",
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
            f"staging {self._url} on {format_count(len(self._names), 'host')}: "
            f"{100 * done:.0f} % of {of / len(self._names) / 1e6:.1f} MB each"
        )

    def _format_failure(self, host: int) -> str:
        return f"\n    {self._names[host]}: {self._failed[host]}"

    def _get_common_folder(self) -> str:
        folders = sorted(set(self._folders.values()))
        if len(folders) > 1:
            raise DataError(
                f"{self._url} is in different folders on the hosts: {', '.join(folders)}. All tasks need the same: give all "
                "hosts the same home, or set `cache_dir` in clusters.toml"
            )
        return folders[0]
