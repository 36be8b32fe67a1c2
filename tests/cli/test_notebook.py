"""`dtfperf notebook`: its tunnel, its access control, and its ends, which leave nothing.

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
from tests.cli.test_launch import ENTRY, LOCAL, make_environment, mount_disk_for
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
    """A running `dtfperf notebook --json` and the other end of its tunnel."""

    def __init__(self, folder: Path, process: Process) -> None:
        self.folder = folder
        self.process = process
        assert process.stdout
        line = process.stdout.readline()
        self.printed: dict[str, Any] = read("notebook", line) if line else {}
        if not self.printed:
            raise AssertionError(f"it ended with {process.wait(ENDS_S)}: {(folder / 'stderr').read_text()}")

    @property
    def pids(self) -> dict[str, int]:
        """Return the process ids of the stand-in, its kernel and its agent on their machine."""
        found: dict[str, int] = json.loads((self.folder / "pids.json").read_text())
        return found

    def connect(self, path: str, *, token: str | None = None, method: str = "GET", headers: str = "") -> socket.socket:
        """Send a request and return the socket with its response."""
        sock = socket.create_connection(("127.0.0.1", self.printed["port"]), ENDS_S)
        asked = f"{path}?token={self.printed['token'] if token is None else token}"
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
def start_notebook(folder: Path, *words: str, disk: str = "", **more: str) -> Iterator[Notebook]:
    """Run `dtfperf notebook` with the stand-in for JupyterLab, on this machine."""
    path = f"{STAND_IN}{os.pathsep}{SEARCHED}"
    with start_command(folder, *words, disk=disk, **{"PYTHONPATH": path, **more}) as process:
        yield Notebook(folder, process)


@contextmanager
def start_command(folder: Path, *words: str, disk: str = "", **more: str) -> Iterator[Process]:
    """Run `dtfperf notebook --json` in a process group of its own, as on a terminal, with a small `disk` if named."""
    env = make_environment(folder) | {"TMPDIR": str(get_tmp(folder)), **more}
    argv = ["-m", zygote.COMMANDS, "notebook", "--json", *words]
    with (folder / "stderr").open("w") as stderr, start_process(argv, folder, env, stderr.fileno(), disk) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def start_process(argv: list[str], folder: Path, env: Mapping[str, str], stderr: int, disk: str) -> Process:
    if not disk:
        return zygote.start(argv, folder, env, stdout=subprocess.PIPE, stderr=stderr, leads=True)
    command = mount_disk_for(folder / disk, "2m", [zygote.zygote().python, *argv])
    return subprocess.Popen(
        command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=stderr, text=True, start_new_session=True
    )


def get_tmp(folder: Path) -> Path:
    """Return a folder for temporary files of the test."""
    return folder / "t"


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder with a cluster file of this machine, with a path that is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="nb-", dir="/tmp") as name:
        folder = Path(name)
        get_tmp(folder).mkdir()
        (folder / "clusters.toml").write_text(LOCAL)
        yield folder


def list_processes(folder: Path) -> list[int]:
    """Return the processes with this working folder, on any machine: the command, its agent, the server, its kernel."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if Path("/proc", name, "cwd").readlink() == folder:
                found.append(int(name))
    return found


def assert_nothing_left(folder: Path) -> None:
    wait_until("all processes are gone", lambda: list_processes(folder) == [], ENDS_S)
    wait_until("the folder of its sockets is gone", lambda: not list(get_tmp(folder).glob("dtfperf-run-*")))


def test_url_leads_to_the_server_and_needs_its_token(folder: Path) -> None:
    """The URL leads to the server only with the token, which is in no command line, environment or log."""
    with start_notebook(folder) as notebook:
        details = notebook.printed
        assert details["url"] == f"http://127.0.0.1:{details['port']}/lab?token={details['token']}"
        assert len(details["token"]) >= 32
        assert notebook.get("/lab") == (200, b"<title>JupyterLab</title>")
        assert notebook.get("/lab", token="")[0] == 403
        assert notebook.get("/lab", token="x" * 32)[0] == 403
        about = json.loads(notebook.get("/about")[1])
        assert about["folder"] == str(folder)
        assert details["token"] not in json.dumps(about["environment"])
        assert Path(about["environment"]["JUPYTER_RUNTIME_DIR"]).stat().st_mode & 0o777 == 0o700
        assert STEPS not in about["environment"], "a cell's Steps would wait for its devices"
        for pid in list_processes(folder):
            assert details["token"].encode() not in Path("/proc", str(pid), "cmdline").read_bytes()
        assert_only_loopback(details["port"])
        assert notebook.get("/shutdown")[0] == 200
        assert notebook.ends() == 0
    assert_nothing_left(folder)
    log = (folder / details["log"]).read_text()
    assert "it listens" in log
    assert details["token"] not in log + (folder / "stderr").read_text()


def assert_only_loopback(port: int) -> None:
    """Assert that the port is bound to 127.0.0.1, according to the kernel."""
    tables = [Path("/proc/net", name).read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    listening = [line.split()[1] for table in tables for line in table if line.split()[3] == "0A"]
    assert [each for each in listening if each.endswith(f":{port:04X}")] == [f"0100007F:{port:04X}"]


def test_tunnel_carries_all_bytes(folder: Path) -> None:
    """A large download, a large upload and 150 half-closed echos at once arrive byte for byte."""
    with start_notebook(folder) as notebook:
        code, body = notebook.get(f"/bytes/{8 * MIB + 17}")
        assert code == 200
        assert (len(body), compute_digest(body)) == (8 * MIB + 17, compute_digest(make_bytes(8 * MIB + 17)))
        length = 5 * MIB + 3
        with notebook.connect("/sum", method="POST", headers=f"Content-Length: {length}\r\n") as sock:
            sock.sendall(make_bytes(length))
            answer = http.client.HTTPResponse(sock)
            answer.begin()
            assert answer.read().decode() == compute_digest(make_bytes(length))
        with ExitStack() as open_at_once:
            echoes = [open_at_once.enter_context(notebook.connect("/echo")) for _ in range(150)]  # more than are let in at once
            for number, sock in enumerate(echoes):
                sock.sendall(f"I am {number}".encode())
                sock.shutdown(socket.SHUT_WR)
            for number, sock in enumerate(echoes):
                assert sock.makefile("rb").read().partition(b"\r\n\r\n")[2] == f"I am {number}".encode()


def make_bytes(count: int) -> bytes:
    block = bytes(range(251)) * 261
    return (block * (count // len(block) + 1))[:count]


def compute_digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_slow_reader_uses_little_memory(folder: Path) -> None:
    """Browsers that request much and read nothing block no others, and use little memory of command and agent."""
    with start_notebook(folder) as notebook, ExitStack() as open_at_once:
        before = {name: read_peak_mib(pid) for name, pid in list_own_processes(notebook).items()}
        lazy = [open_at_once.enter_context(notebook.connect(f"/bytes/{200 * MIB}")) for _ in range(10)]
        assert notebook.get(f"/bytes/{5 * MIB}") == (200, make_bytes(5 * MIB))
        for sock in lazy:
            assert sock.recv(8) == b"HTTP/1.1"
        after = {name: read_peak_mib(pid) for name, pid in list_own_processes(notebook).items()}
        assert {name: after[name] - before[name] < 40 for name in after} == {"command": True, "agent": True}
        assert notebook.get("/lab")[0] == 200


def list_own_processes(notebook: Notebook) -> dict[str, int]:
    return {"command": notebook.process.pid, "agent": notebook.pids["agent"]}


def read_peak_mib(pid: int) -> int:
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) // 1024


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGKILL, -signal.SIGKILL)],
)
def test_end_of_the_command_ends_all_processes(folder: Path, number: int, code: int) -> None:
    """Ctrl-C, SIGTERM, SIGHUP and SIGKILL of the command leave no kernel that ignores SIGTERM, and no file."""
    with start_notebook(folder) as notebook, notebook.connect(f"/bytes/{200 * MIB}"):
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
def test_killed_process_ends_the_command(folder: Path, whom: str, code: int, words: str) -> None:
    """After the death of the server or its agent, the command names it, and nothing is left."""
    with start_notebook(folder) as notebook:
        os.kill(notebook.pids[whom], signal.SIGKILL)
        assert notebook.ends() == code
    assert_nothing_left(folder)
    errors = (folder / "stderr").read_text()
    assert re.search(words, errors), errors


def make_setup(folder: Path, repository: str = "") -> str:
    """Return the set-up line of other machines: the path of the stand-in, and a visible folder for temporary files."""
    return f'setup = ["export PYTHONPATH={STAND_IN}{repository} TMPDIR={get_tmp(folder)}"]'


def test_notebook_over_ssh(folder: Path, lab: Lab) -> None:
    """The tunnel works over SSH, the loss of the agent is reported, and nothing is left on the machine."""
    (folder / "clusters.toml").write_text(lab.toml(make_setup(folder)))
    with start_notebook(folder, "--cluster=lab", PYTHONPATH=SEARCHED) as notebook:
        assert notebook.printed["host"] == "m1"
        assert notebook.get("/lab", token="")[0] == 403
        assert notebook.get(f"/bytes/{5 * MIB + 5}") == (200, make_bytes(5 * MIB + 5))
        about = json.loads(notebook.get("/about")[1])
        assert "bundle-" not in about["environment"]["PYTHONPATH"], "kernels find what is installed, and not what has travelled"
        os.kill(find_agent(lab), signal.SIGKILL)
        assert notebook.ends() == 1
    assert_nothing_left(folder)
    assert "the agent on m1 is gone" in (folder / "stderr").read_text()
    with start_notebook(folder, "--cluster=lab", PYTHONPATH=SEARCHED) as notebook:
        os.kill(notebook.process.pid, signal.SIGKILL)
        notebook.ends()
        assert_nothing_left(folder)


def find_agent(lab: Lab) -> int:
    """Return the agent's process id on this machine; on a machine of its own it has another."""
    found = {
        pid
        for pid in lab["m1"].processes("pytest_dtfperf.node.agent")
        if b"node.agent" in Path(f"/proc/{pid}/cmdline").read_bytes()
    }
    (agent,) = {pid for pid in found if (seen := processes.inspect(pid)) and seen.parent not in found}
    return agent


@pytest.mark.skipif(machine.why_not() is not None, reason="machines that can be cut off need namespaces")
def test_cut_connection_ends_both_sides(folder: Path, new_lab: NewLab) -> None:
    """A disconnected host ends its processes, and the command reports the lost agent."""
    lab = new_lab(1)
    (folder / "clusters.toml").write_text(lab.toml(make_setup(folder), "heartbeat_timeout_s = 5", "limits = { silence_s = 4 }"))
    with (
        start_notebook(folder, "--cluster=lab", PYTHONPATH=SEARCHED) as notebook,
        notebook.connect(f"/bytes/{200 * MIB}") as sock,
    ):
        lab["m1"].link_down()
        assert notebook.ends() == 1
        while sock.recv(MIB):
            pass  # what had come already
    wait_until("nothing of ours is left on it", lambda: not lab["m1"].processes("pytest_dtfperf"), ENDS_S)
    assert_nothing_left(folder)
    assert "dtfperf: the agent on m1" in (folder / "stderr").read_text()


def test_notebook_on_slurm(folder: Path, site: Site) -> None:
    """The tunnel works on a node of Slurm, the end of the job is reported, and the queue is empty afterwards."""
    table = ["[mini]", 'backend = "slurm"', "dedicated = false", f'python = "{sys.executable}"', "time_limit = 5", "nodes = 4"]
    table += ["devices_per_host = 2", 'device = "cpu"', make_setup(folder, f":{REPOSITORY}")]
    (folder / "clusters.toml").write_text("\n".join(table))
    with start_notebook(folder, "--cluster=mini", "--gpus=2", **site.environment) as notebook:
        assert notebook.get("/lab", token="")[0] == 403
        assert notebook.get(f"/bytes/{5 * MIB + 5}") == (200, make_bytes(5 * MIB + 5))
        os.kill(notebook.process.pid, signal.SIGINT)
        assert notebook.ends() == 130
    assert re.search(
        r"dtfperf: \S+ is allocated until \d{4}-\d\d-\d\d \d\d:\d\d at the latest", (folder / "stderr").read_text()
    )
    wait_until("the queue is empty", lambda: not site.run("squeue", "--noheader").strip())
    assert_nothing_left(folder)


def test_dir_sets_the_folder(folder: Path) -> None:
    """--dir sets the folder that is shown, relative to that of the command."""
    (folder / "shown").mkdir()
    with start_notebook(folder, "--dir=shown") as notebook:
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
def test_host_without_jupyterlab_is_one_line(
    folder: Path, python_words: str, words: Sequence[str], code: int, message: str
) -> None:
    """A host without JupyterLab, or without the folder, is one line with the host and the remedy."""
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {python_words} "$@"\n')
    python.chmod(0o755)
    (folder / "clusters.toml").write_text(f'{LOCAL}python = "{python}"\n')
    env = make_environment(folder) | {"TMPDIR": str(get_tmp(folder))}
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
def test_wrong_arguments_start_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: Sequence[str], message: str
) -> None:
    """A wrong argument is one line, before anything is started."""
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
def test_full_disk_of_the_log_is_reported(folder: Path) -> None:
    """If the disk of the log is full, the tunnel works, and the end reports that there is no log."""
    (folder / "disk").mkdir()
    with start_notebook(folder, f"--logs={folder / 'disk'}/logs", disk="disk") as notebook:
        fill_disk(Path(f"/proc/{notebook.process.pid}/root/{folder / 'disk'}"))
        assert notebook.get(f"/bytes/{MIB}") == (200, make_bytes(MIB))
        assert notebook.get("/shutdown")[0] == 200
        assert notebook.ends() == 0
    assert_nothing_left(folder)
    printed = (folder / "stderr").read_text()
    assert f"JupyterLab was shut down; logs cannot be written to {folder / 'disk'}/logs: No space left on device\n" in printed


def fill_disk(disk: Path) -> None:
    with suppress(OSError), (disk / "filling").open("wb") as file:
        while True:
            file.write(b"x" * 65536)


def test_host_without_space_for_sockets_is_reported(folder: Path, lab: Lab) -> None:
    """If the folder for temporary files is not writable, the message has the host, the path and the reason."""
    (folder / "clusters.toml").write_text(lab.toml(ENTRY, "setup = ['export TMPDIR=/proc']"))
    argv = ["-m", zygote.COMMANDS, "notebook", "--cluster=lab"]
    code, out, err = zygote.run(argv, folder, make_environment(folder), ENDS_S)
    assert (code, out) == (1, "")
    why = r"^dtfperf: .*m1.*\n    \| agent: cannot make a folder in /proc on this host: No such file or directory$"
    assert re.search(why, err, re.MULTILINE), err
    assert "Traceback" not in err
    assert_nothing_left(folder)


def test_used_port_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A port that is in use is refused before anything is started."""
    monkeypatch.chdir(folder)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert main(["notebook", f"--port={port}"]) == 2
    assert f"cannot listen at port {port} of this machine: Address already in use" in capsys.readouterr().err
    assert not (folder / "dtfperf_notebooks").exists()


def test_browser_gets_a_private_file(folder: Path) -> None:
    """With --open the browser gets a private file with the URL, which is removed at the end; its command line has no token."""
    seen = folder / "seen"
    browser = folder / "browser"
    browser.write_text(f'#!/bin/sh\necho "$@" > {seen}.new; stat -c %a "$(dirname "${{1#file://}}")" >> {seen}.new\n'
                       f'cat "${{1#file://}}" >> {seen}.new; mv {seen}.new {seen}\n')  # fmt: skip
    browser.chmod(0o755)
    with start_notebook(folder, "--open", BROWSER=str(browser)) as notebook:
        wait_until("the browser was started", seen.exists)
        address, mode, page = seen.read_text().split("\n", 2)
        assert re.fullmatch(r"file:///\S+/open.html", address)
        assert mode == "700"
        assert notebook.printed["url"] in page
        assert notebook.printed["token"] not in address
        os.kill(notebook.process.pid, signal.SIGTERM)
        assert notebook.ends() == 143
    assert not Path(address.removeprefix("file://")).exists()


@contextmanager
def as_other_user() -> Iterator[None]:
    """Run the block without root's rights."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


def test_closed_folder_is_replaced_by_the_home(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A closed folder is replaced by the home, or refused in one line if it was requested."""
    folder.chmod(0o755)
    (home := folder / "home").mkdir()
    (closed := folder / "closed").mkdir(mode=0)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(folder)
    with as_other_user():
        enter(None, str(closed))
        assert Path.cwd() == home
        with pytest.raises(SystemExit, match="127"):
            enter("closed", str(folder))
    words = f"the folder {closed} on this host cannot be shown, Permission denied: set --dir to another one\n"
    assert capsys.readouterr().out == words


def test_browser_that_keeps_running_is_answered(folder: Path) -> None:
    """A browser that keeps running, as in a terminal, gets its page."""
    seen = folder / "seen"
    browser = folder / "browser"
    browser.write_text(
        f"#!{sys.executable}\nimport re, sys, time, urllib.request\n"
        "url = re.search('url=([^\"]+)', open(sys.argv[1].removeprefix('file://')).read())[1]\n"
        "status = urllib.request.urlopen(url, timeout=10).status\n"
        f"open({str(seen)!r}, 'w').write(str(status))\ntime.sleep(3600)\n"
    )
    browser.chmod(0o755)
    with start_notebook(folder, "--open", BROWSER=str(browser)) as notebook:
        wait_until("the browser was answered", lambda: seen.exists() and seen.read_text())
        assert seen.read_text() == "200"
        os.kill(notebook.process.pid, signal.SIGTERM)
        assert notebook.ends() == 143
    for pid in list_processes(folder):  # the browser is its user's
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("given", "lifetime_s"),
    [({}, 3600), ({"time_limit": 5}, 300), ({"time_limit": "12"}, 720), ({"time_limit": "12:30"}, 750),
     ({"time_limit": "01:02:03"}, 3723), ({"time_limit": "1-12"}, 129_600), ({"time_limit": "1-12:30"}, 131_400),
     ({"time_limit": "2-00:00:01"}, 172_801)],
)  # fmt: skip
def test_lifetime_of_a_job_is_read(monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], lifetime_s: float) -> None:
    """Each of Slurm's formats of a time limit is read; inside of a job there is no limit."""
    monkeypatch.delenv("SLURM_JOB_NUM_NODES", raising=False)
    assert keys.get_lifetime_s(given) == lifetime_s
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    assert keys.get_lifetime_s(given) is None
