"""Tests of comparisons of software stacks by whole runs, with an injected slow-down, and of killed comparisons."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.node.processes import Process, iterate_processes
from pytest_dtfperf.testing.backends import wait_until
from tests.cli.test_bisect import FAST, PROGRAM, SLOW, make_repository, run_git
from tests.plugin.conftest import COMMANDS_HERE, ENDS_S, Ended, PerfTests, perf_tests_in

SLEEPS = f"""
import time
from pytest_dtfperf.steps import Steps

end = Steps.end

def end_later(self):
    time.sleep({SLOW})
    end(self)

Steps.end = end_later
"""
ONE_WORKER = (
    "--command=python train.py",
    "gpus=1",
    "variable_update=independent",
)  # no server, which would be the same program
TRAINING = """
[local]
backend = "local"
dedicated = false
devices_per_host = 2
device = "cpu"
"""


@pytest.fixture
def perf(tmp_path: Path) -> PerfTests:
    perf = perf_tests_in(tmp_path)
    perf.environment["XDG_CACHE_HOME"] = str(tmp_path / "cache")
    (perf.folder / "perf" / "clusters.toml").write_text(COMMANDS_HERE)
    (perf.folder / "speed.py").write_text(f"STEP_S = {SLOW}\n")
    (perf.folder / "train.py").write_text(PROGRAM.format(module="speed"))
    return perf


def run_comparison(perf: PerfTests, *arguments: str, **environment: str) -> Ended:
    argv = ["-m", "pytest_dtfperf.cli", "ab", *arguments, "--clusters-file=perf/clusters.toml", "--seed=1"]
    return perf.run_python(*argv, **environment)


def read_comparisons(perf: PerfTests) -> list[dict[str, Any]]:
    folder = max((perf.folder / "perf_results").iterdir())
    return [json.loads(line) for line in (folder / "comparisons.jsonl").read_text().splitlines()]


def inject_sleep(perf: PerfTests) -> str:
    """Write a sitecustomize.py that sleeps in each step, and return the variant that uses it."""
    (perf.folder / "injected").mkdir()
    (perf.folder / "injected" / "sitecustomize.py").write_text(SLEEPS)
    path = f"{perf.folder / 'injected'}:{perf.environ()['PYTHONPATH']}"
    return f"slow: environment=PYTHONPATH={path}"


def test_added_sleep_makes_a_stack_slower(perf: PerfTests) -> None:
    """A stack with a sleep in each step is SLOWER, with exit code 1."""
    ended = run_comparison(perf, "old:", inject_sleep(perf), *ONE_WORKER)
    assert ended.code == 1, ended.err
    (found,) = read_comparisons(perf)
    assert found["verdict"] == "SLOWER"


@pytest.mark.campaign(only=True)
def test_added_sleep_has_its_size(perf: PerfTests) -> None:
    """A sleep as long as a step halves the rate, to 20 %."""
    assert run_comparison(perf, "old:", inject_sleep(perf), *ONE_WORKER).code == 1
    (found,) = read_comparisons(perf)
    assert found["estimate"]["ratio"] == pytest.approx(0.5, rel=0.2)


@pytest.mark.campaign(only=True)
def test_training_without_onednn_is_explained(perf: PerfTests) -> None:
    """TensorFlow without oneDNN is SLOWER, and the output names the variable that disabled it."""
    (perf.folder / "perf" / "clusters.toml").write_text(TRAINING)
    ended = run_comparison(perf, "with:", "without: environment=TF_ENABLE_ONEDNN_OPTS=0", "mnist", "gpus=1", "--steps=5")
    assert ended.code == 1, ended.err
    (found,) = read_comparisons(perf)
    assert found["verdict"] == "SLOWER"
    ended.line("TF_ENABLE_ONEDNN_OPTS")


def test_commits_are_compared_in_their_worktrees(perf: PerfTests) -> None:
    """Each of two commits is compared with the first one, with the verdict of its own files."""
    repo = perf.folder / "repo"
    slow, fast, slow_again = make_repository(repo, [SLOW, FAST, SLOW * 2])
    variants = [f"v{at}: git={each} repo={repo}" for at, each in enumerate([slow, fast, slow_again])]
    ended = run_comparison(perf, *variants, *ONE_WORKER)
    assert ended.code == 1, ended.err
    found = read_comparisons(perf)
    assert [(each["variant"]["name"], each["verdict"]) for each in found] == [("v1", "FASTER"), ("v2", "SLOWER")]
    assert found[0]["variant"]["settings"] == {"git": fast, "repo": str(repo)}


def test_failed_build_ends_the_comparison(perf: PerfTests) -> None:
    """The message on a commit that cannot be built has the variant and the exit code, and a missing commit is one line."""
    repo = perf.folder / "repo"
    commits = make_repository(repo, [FAST, SLOW], broken=[1])
    variants = [f"v{at}: git={each} repo={repo} setup='sh build.sh'" for at, each in enumerate(commits)]
    ended = run_comparison(perf, *variants, "--command=python train.py")
    assert ended.code == 1
    assert "variant v1: setup ended with exit code 3" in ended.err
    missing = run_comparison(perf, variants[0], f"v9: git=v9 repo={repo}", "--command=python train.py")
    assert (missing.code, missing.err) == (2, f"dtfperf: variant v9: git: {repo} has no commit v9\n")


def start_command(perf: PerfTests, token: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Start dtfperf as a process of its own, which is found by its token like those that it starts: a fork would not be."""
    argv = [sys.executable, "-m", "pytest_dtfperf.cli", *arguments, "--clusters-file=perf/clusters.toml"]
    with (perf.folder / "output").open("wb") as output:
        return subprocess.Popen(argv, cwd=perf.folder, env=perf.environ({"TOKEN": token}), stdout=output, stderr=output)


def find_processes(token: str) -> list[Process]:
    """Return the processes with this text in their environment."""
    return [each for each in iterate_processes() if token.encode() in read_process(each.pid, "environ")]


def read_process(pid: int, name: str) -> bytes:
    """Return a file of a process in /proc; nothing if the process has ended."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def is_running(token: str, text: bytes) -> bool:
    """Return whether such a process has this text in its command line."""
    return any(text in read_process(each.pid, "cmdline") for each in find_processes(token))


# In command lines, with a zero byte before each argument: those of dtfperf itself have the same words within an argument.
AGENT, TRAINING_PROGRAM, BUILD = b"pytest_dtfperf.node.agent", b"\0train.py", b"\0until test"
STEP_S = 0.02  # of programs that are killed: their rates do not matter


@pytest.mark.campaign(part=3)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("phase", ["agents", "run", "block"])
def test_killed_comparison_leaves_no_process(perf: PerfTests, phase: str, number: int) -> None:
    """A comparison that is killed during the start, a run or after a block leaves no process, and the next one succeeds."""
    token = f"ab-{phase}-{number}-{perf.folder.name}"
    (perf.folder / "speed.py").write_text(f"STEP_S = {STEP_S}\n")
    arguments = ["old:", "new: environment=X=1", "--command=python train.py"]
    reached = {
        "agents": lambda: is_running(token, AGENT),
        "run": lambda: is_running(token, TRAINING_PROGRAM),
        "block": lambda: any((perf.folder / "perf_results").glob("*/comparisons.jsonl")),
    }
    with start_command(perf, token, "ab", *arguments) as process:
        wait_until(f"it comes to {phase}", reached[phase], patience_s=ENDS_S)  # a block is four runs, beside any load
        process.send_signal(number)
        process.wait(ENDS_S)
    wait_until("all processes have ended", lambda: not find_processes(token))
    ended = run_comparison(perf, *arguments, "--max-blocks=4", "--time-limit=1s")
    assert ended.code == 0, ended.err


WAITING_PROGRAM = """
import pathlib, time

here = pathlib.Path({folder!r})
made = any('"order"' in each.read_text() for each in here.glob("perf_results/*/bisection.json"))
while made and not (here / "go").exists():
    (here / "in block").touch()
    time.sleep(0.05)
"""


@pytest.mark.campaign(part=3)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("phase", ["build", "agents", "block"])
def test_killed_bisection_leaves_no_process_and_continues(perf: PerfTests, phase: str, number: int) -> None:
    """A search that is killed in a build, the start of agents or its second block leaves no process, and it continues.

    Without a block there is no session to resume, and the same command uses the stacks that were built. Before the kill, the
    process that could be left is seen as it is searched after it.
    """
    repo, token = perf.folder / "repo", f"bisect-{phase}-{number}-{perf.folder.name}"
    commits = make_repository(repo, [STEP_S] * 3, WAITING_PROGRAM.format(folder=str(perf.folder)))
    waits = f"until test -e '{perf.folder}/go'; do touch '{perf.folder}/in build'; sleep 0.05; done"
    arguments = ["bisect", f"--repo={repo}", f"--good={commits[0]}", "--command=python train.py", "--max-blocks=2", "--seed=1"]
    arguments += [f"--setup={waits}"] if phase == "build" else []
    text, file = {"build": (BUILD, "in build"), "agents": (AGENT, "."), "block": (TRAINING_PROGRAM, "in block")}[phase]
    with start_command(perf, token, *arguments) as process:
        wait_until(
            f"it comes to {phase}",
            lambda: (perf.folder / file).exists() and is_running(token, text),
            patience_s=ENDS_S,
        )
        process.send_signal(number)
        process.wait(ENDS_S)
    wait_until("all processes have ended", lambda: not find_processes(token))
    sessions = [each.parent for each in (perf.folder / "perf_results").glob("*/bisection.json")]
    before = [json.loads((each / "bisection.json").read_text())["blocks"] for each in sessions]
    assert phase != "block" or [len(each) for each in before] == [1]
    cached = perf.run_python("-m", "pytest_dtfperf.cli", "ab", "--cache")
    assert ("incomplete" if phase == "build" else commits[0][:12]) in cached.out
    (perf.folder / "go").touch()
    arguments += ["--clusters-file=perf/clusters.toml", *[f"--resume={each}" for each in sessions]]
    ended = perf.run_python("-m", "pytest_dtfperf.cli", *arguments)
    found = json.loads(max((perf.folder / "perf_results").glob("*/bisection.json")).read_text())
    assert found["resumed"] == (sessions[0].name if sessions else None), ended.err
    made = [block for each in before for block in each]
    assert found["blocks"][: len(made)] == made
    assert len(found["blocks"]) == 2, ended.err
    assert perf.run_python("-m", "pytest_dtfperf.cli", "ab", "--cache=clear").code == 0
    assert run_git(repo, "worktree", "list").count("\n") == 0
