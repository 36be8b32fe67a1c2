"""A process that has imported pytest, the plugin, `dtfperf` and what these load, and forks one for every program asked for.

A fork is a process like any other, with its own arguments, environment, folder, output and exit code. It saves a second of CPU,
which is what the imports take: twice the rest of a session of toys. Who starts a program by `subprocess` has a cold one.

    python -m tests.plugin.zygote FD    serves requests on this socket until the other end is closed
"""

import atexit
import contextlib
import gc
import importlib
import io
import json
import os
import runpy
import selectors
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.forks import REPOSITORY, Forks, requests

IMPORTED = (
    "scipy.optimize",
    "scipy.special",
    "pytest_dtfperf.plugin.ending",
    "pytest_dtfperf.plugin.train",
    "pytest_dtfperf.clusters.local",
    "pytest_dtfperf.explain.causes",
    "pytest_dtfperf.history.store",
    "pytest_dtfperf.report.exports",
    "pytest_dtfperf.report.page.build",
    "pytest_dtfperf.report.plots",
    "pytest_dtfperf.session.session",
    "pytest_dtfperf.session.sweep",
    "pytest_dtfperf.training.models.trivial",
)
ENDS_S = 300.0  # whatever has not ended by then hangs
COMMANDS = "pytest_dtfperf.cli"  # each in a module of its own, imported when it is asked for

SEARCH_PATH = {"PYTHONPATH": os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])}

# What Python itself and pytest go by before anything is imported is as it was when this process started.
BEFORE_IMPORTS = ("LD_", "PYTHON", "PYTEST_DISABLE", "PYTEST_PLUGINS")


@cache
def zygote() -> Forks:
    """That of this process, which ends with it."""
    return Forks("tests.plugin.zygote", SEARCH_PATH)


def python(*argv: object, cwd: Path | None = None, **more: str) -> subprocess.CompletedProcess[str]:
    """What `python ARGV` has said and how it ended, with these variables more: a fork where that is what a process would be."""
    words = [str(word) for word in argv]
    env = {**os.environ, **SEARCH_PATH, **more}
    if may_fork(sys.executable, words, env):
        return subprocess.CompletedProcess(words, *run(words, cwd or Path.cwd(), env, ENDS_S))
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=ENDS_S, check=False)


def dtfperf(*arguments: object, cwd: Path | None = None, **more: str) -> subprocess.CompletedProcess[str]:
    """The same of `dtfperf ARGUMENTS`."""
    return python("-m", COMMANDS, *arguments, cwd=cwd, **more)


def run(argv: Sequence[str], cwd: Path, env: Mapping[str, str], timeout_s: float) -> tuple[int, str, str]:
    """`python ARGV` in a fork: exit code, stdout and stderr, once everybody has closed these."""
    out, err = os.pipe(), os.pipe()
    zygote().ask({"argv": [*argv], "cwd": str(cwd), "env": dict(env)}, [out[1], err[1]])
    os.close(out[1])
    os.close(err[1])
    output, errors = _read_all(out[0], err[0], timeout_s=timeout_s)
    return zygote().answer(), output, errors


def run_as_one(argv: Sequence[str], cwd: Path, env: Mapping[str, str], timeout_s: float) -> tuple[int, str]:
    """The same, with all that it writes in one text, as in a terminal."""
    reader, writer = os.pipe()
    zygote().ask({"argv": [*argv], "cwd": str(cwd), "env": dict(env)}, [writer, writer])
    os.close(writer)
    (output,) = _read_all(reader, timeout_s=timeout_s)
    return zygote().answer(), output


def may_fork(python: str, argv: Sequence[str], env: Mapping[str, str]) -> bool:
    """Whether a fork is what a new process would be: it runs what is imported, on the same Python and search path."""
    ours = {**os.environ, **SEARCH_PATH}
    same = all(env.get(name) == ours.get(name) for name in {*env, *ours} if name.startswith(BEFORE_IMPORTS))
    return same and python == sys.executable and (argv[0] == "-c" or list(argv[:2]) in (["-m", "pytest"], ["-m", COMMANDS]))


def _read_all(*pipes: int, timeout_s: float) -> list[str]:
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


def serve(line: socket.socket) -> Sequence[str] | None:
    """Fork for every request. Returns in each fork what it is to run; None here when nobody asks any more."""
    for request, pipes in requests(line, most_pipes=2):
        pid = os.fork()
        if pid == 0:
            line.close()
            _become(request, pipes)
            return [*request["argv"]]
        line.send(json.dumps(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
    return None


def _become(request: Mapping[str, Any], pipes: Sequence[int]) -> None:
    for fd, pipe in enumerate(pipes, 1):
        os.dup2(pipe, fd)
        os.close(pipe)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    kind, what, *arguments = request["argv"]
    sys.path[0] = "" if kind == "-c" else request["cwd"]  # as Python has it
    sys.argv = ["-c" if kind == "-c" else what, *arguments]
    sys.orig_argv = [sys.executable, *request["argv"]]


def execute(kind: str, what: str, *_: str) -> NoReturn:
    """Run a program, and end as it does."""
    code = 0
    try:
        if kind == "-c":
            sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(what, "<string>", "exec"), vars(sys.modules["__main__"]))
        else:
            runpy.run_module(what, run_name="__main__", alter_sys=True)
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


def warm_up() -> None:
    """A session of no tests in a folder of perf tests: its imports stay."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        Path(folder, "pytest.ini").write_text("[pytest]\n")
        Path(folder, "clusters.toml").write_text('[local]\nbackend = "local"\n')
        pytest.main(["-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-p", "no:benchmark", "--rootdir", folder, folder])
    commands = importlib.import_module(COMMANDS)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        commands.main(["--help"])
    for name in IMPORTED:
        importlib.import_module(name)
    assert not {"matplotlib", "pandas"} & sys.modules.keys(), "who draws nothing imports them nevertheless"
    importlib.import_module("pytest_dtfperf.baselines.references").references()  # read and checked once, and kept
    importlib.import_module("pytest_dtfperf.report.page.html").environment().get_template("page.html")  # likewise compiled
    gc.freeze()  # or every session would collect what is not its own, and copy it by doing so


if __name__ == "__main__":
    asked = socket.socket(fileno=int(sys.argv[1]))
    warm_up()
    if program := serve(asked):
        execute(*program)
