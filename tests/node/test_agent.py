"""The agent's orders and events, with tasks that do as ordered."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.node import ports
from tests.forks import REPOSITORY
from tests.node.handheld import HandheldAgent
from tests.node.stand_in_smi import A100, MISMATCH, gpu, write_smi


def test_agent_imports_no_large_modules() -> None:
    """An agent, which is started for each session on each host, imports none of the modules that pytest_dtfperf.node names."""
    large = {"typing", "dataclasses", "argparse", "tempfile", "subprocess", "importlib.metadata"}
    code = f"import sys, pytest_dtfperf.node.agent; sys.exit(str({large} & sys.modules.keys() or ''))"
    ended = subprocess.run([sys.executable, "-S", "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert ended.stderr.strip() == ""


def test_agent_sends_hello_when_its_zygote_is_ready() -> None:
    """The first event describes the host, the resources that it may use and the agent's process."""
    with HandheldAgent() as agent:
        hello = agent.expect("hello")
        assert hello["pid"] == agent.process.pid
        assert hello["cpus"] == sorted(os.sched_getaffinity(0))
        assert set(hello["fingerprint"]) == {"hardware", "software", "state"}


def test_agent_leaves_where_gpus_cannot_be_listed(tmp_path: Path) -> None:
    """An agent with an nvidia-smi that fails leaves with its output; where the cluster trains on cores it has no GPUs."""
    write_smi(tmp_path, failure=(18, MISMATCH))
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    with HandheldAgent("--start", "cold", env=env) as agent:
        assert agent.words() == (
            "agent: the GPUs of this host cannot be listed: nvidia-smi ended with exit code 18, and printed 'Failed to "
            "initialize NVML: Driver/library version mismatch NVML library version: 535.129'. "
            'To measure on its cores, set device = "cpu" in clusters.toml.\n'
        )
        assert agent.process.returncode == 1
    with HandheldAgent("--start", "cold", "--device", "cpu", env=env) as agent:
        assert agent.expect("hello")["gpus"] == []


def test_agent_names_parts_of_gpus(tmp_path: Path) -> None:
    """Parts of a GPU (MIG) reach the controller by the names that CUDA knows them by, and the fingerprint has their memory."""
    write_smi(tmp_path, [gpu("GPU-a", [("3g.20gb", "MIG-a"), ("3g.20gb", "MIG-b")]), gpu("GPU-b")])
    with HandheldAgent("--start", "cold", env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}) as agent:
        hello = agent.expect("hello")
    assert hello["gpus"] == ["MIG-a", "MIG-b", "GPU-b"]
    part = {"name": f"{A100} MIG 3g.20gb", "memory_gib": 20}
    assert hello["fingerprint"]["hardware"]["gpus"] == [part, part, {"name": A100, "memory_gib": 40}]


def test_task_lives_from_ready_to_report() -> None:
    """A worker binds, gets "go", progresses and reports; its exit is reported last."""
    with HandheldAgent() as agent:
        agent.start("worker:0", steps=3)
        agent.expect("started", task="worker:0")
        agent.expect("task", task="worker:0", kind="ready")
        agent.notify("go", "worker:0")
        steps = [agent.expect("task", kind="progress")["step"] for _ in range(3)]
        report = agent.expect("task", kind="report")
        leaving = agent.expect("exit", task="worker:0")
    assert steps == [1, 2, 3]
    assert len(report["step_s"]) == 3
    assert (leaving["code"], leaving["signal"]) == (0, None)
    assert [event for event in agent.heard if event != "beat"][-1] == "exit", "nothing of a task comes after its exit"


def test_many_runs_follow_each_other() -> None:
    """One agent carries out run after run from one zygote; what belonged to the last is gone."""
    with HandheldAgent() as agent:
        for run in ("a", "b", "c"):
            agent.start("ps:0", "worker:0", run=run, steps=1)
            agent.expect("task", kind="ready", run=run)
            agent.order("stop", run=run)
            agent.expect("stopped", run=run, survivors=[])
        assert len(agent.list_processes()) == 1, "the zygote alone is left"


def test_task_is_set_up_before_it_starts() -> None:
    """A task has its own process group, its cores, its environment, no stdin, and one thread."""
    core = min(os.sched_getaffinity(0))
    with HandheldAgent() as agent:
        agent.start("worker:0", cpus=[core], at="start", do="show")
        shown = agent.expect("task", kind="shown")
        assert shown["group"] == shown["pid"]
        assert shown["cpus"] == [core]
        assert shown["env"]["TOY"] == "worker:0"
        assert shown["env"]["TF_GRPC_REUSE_PORT"] == "1"
        assert shown["env"]["DTFPERF_SESSION"] == agent.session
        assert shown["stdin"] == os.devnull
        assert shown["threads"] == 1


def test_cold_tasks_have_a_zygote_each() -> None:
    """Each task of a cold start has a zygote of its own, and nothing of it is left after the run."""
    with HandheldAgent("--start", "cold") as agent:
        agent.expect("hello")
        assert agent.list_processes() == []
        agent.start("worker:0", "worker:1", cold=True, at="start", do="show")
        parents = {agent.expect("task", kind="shown")["parent"] for _ in range(2)}
        assert len(parents) == 2
        agent.order("stop", run="r")
        agent.expect("stopped")
        assert agent.list_processes() == []


def test_failure_has_the_end_of_the_log() -> None:
    """A task's exception is exit code 1 with the end of its log."""
    with HandheldAgent() as agent:
        agent.start("worker:0", at="start", do="raise", what="out of cheese")
        leaving = agent.expect("exit", task="worker:0")
    assert (leaving["code"], leaving["signal"]) == (1, None)
    assert leaving["last_lines"][-1] == "RuntimeError: out of cheese"


def test_reason_goes_before_the_end_of_the_log() -> None:
    """A task that reports its own reason of failure is quoted with that; the traceback is in its log."""
    with HandheldAgent() as agent:
        agent.start("worker:0", at="start", do="explain", what=["it was", "the cheese"])
        assert agent.expect("exit", task="worker:0")["last_lines"] == ["it was", "the cheese"]
        agent.order("logs", run="r")
        assert agent.expect("log", task="worker:0")["text"].endswith("RuntimeError: somewhere deep within\n")


@pytest.mark.parametrize(
    ("do", "what", "code", "number"),
    [("exit", 3, 3, None), ("exit", "text", 1, None), ("signal", 9, None, 9), ("signal", 11, None, 11)],
)
def test_exit_codes_and_signals_are_distinguished(do: str, what: object, code: int | None, number: int | None) -> None:
    """Exit codes and signals of tasks are reported as such."""
    with HandheldAgent() as agent:
        agent.start("worker:0", at="start", do=do, what=what)
        leaving = agent.expect("exit", task="worker:0")
    assert (leaving["code"], leaving["signal"]) == (code, number)


def test_crash_leaves_python_lines_in_the_log() -> None:
    """A crash in native code shows which Python lines led there."""
    with HandheldAgent() as agent:
        agent.start("worker:0", at="start", do="signal", what=signal.SIGSEGV)
        last_lines = agent.expect("exit")["last_lines"]
    assert any("Segmentation fault" in line for line in last_lines)
    assert any("toy_task.py" in line for line in last_lines)


def test_output_of_a_killed_task_is_kept() -> None:
    """The last output of a killed task, also without a newline, is reported."""
    with HandheldAgent() as agent:
        agent.start("worker:0", at="start", do="print and die", what="about to")
        assert agent.expect("exit", task="worker:0")["last_lines"] == ["about to"]


def test_logs_are_fetched_after_the_run() -> None:
    """Each task's output comes back by its name, and a long one as its beginning and its end."""
    with HandheldAgent() as agent:
        agent.start("worker:0", at="start", do="print much", what=600_000)
        agent.start("worker:1", at="start", do="print", what="short")
        for _ in range(2):
            agent.expect("task", kind="ready")
        agent.order("stop", run="r")
        agent.order("logs", run="r")
        long, short = agent.expect("log", task="worker:0")["text"], agent.expect("log", task="worker:1")["text"]
    assert short == "short\n"
    assert long.startswith("first")
    assert long.endswith("last\n")
    assert "bytes left out" in long
    assert len(long) < 600_000


def test_ports_are_held_until_the_run_ends() -> None:
    """Promised ports are taken for everybody else, and free again after the run."""
    with HandheldAgent() as agent:
        agent.reserve(count=2)
        promised = agent.expect("reserved")["ports"]
        assert not any(map(ports.is_free, promised))
        agent.order("stop", run="r")
        agent.expect("stopped")
        assert all(map(ports.is_free, promised))


def test_taken_port_is_refused() -> None:
    """A fixed port with another listener is refused with its number."""
    with socket.create_server(("0.0.0.0", 0)) as somebody, HandheldAgent() as agent:
        port = somebody.getsockname()[1]
        agent.reserve(ports=[port])
        refused = agent.expect("refused")
    assert refused["ports"] == [port]
    assert refused["reason"] == f"port {port} is taken"


def test_beats_have_the_state_of_each_task() -> None:
    """The state of each task is reported every second during a run."""
    with HandheldAgent() as agent:
        agent.start("worker:0", at="ready", do="hang")
        pid = agent.expect("started")["pid"]
        beat = beat_in_which(agent, lambda state: state in ("R", "S"))
        assert beat["tasks"]["worker:0"]["pid"] == pid
        assert beat["tasks"]["worker:0"]["cpu_s"] >= 0
        assert beat["zygote_state"] in ("R", "S")
        os.kill(pid, signal.SIGSTOP)
        beat_in_which(agent, lambda state: state == "T")


def beat_in_which(agent: HandheldAgent, true: Callable[[str], bool]) -> dict[str, Any]:
    """The next beat that shows worker:0 in such a state."""
    while True:
        beat = agent.expect("beat", run="r")
        if "worker:0" in beat["tasks"] and true(beat["tasks"]["worker:0"]["state"]):
            return beat


def test_agent_takes_its_own_part_of_an_order() -> None:
    """An order comes to all hosts: each holds the ports and starts the tasks that are its own."""
    with HandheldAgent() as agent:
        agent.order("reserve", run="r", hosts={"1": {"count": 5}, "0": {"count": 1}})
        assert len(agent.expect("reserved")["ports"]) == 1
        tasks: list[object] = [
            {"host": i, "task": f"worker:{i}", "order": {"job": "worker", "index": i}, "env": {}, "cpus": []} for i in (0, 1)
        ]
        common = {"script": {"at": "start", "do": "print", "what": "said to all"}}
        agent.order("start", run="r", cold=False, common=common, tasks=tasks)
        agent.expect("task", task="worker:0", kind="ready")
        agent.order("stop", run="r")
        agent.order("logs", run="r")
        agent.expect("log", task="worker:0", text="said to all\n")
    assert agent.heard.count("started") == 1


def test_host_without_tasks_sends_beats() -> None:
    """A host without tasks of a run sends beats during the run."""
    with HandheldAgent() as agent:
        agent.reserve(host=1, count=1)
        assert agent.expect("beat", run="r")["tasks"] == {}
        agent.order("stop", run="r")
        agent.expect("stopped", run="r")


def test_entry_that_cannot_be_imported_is_explained() -> None:
    """An agent with a missing entry exits with two lines: the failed import, and the module that its Python lacks."""
    with HandheldAgent(entry="no.such.module:run") as agent:
        words = agent.words()
        assert agent.process.returncode == 1
    assert "cannot import no.such.module:run" in words
    assert f"{sys.executable} has no module 'no'" in words
    assert "Traceback" not in words


def test_other_version_is_explained() -> None:
    """An agent that gets orders of another version leaves and reports so, rather than guess."""
    with HandheldAgent() as agent:
        agent.expect("hello")
        assert agent.process.stdin
        agent.process.stdin.write(b'{"v": 99, "order": "ping"}\n')
        assert "uses another protocol" in agent.words()
