"""A process that has imported pytest, the plugin, `dtfperf` and what these load, and forks one for every program asked for.

A fork is a process like any other, with its own arguments, environment, folder, output and exit code. It saves a second of CPU,
which is what the imports take: twice the rest of a session of toys. Who starts a program by `subprocess` has a cold one.

    run(argv, ...)                to its end
    with start(argv, ...)         while it runs, with signals
    run(..., starts_forks=True)   what it starts as `sys.executable -m pytest` is a fork, too; xdist's workers always are

All test processes of a run have one together, which takes seconds to begin: it begins with the first and ends with the last.

This is the side that asks. `serving.py` is the one that forks, and `warm.py` the process itself.
"""

import atexit
import contextlib
import errno
import hashlib
import json
import mmap
import os
import select
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any, Self

from tests import outcomes
from tests.forks import LONGEST_MESSAGE, REPOSITORY
from tests.plugin import fork
from tests.plugin.fork import PYTHON
from tests.plugin.serving import SECONDS

ENDS_S = 300.0  # whatever has not ended by then hangs
PARTING_S = 1.0  # for a zygote to end; it stays where others have it, too
COMMANDS = "pytest_dtfperf.cli"  # each in a module of its own, imported when it is asked for
HIDDEN = "ZYGOTE_HIDDEN"  # a variable: packages that are not installed for a fork, with commas between

SEARCH_PATH = {"PYTHONPATH": os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])}

# What Python itself goes by before anything is imported is as it was when this process started; there may be more to search.
BEFORE_IMPORTS = ("LD_", "PYTHON", "PYTEST_DISABLE")
AFTER_IMPORTS = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "PYTHONIOENCODING")
AT_START = ("sitecustomize.py", "usercustomize.py", "*.dist-info", "*.egg-info")

# In the place of `python`: a fork where that starts what is imported, of which xdist's workers are a part.
STAND_IN = """#!/bin/sh
case "$1 $2 $3 $4" in
"-P -m pytest_dtfperf.node.module_command pytest") shift 3; set -- -m "$@" ;;
esac
case "$1 $2" in
"-m pytest" | "-m pytest_dtfperf.cli" | "-u -c") exec {python} -IS {fork} {address} "$@" ;;
esac
exec {python} "$@"
"""


@dataclass(frozen=True)
class Zygote:
    line: socket.socket  # to the process, which stays until all who have one have closed it
    address: str  # of the socket by which requests of this process come
    python: str  # a program that stands in the place of `python`


@cache
def zygote() -> Zygote:
    """That of this process, and of the others of its run."""
    return new_zygote("tests.plugin.warm", STAND_IN, SEARCH_PATH)


def new_zygote(module: str, stand_in: str, environment: Mapping[str, str]) -> Zygote:
    """One that runs this module, and the shell script that stands in the place of its `python`."""
    folder = tempfile.mkdtemp(prefix="zygote-")
    address, python = os.path.join(folder, "socket"), Path(folder, "python")
    words = {"python": sys.executable, "fork": fork.__file__, "address": address}
    python.write_text(stand_in.format(**{name: shlex.quote(word) for name, word in words.items()}))
    python.chmod(0o755)
    used = os.memfd_create("used")
    os.truncate(used, SECONDS.size)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen(64)
        line = _line_to(module, {**os.environ, **environment}, [listener.fileno(), used])
    outcomes.add_seconds_of_server(mmap.mmap(used, SECONDS.size))
    os.close(used)
    return Zygote(line, address, str(python))


def _line_to(module: str, environment: Mapping[str, str], files: Sequence[int]) -> socket.socket:
    """Connect to the process that runs this module for the whole run, and send it these files. The first caller starts it."""
    name = _name(module, environment)
    while True:
        line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            line.connect(name)
        except ConnectionRefusedError:
            line.close()
            if started := _start_process(name, module, environment):
                line, process = started
                assert _is_served(line, files), f"{module} has ended"
                atexit.register(_part, line, process)
                return line
            continue  # somebody else has started it in the same moment
        if _is_served(line, files):
            atexit.register(line.close)
            return line
        line.close()  # it ended in the same moment


def _name(module: str, environment: Mapping[str, str]) -> str:
    """Of the socket by which all who want the same process in the same run find it: an abstract one, which is gone with it."""
    check, xdist = environment.get("CHECK_OUTCOMES"), environment.get("PYTEST_XDIST_TESTRUNUID")
    decides = {name: value for name, value in environment.items() if name.startswith((*BEFORE_IMPORTS, "TMPDIR"))}
    run = os.path.dirname(check) if check else xdist or os.getpid()
    what = [module, sys.executable, str(REPOSITORY), os.getuid(), run, sorted(decides.items())]
    return f"\0zygote-{hashlib.sha256(json.dumps(what).encode()).hexdigest()[:32]}"


def _start_process(
    name: str, module: str, environment: Mapping[str, str]
) -> tuple[socket.socket, subprocess.Popen[bytes]] | None:
    """Start the process and return it with the first line to it, or return None if the name is taken."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        try:
            listener.bind(name)
        except OSError as taken:
            if taken.errno != errno.EADDRINUSE:
                raise
            return None
        listener.listen(64)
        line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            numbers = [listener.fileno(), theirs.fileno()]
            process = subprocess.Popen(
                [sys.executable, "-m", module, *map(str, numbers)],
                cwd=REPOSITORY,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=numbers,
            )
    return line, process


def _is_served(line: socket.socket, files: Sequence[int]) -> bool:
    try:
        socket.send_fds(line, [b"serve"], files)
        return bool(line.recv(LONGEST_MESSAGE))
    except (BrokenPipeError, ConnectionResetError):
        return False


def _part(line: socket.socket, process: subprocess.Popen[bytes]) -> None:
    line.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(PARTING_S)


def python(*argv: object, cwd: Path | None = None, **more: str) -> subprocess.CompletedProcess[str]:
    """Return the output and exit code of `python ARGV` with these variables, by a fork where that is the same."""
    words = [str(word) for word in argv]
    env = {**os.environ, **SEARCH_PATH, **more}
    if may_fork(sys.executable, words, env):
        return subprocess.CompletedProcess(words, *run(words, cwd or Path.cwd(), env, ENDS_S))
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=ENDS_S, check=False)


def dtfperf(*arguments: object, cwd: Path | None = None, **more: str) -> subprocess.CompletedProcess[str]:
    """The same of `dtfperf ARGUMENTS`."""
    return python("-m", COMMANDS, *arguments, cwd=cwd, **more)


def make_command(*arguments: str) -> list[str]:
    """Return the command of a process that takes the place of a fork of `dtfperf ARGUMENTS`, for `subprocess.Popen`."""
    return [zygote().python, "-m", COMMANDS, *arguments]


def run(
    argv: Sequence[str], cwd: Path, env: Mapping[str, str], timeout_s: float, *, starts_forks: bool = False
) -> tuple[int, str, str]:
    """`python ARGV` in a fork: exit code, stdout and stderr, once everybody has closed these."""
    out, err = os.pipe(), os.pipe()
    with start(argv, cwd, env, stdout=out[1], stderr=err[1], starts_forks=starts_forks) as started:
        os.close(out[1])
        os.close(err[1])
        output, errors = read_all(out[0], err[0], timeout_s=timeout_s)
        return started.wait(timeout_s), output, errors


def run_as_one(
    argv: Sequence[str], cwd: Path, env: Mapping[str, str], timeout_s: float, *, starts_forks: bool = False
) -> tuple[int, str]:
    """The same, with all that it writes in one text, as in a terminal."""
    reader, writer = os.pipe()
    with start(argv, cwd, env, stdout=writer, stderr=writer, starts_forks=starts_forks) as started:
        os.close(writer)
        (output,) = read_all(reader, timeout_s=timeout_s)
        return started.wait(timeout_s), output


class Started:
    """A fork that runs, with what tests need of `subprocess.Popen`. Leaving its `with` block waits for its end, or kills it."""

    def __init__(self, line: socket.socket, pid: int, stdout: IO[str] | None = None) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdout = stdout
        self._line = line

    def poll(self) -> int | None:
        return self._read_exit_code(0.0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._read_exit_code(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(["the fork"], timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._line, self.stdout or contextlib.nullcontext():  # a line that is closed early ends the fork
            if kind is None:
                self.wait(ENDS_S)

    def _read_exit_code(self, within_s: float | None) -> int | None:
        if self.returncode is None and select.select([self._line], [], [], within_s)[0]:
            self.returncode = fork.answer(self._line)
            self._line.close()
        return self.returncode


def start(
    argv: Sequence[str],
    cwd: Path,
    env: Mapping[str, str],
    *,
    stdout: int = subprocess.DEVNULL,
    stderr: int = subprocess.DEVNULL,
    leads: bool = False,
    starts_forks: bool = False,
) -> Started:
    """`python ARGV` in a fork, which writes there, and `leads` a process group of its own, as a terminal's program does."""
    if stdout == subprocess.PIPE:
        reader, writer = os.pipe()
        try:
            started = start(argv, cwd, env, stdout=writer, stderr=stderr, leads=leads, starts_forks=starts_forks)
        finally:
            os.close(writer)
        started.stdout = os.fdopen(reader)
        return started
    made = zygote()
    variables = {**env, PYTHON: made.python}
    request: dict[str, Any] = {"argv": [*argv], "cwd": str(cwd), "env": variables, "leads": leads}
    if starts_forks:
        request["executable"] = made.python
    with open(os.devnull, "r+b") as nothing:
        streams = [nothing.fileno(), *(nothing.fileno() if each == subprocess.DEVNULL else each for each in (stdout, stderr))]
        line, pid = fork.ask(made.address, request, streams)
    assert pid, "this would be no fork: ask may_fork"
    return Started(line, pid)


def may_fork(python: str, argv: Sequence[str], env: Mapping[str, str], ours: Mapping[str, str] | None = None) -> bool:
    """Whether a fork is what a new process would be: it runs what is imported, on the same Python and search path."""
    ours = {**os.environ, **SEARCH_PATH} if ours is None else ours
    names = {name for name in {*env, *ours} if name.startswith(BEFORE_IMPORTS) and name not in AFTER_IMPORTS}
    more = searched_before(env, ours)
    return (
        all(env.get(name) == ours.get(name) for name in names)
        and more is not None
        and not any(any(Path(folder).glob(name)) for folder in more for name in AT_START)
        and python == sys.executable
        and (argv[0] == "-c" or list(argv[:2]) in (["-m", "pytest"], ["-m", COMMANDS]))
    )


def searched_before(env: Mapping[str, str], ours: Mapping[str, str]) -> list[str] | None:
    """What is searched for modules before what this process searches; None where it is not the same after that."""
    theirs, own = (each.get("PYTHONPATH", "").split(os.pathsep) for each in (env, ours))
    return theirs[: -len(own)] if theirs[-len(own) :] == own else None


def read_all(*pipes: int, timeout_s: float) -> list[str]:
    """What is written into each pipe until its other end is closed by all who hold it."""
    deadline = time.monotonic() + timeout_s
    written = {pipe: bytearray() for pipe in pipes}
    with selectors.DefaultSelector() as selector, contextlib.ExitStack() as opened:
        for pipe in pipes:
            selector.register(pipe, selectors.EVENT_READ)
            opened.callback(os.close, pipe)
        while selector.get_map():
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError(f"it still ran after {timeout_s} s: {bytes(written[pipes[0]])!r}")
            for key, _ in ready:
                if chunk := os.read(key.fd, 1 << 16):
                    written[key.fd] += chunk
                else:
                    selector.unregister(key.fd)
    return [bytes(text).decode().replace("\r\n", "\n") for text in written.values()]
