"""`dtfperf launch`: roles, output, exit codes and ends, on this machine, over SSH and on a real Slurm."""

import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.cli import main
from pytest_dtfperf.testing.backends import wait_until
from tests.cli.table import read, read_refusal
from tests.clusters.slurm.conftest import new_site, shared_site, site
from tests.clusters.slurm.site import Site
from tests.clusters.ssh.conftest import lab, shared_lab
from tests.clusters.ssh.lab import Lab
from tests.plugin import zygote
from tests.plugin.conftest import PerfTests

__all__ = ["lab", "new_site", "shared_lab", "shared_site", "site"]

REPOSITORY = Path(__file__).parents[2]
ENTRY = 'entry = "pytest_dtfperf.training.command:run"'  # needs no TensorFlow
LOCAL = f'[local]\nbackend = "local"\ndedicated = false\n{ENTRY}\n'
ON_SLURM = [
    "[mini]",
    'backend = "slurm"',
    "dedicated = false",
    f'python = "{sys.executable}"',
    "time_limit = 5",
    ENTRY,
    "nodes = 4",
    "devices_per_host = 1",
    'device = "cpu"',
]
ENDS_S = 120.0

# Says who it is, leaves its process's id, and does what its words say.
PROGRAM = """
import json, os, pathlib, signal, sys, time
task = json.loads(os.environ["TF_CONFIG"])["task"] if "TF_CONFIG" in os.environ else {"type": "alone", "index": 0}
name = f"{task['type']}-{task['index']}"
pathlib.Path(f"{name}.pid").write_text(str(os.getpid()))
print(name, os.environ.get("TF_CONFIG", "nobody"), *sys.argv[1:])
everybody = json.loads(os.environ.get("TF_CONFIG", "{}")).get("cluster", {})
while len(list(pathlib.Path().glob("*-*.pid"))) < sum(map(len, everybody.values())):
    time.sleep(0.02)  # who is done ends the others
what = sys.argv[1] if len(sys.argv) > 1 else ""
if what == "wait" or name.startswith("ps-"):
    while not pathlib.Path("go").exists():
        time.sleep(0.02)
if what == "leave" and name == sys.argv[2]:
    sys.exit(int(sys.argv[3]))
if what == "kill" and name == sys.argv[2]:
    os.kill(os.getpid(), signal.SIGKILL)
if what in ("leave", "kill"):
    time.sleep(60)
if what == "flood":
    for number in range(80_000):
        print("line", number)
print("done")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the program, and a cluster file that describes this machine."""
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "clusters.toml").write_text(LOCAL)
    return tmp_path


def make_environment(folder: Path) -> dict[str, str]:
    cleaned = PerfTests(folder).environ()
    return {**cleaned, "XDG_RUNTIME_DIR": str(folder)}


def make_command(*words: str) -> list[str]:
    return [sys.executable, "-m", "pytest_dtfperf.cli", "launch", *words]


def launch(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    argv = make_command(*words)[1:]
    code, out, err = zygote.run(argv, folder, {**make_environment(folder), **more}, ENDS_S)
    return subprocess.CompletedProcess(argv, code, out, err)


@contextmanager
def start_launch(folder: Path, *words: str) -> Iterator[zygote.Started]:
    """Run `launch` for the length of the block, with its output, in a process group of its own as on a terminal."""
    argv = make_command(*words)[1:]
    with zygote.start(argv, folder, make_environment(folder), stdout=subprocess.PIPE, leads=True) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def read_first_lines(process: zygote.Started, count: int) -> list[str]:
    assert process.stdout
    return [process.stdout.readline() for _ in range(count)]


def parse_roles(out: str) -> dict[str, Any]:
    """Return each task's TF_CONFIG, by the name before it."""
    found = re.findall(r"^(\S+) +\| \S+ (\{.*\})", out, re.MULTILINE)
    return {name: json.loads(text) for name, text in found}


def assert_roles(out: str, num_ps: int, num_workers: int) -> None:
    """Assert that every task has its role and the same cluster with distinct addresses."""
    found = parse_roles(out)
    names = [*(("ps", i) for i in range(num_ps)), *(("worker", i) for i in range(num_workers))]
    assert {name: role["task"] for name, role in found.items()} == {
        f"{job}:{index}": {"type": job, "index": index} for job, index in names
    }
    (cluster,) = {json.dumps(role["cluster"]) for role in found.values()}
    addresses = [address for job in json.loads(cluster).values() for address in job]
    assert len(set(addresses)) == len(addresses) == num_ps + num_workers


def has_ended(folder: Path) -> bool:
    """Return whether no program that was started there is running, on any machine."""
    return not any(_is_of(Path("/proc", name), folder) for name in os.listdir("/proc") if name.isdigit())


def _is_of(process: Path, folder: Path) -> bool:
    try:
        words = (process / "cmdline").read_bytes()
        return (process / "cwd").readlink() == folder and b".py" in words and b"pytest_dtfperf.cli" not in words
    except OSError:
        return False  # it has just ended, or is somebody else's


@pytest.mark.parametrize(("num_ps", "num_workers"), [(0, 2), (1, 1), (2, 3)])
def test_every_task_has_its_role(folder: Path, num_ps: int, num_workers: int) -> None:
    """TF_CONFIG has the role of each task and all addresses, and parameter servers end with the workers without the grace."""
    counts = (f"--num-ps={num_ps}", f"--num-workers={num_workers}")
    done = launch(folder, *counts, f"--grace={10 * ENDS_S}", "program.py", "--lr", "0.1")
    assert done.returncode == 0, done.stderr
    assert_roles(done.stdout, num_ps, num_workers)
    assert done.stdout.count("done") == num_workers
    assert "--lr 0.1" in done.stdout
    wait_until("all programs are gone", lambda: has_ended(folder))
    (logs,) = (folder / "dtfperf_launches").iterdir()
    assert f"dtfperf: logs: dtfperf_launches/{logs.name}" in done.stderr
    assert len(list(logs.iterdir())) == num_ps + num_workers
    assert (logs / "worker-0.log").read_text().endswith("done\n")


# The chief ends; everybody else goes on until something ends it, and says how.
LED = """
import json, os, pathlib, signal, sys, time
config = json.loads(os.environ["TF_CONFIG"])
name = f"{config['task']['type']}-{config['task']['index']}"
print(name, json.dumps(config), flush=True)
signal.signal(signal.SIGTERM, lambda *_: (print("SIGTERM", flush=True), sys.exit(0)))
pathlib.Path(f"{name}.pid").write_text(str(os.getpid()))
while len(list(pathlib.Path().glob("*-*.pid"))) < int(sys.argv[1]):
    time.sleep(0.02)
if name == "chief-0":
    print("trained")
    pathlib.Path("trained").touch()
    sys.exit(int(sys.argv[2]))
if name == "worker-0":
    print("left by itself")
    sys.exit(0)
while not (name == "evaluator-0" and pathlib.Path("trained").exists()):
    time.sleep(0.02)
time.sleep(0.5)
print("evaluated")
"""


def test_run_ends_with_its_chief(folder: Path) -> None:
    """With a chief the run ends with it: servers and remaining workers are ended, an evaluator has the grace."""
    (folder / "led.py").write_text(LED)
    words = ["--chief", "--evaluator", "--num-ps=1", "--num-workers=2", "--grace=3", "led.py", "5", "0"]
    done = launch(folder, *words)
    assert done.returncode == 0, done.stderr
    roles = parse_roles(done.stdout)
    assert roles.keys() == {"chief:0", "ps:0", "worker:0", "worker:1", "evaluator:0"}
    for name, config in roles.items():
        job, _, index = name.partition(":")
        assert config["task"] == {"type": job, "index": int(index)}
        assert {job: len(at) for job, at in config["cluster"].items()} == {"ps": 1, "chief": 1, "worker": 2}
    ended = {name: re.findall(rf"^{name} +\| (?!\S+ {{)(.*)$", done.stdout, re.MULTILINE) for name in roles}
    assert ended == {
        "chief:0": ["trained"],
        "ps:0": ["SIGTERM"],
        "worker:0": ["left by itself"],
        "worker:1": ["SIGTERM"],
        "evaluator:0": ["evaluated"],
    }
    (logs,) = (folder / "dtfperf_launches").iterdir()
    names = ["chief-0.log", "evaluator-0.log", "ps-0.log", "worker-0.log", "worker-1.log"]
    assert sorted(path.name for path in logs.iterdir()) == names
    wait_until("all programs are gone", lambda: has_ended(folder))


def test_failed_chief_ends_all_tasks(folder: Path) -> None:
    """The exit code of a failed chief is the command's, with its name, and all tasks end."""
    (folder / "led.py").write_text(LED)
    done = launch(folder, "--chief", "--num-workers=1", "led.py", "2", "9")
    assert done.returncode == 9
    assert re.search(r"chief:0 on .* left with exit code 9", done.stderr)
    wait_until("all programs are gone", lambda: has_ended(folder))


def test_output_is_shown_during_the_run(folder: Path) -> None:
    """The output of tasks is shown before any of them ends."""
    with start_launch(folder, "--num-workers=2", "program.py", "wait") as process:
        assert_roles("".join(read_first_lines(process, 2)), 0, 2)
        assert not has_ended(folder)
        (folder / "go").touch()
        assert process.wait(ENDS_S) == 0


def test_json_has_a_line_for_each_line_of_output(folder: Path) -> None:
    """With --json each line of a task is an object with the task's name, and the exit code is the program's."""
    done = launch(folder, "--num-workers=2", "--json", "program.py", "leave", "worker-1", "7")
    assert done.returncode == 7, done.stderr
    lines = read("launch", done.stdout)
    assert {line["task"] for line in lines} == {"worker:0", "worker:1"}
    assert all(line["left_out"] == 0 for line in lines)


def test_flags_have_the_role(folder: Path) -> None:
    """--flags and --role-flags add the role as arguments instead of TF_CONFIG; `--` may be before a command."""
    (folder / "go").touch()
    done = launch(folder, "--num-ps=1", "--num-workers=2", "--flags", "program.py")
    assert done.returncode == 0, done.stderr
    assert "dtfperf: 1 parameter server and 2 workers on " in done.stderr
    hosts = r"--ps_hosts=127\.0\.0\.1:\d+ --worker_hosts=127\.0\.0\.1:\d+,127\.0\.0\.1:\d+"
    for job, index in (("worker", 0), ("worker", 1)):
        assert re.search(
            rf"^{job}:{index} +\| .* nobody --job_name={job} --task_index={index} {hosts}$", done.stdout, re.MULTILINE
        )
    done = launch(folder, "--num-workers=2", "--role-flags=--rank={index} --all={worker_hosts}", "--", "program.py")
    assert re.search(r"^worker:1 \| .* nobody --rank=1 --all=127\S+,127\S+$", done.stdout, re.MULTILINE)


def test_single_task_has_no_role(folder: Path) -> None:
    """A single task has no TF_CONFIG, also if the caller has one."""
    other = json.dumps({"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}})
    done = launch(folder, "program.py", TF_CONFIG=other)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "worker:0 | alone-0 nobody")


RANKED = """
import json, os
names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK", "SLURM_PROCID", "SLURM_STEP_ID", "PMI_RANK")
print(json.dumps({name: os.environ[name] for name in names if name in os.environ}))
"""
RENDEZVOUS = ("RANK={index}", "WORLD_SIZE={workers}", "MASTER_ADDR={chief_host}", "MASTER_PORT={chief_port}")


def parse_ranks(out: str) -> dict[str, dict[str, str]]:
    """What each task has printed of its environment."""
    return {name: json.loads(found) for name, found in re.findall(r"^(\S+) +\| (\{.*\})$", out, re.MULTILINE)}


def test_environment_has_the_rank(folder: Path) -> None:
    """--environment sets a task's rank and the common address, also of a single task; the caller's variables are removed."""
    (folder / "ranked.py").write_text(RANKED)
    stale = {"RANK": "7", "LOCAL_RANK": "3", "MASTER_ADDR": "elsewhere", "SLURM_PROCID": "9", "PMI_RANK": "2"}
    words = [f"--environment={word}" for word in RENDEZVOUS]
    for workers in (1, 2):
        done = launch(folder, f"--num-workers={workers}", *words, "ranked.py", **stale)
        assert done.returncode == 0, done.stderr
        found = parse_ranks(done.stdout)
        (port,) = {variables.pop("MASTER_PORT") for variables in found.values()}
        assert port.isdecimal()
        assert found == {
            f"worker:{rank}": {"RANK": str(rank), "WORLD_SIZE": str(workers), "MASTER_ADDR": "127.0.0.1"}
            for rank in range(workers)
        }
    assert parse_ranks(launch(folder, "--num-workers=2", "ranked.py", **stale).stdout) == {"worker:0": {}, "worker:1": {}}


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("RANK={indx}", "environment asks for {indx}, which is unknown. Did you mean {index}?"),
        ("RANK", "environment must be texts of the form NAME=value, not 'RANK'"),
    ],
)
def test_invalid_environment_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], word: str, why: str
) -> None:
    """A variable that cannot be set is refused before anything is started, with the nearest name."""
    monkeypatch.chdir(folder)
    assert why in read_refusal(capfd, "launch", f"--environment={word}", "program.py")
    assert not (folder / "dtfperf_launches").exists()


def test_waiting_names_the_process_that_has_the_machine(folder: Path) -> None:
    """A command that waits names the process that has the machine."""
    with start_launch(folder, "program.py", "wait") as first:
        read_first_lines(first, 1)
        argv, env = zygote.make_command("launch", "program.py"), make_environment(folder)
        with subprocess.Popen(
            argv, cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as second:
            assert second.stderr
            line = second.stderr.readline()
            (folder / "go").touch()
            assert second.wait(ENDS_S) == 0
    assert re.fullmatch(rf"dtfperf: waiting for local: held by process {first.pid} \(dtfperf launch since [0-9:]+\)\n", line)


def test_invalid_folder_of_locks_is_one_line(folder: Path) -> None:
    """A missing folder of locks is one line, before anything is started."""
    done = launch(folder, "program.py", DTFPERF_LOCKS=str(folder / "none"))
    assert done.returncode == 2
    assert done.stderr.startswith("dtfperf: DTFPERF_LOCKS = ")
    assert len(done.stderr.splitlines()) == 1
    assert not (folder / "dtfperf_launches").exists()


def test_steps_of_launched_programs_are_not_measured(folder: Path) -> None:
    """The steps of a launched program are not measured."""
    source = "from pytest_dtfperf.steps import Steps\nprint('measured' if Steps().measured else 'not measured')\n"
    (folder / "stepping.py").write_text(source)
    done = launch(folder, "stepping.py")
    assert (done.returncode, done.stdout) == (0, "worker:0 | not measured\n")


@pytest.mark.parametrize(
    ("words", "code", "what"),
    [
        (["program.py", "leave", "worker-1", "7"], 7, "worker:1 on .* left with exit code 7"),
        (["program.py", "kill", "worker-0"], 128 + signal.SIGKILL, "worker:0 on .* was killed by SIGKILL"),
    ],
)
def test_first_failed_task_gives_the_exit_code(folder: Path, words: Sequence[str], code: int, what: str) -> None:
    """The first failed task gives the exit code, the error has its name and log, and the others are ended."""
    done = launch(folder, "--num-workers=2", *words)
    assert done.returncode == code
    assert re.search(what, done.stderr)
    assert "whole log: dtfperf_launches/" in done.stderr
    wait_until("all programs are gone", lambda: has_ended(folder))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)])
def test_end_of_launch_ends_all_tasks(folder: Path, number: int, code: int) -> None:
    """Ctrl-C, SIGTERM and SIGKILL of the command leave no program."""
    with start_launch(folder, "--num-ps=1", "--num-workers=2", "program.py", "wait") as process:
        read_first_lines(process, 3)
        assert len(list(folder.glob("*.pid"))) == 3
        os.kill(process.pid, number)
        assert process.wait(ENDS_S) == code
    wait_until("all programs are gone", lambda: has_ended(folder), ENDS_S)


def test_fast_output_is_counted_and_left_out(folder: Path) -> None:
    """Output that is too fast is left out with its count, and the log has all of it."""
    done = launch(folder, "program.py", "flood")
    assert done.returncode == 0, done.stderr
    shown = done.stdout.splitlines()
    left_out = sum(int(count) for count in re.findall(r"\((\d+) lines? more, which came too fast to be shown\)", done.stdout))
    lines = [line for line in shown if "too fast" not in line]
    assert left_out > 0
    assert len(lines) + left_out == 80_002
    (logs,) = (folder / "dtfperf_launches").iterdir()
    assert (logs / "worker-0.log").read_text().endswith("line 79999\ndone\n")


def test_lines_have_the_colour_of_their_task(folder: Path) -> None:
    """Each task has a colour, and escape sequences of a program are escaped."""
    (folder / "escape.py").write_text('print("\\x1b[2Jgone")\n')
    done = launch(folder, "--num-workers=2", "escape.py", FORCE_COLOR="1")
    assert "\x1b[36mworker:0 |\x1b[0m \\x1b[2Jgone\n" in done.stdout
    assert "\x1b[33mworker:1 |\x1b[0m \\x1b[2Jgone\n" in done.stdout


def launch_on_terminal(folder: Path, *words: str) -> list[str]:
    """Return the lines that are left on the terminal, with a width of the whole text."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        zygote.make_command("launch", *words),
        cwd=folder,
        env=make_environment(folder) | {"TERM": "xterm", "NO_COLOR": "1"},
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    found = b""
    with suppress(OSError):  # how a terminal says that everybody has left
        while more := os.read(ours, 1 << 16):
            found += more
    os.close(ours)
    process.wait(ENDS_S)
    assert b"dtfperf: 1 worker on " in found  # while nothing had been printed
    return [line.rpartition("\r\x1b[K")[2] for line in found.decode().split("\r\n")]


def test_progress_line_is_erased_for_output(folder: Path) -> None:
    """On a terminal the progress line is erased for a task's output, and for the message of a failure."""
    (folder / "hello.py").write_text("print('hello')\n")
    lines = launch_on_terminal(folder, "hello.py")
    assert lines[0] == "worker:0 | hello"
    assert lines[1].startswith("dtfperf: logs: dtfperf_launches/")
    assert lines[2:] == [""]
    assert launch_on_terminal(folder, "sh", "-c", "exit 3")[0].startswith("dtfperf: worker:0 on ")


def test_launch_over_ssh(folder: Path, lab: Lab) -> None:
    """A worker on each of two machines and a parameter server have their roles, and a failed worker is named with its host."""
    (folder / "clusters.toml").write_text(lab.toml(ENTRY))
    done = launch(folder, "--cluster=lab", "--num-ps=1", "--num-workers=2", "program.py")
    assert done.returncode == 0, done.stderr
    assert_roles(done.stdout, 1, 2)
    wait_until("all programs are gone", lambda: has_ended(folder))
    for path in folder.glob("*.pid"):
        path.unlink()
    done = launch(folder, "--cluster=lab", "--num-workers=2", "program.py", "leave", "worker-1", "3")
    assert done.returncode == 3
    assert "worker:1 on m2 left with exit code 3" in done.stderr
    wait_until("all programs are gone", lambda: has_ended(folder))


def test_launch_on_slurm(folder: Path, site: Site) -> None:
    """Two workers and a separate parameter server have their roles on nodes of a job, which ends afterwards."""
    (folder / "clusters.toml").write_text("\n".join(ON_SLURM))
    words = ["--cluster=mini", "--num-ps=1", "--num-workers=2", "--separate-ps", "program.py"]
    done = launch(folder, *words, **site.environment)
    assert done.returncode == 0, done.stderr
    assert_roles(done.stdout, 1, 2)
    (folder / "ranked.py").write_text(RANKED)
    done = launch(folder, "--cluster=mini", "--environment=RANK={index}", "ranked.py", **site.environment)
    assert parse_ranks(done.stdout) == {"worker:0": {"RANK": "0"}}, "nothing of the step that has started the agent"
    wait_until("the queue is empty", lambda: not site.run("squeue", "--noheader").strip())


FILLS = """
import sys
try:
    with open(f"{sys.argv[1]}/filling", "wb") as file:
        while True:
            file.write(b"x" * 65536)
except OSError:
    print("it is full")
sys.exit(int(sys.argv[2]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a disk")
@pytest.mark.parametrize(
    ("size", "code", "words"),
    [
        (
            "64k",
            2,
            "dtfperf: logs cannot be written to disk/logs: 64 KiB are free there, and 1,024 KiB are needed; --logs names",
        ),
        ("2m", 0, "dtfperf: logs cannot be written to disk/logs: No space left on device"),
        ("2m", 3, "    | it is full\n    logs cannot be written to disk/logs: No space left on device"),
    ],
    ids=["before", "meanwhile", "meanwhile, of a task that fails"],
)
def test_full_disk_of_logs_is_reported(folder: Path, size: str, code: int, words: str) -> None:
    """A full disk of logs is an error before the start; if it fills up later, the run ends normally without a log."""
    (folder / "fills.py").write_text(FILLS)
    (folder / "disk").mkdir()
    command = zygote.make_command("launch", "--logs=disk/logs", "fills.py", str(folder / "disk"), str(code))
    argv = mount_disk_for(folder / "disk", size, command)
    done = subprocess.run(
        argv, cwd=folder, env=make_environment(folder), capture_output=True, text=True, timeout=ENDS_S, check=False
    )
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert "logs: " not in done.stderr.replace("disk/logs: ", "")
    assert "whole log" not in done.stderr


def mount_disk_for(disk: Path, size: str, argv: Sequence[str]) -> list[str]:
    """Return the command that runs another one with a small disk."""
    script = f"mount -t tmpfs -o size={size} none {disk} && exec {shlex.join(argv)}"
    return ["unshare", "--mount", "sh", "-c", script]


def assert_run_ends_with_chief(folder: Path, *words: str, **more: str) -> None:
    """Assert that the chief ends the run, and that its failure is the run's."""
    (folder / "led.py").write_text(LED)
    words = (*words, "--chief", "--num-ps=1", "--num-workers=1", "--grace=1", "led.py", "3")
    done = launch(folder, *words, "0", **more)
    assert done.returncode == 0, done.stderr
    roles = parse_roles(done.stdout)
    assert {name: config["task"]["type"] for name, config in roles.items()} == {
        "chief:0": "chief",
        "ps:0": "ps",
        "worker:0": "worker",
    }
    ended = {name: re.findall(rf"^{name} +\| (?!\S+ {{)(.*)$", done.stdout, re.MULTILINE) for name in roles}
    assert ended == {"chief:0": ["trained"], "ps:0": ["SIGTERM"], "worker:0": ["left by itself"]}
    for path in folder.glob("*.pid"):
        path.unlink()
    done = launch(folder, *words, "9", **more)
    assert done.returncode == 9
    assert re.search(r"chief:0 on \S+ left with exit code 9", done.stderr)


def test_run_ends_with_its_chief_over_ssh(folder: Path, lab: Lab) -> None:
    """A run over SSH ends with its chief, and no program is left."""
    (folder / "clusters.toml").write_text(lab.toml(ENTRY))
    assert_run_ends_with_chief(folder, "--cluster=lab")
    wait_until("all programs are gone", lambda: has_ended(folder))


def test_run_ends_with_its_chief_on_slurm(folder: Path, site: Site) -> None:
    """A run on Slurm ends with its chief, and the job ends."""
    (folder / "clusters.toml").write_text("\n".join(ON_SLURM))
    assert_run_ends_with_chief(folder, "--cluster=mini", "--separate-ps", **site.environment)
    wait_until("the queue is empty", lambda: not site.run("squeue", "--noheader").strip())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "which program?"),
        (["--"], "which program?"),
        (
            ["--role-flags='--rank={index}", "a.py"],
            "--role-flags='--rank={index}: no closing quotation; quote it as for a shell",
        ),
        (["--chief", "--grace=-1", "a.py"], "--grace must be a number of seconds, 0 or more, not -1"),
        (["--num-workers=0", "a.py"], "--num-workers must be 1 or more, not 0"),
        (["--num-ps=-1", "a.py"], "--num-ps must be 0 or more, not -1"),
        (["--cluster=nowhere", "a.py"], "unknown cluster 'nowhere'"),
        (["progam.py"], "there is no file progam.py in "),
        (["progam.py"], ". Did you mean 'program.py'?"),
        (["python", "-u", "-W", "error", "missing.py"], "there is no file missing.py in "),
        (["./missing.sh"], "there is no file ./missing.sh in "),
        (["missing.sh"], "cannot start missing.sh: there is no such program on this machine's PATH"),
        (
            ["--cluster=two", "--num-workers=3", "program.py"],
            "3 workers need 3 devices, but cluster 'two' has 2. Lower --num-w",
        ),
        (["--cluster=two", "--num-ps=1", "--separate-ps", "program.py"], "Lower --num-workers or --num-ps, or leave out --sep"),
        (["--num-workers=2", "a.py", "{indx}"], "command asks for {indx}, which is unknown. Did you mean {index}?"),
    ],
)
def test_wrong_arguments_start_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: Sequence[str], message: str
) -> None:
    """A wrong argument is one line, before anything is started."""
    monkeypatch.chdir(folder)
    with (folder / "clusters.toml").open("a") as file:
        file.write('\n[two]\nbackend = "local"\ndevices_per_host = 2\ndevice = "cpu"\n')
    assert main(["launch", *words]) in (1, 2)
    shown = capsys.readouterr().err
    assert message in shown
    assert len(shown.splitlines()) == 1
    assert not (folder / "dtfperf_launches").exists()
