"""Alerts of a night: new and resolved problems, sent to webhooks and by mail.

A state file in the results' folder has the problems of the last night, and those that each receiver knows of. A receiver that
did not take an alert gets it after the next night, and the others do not get it again. No message of this module contains more
of a URL than its host, because the path of a webhook is its secret.
"""

import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from email.message import EmailMessage
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.errors import SessionFileError, UsageError
from pytest_dtfperf.formats import printable
from pytest_dtfperf.nightly.summary import Loss
from pytest_dtfperf.node.files import replace_file
from pytest_dtfperf.records.session import SessionFolder
from pytest_dtfperf.report.metrics_targets import PAUSE_S, send_request

VARIABLE = "DTFPERF_NOTIFY"  # receivers, separated by spaces, so that secrets are in no list of processes
FORMS = "https://..., slack+https://..., json+https://... or mailto:NAME@HOST"
_SENDMAIL = ("sendmail", "/usr/sbin/sendmail", "/usr/lib/sendmail")

LOSS, NIGHT, HOST = "loss", "night", "host"
_COMPARED = frozenset(str(verdict) for verdict in Verdict if verdict.turns_red)
Kind = Literal["slack", "json", "mail"]


@dataclass(frozen=True, order=True)
class Problem:
    """A problem that an operator has to solve. The same problem has the same kind and name in every night."""

    kind: str  # a verdict, `LOSS`, `NIGHT` or `HOST`
    name: str  # a training, a host, or of a night the cluster
    text: str  # one sentence; differs from night to night

    @property
    def key(self) -> tuple[str, str]:
        return self.kind, self.name


@dataclass(frozen=True)
class Alert:
    """The result of a night, with the problems that are new to a receiver and those that are resolved."""

    cluster: str
    outcome: str
    exit_code: int
    session: str | None  # the folder
    new: Sequence[Problem] = ()
    resolved: Sequence[Problem] = ()

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
    def key(self) -> str:
        """Return the key of the receiver in the state file. It is a hash, because a URL contains a secret."""
        return hashlib.sha256(f"{self.kind} {self.address}".encode()).hexdigest()[:16]

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
        raise UsageError(f"--notify takes {FORMS}; the given value begins with {scheme[:10]!r}")
    is_slack = prefix == "slack" or (not prefix and (parts.hostname or "").endswith("slack.com"))
    return Receiver("slack" if is_slack else "json", url)


@dataclass(frozen=True)
class AlertState:
    """The state file: the problems of the last night, and those that each receiver knows of."""

    problems: Sequence[Problem] = ()
    known: Mapping[str, Sequence[Problem]] = field(default_factory=dict)  # by `Receiver.key`

    @classmethod
    def load(cls, path: Path) -> Self:
        """Return the state; an empty one if there is no readable file, which costs a repeated alert."""
        try:
            content = json.loads(path.read_text("utf-8"))
            known = {str(key): _read_problems(each) for key, each in content["known"].items()}
            return cls(_read_problems(content["problems"]), known)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return cls()

    def save(self, path: Path) -> None:
        with replace_file(path) as file:
            file.write(json.dumps({"schema": 1, **asdict(self)}, indent=1).encode())


def _read_problems(content: Iterable[Any]) -> list[Problem]:
    return [Problem(str(each["kind"]), str(each["name"]), str(each["text"])) for each in content]


def list_problems(
    cluster: str,
    code: int,
    outcome: str,
    session: SessionFolder | None,
    losses: Iterable[Loss],
    before: Iterable[Problem] = (),
    slow_hosts: Mapping[str, str] | None = None,
) -> list[Problem]:
    """Return the problems of a night: failed measurements, losses, slow hosts, and a night that ended badly without these.

    Args:
        slow_hosts: host to the reason; None: not known, and those of the last night remain.
        before: problems of the last night. One remains until its training is measured, undisturbed, without it. REGRESSED
            remains until a verdict passes or the rate is accepted: an undecided comparison does not resolve it.
    """
    before = list(before)
    found = [Problem(LOSS, loss.found.label, f"{loss}") for loss in losses]
    sound: set[str] = set()
    passed: set[str] = set()
    with suppress(SessionFileError):  # an unreadable session is a night that ended badly
        for record in session.measurements() if session else ():
            if (verdict := record.verdict) is None:
                continue
            name = record.spec.label
            if verdict.row.numbers == "sound":
                sound.add(name)
            if record.accepted or verdict.row.outcome == "pass":
                passed.add(name)
            elif verdict.row.outcome in ("fail", "error"):
                reason = f"{verdict}: {name}: {record.reason or 'no reason is recorded'}"
                found.append(Problem(str(verdict), name, reason))
    if code and not found:
        found.append(Problem(NIGHT, cluster, outcome))
    resolved = dict.fromkeys(_COMPARED, passed) | {HOST: set() if slow_hosts is None else {each.name for each in before}}
    found += [each for each in before if each.kind != NIGHT and each.name not in resolved.get(each.kind, sound)]
    found += [Problem(HOST, host, why) for host, why in (slow_hosts or {}).items()]
    return sorted({problem.key: problem for problem in reversed(found)}.values())


def compare_problems(before: Sequence[Problem], now: Sequence[Problem]) -> tuple[list[Problem], list[Problem]]:
    """Return the problems that are new, and those that are resolved."""
    old, new = {each.key for each in before}, {each.key for each in now}
    return [each for each in now if each.key not in old], [each for each in before if each.key not in new]


def notify(
    receivers: Sequence[Receiver], path: Path, night: Alert, problems: Sequence[Problem], *, pause_s: float = PAUSE_S
) -> list[str]:
    """Send each receiver what is new to it, and write the state; return a line for each receiver with something new.

    Args:
        path: the state file.
        night: the result of the night, without problems.
        problems: the problems of the night.
        pause_s: seconds before the second try; each further pause is twice as long.
    """
    before = AlertState.load(path)
    lines: list[str] = []
    known: dict[str, Sequence[Problem]] = {}
    for receiver in receivers:
        known[receiver.key] = before.known.get(receiver.key, ())
        new, resolved = compare_problems(known[receiver.key], problems)
        if new or resolved:
            failure = _send(receiver, replace(night, new=new, resolved=resolved), pause_s)
            result = "was notified" if failure is None else "was not notified"
            lines.append(f"{receiver.shown} {result}: {failure or f'{len(new)} new, {len(resolved)} resolved'}")
            if failure is None:
                known[receiver.key] = problems
    try:
        AlertState(problems, known).save(path)
    except OSError as error:
        lines.append(f"{path} cannot be written: {error.strerror or error}. The next night sends the same again")
    return lines


def _send(receiver: Receiver, alert: Alert, pause_s: float) -> str | None:
    """Send an alert, again after a pause where that may help; return why it was not sent, or None."""
    if receiver.kind == "mail":
        return _send_mail(receiver.address, alert)
    payload = {"text": alert.format_text()} if receiver.kind == "slack" else alert.to_json()
    return send_request(receiver.address, json.dumps(payload).encode(), {"Content-Type": "application/json"}, pause_s=pause_s)


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
