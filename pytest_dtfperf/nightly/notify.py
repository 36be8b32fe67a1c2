"""Alerts of a night: what has become bad or well again since the last night, sent to webhooks and by mail.

A state file in the results' folder has the problems that were sent last. It is replaced only when all receivers have taken the
message, so that an alert that could not be sent is sent after the next night. No message of this module has more of a URL than
its host: webhooks have their secret in the path.
"""

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from email.message import EmailMessage
from pathlib import Path
from typing import IO, Any, Literal
from urllib.parse import urlsplit

from pytest_dtfperf.errors import SessionFileError, UsageError
from pytest_dtfperf.formats import printable
from pytest_dtfperf.nightly.summary import Loss
from pytest_dtfperf.node import retry
from pytest_dtfperf.node.files import replacing
from pytest_dtfperf.records.session import SessionFolder

VARIABLE = "DTFPERF_NOTIFY"  # receivers, separated by spaces, so that secrets are in no list of processes
FORMS = "https://..., slack+https://..., json+https://... or mailto:NAME@HOST"
TRIES, PAUSE_S, LONGEST_PAUSE_S, TIMEOUT_S = 3, 2.0, 60.0, 10.0
_RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})  # HTTP status codes of a receiver that may take it later
_SENDMAIL = ("sendmail", "/usr/sbin/sendmail", "/usr/lib/sendmail")

LOSS, NIGHT = "loss", "night"
Kind = Literal["slack", "json", "mail"]


@dataclass(frozen=True, order=True)
class Problem:
    """What an operator has to look after. The same problem of two nights has the same kind and name."""

    kind: str  # a verdict, `LOSS` or `NIGHT`
    name: str  # a training, or of a night the cluster
    text: str  # one sentence; differs from night to night

    @property
    def key(self) -> tuple[str, str]:
        return self.kind, self.name


@dataclass(frozen=True)
class Alert:
    """The difference between two nights."""

    cluster: str
    outcome: str
    exit_code: int
    session: str | None  # the folder
    new: Sequence[Problem] = ()
    resolved: Sequence[Problem] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.new or self.resolved)

    def format_text(self) -> str:
        lines = [f"Performance on {self.cluster}: {self.outcome} Exit code {self.exit_code}."]
        lines += [f"NEW: {problem.text}" for problem in self.new]
        lines += [f"RESOLVED: {problem.kind}: {problem.name}" for problem in self.resolved]
        return "\n".join(map(printable, [*lines, *([f"Session: {self.session}"] if self.session else [])]))

    def to_json(self) -> dict[str, Any]:
        return {"schema": 1, **asdict(self)}


@dataclass(frozen=True)
class Receiver:
    """Where an alert is sent."""

    kind: Kind
    address: str  # a URL, or an address of mail

    @property
    def shown(self) -> str:
        """Return the address without its secret."""
        return self.address if self.kind == "mail" else urlsplit(self.address).hostname or "a webhook"


def parse_receiver(text: str) -> Receiver:
    """Return the receiver of `--notify`. Raises `UsageError`, which does not repeat what may be a secret."""
    scheme, _, rest = text.partition(":")
    if scheme == "mailto" and "@" in rest and rest.isprintable() and " " not in rest:
        return Receiver("mail", rest)
    prefix, plus, url_scheme = scheme.rpartition("+")
    url = f"{url_scheme}:{rest}"
    try:
        parts = urlsplit(url)
        is_url = url_scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_url = False
    if not is_url or (plus and prefix not in ("slack", "json")) or not url.isascii() or not url.isprintable() or " " in url:
        raise UsageError(f"--notify takes {FORMS}; what was given begins with {scheme[:10]!r}")
    is_slack = prefix == "slack" or (not prefix and (parts.hostname or "").endswith("slack.com"))
    return Receiver("slack" if is_slack else "json", url)


def list_problems(
    cluster: str, code: int, outcome: str, session: SessionFolder | None, losses: Iterable[Loss], before: Iterable[Problem] = ()
) -> list[Problem]:
    """Return the problems of a night: red measurements, losses, and a night that has ended badly with neither.

    Args:
        before: problems of the last alert. Those of trainings that this night did not measure are still there.
    """
    found = [Problem(LOSS, loss.found.label, f"{loss}") for loss in losses]
    measured = {problem.name for problem in found}
    with suppress(SessionFileError):  # an unreadable session is a night that ended badly
        for record in session.measurements() if session else ():
            measured.add(record.spec.label)
            if record.verdict and record.verdict.fails(strict=False) and not record.accepted:
                reason = f"{record.verdict}: {record.spec.label}: {record.reason or 'no reason is recorded'}"
                found.append(Problem(str(record.verdict), record.spec.label, reason))
    if code and not found:
        found.append(Problem(NIGHT, cluster, outcome))
    found += [problem for problem in before if problem.kind != NIGHT and problem.name not in measured]
    return sorted({problem.key: problem for problem in found}.values())


def compare_problems(before: Sequence[Problem], now: Sequence[Problem]) -> tuple[list[Problem], list[Problem]]:
    """Return the problems that are new, and those that are resolved."""
    old, new = {each.key for each in before}, {each.key for each in now}
    return [each for each in now if each.key not in old], [each for each in before if each.key not in new]


def notify(
    receivers: Sequence[Receiver], state: Path, alert: Alert, problems: Sequence[Problem], *, pause_s: float = PAUSE_S
) -> list[str]:
    """Send an alert, and note the problems; return a line for each receiver, and none if there is nothing to send.

    Args:
        state: the file for the problems. It stays as it is where a receiver has not taken the alert.
        pause_s: seconds before the second try; each further pause is twice as long.
    """
    if alert.is_empty:
        return []
    counts = f"{len(alert.new)} new, {len(alert.resolved)} resolved"
    lines, failed = [], False
    for receiver in receivers:
        problem = _send(receiver, alert, pause_s)
        failed = failed or problem is not None
        lines.append(
            f"{receiver.shown} was notified: {counts}" if problem is None else f"{receiver.shown} was not notified: {problem}"
        )
    if failed:
        return lines
    try:
        write_state(state, problems)
    except OSError as error:
        lines.append(f"{state} cannot be written: {error.strerror or error}. The next night sends the same again")
    return lines


def read_state(path: Path) -> list[Problem]:
    """Return the problems of the last alert; none where the file cannot be read."""
    try:
        return [
            Problem(str(each["kind"]), str(each["name"]), str(each["text"])) for each in json.loads(path.read_text("utf-8"))
        ]
    except (OSError, ValueError, TypeError, KeyError):
        return []


def write_state(path: Path, problems: Sequence[Problem]) -> None:
    with replacing(path) as file:
        file.write(json.dumps([asdict(problem) for problem in problems], indent=1).encode())


def _send(receiver: Receiver, alert: Alert, pause_s: float) -> str | None:
    """Send an alert, again after a pause where that may help; return why it was not sent, or None."""
    if receiver.kind == "mail":
        return _send_mail(receiver.address, alert)
    payload = {"text": alert.format_text()} if receiver.kind == "slack" else alert.to_json()
    return send_request(receiver.address, json.dumps(payload).encode(), {"Content-Type": "application/json"}, pause_s=pause_s)


def send_request(
    url: str, data: bytes, headers: Mapping[str, str], *, method: str = "POST", pause_s: float = PAUSE_S
) -> str | None:
    """Send an HTTP request, again after a pause where that may help; return why it was not taken, or None.

    The reason has no part of the URL. Redirects are not followed.

    Args:
        pause_s: seconds before the second try; each further pause is twice as long.
    """
    request = urllib.request.Request(url, data, {"User-Agent": "pytest-dtfperf", **headers}, method=method)
    problem: str | None = None
    for attempt in range(TRIES):
        if attempt:
            time.sleep(retry.pause_s(attempt, pause_s, LONGEST_PAUSE_S))
        problem, may_help = _try_request(request)
        if problem is None or not may_help:
            return problem
    return f"{problem}, {TRIES} times"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirected POST would become a GET, or hand the message to another host."""

    def redirect_request(self, req: Any, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str) -> None:
        return None


def _try_request(request: urllib.request.Request) -> tuple[str | None, bool]:
    """Return why a receiver did not take the request, or None; and whether another try may help."""
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=TIMEOUT_S):
            return None, False
    except urllib.error.HTTPError as error:
        with error:
            return f"HTTP status {error.code}", error.code in _RETRIED
    except urllib.error.URLError as error:
        return f"{getattr(error.reason, 'strerror', None) or type(error.reason).__name__}", True
    except (OSError, ValueError) as error:  # a time limit while it answers; a broken answer
        return type(error).__name__, True


def _send_mail(address: str, alert: Alert) -> str | None:
    program = next((found for name in _SENDMAIL if (found := shutil.which(name))), None)
    if program is None:
        return "there is no program sendmail"
    message = EmailMessage()
    message["To"] = address
    message["Subject"] = f"Performance on {alert.cluster}: {len(alert.new)} new, {len(alert.resolved)} resolved"
    message.set_content(alert.format_text())
    try:
        done = subprocess.run([program, "-i", "-t"], input=bytes(message), capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{program}: {type(error).__name__}"
    reason = printable(done.stderr.decode(errors="replace").strip().partition("\n")[0])
    return None if done.returncode == 0 else f"{program} ended with {done.returncode}: {reason or 'no reason given'}"
