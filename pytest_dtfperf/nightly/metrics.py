"""The metrics of a night for Prometheus: a file for node_exporter's textfile collector, or a Pushgateway.

Both replace what they had of the cluster, so that the metrics are always those of the last night. No message of this module has
more of a URL than its host: it may contain a password.
"""

import base64
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from pytest_dtfperf.errors import SessionFileError, UsageError
from pytest_dtfperf.nightly.notify import PAUSE_S, send_request
from pytest_dtfperf.node.files import replace_file
from pytest_dtfperf.report.export_formats import format_gauges, format_prometheus
from pytest_dtfperf.report.sources import load_sessions

VARIABLE = "DTFPERF_METRICS"  # targets, separated by spaces, so that passwords are in no list of processes
FORMS = "a file *.prom in a folder that exists, or https://HOST of a Pushgateway"
JOB = "dtfperf"
HEADERS = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}


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


@dataclass(frozen=True)
class NightMetrics:
    """The numbers of a night that its session does not have."""

    cluster: str
    exit_code: int
    losses: int  # rates without a baseline that are slower than in earlier nights
    session: Path | None  # the folder

    def format(self) -> bytes:
        """Return all metrics in Prometheus' text format. Of a night that measured nothing, only its own numbers."""
        gauges = {
            "nightly_exit_code": ("Exit code of dtfperf nightly.", float(self.exit_code)),
            "nightly_ended_timestamp_seconds": ("When the last night ended.", time.time()),
            "nightly_losses": ("Rates without a baseline that are slower than in earlier nights.", float(self.losses)),
        }
        own = format_gauges(gauges, {"cluster": self.cluster})
        try:
            return own + (format_prometheus(load_sessions(self.session)) if self.session else b"")
        except SessionFileError:  # reported by the night's summary
            return own


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
        raise UsageError(f"--metrics takes {FORMS}; what was given begins with {text.partition(':')[0][:10]!r}")
    return Target(text)


def publish_metrics(targets: Sequence[Target], metrics: NightMetrics, *, pause_s: float = PAUSE_S) -> list[str]:
    """Write or send the metrics; return a line for each target."""
    content = metrics.format()
    lines = []
    for target in targets:
        send = _push if target.is_url else _write
        problem = send(target.address, metrics.cluster, content, pause_s)
        lines.append(f"metrics in {target.shown}" if problem is None else f"no metrics in {target.shown}: {problem}")
    return lines


def _write(path: str, cluster: str, content: bytes, pause_s: float) -> str | None:
    """Replace the file as a whole, so that the collector never reads a part; return why not, or None."""
    try:
        with replace_file(path) as file:
            file.write(content)
    except OSError as error:
        return f"{error.strerror or error}"
    return None


def _push(url: str, cluster: str, content: bytes, pause_s: float) -> str | None:
    """Replace the cluster's group in a Pushgateway; return why not, or None."""
    parts = urlsplit(url)
    login, at, host = parts.netloc.rpartition("@")
    headers = HEADERS | ({"Authorization": f"Basic {base64.b64encode(unquote(login).encode()).decode()}"} if at else {})
    path = f"{parts.path.rstrip('/')}/metrics/job/{JOB}/cluster/{quote(cluster, safe='')}"
    return send_request(urlunsplit((parts.scheme, host, path, "", "")), content, headers, method="PUT", pause_s=pause_s)
