"""Programs with TensorFlow, for tests in processes without it: forks of one process that has imported it.

To import it takes some seconds of CPU, which a dozen programs would each need. A fork has its own arguments, environment and
pipes, like a task that an agent's zygote forks. A test that needs a new import starts a process by `subprocess`.

    python -m tests.training.programs FD    serves requests on this socket until the other end is closed
"""

import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO

from tests import outcomes
from tests.forks import Forks, imports, requests

ENVIRONMENT = {
    "TF_CPP_MIN_LOG_LEVEL": "2",
    # oneDNN chooses algorithms by the CPU and the data format, whose rounding batch norm over a few pixels makes large. What is
    # compared here is what a graph computes; tests/launch and tests/real train with what users have.
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "OPENBLAS_NUM_THREADS": "1",  # which are started with numpy's import, and no fork has them
}

# Tests that run at the same time have separate networks, so that tasks' traffic can be counted. This needs root.
_APART = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
NETWORK_APART = _APART if subprocess.run([*_APART, "true"], capture_output=True, check=False).returncode == 0 else ()


@dataclass(frozen=True)
class Program:
    """A fork that runs: `exit_code` has a line when it has ended."""

    stdin: IO[str]
    stdout: IO[str]
    exit_code: IO[str]


@cache
def zygote() -> Forks:
    """The process that has imported TensorFlow for this one, and ends with it."""
    return Forks("tests.training.programs", ENVIRONMENT, before=NETWORK_APART)


@contextmanager
def start(argv: Sequence[str], environment: Mapping[str, str], log: Path) -> Iterator[Program]:
    """`python ARGV`, which is "-m", a module and its arguments, or "-c" and a program. Its stderr goes into `log`."""
    (stdin, to_stdin), (from_stdout, stdout), (from_code, code) = os.pipe(), os.pipe(), os.pipe()
    with log.open("wb") as errors:
        request = {"argv": [*argv], "environment": {**os.environ, **ENVIRONMENT, **environment}}
        zygote().ask(request, [stdin, stdout, errors.fileno(), code])
    for fd in (stdin, stdout, code):
        os.close(fd)
    outcomes.add_shared_child(zygote().answer())
    with os.fdopen(from_code) as ended, os.fdopen(from_stdout, errors="replace") as out, os.fdopen(to_stdin, "w") as into:
        yield Program(into, out, ended)


@contextmanager
def run_with_requests(module: str, log: Path, environment: Mapping[str, str] = {}) -> Iterator[tuple[IO[str], IO[str]]]:
    """Run a module's program, and yield the streams for requests and answers. Other output goes into `log`.

    It ends when there are no more requests.
    """
    with start(["-m", module], environment, log) as program:
        yield program.stdin, program.stdout
        program.stdin.close()
        program.exit_code.read()


def run_program(log: Path, *argv: str, **environment: str) -> str:
    """Run `python ARGV`, which must succeed, and return its output."""
    with start(argv, environment, log) as program:
        program.stdin.close()
        output = program.stdout.read()
        assert program.exit_code.read() == "0", log.read_text(errors="replace")[-3000:]
    return output


def serve(line: socket.socket) -> None:
    """Fork for every request, and send the fork's process id; return when the other end is closed."""
    for request, pipes in requests(line, most_pipes=4):
        _reap()
        pid = os.fork()
        if pid == 0:
            line.close()
            _live(pipes, **request)
        line.send(json.dumps(pid).encode())


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def _live(pipes: Sequence[int], argv: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run a program to its end, which is this process's."""
    *standard, exit_code = pipes
    for fd, pipe in enumerate(standard):
        os.dup2(pipe, fd)
        os.close(pipe)
    os.set_inheritable(exit_code, False)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[1:1] = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path and path not in sys.path]
    code = 1
    try:
        _run(*argv)
        code = 0
    except BaseException:  # the process ends here, whatever it was
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(exit_code, str(code).encode())
        os._exit(code)


def _run(kind: str, what: str, *arguments: str) -> None:
    sys.argv = [what, *arguments]
    if kind == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    line = socket.socket(fileno=int(sys.argv[1]))
    line.set_inheritable(False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for pytest, which closes the line
    with imports():
        importlib.import_module("pytest_dtfperf.training.task")
    serve(line)
