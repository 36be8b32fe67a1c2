"""Tests of sessions that are forks, which behave as new Python processes do."""

import json
import os
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.testing.backends import wait_until
from tests import outcomes
from tests.plugin import fork, zygote
from tests.plugin.conftest import PerfTests

REPORTS = """
import json, os, sys

def test_it(request):
    report = {
        "argv": sys.argv, "command": sys.orig_argv[1:], "path": sys.path[:2], "folder": os.getcwd(), "word": os.environ["WORD"],
        "main": getattr(sys.modules["__main__"], "__file__", None), "stdin": os.read(0, 1).decode(), "plugins": sorted(
            plugin.__name__ for plugin in request.config.pluginmanager.get_plugins() if hasattr(plugin, "__spec__")
        ),
    }
    json.dump(report, open("report.json", "w"))
    os.write(2, b"on stderr")
"""


@pytest.mark.parametrize("arguments", [("-q", "-s"), ("-q", "-n1")], ids=" ".join)
def test_fork_behaves_as_a_new_process(perf: PerfTests, arguments: tuple[str, ...]) -> None:
    """Arguments, folder, environment, search path, plugins, output and exit code are the same, also in an xdist worker."""
    perf.write(REPORTS)
    seen: dict[bool, Any] = {}
    for perf.cold in (True, False):
        ended = perf.run(*arguments, WORD="said")
        report = Path(perf.folder, "report.json")
        words = [line for line in ended.out.splitlines() if " in " not in line]  # seconds
        seen[perf.cold] = ended.code, words, ended.err, json.loads(report.read_text()) if report.exists() else None
        report.unlink(missing_ok=True)
    assert seen[True] == seen[False]
    assert seen[True][0] == 0


STARTS = """
import os, subprocess, sys
light = ["-p", "no:cacheprovider", "-p", "no:hypothesispytest"]
pytest = subprocess.Popen([sys.executable, "-m", "pytest", "-q", *light, "perf"], process_group=0)
if len(sys.argv) > 1:
    open("started").close()
    os.kill(pytest.pid, int(sys.argv[1]))
sys.exit(pytest.wait() % 256)
"""


@pytest.mark.parametrize("number, code", [(signal.SIGKILL, 256 - 9), (signal.SIGTERM, 128 + 15)])
def test_fork_of_a_fork_ends_as_a_process_does(perf: PerfTests, number: int, code: int) -> None:
    """The stand-in of `sys.executable` has the exit code of its fork, passes its signals on, and leaves no process."""
    os.mkfifo(perf.folder / "started")
    perf.starts_forks = True
    perf.write("def test_it(): assert 0\n")
    assert perf.run_python("-c", STARTS).code == 1
    perf.write("import os, signal\ndef test_it():\n    open('started', 'w').close()\n    signal.pause()\n")
    assert perf.run_python("-c", STARTS, str(int(number))).code == code
    wait_until("the fork is gone", lambda: not forks_in(perf.folder))


def forks_in(folder: Path) -> list[str]:
    """Processes that are in this folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (process / "cwd").readlink() == folder:
                found.append(process.name)
    return found


def test_fork_reports_its_end(perf: PerfTests) -> None:
    """Signals and exit codes that pytest does not use are reported with the output so far, and the next fork works."""
    perf.write("import os\ndef test_it():\n    os.write(2, b'nearly')\n    os.kill(os.getpid(), 9)\n")
    ended = perf.run("-s")
    assert (ended.code, ended.err) == (-9, "nearly")
    perf.write("import os\ndef test_it():\n    os._exit(77)\n")
    assert perf.run().code == 77
    perf.write("def test_it(): assert False\n")
    assert perf.run().code == 1


BUSY = "import os, time\nwhile time.process_time() < 0.2: pass\nprint(os.getppid())"


def test_processes_of_a_run_have_one_zygote() -> None:
    """Two clients share one zygote, which stays until the second one has left, and each receives its CPU time."""
    first, second = (zygote.new_zygote("tests.plugin.bare", zygote.STAND_IN, zygote.SEARCH_PATH) for _ in range(2))
    assert first.python != second.python
    seen = []
    for made in (first, second):
        before_s = outcomes.get_cpu_s()
        ended = subprocess.run([made.python, "-u", "-c", BUSY], capture_output=True, text=True, check=True)
        seen.append(int(ended.stdout))
        assert outcomes.get_cpu_s() - before_s >= 0.2
        made.line.close()
    assert seen[0] == seen[1]
    wait_until("it has ended", lambda: not is_running(seen[0]))


def test_killed_clients_leave_the_zygote_to_others() -> None:
    """A client that is killed before its request, or before the answer to it, does not end the process that forks."""
    made = zygote.new_zygote("tests.plugin.bare", zygote.STAND_IN, zygote.SEARCH_PATH)
    request = {"argv": ["-c", "pass"], "cwd": "/", "env": {}, "leads": False}
    with made.line, open(os.devnull, "r+b") as nothing:
        for message in (b"", json.dumps(request).encode()):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
                line.connect(made.address)
                if message:
                    socket.send_fds(line, [message], [nothing.fileno()] * 3)
        line, pid = fork.ask(made.address, request, [nothing.fileno()] * 3)
        with line:
            assert pid
            assert fork.answer(line) == 0


def is_running(pid: int) -> bool:
    """One that has ended and is not waited for yet is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
