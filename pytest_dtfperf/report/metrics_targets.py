"""Where metrics for Prometheus go: a file for node_exporter's textfile collector, or a Pushgateway.

Both replace the earlier metrics of the cluster, so that the metrics are always those of the last command. Messages of this
module show only the host of a URL, because the rest may contain a password.
"""

import base64
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from pytest_dtfperf.errors import UsageError
from pytest_dtfperf.node import retry
from pytest_dtfperf.node.files import replace_file

VARIABLE = "DTFPERF_METRICS"  # targets, separated by spaces, so that no list of processes shows a password
FORMS = "a file *.prom in a folder that exists, or https://HOST of a Pushgateway"
JOB = "dtfperf"
HEADERS = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
TRIES, PAUSE_S, LONGEST_PAUSE_S = 3, 2.0, 60.0
TIMEOUT_S = 10.0  # for a connection, and for each part of an answer
ANSWER_S = 30.0  # for the whole answer: a receiver that sends a byte now and then must not delay the next nightly job
_RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})  # HTTP status codes after which another try may succeed


@dataclass(frozen=True)
class Target:
    """Where the metrics are written or sent."""

    address: str  # a path, or a URL

    @property
    def is_url(self) -> bool:
        return "://" in self.address

    @property
    def shown(self) -> str:
        """Return the address without its secrets."""
        return (urlsplit(self.address).hostname or "a Pushgateway") if self.is_url else self.address


def parse_target(text: str) -> Target:
    """Return the target of `--metrics`. Raises `UsageError`, which does not repeat what may be a password."""
    if "://" not in text:
        path = Path(text)
        if path.suffix != ".prom" or not path.parent.is_dir():
            raise UsageError(f"--metrics takes {FORMS}, not {text!r}")
        return Target(text)
    try:
        parts = urlsplit(text)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_url = False
    if not is_url or parts.query or parts.fragment or not text.isascii() or not text.isprintable() or " " in text:
        raise UsageError(f"--metrics takes {FORMS}; the given value begins with {text.partition(':')[0][:10]!r}")
    return Target(text)


def list_targets(given: Iterable[str]) -> list[Target]:
    """Return the targets of `--metrics` and of the environment variable. Raises `UsageError`."""
    return [parse_target(text) for text in [*given, *os.environ.get(VARIABLE, "").split()]]


def publish_metrics(
    targets: Sequence[Target], content: bytes, cluster: str, *, job: str = JOB, pause_s: float = PAUSE_S
) -> list[str]:
    """Write or send metrics; return a line for each target.

    Args:
        targets: where they are written or sent.
        content: the metrics in Prometheus' text format.
        cluster: its name. A Pushgateway replaces the earlier metrics of this cluster and this job.
        job: the name of the command that made them.
        pause_s: seconds before the second try; each further pause is twice as long.
    """
    lines = []
    for target in targets:
        problem = _push(target.address, cluster, job, content, pause_s) if target.is_url else _write(target.address, content)
        lines.append(f"metrics in {target.shown}" if problem is None else f"no metrics in {target.shown}: {problem}")
    return lines


def _write(path: str, content: bytes) -> str | None:
    """Replace the file as a whole, so that the collector never reads a part. Return the error, or None."""
    try:
        with replace_file(path) as file:
            file.write(content)
    except OSError as error:
        return f"{error.strerror or error}"
    return None


def _push(url: str, cluster: str, job: str, content: bytes, pause_s: float) -> str | None:
    """Replace the group of the cluster and the job in a Pushgateway. Return the error, or None."""
    parts = urlsplit(url)
    login, at, host = parts.netloc.rpartition("@")
    headers = HEADERS | ({"Authorization": f"Basic {base64.b64encode(unquote(login).encode()).decode()}"} if at else {})
    path = f"{parts.path.rstrip('/')}/metrics/job/{job}/cluster/{quote(cluster, safe='')}"
    return send_request(urlunsplit((parts.scheme, host, path, "", "")), content, headers, method="PUT", pause_s=pause_s)


def send_request(url: str, data: bytes, headers: Mapping[str, str], *, method: str = "POST", pause_s: float) -> str | None:
    """Send an HTTP request, and repeat it after temporary errors. Return the error, or None.

    The error contains no part of the URL. Redirects are not followed.

    Args:
        pause_s: seconds before the second try; each further pause is twice as long.
    """
    request = urllib.request.Request(url, data, {"User-Agent": "pytest-dtfperf", **headers}, method=method)
    problem: str | None = None
    for attempt in range(TRIES):
        if attempt:
            time.sleep(retry.compute_pause_s(attempt, pause_s, LONGEST_PAUSE_S))
        problem, may_help = _try_request(request)
        if problem is None or not may_help:
            return problem
    return f"{problem}, {TRIES} times"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: a redirected POST would become a GET, or send the message to another host."""

    def redirect_request(self, req: Any, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str) -> None:
        return None


def _try_request(request: urllib.request.Request) -> tuple[str | None, bool]:
    """Return the error of a request, or None; and whether another try may succeed."""
    results: list[tuple[str | None, bool]] = []
    # A daemon thread does not delay the exit of this process.
    thread = threading.Thread(target=lambda: results.append(_request(request)), daemon=True)
    thread.start()
    thread.join(ANSWER_S)
    return results[0] if results else (f"no answer within {ANSWER_S:g} s", False)


def _request(request: urllib.request.Request) -> tuple[str | None, bool]:
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=TIMEOUT_S):
            return None, False
    except urllib.error.HTTPError as error:
        with error:
            return f"HTTP status {error.code}", error.code in _RETRIED
    except urllib.error.URLError as error:
        return f"{getattr(error.reason, 'strerror', None) or type(error.reason).__name__}", True
    except (OSError, ValueError, HTTPException) as error:  # the answer is too slow or invalid
        return type(error).__name__, True
