"""The server of a zygote: a client requests a fork, and receives its process id, its exit code and the CPU time that it used.

serve(kind, LISTENER, LINE)    the first client's line, and the socket to which others connect; returns in each fork
execute(*argv)                 in a fork: run it as `python ARGV`, and end as it does
"""

import atexit
import contextlib
import ctypes
import json
import mmap
import os
import runpy
import select
import selectors
import shutil
import signal
import socket
import struct
import sys
import threading
import time
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from tests.forks import LONGEST_MESSAGE

CLONE_NEWNS = 0x00020000  # of linux/sched.h

SECONDS = struct.Struct("d")


@dataclass
class Client:
    """A process of tests."""

    line: socket.socket  # closed when it ends
    listener: socket.socket  # of its requests, and of those of what it has started
    used: mmap.mmap  # where it reads how much of the processors' time has been used for it
    used_s: float = 0.0
    has_left: bool = False

    def charge(self, seconds: float) -> None:
        self.used_s += seconds
        SECONDS.pack_into(self.used, 0, self.used_s)


@dataclass
class Fork:
    """A running fork and its client."""

    pid: int
    end: int  # a descriptor that can be read once it has ended
    line: socket.socket
    client: Client
    has_ended: bool = False


@dataclass(frozen=True)
class Kind:
    """What there are forks of."""

    may: Callable[[Mapping[str, Any]], bool]  # whether one is what a new process of this request would be
    become: Callable[[Mapping[str, Any], Sequence[int]], object]  # called in the fork, with its three streams


def serve(kind: Kind, listener: int, line: int) -> Sequence[str] | None:
    """Answer all who have this `new_zygote`. Returns in each fork what it is to run; None here when the last has left."""
    others = socket.socket(fileno=listener)
    with selectors.DefaultSelector() as selector:
        selector.register(others, selectors.EVENT_READ)
        clients = [_welcome(socket.socket(fileno=line), selector)]
        charged_s = 0.0
        while True:
            clients = [each for each in clients if each and not each.has_left]
            if not clients and not select.select([others], [], [], 0)[0]:
                return None
            for key, _ in selector.select():
                client = key.data.client if isinstance(key.data, Fork) else key.data
                if key.fileobj is others:
                    clients.append(client := _welcome(others.accept()[0], selector))
                elif isinstance(key.data, Fork):
                    _go_on(key.data, key.fileobj, selector)
                elif key.fileobj is client.line:
                    _leave(client, selector)
                elif not client.has_left:
                    program = _begin(client, selector, kind)
                    if program is not None:
                        return program
                if client:  # what this process itself has used since, of which its imports are the most
                    client.charge(time.process_time() - charged_s)
                    charged_s = time.process_time()


def _welcome(line: socket.socket, selector: selectors.BaseSelector) -> Client | None:
    """Serve another client, unless it is of another user or has ended."""
    _, user, _ = struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    message, files, _, _ = socket.recv_fds(line, LONGEST_MESSAGE, 2)
    if user != os.getuid() or not message:
        line.close()
        return None
    listener, used = files
    client = Client(line, socket.socket(fileno=listener), mmap.mmap(used, SECONDS.size))
    os.close(used)
    for each in (client.line, client.listener):
        selector.register(each, selectors.EVENT_READ, client)
    with contextlib.suppress(OSError):
        line.send(b"served")
    return client


def _leave(client: Client, selector: selectors.BaseSelector) -> None:
    client.has_left = True
    shutil.rmtree(Path(client.listener.getsockname()).parent, ignore_errors=True)
    for each in (client.line, client.listener):
        selector.unregister(each)
        each.close()


def _begin(client: Client, selector: selectors.BaseSelector, kind: Kind) -> Sequence[str] | None:
    """Fork and send the process id, or 0 if a fork would not be the same as a process. Return the fork's program in the
    fork."""
    line, _ = client.listener.accept()
    message, streams, _, _ = socket.recv_fds(line, LONGEST_MESSAGE, 3)
    if not message:  # it was killed before it has requested anything
        line.close()
        return None
    request = json.loads(message)
    pid = 0
    if kind.may(request):
        pid = os.fork()
        if pid == 0:
            for key in selector.get_map().values():
                if isinstance(key.fileobj, socket.socket):
                    key.fileobj.close()  # the object, too, which would else close its number again when it is collected
                else:
                    os.close(key.fd)
            kind.become(request, streams)
            return [*request["argv"]]
    for stream in streams:
        os.close(stream)
    with contextlib.suppress(OSError):  # it was killed before the answer: its line shows that, and ends the fork
        line.send(str(pid).encode())
    if pid:
        made = Fork(pid, os.pidfd_open(pid), line, client)
        selector.register(line, selectors.EVENT_READ, made)
        selector.register(made.end, selectors.EVENT_READ, made)
    return None


def _go_on(made: Fork, what: object, selector: selectors.BaseSelector) -> None:
    """Send the exit code of a fork that has ended, or kill a fork if its client has closed the line."""
    if made.has_ended:
        return
    if what is made.line:
        selector.unregister(made.line)
        os.kill(made.pid, signal.SIGKILL)
        return
    made.has_ended = True
    with contextlib.suppress(KeyError):
        selector.unregister(made.line)
    selector.unregister(made.end)
    os.close(made.end)
    _, status, used = os.wait4(made.pid, 0)
    made.client.charge(used.ru_utime + used.ru_stime)
    with made.line, contextlib.suppress(OSError):
        made.line.send(str(os.waitstatus_to_exitcode(status)).encode())


def be_like(request: Mapping[str, Any], streams: Sequence[int]) -> None:
    """Have the signals, process group, streams, environment and folder that a new process would have."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # though these tests be run by nohup, or in a script's background
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if "pid" in request:
        _join_mounts(request["pid"])
    if "group" in request:
        try:
            os.setpgid(0, request["group"])
        except PermissionError:  # of another terminal
            os.setsid()
    elif request["leads"]:
        os.setsid()
    for fd, stream in enumerate(streams):
        os.dup2(stream, fd)
        os.close(stream)
    env = request["env"]
    os.environ.clear()
    os.environ.update(env)
    if encoding := env.get("PYTHONIOENCODING"):
        sys.stdin = os.fdopen(0, encoding=encoding, closefd=False)
        sys.stdout = os.fdopen(1, "w", encoding=encoding, closefd=False)
        sys.stderr = os.fdopen(2, "w", 1, encoding, "backslashreplace", closefd=False)
    sys.dont_write_bytecode = bool(env.get("PYTHONDONTWRITEBYTECODE"))
    os.chdir(request["cwd"])


def _join_mounts(pid: int) -> None:
    """Join the mount namespace of this process, which may have mounts of its own."""
    theirs = f"/proc/{pid}/ns/mnt"
    if os.readlink(theirs) != os.readlink("/proc/self/ns/mnt"):
        with open(theirs) as namespace:
            assert ctypes.CDLL(None).setns(namespace.fileno(), CLONE_NEWNS) == 0, theirs


def execute(kind: str, what: str, *_: str) -> NoReturn:
    """Run a program, and end as it does."""

    def program() -> None:
        if kind == "-c":
            sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(what, "<string>", "exec"), vars(sys.modules["__main__"]))
        else:
            runpy.run_module(what, run_name="__main__", alter_sys=True)

    end_as(program)


def end_as(program: Callable[[], object]) -> NoReturn:
    """Run it, and end as Python does then."""
    code = 0
    try:
        program()
    except SystemExit as end:
        if isinstance(end.code, str):  # which Python shows
            raise
        code = end.code or 0
    leave(code)


def leave(code: int) -> NoReturn:
    """End without taking apart what was imported: to free that would copy every page of it, for a tenth of a second of CPU."""
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.current_thread():
            thread.join()
    atexit._run_exitfuncs()
    for output in (sys.stdout, sys.stderr):
        output.flush()
    os._exit(code)
