"""An ssh process with a supervisor at its other end: its handshake, its orders, its end, and its errors.

The supervisor's messages are lines that begin with MARK; other lines before them come from banners. After the message
"started", the lines are those of the controller and of what was started.
"""

import json
import os
import re
import resource
import select
import signal
import time
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from pytest_dtfperf.clusters.children import Child, guard_against_parent_death, make_exit_loss
from pytest_dtfperf.clusters.named import OLDEST_PYTHON
from pytest_dtfperf.clusters.protocol import LossReason, Lost
from pytest_dtfperf.clusters.ssh import bootstrap, connection_failures
from pytest_dtfperf.clusters.ssh.bootstrap import MARK, Handshake
from pytest_dtfperf.clusters.ssh.endpoints import Endpoint, format_command, make_ssh_argv
from pytest_dtfperf.errors import InfrastructureError, quote_lines, signal_name
from pytest_dtfperf.formats import printable_bytes
from pytest_dtfperf.messages import MessageError, ProgramMessage
from pytest_dtfperf.messages.programs import (
    BundleFailure,
    BundleStep,
    EnvironmentFailure,
    EnvironmentStep,
    FolderFailure,
    HostSurvey,
    PythonFailure,
    PythonStep,
    ReadyStep,
    SetupFailure,
    SetupStep,
    SupervisorEnd,
    SupervisorFailure,
    VersionFailure,
    parse_supervisor_message,
)
from pytest_dtfperf.node.processes import kill_group

_NEEDED = f"Python {'.'.join(map(str, OLDEST_PYTHON))} or newer, with TensorFlow"


def explain_refusal(failure: SupervisorFailure, setup: Sequence[str], python: str) -> tuple[str, str]:
    """Return what is wrong with the host, and how to continue."""
    match failure:
        case SetupFailure(line=number, code=code):
            what = f"failed at setup line {number} with exit code {code}: {setup[number - 1]}"
            return what, "correct `setup` in clusters.toml, or the host"
        case PythonFailure():
            return f"has no {python}", f"name its interpreter with `python`, or make it known in `setup`: {_NEEDED}"
        case VersionFailure(version=version):
            return f"has Python {version} as {python}", f"name another interpreter with `python`: {_NEEDED}"
        case BundleFailure(why=why):
            return f"cannot keep what runs on hosts (1 MB): {why}", "make room there, or set `cache_dir` in clusters.toml"
        case FolderFailure(folder=folder, why=why):
            return f"has no folder {folder}: {why}", "correct `cache_dir` or `scratch_dir` in clusters.toml"
        case EnvironmentFailure(why=why, hint=hint):
            return f"has no environment for training: {why}", hint
        case _:
            return f"has no program {failure.program}", "name its interpreter with `python`"


def list_hints(last_lines: Iterable[bytes], host: str) -> list[bytes]:
    """Return hints for errors in an agent's last output that do not state a remedy."""
    if any(line.endswith((b"has no module 'tensorflow'", b"No module named 'tensorflow'")) for line in last_lines):
        return [
            f"TensorFlow is missing on {host}: name an interpreter that has it with `python`, load it in `setup`, "
            'or set setup = "uv" to have it installed there'.encode()
        ]
    return []


_MARK = MARK.encode()
_NO_LOGIN = 254  # exit code of sshd without PAM, if /etc/nologin keeps users out
_SSH_FAILED = 255  # ssh's own exit code, or that of a command that was killed there
_BY_SSH = re.compile(r"Timeout, server|Connection to |client_loop|packet_write|Read from|Write failed")
_ORDER_S = 30.0  # an environment has about 70 kB
_ENDING_S = 2.0
_TERM_S = 0.5
_LAST_LINES = 10
_LINE_BYTES = 1 << 16  # longer lines do not come from a supervisor
_NOISE_BYTES = 1 << 20  # of other lines before the supervisor's: a banner has about a page
_STDERR_BYTES = 64 << 20  # limit of a host's stderr; with more, the kernel ends ssh


class Unreachable(InfrastructureError):
    """A host that cannot be used: its name, the reason, and how to continue."""


class HostRefusal(Unreachable):
    """A host that reports itself why it cannot be used."""


class TransientError(Exception):
    """A host that was too busy to answer: another try may help."""


class Cancelled(Exception):
    """The result of this host is not needed any more."""


class CancelToken:
    """Wakes threads that wait for a host after its result is not needed any more."""

    def __init__(self) -> None:
        self._read_end, self._write_end = os.pipe()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self._read_end)
        os.close(self._write_end)

    def cancel(self) -> None:
        os.write(self._write_end, b"x")

    def wait(self, fds: Sequence[int], within_s: float) -> bool:
        """Return whether one of them can be read within that time. Raises `Cancelled`."""
        poll = select.poll()  # unlike select, poll takes descriptors of any number
        for fd in (self._read_end, *fds):
            poll.register(fd, select.POLLIN)
        ready = {fd for fd, _ in poll.poll(max(0.0, within_s) * 1000)}
        if self._read_end in ready:
            raise Cancelled
        return bool(ready)


class SshProcess(Child):
    """An ssh process with a supervisor at its other end."""

    def __init__(self, index: int, endpoint: Endpoint, handshake: Handshake, stages: MutableMapping[str, str]) -> None:
        argv = make_ssh_argv(endpoint, handshake.connect_s, bootstrap.make_shell_command(handshake.script))
        super().__init__(index, guard_against_parent_death(argv, os.environ), os.environ)
        with suppress(OSError, ValueError):  # the process has ended, or its limit is lower
            resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (_STDERR_BYTES, _STDERR_BYTES))
        self.endpoint = endpoint
        self.survey: HostSurvey | None = None  # if the handshake requests it
        self.is_clean = False  # whether the supervisor has confirmed, at its end, that nothing is left
        self._handshake = handshake
        self._noise: list[bytes] = []  # lines before the supervisor's first message
        self._unread = 0  # bytes of these lines
        self._partial = bytearray()  # incomplete line; of one without end, its last part
        self._stage = ""  # the host's current step; empty while connecting
        self._stages = stages  # the same mapping for all hosts, for progress messages

    # Before the start of a command

    def shake_hands(self, deadline: float, token: CancelToken) -> None:
        """Run the handshake until the supervisor is ready. Raises `Unreachable`, `TransientError`, `Cancelled`."""
        self.write(self._handshake.script)
        while True:
            message = self._read_message(deadline, token)
            match message:
                case PythonStep():
                    self.order(self._handshake.header)
                case BundleStep():
                    self.write(self._handshake.bundle.data, max(1.0, deadline - time.monotonic()))
                case ReadyStep():
                    self.survey = message if isinstance(message, HostSurvey) else None
                    self._stages.pop(self.endpoint.name, None)
                    return
            self._stage = self._stages[self.endpoint.name] = self._describe_progress(message)

    def order(self, order: Mapping[str, Any]) -> None:
        self.write(json.dumps(order).encode() + b"\n", _ORDER_S)

    def receive_answer(self, within_s: float, token: CancelToken) -> ProgramMessage:
        """Return the supervisor's answer to an order."""
        return self._read_message(time.monotonic() + within_s, token)

    def is_idle(self) -> bool:
        """Return whether the supervisor still waits for an order."""
        with CancelToken() as nobody_says_so:
            return self.exit_code() is None and not nobody_says_so.wait([self.stdout.fileno()], 0.0)

    def let_go(self) -> None:
        """Kill the process; the processes on the host end with it."""
        self.hang_up()
        self.end(0.0)

    def _read_message(self, deadline: float, token: CancelToken) -> ProgramMessage:
        """Return the supervisor's next message. Reads byte by byte: the bytes after it belong to another reader."""
        while True:
            if time.monotonic() > deadline:  # also for a host that sends without end
                raise self._make_time_out()
            try:
                byte = os.read(self.stdout.fileno(), 1)
            except BlockingIOError:
                token.wait([self.stdout.fileno()], deadline - time.monotonic())
                continue
            if not byte:
                raise self._explain_end(token)
            self._partial += byte
            self._unread += 1
            if self._unread > _NOISE_BYTES:
                raise self._make_unreachable(
                    f"prints more than {_NOISE_BYTES >> 20} MiB of other output",
                    f"what does its login shell print? Try {format_command(self.endpoint, 'true')}",
                    self._format_noise(),
                )
            if byte == b"\n":
                line = bytes(self._partial[:-1][-_LINE_BYTES:])
                self._partial.clear()
                message = self._read_report(line)
                if message is None:
                    self._noise = [*self._noise, line][-_LAST_LINES:]
                elif isinstance(message, SupervisorFailure):
                    raise self._explain_failure(message)
                else:
                    self._unread = 0
                    return message
            if len(self._partial) > 2 * _LINE_BYTES:  # seldom, because each time it is copied
                del self._partial[:-_LINE_BYTES]

    def _read_report(self, line: bytes) -> ProgramMessage | None:
        """Return the supervisor's message; None for another line. Raises `Unreachable` for an invalid message."""
        message = _parse_message(line)
        if message is None:
            return None
        try:
            found = parse_supervisor_message(message)
            if isinstance(found, SetupStep | SetupFailure) and found.line > max(1, len(self._handshake.setup)):
                raise MessageError(f"sent a message about setup line {found.line}, and there are {len(self._handshake.setup)}")
            if isinstance(found, ReadyStep) and self._handshake.header["survey"] and not isinstance(found, HostSurvey):
                raise MessageError("did not send the description that was requested")
        except MessageError as exc:
            raise self._make_unreachable(str(exc), "is something else there called python?", self._format_noise()) from exc
        return found

    def _describe_progress(self, step: ProgramMessage) -> str:
        match step:
            case SetupStep(line=number):
                return f"setup line {number} ({self._handshake.setup[number - 1]})"
            case EnvironmentStep(doing=doing):
                return doing
            case BundleStep():
                return "sending it what runs on hosts"
            case _:
                return f"starting {self._handshake.python}"

    # Errors

    def _make_time_out(self) -> Unreachable:
        limit_s, lines = self._handshake.limit_s, self._stderr_lines()
        if self._stage:
            return self._make_unreachable(
                f"was not ready within {limit_s:g} s: it was still at {self._stage}",
                f"raise connect_s, or try it by hand: {format_command(self.endpoint)}",
                lines,
            )
        return self._make_unreachable(
            f"did not answer within {limit_s:g} s", f"try it by hand: {format_command(self.endpoint)}", lines
        )

    def _explain_end(self, token: CancelToken) -> Exception:
        """Return the error for a connection that has ended instead of answering."""
        deadline = time.monotonic() + 1.0
        while (code := self.exit_code()) is None and time.monotonic() < deadline:
            token.wait([], 0.01)
        lines = self._stderr_lines()
        if code is not None and code < 0:
            return self._make_unreachable(f"was not reached: ssh was killed by {signal_name(-code)}", "run it again", lines)
        if code == _SSH_FAILED and not self._stage:
            failure = connection_failures.explain_failure("\n".join(lines), self.endpoint)
            if failure.is_transient:
                return TransientError(failure.message)
            return Unreachable(failure.message, host=self.endpoint.name)
        if code == _NO_LOGIN and lines and not self._stage:
            return self._make_unreachable("lets no users in now (/etc/nologin)", "ask its administrator when it will", lines)
        where = f"while it was at {self._stage}" if self._stage else "before it did anything for us"
        hint = f"does its login shell run commands? Try {format_command(self.endpoint, 'true')}"
        return self._make_unreachable(f"ended the connection {where} (exit code {code})", hint, [*self._format_noise(), *lines])

    def _explain_failure(self, failure: SupervisorFailure) -> Unreachable:
        """Return the error that the host reported before it ended. Its stderr may arrive a moment later."""
        self.exit_code(_ENDING_S)
        return HostRefusal(
            self._format_text(*explain_refusal(failure, self._handshake.setup, self._handshake.python), self._stderr_lines()),
            host=self.endpoint.name,
        )

    def _make_unreachable(self, what: str, hint: str, lines: Sequence[str]) -> Unreachable:
        return Unreachable(self._format_text(what, hint, lines), host=self.endpoint.name)

    def _format_text(self, what: str, hint: str = "", lines: Sequence[str] = ()) -> str:
        quoted = quote_lines(lines[-_LAST_LINES:])
        return f"host {self.endpoint.name} {what}{f'. Hint: {hint}' if hint else ''}{quoted}"

    def _stderr_lines(self) -> list[str]:
        return [printable_bytes(line) for line in self.stderr().splitlines() if line.strip()]

    def _format_noise(self) -> list[str]:
        return [printable_bytes(line) for line in [*self._noise, bytes(self._partial)] if line.strip()]

    # After the start of a command

    def stderr(self) -> bytes:
        return b"\n".join(line for line in super().stderr().splitlines() if not line.startswith(_MARK) and line)

    def get_last_lines(self) -> list[bytes]:
        lines = super().get_last_lines()
        return [*lines, *list_hints(lines, self.endpoint.name)]

    def wait_for_end(self) -> Lost:
        ssh = self.exit_code(_ENDING_S)
        if there := self._get_final_message():
            ended = Lost(LossReason.ENDED, "its supervisor ended the agent")
            return ended if there.ended is None else make_exit_loss(there.ended)
        name = self.endpoint.name
        if ssh is None:
            return Lost(LossReason.CUT_OFF, f"ssh, the connection to {name}, still runs, but the agent does not read from it")
        if ssh == -signal.SIGXFSZ:
            return Lost(LossReason.FLOODED, f"{name} sent more than {_STDERR_BYTES >> 20} MiB to stderr")
        if ssh < 0:
            return Lost(LossReason.CUT_OFF, f"ssh, the connection to {name}, was killed by {signal_name(-ssh)}")
        if ssh == _SSH_FAILED and (lines := self._stderr_lines()) and _BY_SSH.match(lines[-1]):
            return Lost(LossReason.CUT_OFF, connection_failures.explain_failure(lines[-1], self.endpoint).message)
        return Lost(LossReason.CUT_OFF, f"the supervisor of the agent on {name} was killed, and the agent with it")

    def end(self, patience_s: float) -> bool:
        if self.exit_code(patience_s) is None:
            kill_group(self.pid, signal.SIGTERM)  # ssh, and the processes that it uses: a jump host's ssh, a ProxyCommand
            if self.exit_code(_TERM_S) is None:
                kill_group(self.pid)
        there = self._get_final_message()
        super().end(0.0)
        self.is_clean = there is not None and not there.survivors
        return self.is_clean

    def _get_final_message(self) -> SupervisorEnd | None:
        """Return the supervisor's last message if it had time for it: the exit code, and that no process is left."""
        for line in reversed(super().stderr().splitlines()):
            with suppress(MessageError):
                if (message := _parse_message(line)) and isinstance(found := parse_supervisor_message(message), SupervisorEnd):
                    return found
        return None


def _parse_message(line: bytes) -> dict[str, Any] | None:
    """Parse a line as a supervisor's message; None if it is none. A banner may look almost like one."""
    try:
        message = json.loads(line.removeprefix(_MARK)) if line.startswith(_MARK) else None
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None
