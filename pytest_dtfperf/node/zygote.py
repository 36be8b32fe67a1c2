"""Imports the tasks' code once, and forks a task in milliseconds as often as its agent asks.

It must stay what can be forked: one thread, no device touched, nothing started. Importing TensorFlow keeps to that if
OpenBLAS makes no threads of its own. Between agent and zygote is a socket of whole messages (SOCK_SEQPACKET):

    agent -> zygote   {"task", "env", "cpus"} with two files: the task's line to the agent, and its log; and two more for a
                      task that shall enter a network of its own (node/isolation.py)
    zygote -> agent   {"ready": true}, {"forked": task, "pid"}, {"exited": pid, "code"}   code < 0: minus the signal
"""

from __future__ import annotations

import faulthandler
import gc
import io
import os
import selectors
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from pytest_dtfperf.node import isolation, processes, wire
from pytest_dtfperf.node.module_command import search_working_folder_last
from pytest_dtfperf.node.wire import Connection

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn, TextIO

    Entry = Callable[[dict[str, Any], Connection], object]

MESSAGE_BYTES = 1 << 16  # far more than a task's name, environment and cores need

# For the import and for every task after it, unless the host's own environment sets it.
ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",  # else numpy starts threads while it is imported, and those do not survive a fork
    "TF_GRPC_REUSE_PORT": "1",  # else a server could not bind the port that the agent holds for it
    "TF_CPP_MIN_LOG_LEVEL": "2",  # errors only: no banner in every log
}


def become(entry: str, env: Mapping[str, str], agent: int, line: socket.socket, log: int) -> NoReturn:
    """Turn this fresh fork of the agent into a zygote, and never come back.

    `env` is there before anything is imported: what a lone task is to have, for whom this zygote is made.
    """
    code = 1
    try:
        processes.die_with(agent)
        gc.freeze()  # what was the agent's is never collected here: it would close files of these numbers that are ours
        _part_from_agent(line, log)
        os.environ.update(env)
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        search_working_folder_last()  # an entry, and what belongs to it, may be the project's own
        gc.disable()  # what is imported is no garbage, and to look for some again and again is a part of what an import takes
        found = load(entry)
        gc.enable()
        gc.collect()
        gc.freeze()  # what was imported is never garbage: a task's collector need not walk it, and so copy its pages
        serve(found, line)
        code = 0
    except ModuleNotFoundError as lacking:  # the package's name is enough
        print(f"{sys.executable} has no module {lacking.name!r}", flush=True)
    except BaseException:  # any error: the agent reports these last lines, and must not go on a second time
        _print_exception()
    finally:
        os._exit(code)


def _part_from_agent(line: socket.socket, log: int) -> None:
    """Own signals, output and files: none of the agent's lines may be held open by somebody else, nor its ports."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    _connect(log)
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2 and fd != line.fileno():
            with suppress(OSError):  # the one that listed them
                os.close(fd)
    sys.stdout, sys.stderr = _open_unbuffered(1), _open_unbuffered(2)


def _connect(log: int) -> None:
    """Connect stdin to nothing, and all output to the log."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    for output in (1, 2):
        os.dup2(log, output)


def _open_unbuffered(fd: int) -> TextIO:
    """Return what a task printed before it was killed is in its log."""
    return io.TextIOWrapper(io.FileIO(fd, "w", closefd=False), "utf-8", "backslashreplace", write_through=True)


def load(entry: str) -> Entry:
    module, _, function = entry.partition(":")
    __import__(module)
    found: Entry = getattr(sys.modules[module], function)
    return found


def serve(entry: Entry, agent: socket.socket) -> None:
    """Fork and reap until the agent is gone."""
    sigchld = processes.SigchldPipe()
    selector = selectors.DefaultSelector()
    selector.register(sigchld, selectors.EVENT_READ)
    selector.register(agent, selectors.EVENT_READ)
    agent.send(wire.encode({"ready": True}))
    while True:
        for key, _ in selector.select():
            if key.fileobj is sigchld:
                sigchld.drain()
                for pid, code in processes.reap_children().items():
                    agent.send(wire.encode({"exited": pid, "code": code}))
            elif not _fork(entry, agent, close=(agent, sigchld, selector)):
                return


def _fork(entry: Entry, agent: socket.socket, close: tuple[Any, ...]) -> bool:
    """Serve one request. False: the agent is gone."""
    message, files, _, _ = socket.recv_fds(agent, MESSAGE_BYTES, 4)
    if not message:
        return False
    request = wire.decode(message)
    zygote = os.getpid()
    pid = os.fork()
    if pid == 0:
        processes.die_with(zygote)
        for thing in close:
            thing.close()
        _become(entry, request, *files)
    for file in files:
        os.close(file)
    agent.send(wire.encode({"forked": request["task"], "pid": pid}))
    return True


def _become(entry: Entry, request: dict[str, Any], line: int, log: int, *network: int) -> None:
    """Turn this fresh fork into a task, and never come back."""
    code = 1
    try:
        _settle(request, log, network)
        connection = Connection(socket.socket(fileno=line))
        entry(connection.order(), connection)
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:  # any error: these are the task's last lines, and nothing above may see it
        _print_exception()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # a TensorFlow session that lost its server hangs in its clean-up


def _settle(request: dict[str, Any], log: int, network: Sequence[int]) -> None:
    """A process group, signals, network, cores, environment and output of its own, before TensorFlow makes its threads."""
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if request["cpus"]:
        os.sched_setaffinity(0, request["cpus"])
    os.environ.update(request["env"])
    _connect(log)
    if network:
        isolation.enter(*network)
    for file in (log, *network):
        os.close(file)
    faulthandler.enable()  # a crash in native code leaves the Python lines that led there in the log


def _print_exception() -> None:
    import traceback

    traceback.print_exc()
