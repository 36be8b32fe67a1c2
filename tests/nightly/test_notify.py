"""Alerts of a night: only what is new, to a real HTTP server and a real program for mail, and again where they failed."""

import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.errors import UsageError
from pytest_dtfperf.history import where
from pytest_dtfperf.nightly.night import SECRETS
from pytest_dtfperf.nightly.notify import (
    LOSS,
    NIGHT,
    Alert,
    AlertState,
    Problem,
    list_problems,
    notify,
    parse_receiver,
)
from pytest_dtfperf.node import container
from pytest_dtfperf.records.session import SessionFolder
from tests.records.samples import measurement, spec

SLOW = Problem("REGRESSED", "inception3 b8 gpus=2", "REGRESSED: inception3 b8 gpus=2: -8.1 % against 100.0 images/sec")
LOST = Problem(LOSS, "mnist b64", "mnist b64: -12.0 %")
NIGHT_RESULT = Alert("daint", "Tests failed.", 1, "/results/20260131T021503Z-9f3c1a")
SECRET = "T0/B0/sEcReT"


class Webhook(HTTPServer):
    """Answers with these status codes in turn, then with 200; keeps what was posted and put."""

    def __init__(self, codes: Sequence[int] = ()) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.codes = list(codes)
        self.posted: list[dict[str, Any]] = []
        self.put: list[tuple[str, Mapping[str, str], str]] = []  # path, headers, content

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/{SECRET}"


class _Handler(BaseHTTPRequestHandler):
    server: Webhook

    def do_POST(self) -> None:
        self.server.posted.append(json.loads(self._read()))
        self._answer()

    def do_PUT(self) -> None:
        self.server.put.append((self.path, dict(self.headers), self._read().decode()))
        self._answer()

    def _read(self) -> bytes:
        return self.rfile.read(int(self.headers["Content-Length"]))

    def _answer(self) -> None:
        code = self.server.codes.pop(0) if self.server.codes else 200
        self.send_response(code)
        if code in (301, 302, 307):
            self.send_header("Location", "/elsewhere")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Keep the output of the tests clean."""


@contextmanager
def webhook(*codes: int) -> Iterator[Webhook]:
    with Webhook(codes) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def send(state: Path, problems: Sequence[Problem], *receivers: str) -> list[str]:
    """Return the lines of a night with these problems."""
    return notify([parse_receiver(each) for each in receivers], state, NIGHT_RESULT, problems, pause_s=0.0)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "alerts.json"


def knows(state: Path, *receivers: str) -> None:
    """Let the receivers know of `LOST` from the night before."""
    AlertState([LOST], {parse_receiver(each).key: [LOST] for each in receivers}).save(state)


def test_webhook_gets_what_is_new_as_json(state: Path) -> None:
    """A generic webhook gets one JSON object, and the problems are noted for the next night."""
    with webhook() as server:
        knows(state, server.url)
        lines = send(state, [SLOW], server.url)
    (posted,) = server.posted
    assert posted["schema"] == 1
    assert (posted["cluster"], posted["exit_code"]) == ("daint", 1)
    assert [each["kind"] for each in (*posted["new"], *posted["resolved"])] == ["REGRESSED", "loss"]
    assert lines == ["127.0.0.1 was notified: 1 new, 1 resolved"]
    assert AlertState.load(state).problems == [SLOW]


def test_slack_gets_text(state: Path) -> None:
    """A receiver that is compatible with Slack gets one text, with a line for each problem."""
    with webhook() as server:
        knows(state, f"slack+{server.url}")
        send(state, [SLOW], f"slack+{server.url}")
    (posted,) = server.posted
    assert posted.keys() == {"text"}
    assert posted["text"].splitlines() == [
        "Performance on daint: Tests failed. Exit code 1.",
        f"NEW: {SLOW.text}",
        "RESOLVED: loss: mnist b64",
        "Session: /results/20260131T021503Z-9f3c1a",
    ]


@pytest.mark.parametrize(
    ("codes", "tries", "line"),
    [
        ((503, 429), 3, "127.0.0.1 was notified: 1 new, 0 resolved"),
        ((500, 502, 504), 3, "127.0.0.1 was not notified: HTTP status 504, 3 times"),
        ((404,), 1, "127.0.0.1 was not notified: HTTP status 404"),
        ((302,), 1, "127.0.0.1 was not notified: HTTP status 302"),
    ],
    ids=["busy for a while", "broken", "no such webhook", "moved"],
)
def test_failed_alert_is_sent_again(codes: Sequence[int], tries: int, line: str, state: Path) -> None:
    """A receiver that may take it later is tried three times. After the next night it gets what it did not take, and no line or
    file has the secret."""
    with webhook(*codes) as server:
        lines = send(state, [SLOW], server.url)
        assert len(server.posted) == tries
        send(state, [SLOW], server.url)
        assert len(server.posted) == tries + ("not notified" in line)
    assert lines == [line]
    assert SECRET not in f"{lines} {state.read_text()}"


def test_one_failed_receiver_costs_the_others_nothing(state: Path) -> None:
    """A receiver that took an alert does not get it again because another one did not, and each gets what it does not know."""
    with webhook() as working, webhook(404) as broken:
        send(state, [SLOW], working.url, broken.url)
        assert send(state, [SLOW], working.url, broken.url) == ["127.0.0.1 was notified: 1 new, 0 resolved"]
        send(state, [], working.url, broken.url)
        assert [[(len(each["new"]), len(each["resolved"])) for each in server.posted] for server in (working, broken)] == [
            [(1, 0), (0, 1)],
            [(1, 0), (1, 0), (0, 1)],
        ]


def test_silent_host_is_one_line(state: Path) -> None:
    """Where nothing listens, the line has the reason of the operating system."""
    with webhook() as server:
        gone = server.url
    assert send(state, [SLOW], gone) == ["127.0.0.1 was not notified: Connection refused, 3 times"]


@contextmanager
def run_server(answer: bytes, *, endless: bool = False) -> Iterator[str]:
    """Listen, and answer each request with these bytes, once or again and again; yield the URL."""

    def serve() -> None:
        with suppress(OSError):  # the end of the test closes the listener
            while True:
                connection, _ = listener.accept()
                with connection, suppress(OSError):
                    connection.recv(10_000)
                    connection.sendall(answer)
                    while endless:
                        time.sleep(0.01)
                        connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/{SECRET}"


def test_endless_answer_ends(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A receiver that never ends its answer does not keep the night, and its lock, from ending."""
    monkeypatch.setattr("pytest_dtfperf.report.metrics_targets.ANSWER_S", 0.3)
    with run_server(b"H", endless=True) as url:
        assert send(state, [SLOW], url) == ["127.0.0.1 was not notified: no answer within 0.3 s"]


def test_broken_answer_is_one_line(state: Path) -> None:
    """What answers in another protocol than HTTP is a line."""
    with run_server(b"220 mail.example.org ESMTP\r\n") as url:
        assert send(state, [SLOW], url) == ["127.0.0.1 was not notified: BadStatusLine, 3 times"]


def test_full_disk_is_one_line(tmp_path: Path) -> None:
    """A state that cannot be written is a line, and the alert has been sent."""
    with webhook() as server:
        lines = send(tmp_path / "gone" / "alerts.json", [SLOW], server.url)
    assert len(server.posted) == 1
    assert lines[1].endswith("cannot be written: No such file or directory. The next night sends the same again")


def test_nothing_new_is_not_sent(state: Path) -> None:
    """The same problem as last night is no alert, whatever its numbers are."""
    with webhook() as server:
        send(state, [SLOW], server.url)
        assert send(state, [Problem(SLOW.kind, SLOW.name, "REGRESSED: another number")], server.url) == []
    assert len(server.posted) == 1


def test_mail_goes_through_sendmail(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """sendmail gets a message with its receiver and subject; one that fails is a line with the first line of its output."""
    program = tmp_path / "sendmail"
    program.write_text(f'#!/bin/sh\n[ "$*" = "-i -t" ] && exec cat > {tmp_path}/mail\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert send(state, [SLOW], "mailto:ops@example.org") == ["ops@example.org was notified: 1 new, 0 resolved"]
    mail = (tmp_path / "mail").read_text()
    assert "To: ops@example.org\n" in mail
    assert "Subject: Performance on daint: 1 new, 0 resolved\n" in mail
    assert SLOW.text in mail
    program.write_text("#!/bin/sh\necho 'no route to ops' >&2\nexit 75\n")
    (line,) = send(state, [], "mailto:ops@example.org")
    assert line == f"ops@example.org was not notified: {program} ended with 75: no route to ops"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("https://hooks.slack.com/services/T/B/x", "slack"),
        ("slack+https://chat.example.org/hooks/x", "slack"),
        ("https://example.org/hook", "json"),
        ("json+https://hooks.slack.com/x", "json"),
        ("mailto:ops@example.org", "mail"),
    ],
)
def test_receiver_is_known_by_its_url(text: str, kind: str) -> None:
    """Slack's own host and the prefix `slack+` get text, other webhooks JSON."""
    assert parse_receiver(text).kind == kind


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ops@example.org",
        "ftp://x/y",
        "https://",
        "https://h:port/",
        "mailto:ops",
        "xml+https://h/",
        "https://h/\n",
        "https://h/ä",
    ],
)
def test_other_receiver_is_refused(text: str) -> None:
    """What is no receiver is refused, and no more of it is shown than how it begins."""
    with pytest.raises(UsageError, match=r"--notify takes https://\.\.\., slack\+https"):
        parse_receiver(text)


def test_refusal_has_no_secret() -> None:
    """A mistyped URL is not repeated."""
    with pytest.raises(UsageError) as raised:
        parse_receiver(f"htps://hooks.slack.com/{SECRET}")
    assert SECRET not in str(raised.value)


def session_with(tmp_path: Path, verdict: Verdict) -> SessionFolder:
    folder = SessionFolder.create(tmp_path, cluster="daint", command=["pytest"], versions={})
    record = folder.add("t.py::test_a", measurement(spec(), [10.0, 10.1]))
    folder.judge(record.id, verdict=verdict, reason="-8 %")
    return folder


def test_problems_of_a_night(tmp_path: Path) -> None:
    """A red measurement is a problem, a green one none; a night that ended badly without either is one itself."""
    label = spec().label
    (red,) = list_problems("daint", 1, "Tests failed.", session_with(tmp_path / "a", Verdict.REGRESSED), [])
    assert (red.key, red.text) == (("REGRESSED", label), f"REGRESSED: {label}: -8 %")
    assert list_problems("daint", 0, "All tests passed.", session_with(tmp_path / "b", Verdict.PASSED), []) == []
    (night,) = list_problems("daint", 124, "The deadline passed.", None, [])
    assert night == Problem(NIGHT, "daint", "The deadline passed.")


def list_remaining(night: SessionFolder, *before: Problem) -> list[str]:
    """Return the kinds of the problems after a night."""
    return [each.kind for each in list_problems("daint", 0, "All tests passed.", night, [], before)]


OLD = Problem("REGRESSED", spec().label, "REGRESSED: -8 %")
OLD_LOSS = Problem(LOSS, spec().label, "-8 %")
OLD_FAILURE = Problem("INFRASTRUCTURE", spec().label, "INFRASTRUCTURE: nid00012 does not answer")


def test_problem_stays_until_its_training_is_measured(tmp_path: Path) -> None:
    """A night that did not measure a training keeps its problem; one that measured it without a failure resolves it."""
    other = Problem("REGRESSED", "vgg16 b64", "REGRESSED: -9 %")
    before = [OLD, OLD_LOSS, other, Problem(NIGHT, "daint", "The deadline passed.")]
    assert list_problems("daint", 0, "All tests passed.", session_with(tmp_path, Verdict.PASSED), [], before) == [other]


@pytest.mark.parametrize(
    ("verdict", "kinds"),
    [
        (Verdict.TAINTED, ["INFRASTRUCTURE", "REGRESSED", LOSS]),
        (Verdict.INCONCLUSIVE, ["REGRESSED"]),
        (Verdict.NO_BASELINE, ["REGRESSED"]),
        (Verdict.INVALID, ["INFRASTRUCTURE", "INVALID", "REGRESSED", LOSS]),
        (Verdict.PASSED, []),
    ],
    ids=str,
)
def test_undecided_night_resolves_no_regression(verdict: Verdict, kinds: list[str], tmp_path: Path) -> None:
    """A training that was REGRESSED is not well again because the next night was disturbed or did not decide."""
    assert list_remaining(session_with(tmp_path, verdict), OLD, OLD_LOSS, OLD_FAILURE) == kinds


def test_acceptance_resolves_a_regression(tmp_path: Path) -> None:
    """A slower rate that was accepted as the new baseline is no problem any more."""
    session = session_with(tmp_path, Verdict.REGRESSED)
    session.accept([record.id for record in session.measurements()])
    assert list_remaining(session, OLD) == []


@pytest.mark.parametrize(
    "content", ["", "{", "[1]", '{"problems": [{"kind": 1}], "known": {}}', '{"problems": [], "known": []}']
)
def test_damaged_state_counts_as_none(content: str, state: Path) -> None:
    """A state that cannot be read costs a repeated alert, and no night."""
    state.write_text(content)
    assert AlertState.load(state) == AlertState()
    AlertState([SLOW], {"a": [SLOW]}).save(state)
    assert AlertState.load(state) == AlertState([SLOW], {"a": [SLOW]})


def test_variables_with_secrets_reach_no_host() -> None:
    """The variables of a night that contain passwords are among those that no host gets."""
    assert {where.VARIABLE, *SECRETS} <= container.SECRETS
