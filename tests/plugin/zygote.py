"""A process that has imported pytest, the plugin and what these load, and forks one process for every session it is asked for.

A fork is a process like any other, with its own arguments, environment, folder, output and exit code. It saves a second of CPU,
which is what the imports take: twice the rest of a session of toys. Who starts a session by `subprocess` has a cold one.

    python -m tests.plugin.zygote FD    serves requests on this socket until the other end is closed
"""

import contextlib
import gc
import importlib
import io
import json
import os
import runpy
import selectors
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.forks import REPOSITORY, Forks, requests

IMPORTED = (
    "jsonschema",
    "referencing",
    "scipy.optimize",
    "scipy.special",
    "pytest_dtfperf.plugin.ending",
    "pytest_dtfperf.history.store",
)

# What Python itself and pytest go by before anything is imported is as it was when this process started.
BEFORE_IMPORTS = ("LD_", "PYTHON", "PYTEST_DISABLE", "PYTEST_PLUGINS")


@cache
def zygote() -> Forks:
    """That of this process, which ends with it."""
    return Forks("tests.plugin.zygote", {"PYTHONPATH": _python_path()})


def run(argv: Sequence[str], cwd: Path, env: Mapping[str, str], timeout_s: float) -> tuple[int, str, str]:
    """`python -m pytest ARGV` in a fork: exit code, stdout and stderr, once everybody has closed these."""
    out, err = os.pipe(), os.pipe()
    zygote().ask({"argv": [*argv], "cwd": str(cwd), "env": dict(env)}, [out[1], err[1]])
    os.close(out[1])
    os.close(err[1])
    written = _read_all(out[0], err[0], timeout_s=timeout_s)
    return zygote().answer(), *written


def may_fork(python: str, argv: Sequence[str], env: Mapping[str, str]) -> bool:
    """Whether a fork is what a new process would be: it runs pytest, on the same Python, and with the same search path."""
    ours = {**os.environ, "PYTHONPATH": _python_path()}
    same = all(env.get(name) == ours.get(name) for name in {*env, *ours} if name.startswith(BEFORE_IMPORTS))
    return same and python == sys.executable and list(argv[:2]) == ["-m", "pytest"]


def _python_path() -> str:
    return os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])


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
                raise TimeoutError(f"pytest still ran after {timeout_s} s: {bytes(written[pipes[0]])!r}")
            for key, _ in ready:
                if chunk := os.read(key.fd, 1 << 16):
                    written[key.fd] += chunk
                else:
                    selector.unregister(key.fd)
    return [bytes(text).decode().replace("\r\n", "\n") for text in written.values()]


def serve(line: socket.socket) -> bool:
    """Fork for every request. Returns True in each fork, which is to run pytest; False here when nobody asks any more."""
    for request, pipes in requests(line, most_pipes=2):
        pid = os.fork()
        if pid == 0:
            line.close()
            _become(request, pipes)
            return True
        line.send(json.dumps(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
    return False


def _become(request: Mapping[str, Any], pipes: Sequence[int]) -> None:
    for fd, pipe in enumerate(pipes, 1):
        os.dup2(pipe, fd)
        os.close(pipe)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.path[0] = request["cwd"]  # as `python -m` has it
    sys.argv = ["pytest", *request["argv"]]
    sys.orig_argv = [sys.executable, "-m", *sys.argv]


def warm_up() -> None:
    """A session of no tests in a folder of perf tests: its imports stay."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        Path(folder, "pytest.ini").write_text("[pytest]\n")
        Path(folder, "clusters.toml").write_text('[local]\nbackend = "local"\n')
        pytest.main(["-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-p", "no:benchmark", "--rootdir", folder, folder])
    for name in IMPORTED:
        importlib.import_module(name)
    importlib.import_module("pytest_dtfperf.baselines.references").references()  # read and checked once, and kept
    importlib.import_module("pytest_dtfperf.report.page.html").environment().get_template("page.html")  # likewise compiled
    gc.freeze()  # or every session would collect what is not its own, and copy it by doing so


if __name__ == "__main__":
    asked = socket.socket(fileno=int(sys.argv[1]))
    warm_up()
    if serve(asked):
        runpy.run_module("pytest", run_name="__main__", alter_sys=True)
