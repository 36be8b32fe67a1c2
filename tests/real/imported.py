"""A `python` that starts agents and programs as forks of a process with TensorFlow: each import takes seconds of CPU time.

    use_forks(TABLE)     a cluster of this machine with forks as agents, which fork zygotes and tasks
    path()            for programs of one's own, which are started as `python NAME.py`: a PATH on which that is a fork
    python()          such a Python, for sessions that train or import Keras in their own process

A fork has the arguments, environment, folder, streams, cores and network of the process that it replaces, which stays,
passes its signals on and ends with it (`tests/plugin/fork.py`). What else is asked for is Python itself. Agents of SSH, Slurm
and EC2, and of campaigns' perf_tests/, import TensorFlow themselves.

    python -m tests.real.imported LISTENER LINE    serves all of a run, as `tests/plugin/warm.py` does
"""

import importlib
import io
import os
import runpy
import shlex
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from pytest_dtfperf.node import isolation
from tests.forks import imports
from tests.plugin.serving import Kind, be_like, end_as, serve
from tests.plugin.zygote import SEARCH_PATH, Zygote, new_zygote

# What is started by its name: agents, what feeds a tower or makes data sets, what a benchmark trains, and, where this is their
# Python, sessions whose tests import Keras.
MODULES = (
    "pytest_dtfperf.node.agent", "pytest_dtfperf.testing.fed", "pytest_dtfperf.training.making", "benchmarks.steps",
    "pytest_dtfperf.cli", "pytest",
)  # fmt: skip
# The second one and the following are what the agent imports, which is itself run by its name.
_OF_AGENT = ("host_run", "probes", "tunnel", "gpu_state")
IMPORTED = ("pytest_dtfperf.training.task", *(f"pytest_dtfperf.node.{name}" for name in _OF_AGENT))
FIRST_IMPORT = "pytest_dtfperf.training.first_import"
# The last two as pytest_dtfperf/node/zygote.py has them.
ENVIRONMENT = {**SEARCH_PATH, "OPENBLAS_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}

STAND_IN = f"""#!/bin/sh
case "$1 $2 $3 $4" in
"-P -m pytest_dtfperf.node.module_command pytest_dtfperf.testing.fed") shift 3; set -- -m "$@" ;;
esac
case "$1 $2 $3" in
{" | ".join(shlex.quote(f"-P -m {module}") for module in MODULES)}) shift ;;
esac
case "$1 $2" in
{" | ".join(shlex.quote(f"-m {module}") for module in MODULES)} | [!-]*".py "*) exec {{python}} -IS {{fork}} {{address}} "$@" ;;
esac
exec {{python}} "$@"
"""


@cache
def zygote() -> Zygote:
    """Return the zygote of this process, and of the other processes of its run."""
    return new_zygote("tests.real.imported", STAND_IN, ENVIRONMENT)


def python() -> str:
    """Return the path of the zygote's Python."""
    return zygote().python


def use_forks(table: str) -> str:
    """Return the text of a cluster file, with forks as the agents of its first local cluster."""
    backend = 'backend = "local"\n'
    assert backend in table
    return table.replace(backend, f'{backend}python = "{python()}"\n', 1)


def path() -> str:
    """Return a PATH on which `python` starts forks."""
    return os.pathsep.join([str(Path(python()).parent), str(Path(sys.executable).parent), os.environ["PATH"]])


def become(request: Mapping[str, Any], streams: Sequence[int]) -> None:
    """Take over the cores, network and streams of the requesting process, as /proc shows them. It waits."""
    asking = request["pid"]
    os.sched_setaffinity(0, os.sched_getaffinity(asking))
    user, network = (os.open(f"/proc/{asking}/ns/{name}", os.O_RDONLY) for name in isolation.NAMESPACES)
    if not os.path.samestat(os.fstat(network), os.stat("/proc/self/ns/net")):
        isolation.enter(user, network)
    os.close(user)
    os.close(network)
    files = [os.open(f"/proc/{asking}/fd/{each}", os.O_RDONLY) for each in request["env"].get(isolation.FILES, "").split()]
    be_like(request, streams)
    if files:
        os.environ[isolation.FILES] = " ".join(map(str, files))


def execute(what: str, *arguments: str) -> NoReturn:
    """Run a module or a program's file, and end with its exit code."""
    searched = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:1] = [os.getcwd() if what == "-m" else str(Path(what).resolve().parent), *filter(None, searched)]
    if what == "-m":
        sys.argv[1:] = arguments[1:]
        end_as(lambda: runpy.run_module(arguments[0], run_name="__main__", alter_sys=True))
    sys.argv = [what, *arguments]
    if os.environ.get("PYTHONUNBUFFERED"):
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(write_through=True)
    # As on a host that has TensorFlow alone: Keras would import them when it trains.
    sys.modules.update(dict.fromkeys(importlib.import_module(FIRST_IMPORT).HIDDEN))
    end_as(lambda: runpy.run_path(what, run_name="__main__"))


if __name__ == "__main__":
    with imports():
        for name in IMPORTED:
            importlib.import_module(name)
    if program := serve(Kind(lambda request: True, become), *map(int, sys.argv[1:])):
        execute(*program)
