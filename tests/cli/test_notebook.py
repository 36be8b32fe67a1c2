"""`dtfperf notebook`: what comes through its tunnel, who gets in, and that nothing is left however it ends.

Behind the tunnel is a small server in JupyterLab's place, `stand_in`; JupyterLab itself is in tests/real/test_notebook.py.
"""

import hashlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.cli import main
from pytest_dtfperf.clusters.slurm import keys
from pytest_dtfperf.node import processes
from pytest_dtfperf.node.notebook import enter
from pytest_dtfperf.steps import VARIABLE as STEPS
from pytest_dtfperf.testing.backends import wait_until
from tests.cli.table import read
from tests.cli.test_launch import ENTRY, LOCAL, environment, on_a_disk
from tests.clusters.slurm.conftest import new_site, shared_site, site
from tests.clusters.slurm.site import Site
from tests.clusters.ssh.conftest import NewLab, lab, new_lab, shared_lab
from tests.clusters.ssh.lab import Lab
from tests.machines import machine
from tests.plugin import zygote

__all__ = ["lab", "new_lab", "new_site", "shared_lab", "shared_site", "site"]

REPOSITORY = Path(__file__).parents[2]
STAND_IN = Path(__file__).parent / "stand_in"
SEARCHED = zygote.SEARCH_PATH["PYTHONPATH"]
ENDS_S = 120.0
MIB = 1 << 20  # two windows of the tunnel

Process = zygote.Started | subprocess.Popen[str]


class Notebook:
    """A running `dtfperf notebook --json`, and what its tunnel leads to."""

    def __init__(self, folder: Path, process: Process) -> None:
        self.folder = folder
        self.process = process
        assert process.stdout
        line = process.stdout.readline()
        self.told: dict[str, Any] = read("notebook", line) if line else {}
        if not self.told:
            raise AssertionError(f"it ended with {process.wait(ENDS_S)}: {(folder / 'stderr').read_text()}")

    @property
    def pids(self) -> dict[str, int]:
        """Of the stand-in, its kernel and its agent, as their own machine counts them."""
        found: dict[str, int] = json.loads((self.folder / "pids.json").read_text())
        return found

    def connect(self, path: str, *, token: str | None = None, method: str = "GET", headers: str = "") -> socket.socket:
        """Ask for something, and leave the answer to be read."""
        sock = socket.create_connection(("127.0.0.1", self.told["port"]), ENDS_S)
        asked = f"{path}?token={self.told['token'] if token is None else token}"
        sock.sendall(f"{method} {asked} HTTP/1.1\r\nHost: 127.0.0.1\r\n{headers}\r\n".encode())
        return sock

    def get(self, path: str, **more: Any) -> tuple[int, bytes]:
        with self.connect(path, **more) as sock:
            answer = http.client.HTTPResponse(sock)
            answer.begin()
            return answer.status, answer.read()

    def ends(self) -> int:
        return self.process.wait(ENDS_S)


@contextmanager
def running(folder: Path, *words: str, disk: str = "", **more: str) -> Iterator[Notebook]:
    """With the stand-in in JupyterLab's place, where its host is this machine."""
    path = f"{STAND_IN}{os.pathsep}{SEARCHED}"
    with started(folder, *words, disk=disk, **{"PYTHONPATH": path, **more}) as process:
        yield Notebook(folder, process)


@contextmanager
def started(folder: Path, *words: str, disk: str = "", **more: str) -> Iterator[Process]:
    """`dtfperf notebook --json`, in a process group of its own, as in a terminal; on a small `disk`, if that is named."""
    env = environment(folder) | {"TMPDIR": str(tmp(folder)), **more}
    argv = ["-m", zygote.COMMANDS, "notebook", "--json", *words]
    with (folder / "stderr").open("w") as stderr, begun(argv, folder, env, stderr.fileno(), disk) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def begun(argv: list[str], folder: Path, env: Mapping[str, str], stderr: int, disk: str) -> Process:
    if not disk:
        return zygote.start(argv, folder, env, stdout=subprocess.PIPE, stderr=stderr, leads=True)
    command = on_a_disk(folder / disk, "2m", [sys.executable, *argv])
    return subprocess.Popen(
        command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=stderr, text=True, start_new_session=True
    )


def tmp(folder: Path) -> Path:
    """For temporary files, looked at by nobody else."""
    return folder / "t"


@pytest.fixture
def folder() -> Iterator[Path]:
    """With a cluster file that describes this machine; of a path so short that sockets may be in `tmp`."""
    with tempfile.TemporaryDirectory(prefix="nb-", dir="/tmp") as name:
        folder = Path(name)
        tmp(folder).mkdir()
        (folder / "clusters.toml").write_text(LOCAL)
        yield folder


def left(folder: Path) -> list[int]:
    """Processes that are in the folder, of whichever machine: the command, its agent, the server, its kernel."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if Path("/proc", name, "cwd").readlink() == folder:
                found.append(int(name))
    return found


def assert_nothing_left(folder: Path) -> None:
    wait_until("all processes are gone", lambda: left(folder) == [], ENDS_S)
    wait_until("the folder of its sockets is gone", lambda: not list(tmp(folder).glob("dtfperf-run-*")))


def test_one_url_leads_there_and_a_token_lets_in(folder: Path) -> None:
    """What is told leads to the server; without the token nobody gets in; no command line, environment or log has the token."""
    with running(folder) as notebook:
        told = notebook.told
        assert told["url"] == f"http://127.0.0.1:{told['port']}/lab?token={told['token']}"
        assert len(told["token"]) >= 32
        assert notebook.get("/lab") == (200, b"<title>JupyterLab</title>")
        assert notebook.get("/lab", token="")[0] == 403
        assert notebook.get("/lab", token="x" * 32)[0] == 403
        about = json.loads(notebook.get("/about")[1])
        assert about["folder"] == str(folder)
        assert told["token"] not in json.dumps(about["environment"])
        assert Path(about["environment"]["JUPYTER_RUNTIME_DIR"]).stat().st_mode & 0o777 == 0o700
        assert STEPS not in about["environment"], "a cell's Steps would wait for its devices"
        for pid in left(folder):
            assert told["token"].encode() not in Path("/proc", str(pid), "cmdline").read_bytes()
        assert_loopback_alone(told["port"])
        assert notebook.get("/shutdown")[0] == 200
        assert notebook.ends() == 0
    assert_nothing_left(folder)
    log = (folder / told["log"]).read_text()
    assert "it listens" in log
    assert told["token"] not in log + (folder / "stderr").read_text()


def assert_loopback_alone(port: int) -> None:
    """The port is bound to 127.0.0.1, according to the kernel."""
    tables = [Path("/proc/net", name).read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    listening = [line.split()[1] for table in tables for line in table if line.split()[3] == "0A"]
    assert [each for each in listening if each.endswith(f":{port:04X}")] == [f"0100007F:{port:04X}"]


def test_what_comes_through_is_what_was_sent(folder: Path) -> None:
    """A large download, a large upload and an echo that ends half by half arrive byte for byte, many at once."""
    with running(folder) as notebook:
        code, body = notebook.get(f"/bytes/{8 * MIB + 17}")
        assert code == 200
        assert (len(body), digest(body)) == (8 * MIB + 17, digest(expected(8 * MIB + 17)))
        length = 5 * MIB + 3
        with notebook.connect("/sum", method="POST", headers=f"Content-Length: {length}\r\n") as sock:
            sock.sendall(expected(length))
            answer = http.client.HTTPResponse(sock)
            answer.begin()
            assert answer.read().decode() == digest(expected(length))
        with ExitStack() as open_at_once:
            echoes = [open_at_once.enter_context(notebook.connect("/echo")) for _ in range(150)]  # more than are let in at once
            for number, sock in enumerate(echoes):
                sock.sendall(f"I am {number}".encode())
                sock.shutdown(socket.SHUT_WR)
            for number, sock in enumerate(echoes):
                assert sock.makefile("rb").read().partition(b"\r\n\r\n")[2] == f"I am {number}".encode()


def expected(count: int) -> bytes:
    block = bytes(range(251)) * 261
    return (block * (count // len(block) + 1))[:count]


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_who_does_not_read_costs_a_window(folder: Path) -> None:
    """Browsers that request much and read nothing block no others, and use little memory of the command and its agent."""
    with running(folder) as notebook, ExitStack() as open_at_once:
        before = {name: peak_mib(pid) for name, pid in processes_of(notebook).items()}
        lazy = [open_at_once.enter_context(notebook.connect(f"/bytes/{200 * MIB}")) for _ in range(10)]
        assert notebook.get(f"/bytes/{5 * MIB}") == (200, expected(5 * MIB))
        for sock in lazy:
            assert sock.recv(8) == b"HTTP/1.1"
        after = {name: peak_mib(pid) for name, pid in processes_of(notebook).items()}
        assert {name: after[name] - before[name] < 40 for name in after} == {"command": True, "agent": True}
        assert notebook.get("/lab")[0] == 200


def processes_of(notebook: Notebook) -> dict[str, int]:
    return {"command": notebook.process.pid, "agent": notebook.pids["agent"]}


def peak_mib(pid: int) -> int:
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) // 1024


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGKILL, -signal.SIGKILL)],
)
def test_whatever_ends_the_command_ends_all(folder: Path, number: int, code: int) -> None:
    """Ctrl-C, SIGTERM, SIGHUP, and a kill -9: neither a kernel that ignores SIGTERM nor a file is left."""
    with running(folder) as notebook, notebook.connect(f"/bytes/{200 * MIB}"):
        os.kill(notebook.process.pid, number)
        assert notebook.ends() == code
        assert_nothing_left(folder)


@pytest.mark.parametrize(
    ("whom", "code", "words"),
    [
        ("server", 128 + signal.SIGKILL, "dtfperf: JupyterLab on .* was killed by SIGKILL"),
        ("agent", 1, "dtfperf: the agent on .* is gone: the agent was killed by SIGKILL"),
    ],
)
def test_whoever_is_killed_takes_the_rest_along(folder: Path, whom: str, code: int, words: str) -> None:
    """After the death of the server or its agent, the command names it, and nothing is left."""
    with running(folder) as notebook:
        os.kill(notebook.pids[whom], signal.SIGKILL)
        assert notebook.ends() == code
    assert_nothing_left(folder)
    errors = (folder / "stderr").read_text()
    assert re.search(words, errors), errors


def setup(folder: Path, repository: str = "") -> str:
    """What other machines are told: where the stand-in is, and where temporary files are seen from here."""
    return f'setup = ["export PYTHONPATH={STAND_IN}{repository} TMPDIR={tmp(folder)}"]'


def test_through_ssh(folder: Path, lab: Lab) -> None:
    """On another machine: the same comes through its ssh, and nothing is left there however it ends."""
    (folder / "clusters.toml").write_text(lab.toml(setup(folder)))
    with running(folder, "--cluster=lab", PYTHONPATH=SEARCHED) as notebook:
        assert notebook.told["host"] == "m1"
        assert notebook.get("/lab", token="")[0] == 403
        assert notebook.get(f"/bytes/{5 * MIB + 5}") == (200, expected(5 * MIB + 5))
        about = json.loads(notebook.get("/about")[1])
        assert "bundle-" not in about["environment"]["PYTHONPATH"], "kernels find what is installed, and not what has travelled"
        os.kill(the_agent(lab), signal.SIGKILL)
        assert notebook.ends() == 1
    assert_nothing_left(folder)
    assert "the agent on m1 is gone" in (folder / "stderr").read_text()
    with running(folder, "--cluster=lab", PYTHONPATH=SEARCHED) as notebook:
        os.kill(notebook.process.pid, signal.SIGKILL)
        notebook.ends()
        assert_nothing_left(folder)


def the_agent(lab: Lab) -> int:
    """By its id here: on a machine of its own it has another."""
    found = {
        pid
        for pid in lab["m1"].processes("pytest_dtfperf.node.agent")
        if b"node.agent" in Path(f"/proc/{pid}/cmdline").read_bytes()
    }
    (agent,) = {pid for pid in found if (seen := processes.inspect(pid)) and seen.parent not in found}
    return agent


@pytest.mark.skipif(machine.why_not() is not None, reason="machines that can be cut off need namespaces")
def test_a_line_that_is_cut_ends_both_ends(folder: Path, new_lab: NewLab) -> None:
    """A disconnected host ends by itself, and the command reports that it was cut off."""
    lab = new_lab(1)
    (folder / "clusters.toml").write_text(lab.toml(setup(folder), "heartbeat_timeout_s = 5", "limits = { silence_s = 4 }"))
    with (
        running(folder, "--cluster=lab", PYTHONPATH=SEARCHED) as notebook,
        notebook.connect(f"/bytes/{200 * MIB}") as sock,
    ):
        lab["m1"].link_down()
        assert notebook.ends() == 1
        while sock.recv(MIB):
            pass  # what had come already
    wait_until("nothing of ours is left on it", lambda: not lab["m1"].processes("pytest_dtfperf"), ENDS_S)
    assert_nothing_left(folder)
    assert "dtfperf: the agent on m1" in (folder / "stderr").read_text()


def test_through_slurm(folder: Path, site: Site) -> None:
    """On a node, through srun: the same works, the end of the job is reported, and the queue is empty afterwards."""
    table = ["[mini]", 'backend = "slurm"', "alone = false", f'python = "{sys.executable}"', "time_limit = 5", "nodes = 4"]
    table += ["devices_per_host = 2", 'device = "cpu"', setup(folder, f":{REPOSITORY}")]
    (folder / "clusters.toml").write_text("\n".join(table))
    with running(folder, "--cluster=mini", "--gpus=2", **site.environment) as notebook:
        assert notebook.get("/lab", token="")[0] == 403
        assert notebook.get(f"/bytes/{5 * MIB + 5}") == (200, expected(5 * MIB + 5))
        os.kill(notebook.process.pid, signal.SIGINT)
        assert notebook.ends() == 130
    assert re.search(
        r"dtfperf: \S+ is allocated until \d{4}-\d\d-\d\d \d\d:\d\d at the latest", (folder / "stderr").read_text()
    )
    wait_until("the queue is empty", lambda: not site.run("squeue", "--noheader").strip())
    assert_nothing_left(folder)


def test_the_folder_shown(folder: Path) -> None:
    """It is the one that --dir names, from where the command is called."""
    (folder / "shown").mkdir()
    with running(folder, "--dir=shown") as notebook:
        assert json.loads(notebook.get("/about")[1])["folder"] == str(folder / "shown")


@pytest.mark.parametrize(
    ("python_words", "words", "code", "message"),
    [
        ("-S", [], 127, "JupyterLab is not installed for this host's Python, .*: pip install jupyterlab there"),
        (
            "",
            ["--dir=/nowhere"],
            127,
            "the folder /nowhere on this host cannot be shown, No such file or directory: set --dir to",
        ),
    ],
)
def test_where_it_cannot_be(folder: Path, python_words: str, words: Sequence[str], code: int, message: str) -> None:
    """For a host without JupyterLab, or a missing folder, one line has the host and the remedy."""
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {python_words} "$@"\n')
    python.chmod(0o755)
    (folder / "clusters.toml").write_text(f'{LOCAL}python = "{python}"\n')
    env = environment(folder) | {"TMPDIR": str(tmp(folder))}
    ended, out, err = zygote.run(["-m", zygote.COMMANDS, "notebook", *words], folder, env, ENDS_S)
    assert (ended, out) == (code, "")
    last = [line for line in err.splitlines() if "JupyterLab starts on" not in line]
    assert re.fullmatch(f"dtfperf: {socket.gethostname()}: {message}.*", "\n".join(last)), err
    assert_nothing_left(folder)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--port=70000"], "--port must be a number from 0 to 65535, not 70000"),
        (["--gpus=0"], "--gpus must be 1 or more, and on 'local' at most 2, what one host has, not 0"),
        (["--gpus=3"], "--gpus must be 1 or more, and on 'local' at most 2, what one host has, not 3"),
        (["--open"], "--open: there is no display here, so no browser"),
        (["--cluster=nowhere"], "unknown cluster 'nowhere'"),
    ],
)
def test_what_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: Sequence[str], message: str
) -> None:
    """One line has the error, before anything is started."""
    (folder / "clusters.toml").write_text(f"{LOCAL}devices_per_host = 2\n")
    monkeypatch.chdir(folder)
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    assert main(["notebook", *words]) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert len(shown.splitlines()) == 1
    assert not (folder / "dtfperf_notebooks").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a disk")
def test_its_log_on_a_full_disk(folder: Path) -> None:
    """The disk fills up while it runs: what goes through the tunnel goes on, and in the end no log is said to be there."""
    (folder / "disk").mkdir()
    with running(folder, f"--logs={folder / 'disk'}/logs", disk="disk") as notebook:
        fill(Path(f"/proc/{notebook.process.pid}/root/{folder / 'disk'}"))
        assert notebook.get(f"/bytes/{MIB}") == (200, expected(MIB))
        assert notebook.get("/shutdown")[0] == 200
        assert notebook.ends() == 0
    assert_nothing_left(folder)
    told = (folder / "stderr").read_text()
    assert f"JupyterLab was shut down; logs cannot be written to {folder / 'disk'}/logs: No space left on device\n" in told


def fill(disk: Path) -> None:
    with suppress(OSError), (disk / "filling").open("wb") as file:
        while True:
            file.write(b"x" * 65536)


def test_a_host_without_room_for_its_sockets(folder: Path, lab: Lab) -> None:
    """If its folder for temporary files is full, the message has the host, the path and the reason."""
    (folder / "clusters.toml").write_text(lab.toml(ENTRY, "setup = ['export TMPDIR=/proc']"))
    command = [sys.executable, "-m", "pytest_dtfperf.cli", "notebook", "--cluster=lab"]
    done = subprocess.run(
        command, cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=ENDS_S, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    why = r"^dtfperf: .*m1.*\n    \| agent: cannot make a folder in /proc on this host: No such file or directory$"
    assert re.search(why, done.stderr, re.MULTILINE), done.stderr
    assert "Traceback" not in done.stderr
    assert_nothing_left(folder)


def test_a_port_that_is_taken(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It is reported before any host is allocated, with the way to another port."""
    monkeypatch.chdir(folder)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert main(["notebook", f"--port={port}"]) == 2
    assert f"cannot listen at port {port} of this machine: Address already in use" in capsys.readouterr().err


def test_a_browser_is_not_told_by_its_command_line(folder: Path) -> None:
    """With --open a browser is given a file of this user's alone, which leads to the URL and goes with the command."""
    seen = folder / "seen"
    browser = folder / "browser"
    browser.write_text(f'#!/bin/sh\necho "$@" > {seen}.new; stat -c %a "$(dirname "${{1#file://}}")" >> {seen}.new\n'
                       f'cat "${{1#file://}}" >> {seen}.new; mv {seen}.new {seen}\n')  # fmt: skip
    browser.chmod(0o755)
    with running(folder, "--open", BROWSER=str(browser)) as notebook:
        wait_until("the browser was started", seen.exists)
        told, mode, page = seen.read_text().split("\n", 2)
        assert re.fullmatch(r"file:///\S+/open.html", told)
        assert mode == "700"
        assert notebook.told["url"] in page
        assert notebook.told["token"] not in told
        os.kill(notebook.process.pid, signal.SIGTERM)
        assert notebook.ends() == 143
    assert not Path(told.removeprefix("file://")).exists()


@contextmanager
def somebody_else() -> Iterator[None]:
    """Without root's rights, to whom every folder is open."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


def test_a_folder_that_is_anothers(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One that is there and cannot be entered is passed over for the home, or refused in one line if it was asked for."""
    folder.chmod(0o755)
    (home := folder / "home").mkdir()
    (closed := folder / "closed").mkdir(mode=0)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(folder)
    with somebody_else():
        enter(None, str(closed))
        assert Path.cwd() == home
        with pytest.raises(SystemExit, match="127"):
            enter("closed", str(folder))
    words = f"the folder {closed} on this host cannot be shown, Permission denied: set --dir to another one\n"
    assert capsys.readouterr().out == words


def test_a_browser_may_last(folder: Path) -> None:
    """One that --open's program does not leave behind, as those of a terminal, is answered while it is there."""
    seen = folder / "seen"
    browser = folder / "browser"
    browser.write_text(
        f"#!{sys.executable}\nimport re, sys, time, urllib.request\n"
        "url = re.search('url=([^\"]+)', open(sys.argv[1].removeprefix('file://')).read())[1]\n"
        "told = urllib.request.urlopen(url, timeout=10).status\n"
        f"open({str(seen)!r}, 'w').write(str(told))\ntime.sleep(3600)\n"
    )
    browser.chmod(0o755)
    with running(folder, "--open", BROWSER=str(browser)) as notebook:
        wait_until("the browser was answered", lambda: seen.exists() and seen.read_text())
        assert seen.read_text() == "200"
        os.kill(notebook.process.pid, signal.SIGTERM)
        assert notebook.ends() == 143
    for pid in left(folder):  # the browser is its user's
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("given", "lent_s"),
    [({}, 3600), ({"time_limit": 5}, 300), ({"time_limit": "12"}, 720), ({"time_limit": "12:30"}, 750),
     ({"time_limit": "01:02:03"}, 3723), ({"time_limit": "1-12"}, 129_600), ({"time_limit": "1-12:30"}, 131_400),
     ({"time_limit": "2-00:00:01"}, 172_801)],
)  # fmt: skip
def test_how_long_a_job_lasts(monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], lent_s: float) -> None:
    """Each of Slurm's time formats is read as Slurm reads it; nothing is printed about other users' jobs."""
    monkeypatch.delenv("SLURM_JOB_NUM_NODES", raising=False)
    assert keys.get_lifetime_s(given) == lent_s
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    assert keys.get_lifetime_s(given) is None
