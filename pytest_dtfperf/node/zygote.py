"""The zygote: imports the tasks' code once, and forks a task in milliseconds at each request of its agent.

It must remain forkable: one thread, no device in use, no process started. Importing TensorFlow keeps to that if OpenBLAS starts
no threads. Agent and zygote exchange whole messages over a socket (SOCK_SEQPACKET):

    agent -> zygote   {"task", "env", "cpus"} with two files: the task's socket to the agent, and its log; and two more for a
                      task that enters its own network (node/isolation.py)
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
    "TF_CPP_MIN_LOG_LEVEL": "2",  # errors only
}


def run_zygote(entry: str, env: Mapping[str, str], agent: int, line: socket.socket, log: int) -> NoReturn:
    """Turn this new fork of the agent into a zygote. Never returns.

    `env` is set before the import: the variables of the one task that this zygote is made for.
    """
    code = 1
    try:
        processes.die_with(agent)
        gc.freeze()  # the agent's objects are never collected here: they would close this process's files by their numbers
        _detach_from_agent(line, log)
        os.environ.update(env)
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        search_working_folder_last()  # the entry and its imports may be the project's own
        gc.disable()  # collections would lengthen the import and find no garbage
        found = load(entry)
        gc.enable()
        gc.collect()
        gc.freeze()  # so that the collectors of tasks do not visit these objects, and copy their pages
        serve(found, line)
        code = 0
    except ModuleNotFoundError as lacking:  # without a traceback
        print(f"{sys.executable} has no module {lacking.name!r}", flush=True)
    except BaseException:  # the agent reports these last lines; its own code must not continue in this fork
        _print_exception()
    finally:
        os._exit(code)


def _detach_from_agent(line: socket.socket, log: int) -> None:
    """Set this process's own signals and output, and close all files of the agent."""
    processes.reset_signals()
    _redirect_output(log)
    processes.close_inherited_files(line.fileno())
    sys.stdout, sys.stderr = _open_unbuffered(1), _open_unbuffered(2)


def _redirect_output(log: int) -> None:
    """Connect stdin to /dev/null, and all output to the log."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    for output in (1, 2):
        os.dup2(log, output)


def _open_unbuffered(fd: int) -> TextIO:
    """Return an unbuffered stream, so that the log has all that a task printed before it was killed."""
    return io.TextIOWrapper(io.FileIO(fd, "w", closefd=False), "utf-8", "backslashreplace", write_through=True)


def load(entry: str) -> Entry:
    module, _, function = entry.partition(":")
    __import__(module)
    found: Entry = getattr(sys.modules[module], function)
    return found


def serve(entry: Entry, agent: socket.socket) -> None:
    """Fork and reap tasks until the agent has ended."""
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
    """Serve one request. Returns False if the agent has ended."""
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
        _run_task(entry, request, *files)
    for file in files:
        os.close(file)
    agent.send(wire.encode({"forked": request["task"], "pid": pid}))
    return True


def _run_task(entry: Entry, request: dict[str, Any], line: int, log: int, *network: int) -> None:
    """Turn this new fork into a task. Never returns."""
    code = 1
    try:
        _set_up_task(request, log, network)
        connection = Connection(socket.socket(fileno=line))
        entry(connection.order(), connection)
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:  # these are the task's last lines; the zygote's own code must not continue in this fork
        _print_exception()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # the clean-up of a TensorFlow session that lost its server hangs


def _set_up_task(request: dict[str, Any], log: int, network: Sequence[int]) -> None:
    """Set the task's process group, signals, cores, environment, output and network, before TensorFlow starts threads."""
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if request["cpus"]:
        os.sched_setaffinity(0, request["cpus"])
    os.environ.update(request["env"])
    _redirect_output(log)
    if network:
        isolation.enter(*network)
    for file in (log, *network):
        os.close(file)
    faulthandler.enable()  # a crash in native code leaves the Python lines that led there in the log


def _print_exception() -> None:
    import traceback

    traceback.print_exc()
