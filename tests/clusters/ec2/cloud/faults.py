"""Faults of requests: each one applies to some calls of its action, in the order of the calls."""

import re
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from time import sleep
from typing import NoReturn

from pytest_dtfperf.testing.backends import PATIENCE_S
from tests.clusters.ec2.cloud.wire import Answer, Call, Environ, StartResponse, answer_error

Application = Callable[[Environ, StartResponse], Answer]
Effect = Callable[[Application, Environ, StartResponse, Call], Answer]
ALWAYS = 10**9


@dataclass
class Fault:
    """`times` calls of an action (a regular expression), the first `skip` left alone."""

    action: str
    effect: Effect
    times: int = 1
    skip: int = 0
    struck: list[Call] = field(default_factory=list)

    def matches(self, call: Call) -> bool:
        if self.times <= 0 or not re.fullmatch(self.action, call.action):
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        self.times -= 1
        self.struck.append(call)
        return True


class Hang:
    """A call that was carried out with its answer withheld."""

    def __init__(self) -> None:
        self.executed = threading.Event()
        self._over = threading.Event()

    def wait_until_executed(self, patience_s: float = PATIENCE_S) -> None:
        assert self.executed.wait(patience_s), "the call has not come"

    def release(self) -> None:
        """Let the connection break."""
        self._over.set()

    def effect(self, application: Application, environ: Environ, start: StartResponse, call: Call) -> Answer:
        execute(application, environ)
        self.executed.set()
        self._over.wait()
        break_off(environ)


class Faults:
    """The faults of one test."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self._hangs: list[Hang] = []
        self._lock = threading.Lock()

    def error(self, action: str, code: str, message: str = "", times: int = 1, skip: int = 0) -> Fault:
        """Answer with an error, without carrying the call out."""

        def effect(application: Application, environ: Environ, start: StartResponse, call: Call) -> Answer:
            return answer_error(start, call, code, message or f"This is {code}.")

        return self._add(Fault(action, effect, times, skip))

    def throttle(self, action: str, times: int = 1) -> Fault:
        return self.error(action, "RequestLimitExceeded", "Request limit exceeded.", times)

    def lose_request(self, action: str, times: int = 1, skip: int = 0) -> Fault:
        """Reset the connection; the call is not carried out."""

        def effect(application: Application, environ: Environ, start: StartResponse, call: Call) -> Answer:
            break_off(environ)

        return self._add(Fault(action, effect, times, skip))

    def lose_answer(self, action: str, times: int = 1, skip: int = 0) -> Fault:
        """Carry the call out, then reset the connection."""

        def effect(application: Application, environ: Environ, start: StartResponse, call: Call) -> Answer:
            execute(application, environ)
            break_off(environ)

        return self._add(Fault(action, effect, times, skip))

    def hang_after(self, action: str, skip: int = 0) -> Hang:
        """Carry the call out and withhold the answer, until released."""
        hang = Hang()
        self._hangs.append(hang)
        self._add(Fault(action, hang.effect, 1, skip))
        return hang

    def delay(self, action: str, seconds: float, times: int = ALWAYS) -> Fault:
        def effect(application: Application, environ: Environ, start: StartResponse, call: Call) -> Answer:
            sleep(seconds)
            return application(environ, start)

        return self._add(Fault(action, effect, times))

    def clear(self) -> None:
        with self._lock:
            self._faults.clear()
        for hang in self._hangs:
            hang.release()

    def struck_by(self, call: Call) -> Effect | None:
        with self._lock:
            return next((fault.effect for fault in self._faults if fault.matches(call)), None)

    def _add(self, fault: Fault) -> Fault:
        with self._lock:
            self._faults.append(fault)
        return fault


def execute(application: Application, environ: Environ) -> None:
    b"".join(application(environ, lambda *_: None))


def break_off(environ: Environ) -> NoReturn:
    """Reset the connection. werkzeug holds more descriptors of the socket: closing this one would leave the client waiting."""
    connection: socket.socket = environ["werkzeug.socket"]
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    connection.shutdown(socket.SHUT_RDWR)
    raise ConnectionResetError
