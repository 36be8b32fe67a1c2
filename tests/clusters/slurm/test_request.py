"""Requests to Slurm: their options, and that a real Slurm accepts them."""

import os
import re
import shlex
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.clusters.named import BACKENDS, ClusterConfig
from pytest_dtfperf.clusters.protocol import Resources
from pytest_dtfperf.clusters.slurm import request
from pytest_dtfperf.clusters.slurm.parse import SlurmNode
from pytest_dtfperf.errors import AllocationError, UsageError
from pytest_dtfperf.testing.backends import PATIENCE_S
from tests.clusters.slurm.conftest import NewSite
from tests.clusters.slurm.site import Site

AGENT = ["python3", "-m", "agent"]


def config(**backend_keys: Any) -> ClusterConfig:
    return ClusterConfig(name="daint", backend="slurm", backend_keys=backend_keys)


# -- how many nodes


def test_named_nodes_replace_the_clusters_nodes() -> None:
    """A job on named nodes has exactly these, without the cluster's exclusions; an invalid list of nodes is refused."""
    cluster = config(gpus_per_node=2, nodes=8, exclude_nodes="n[03-05]", nodes_per_gpu_count={"4": 4})
    chosen = request.select_nodes(cluster, "n03,n[07-08]")
    assert (chosen.max_hosts, chosen.backend_keys["include_nodes"]) == (3, "n03,n[07-08]")
    argv = request.make_submit_command(chosen, nodes=3, name="x", comment="")
    assert "--nodelist=n03,n07,n08" in argv
    assert not any(word.startswith("--exclude") for word in argv)
    with pytest.raises(UsageError, match="is no list of nodes as Slurm has it"):
        request.select_nodes(cluster, "n[03")


@pytest.mark.parametrize(
    ("backend_keys", "devices", "ps_hosts", "nodes"),
    [
        ({"gpus_per_node": 1}, 8, 0, 8),
        ({"gpus_per_node": 4}, 8, 0, 2),
        ({"gpus_per_node": 4}, 9, 0, 3),
        ({"gres": "gpu:p100:4"}, 1, 0, 1),
        ({"gpus_per_node": 4}, 9, 2, 5),
        ({"gpus_per_node": 4, "nodes": 3}, 12, 0, 3),
        ({"gpus_per_node": 4, "nodes_per_gpu_count": {"8": 8}}, 8, 0, 8),
        ({"gpus_per_node": 4, "nodes_per_gpu_count": {"8": 8}}, 8, 1, 9),
        ({"gpus_per_node": 4, "nodes_per_gpu_count": {"8": 8}}, 16, 0, 4),
        ({}, 3, 0, 3),
    ],
)
def test_nodes_follow_from_devices(backend_keys: dict[str, Any], devices: int, ps_hosts: int, nodes: int) -> None:
    """The devices are divided by those of a node, rounded up, unless the file sets the number for this count."""
    assert request.count_nodes(config(**backend_keys), Resources(devices=devices, separate_ps_hosts=ps_hosts)) == nodes


@pytest.mark.parametrize(
    ("resources", "words"),
    [
        (
            Resources(devices=1000),
            r"cluster 'daint' has 2 hosts of 4 devices, but 1000 devices need 250 hosts\. Ask for fewer devices",
        ),
        (Resources(devices=8, separate_ps_hosts=1), r"8 devices and 1 for parameter servers alone need 3 hosts"),
    ],
)
def test_too_few_nodes_are_reported_with_numbers(resources: Resources, words: str) -> None:
    """A request above the cluster's limit is refused before Slurm is contacted."""
    with pytest.raises(AllocationError, match=words):
        request.count_nodes(config(gpus_per_node=4, nodes=2), resources)


# -- arguments


def submission(nodes: int = 2, **backend_keys: Any) -> list[str]:
    return request.make_submit_command(config(**backend_keys), nodes=nodes, name="dtfperf-x-1", comment="dtfperf session=x")


def test_plain_job() -> None:
    """A job has a name, a comment and a time limit, is never run again, and has its nodes to itself with all their memory."""
    assert submission(gpus_per_node=4) == [
        "sbatch", "--parsable", "--no-requeue", "--job-name=dtfperf-x-1", "--comment=dtfperf session=x", "--chdir=/",
        "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--time=60", "--gres=gpu:4", "--exclusive", "--mem=0",
        "--output=/dev/null", "--error=/dev/null",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("backend_keys", "arguments"),
    [
        ({"partition": "normal"}, ["--partition=normal"]),
        ({"account": "g34"}, ["--account=g34"]),
        ({"qos": "debug"}, ["--qos=debug"]),
        ({"constraint": "gpu&ssd"}, ["--constraint=gpu&ssd"]),
        ({"reservation": "tests"}, ["--reservation=tests"]),
        ({"switches": 1}, ["--switches=1"]),
        ({"licenses": "scratch:2"}, ["--licenses=scratch:2"]),
        ({"gres": "gpu:p100:4,nvme:1"}, ["--gres=gpu:p100:4,nvme:1"]),
        ({"include_nodes": "n[3,1]"}, ["--nodelist=n3,n1"]),
        ({"include_nodes": "n[1-4],m1"}, ["--nodelist=n1,n2"]),
        ({"include_nodes": "n[1-4]", "exclude_nodes": "n[1-2]"}, ["--nodelist=n3,n4"]),
        ({"exclude_nodes": "n[3-4]"}, ["--exclude=n[3-4]"]),
        ({"cpus_per_node": 24}, ["--cpus-per-task=24"]),
        ({"memory": "60G"}, ["--mem=60G"]),
        ({"time_limit": "00:12:00"}, ["--time=00:12:00"]),
        ({"time_limit": 12}, ["--time=12"]),
        ({"options": ["--hint=nomultithread", "--mail-type", "END"]}, ["--hint=nomultithread", "--mail-type", "END"]),
    ],
)
def test_keys_become_arguments(backend_keys: dict[str, Any], arguments: list[str]) -> None:
    """Each key of clusters.toml reaches sbatch as its option."""
    asked = submission(**backend_keys)
    assert [each for each in asked if each in arguments] == arguments


def test_options_come_last() -> None:
    """The options of the file are the last arguments, so that they override earlier ones."""
    assert submission(options=["--hint=nomultithread"])[-1] == "--hint=nomultithread"


def test_shared_nodes_request_no_memory_by_default() -> None:
    """A job that shares its nodes requests neither exclusive nodes nor memory, unless the file sets memory."""
    asked = submission(exclusive=False)
    assert not any(each.startswith(("--mem", "--exclusive")) for each in asked)
    assert "--mem=2G" in submission(exclusive=False, memory="2G")


def test_output_goes_to_the_shared_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """The keep-alive step's output is stored in a folder that all nodes share, if there is one."""
    monkeypatch.setenv("HOME", "/home/me")
    assert "--output=/scratch/slurm-%x-%j.out" in submission(shared="/scratch")
    assert "--error=/home/me/x/slurm-%x-%j.out" in submission(shared="~/x")
    monkeypatch.chdir("/")
    assert "--error=/~no such user/x/slurm-%x-%j.out" in submission(shared="~no such user/x")


def test_agents_have_everything_of_their_nodes() -> None:
    """One task per node, beside other steps, with labelled lines, all GPUs and cores; a lost one does not end the others."""
    asked = request.make_agents_command(config(gpus_per_node=4, cpus_per_node=24), job="17", nodes=["n1", "n2"], argv=AGENT)
    assert asked == [
        "srun", "--jobid=17", "--job-name=agents", "--overlap", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1",
        "--nodelist=n1,n2", "--mem=0", "--mpi=none", "--cpu-bind=none", "--export=ALL", "--label", "--kill-on-bad-exit=0",
        "--wait=0", "--gres=gpu:4", "--cpus-per-task=24", *AGENT,
    ]  # fmt: skip
    assert "--gres=none" in request.make_agents_command(config(), job="17", nodes=["n1"], argv=AGENT)


def test_keepalive_step_and_sweep_take_no_gpu() -> None:
    """The steps beside the agents ask for nothing but to run."""
    keepalive = request.make_keepalive_step(config(gpus_per_node=4), job="17", node="n1", argv=["cat"])
    assert keepalive == [
        "srun", "--jobid=17", "--job-name=keepalive", "--overlap", "--nodes=1", "--ntasks=1", "--ntasks-per-node=1",
        "--nodelist=n1", "--mem=0", "--mpi=none", "--cpu-bind=none", "--export=ALL", "--gres=none", "--chdir=/", "cat",
    ]  # fmt: skip
    sweep = request.make_sweep_command(config(gpus_per_node=4), job="17", nodes=["n1", "n2"], argv=["rm"])
    assert {"--nodelist=n1,n2", "--gres=none", "--input=none", "--job-name=sweep"} < set(sweep)


@pytest.mark.parametrize(("given", "seconds"), [({}, None), ({"max_pending": "30m"}, 1800), ({"max_pending": 90}, 90)])
def test_longest_wait_in_the_queue(given: dict[str, Any], seconds: float | None) -> None:
    """The longest wait for a job is read with or without a unit, and has no default."""
    assert request.get_max_pending_s(config(**given)) == seconds


# -- the shell that prepares a node


def run_with_wrapper(argv: Sequence[str], **backend_keys: Any) -> tuple[int, list[str], str]:
    """Run a program in the wrapper here, and return its exit code, the lines on stdout, and stderr."""
    return run_wrapped(config(**backend_keys), argv)


def run_wrapped(cluster: ClusterConfig, argv: Sequence[str]) -> tuple[int, list[str], str]:
    ended = subprocess.run(
        request.make_wrapper(cluster, argv),
        input="an order\n",
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env={**os.environ, "SLURM_PROCID": "3", "HOME": "/nonexistent"},
    )
    return ended.returncode, ended.stdout.splitlines(), ended.stderr


STARTED, ENDED = request.STARTED.decode(), request.ENDED.decode()


def nodes_of(*features: str) -> list[SlurmNode]:
    return [
        SlurmNode(f"n{i}", "idle", True, "36", "64000", "", each, "main", True, "") for i, each in enumerate(features, start=1)
    ]


@pytest.mark.parametrize(
    "features, allocated, keys, message",
    [
        (("a", "a"), ["n1"], {}, None),
        (("a", "b"), ["n1"], {"constraint": "a"}, None),
        (
            ("a", "b"),
            ["n2"],
            {},
            "the partition has nodes of 2 kinds, and this job has got 36 cores, 64000 MiB, b (others: 1 wi",
        ),
        (("a", "b"), ["n1", "n2"], {}, "the nodes of this job are of 2 kinds"),
        (("a", "b"), ["n1", "n2"], {"constraint": "a|b"}, "the nodes of this job are of 2 kinds"),
        (("r1", "r2", "r3", "r4", "r5"), ["n1", "n2"], {}, None),
        (("a", "b"), ["m1"], {}, None),
    ],
    ids=["alike", "constraint", "one of two", "both", "both in spite of a constraint", "racks", "elsewhere"],
)
def test_kinds_are_described(
    features: tuple[str, ...], allocated: list[str], keys: dict[str, str], message: str | None
) -> None:
    """Kinds are named where a job may get another one the next time, or has got several."""
    found = request.describe_kinds(config(**keys), nodes_of(*features), allocated)
    assert (found or "").startswith(message or "")
    assert (found is None) == (message is None)


@pytest.mark.parametrize("unavailable, listed", [([], "n1,n2"), (["n1"], "n2,n3"), (["n1", "n2", "n3"], None)])
def test_unavailable_nodes_are_not_requested(unavailable: list[str], listed: str | None) -> None:
    """The next nodes of include_nodes take the places of those that get no jobs."""
    cluster = config(include_nodes="n[1-3]")
    argv = request.make_submit_command(cluster, nodes=2, name="x", comment="x", unavailable=unavailable)
    assert [each for each in argv if each.startswith("--nodelist")] == [f"--nodelist={listed}" for _ in [0] if listed]


def test_wrapper_reports_start_and_end() -> None:
    """A wrapped program has stdin, stdout, its index and its exit code; the shell adds its lines before and after."""
    result = run_with_wrapper(["sh", "-c", "cat; echo $DTFPERF_HOST_INDEX; echo oh >&2; exit 5"])
    assert result == (5, [STARTED, "an order", "3", f"{ENDED}5"], "oh\n")


@pytest.mark.parametrize(("number", "code"), [("KILL", 137), ("TERM", 143), ("SEGV", 139)])
def test_wrapper_reports_signals(number: str, code: int) -> None:
    """A killed program is reported with its signal."""
    assert run_with_wrapper(["sh", "-c", f"kill -{number} $$"])[:2] == (code, [STARTED, f"{ENDED}{code}"])


def test_wrapper_that_is_ended_itself() -> None:
    """A shell that is signalled while its program runs does not report an orderly end."""
    command = request.make_wrapper(config(), ["sh", "-c", "echo here; exec sleep 60"])
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True, text=True) as shell:
        assert shell.stdout
        assert [shell.stdout.readline().strip() for _ in range(2)] == [STARTED, "here"]
        os.killpg(shell.pid, 15)  # as Slurm signals every process of a step
        assert shell.stdout.read() == f"{ENDED}143\n"


def test_setup_lines_prepare_the_programs_environment() -> None:
    """Setup lines run in one shell, one after the other, with quotes and blanks as written."""
    setup = ["export A='b  c'", 'use() { export B="$1 it\'s"; }', 'use "two words"', "# a comment", ""]
    result = run_with_wrapper(["sh", "-c", 'echo "$A|$B"'], setup=setup)
    assert result[:2] == (0, [STARTED, "b  c|two words it's", f"{ENDED}0"])


def test_setup_lines_cannot_disturb_the_agents_lines() -> None:
    """Output of setup lines goes to stderr, and setup lines cannot read orders."""
    code, lines, words = run_with_wrapper(["cat"], setup=["echo Welcome", "cat"])
    assert (code, lines) == (0, [STARTED, "an order", f"{ENDED}0"])
    assert "Welcome" in words


@pytest.mark.parametrize(
    ("setup", "words"),
    [
        (["true", "ls '/no/such place'"], "setup line 2 failed with exit code 2: ls '/no/such place'\n"),
        (["nosuchmodule load x"], "setup line 1 failed with exit code 127: nosuchmodule load x\n"),
        (["source /no/such/file"], "setup line 1 failed with exit code 1: source /no/such/file\n"),
        (["echo (("], "setup line 1 failed with exit code 2: echo ((\n"),
        (["set -e", "false"], "setup line 2 failed with exit code 1: false\n"),
    ],
)
def test_failing_setup_line_is_named(setup: list[str], words: str) -> None:
    """A setup line that fails ends the start, with its number, its code and itself; the program is not started."""
    code, lines, given = run_with_wrapper(["echo", "never"], setup=setup)
    assert (code, lines) == (1, [f"{ENDED}1"])
    assert given.endswith(words)


@pytest.mark.parametrize(
    ("program", "code", "words"),
    [
        ("/no/such/python", 127, "/no/such/python: (not found|No such file or directory)"),  # as sh is dash or bash
        ("nosuchprogram", 127, "nosuchprogram: (command )?not found"),
        ("/etc/passwd", 126, "/etc/passwd: Permission denied"),
    ],
)
@pytest.mark.parametrize("setup", [[], ["true"]], ids=["plain", "set up"])
def test_missing_program_is_named(setup: list[str], program: str, code: int, words: str) -> None:
    """A missing program is not started, and the shell reports the reason."""
    ended, lines, given = run_with_wrapper([program], setup=setup)
    assert (ended, lines) == (code, [f"{ENDED}{code}"])
    assert re.search(words, given)


def test_spool_is_where_temporary_files_go(tmp_path: Path) -> None:
    """The temporary folder is created if it is missing; a failure is reported."""
    folder = tmp_path / "it's mine"
    assert run_with_wrapper(["sh", "-c", 'echo "$TMPDIR"'], spool=str(folder))[1] == [STARTED, str(folder), f"{ENDED}0"]
    assert folder.is_dir()
    code, lines, given = run_with_wrapper(["true"], spool="/proc/no")
    assert (code, lines) == (1, [f"{ENDED}1"])
    assert "/proc/no" in given


def test_cache_and_scratch_folders_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders of the cluster file are made with the node's variables, after the set-up lines; an unset variable is an error."""
    monkeypatch.setenv("DTFPERF_SITE", str(tmp_path))
    folders = replace(
        config(setup=["export KIND='a b'"]), cache_dir="$DTFPERF_SITE/${KIND}/cache", scratch_dir="$DTFPERF_SITE/tmp"
    )
    shown = ["sh", "-c", 'echo "$XDG_CACHE_HOME:$CUDA_CACHE_PATH:$TMPDIR"']
    cache = f"{tmp_path}/a b/cache"
    assert run_wrapped(folders, shown)[1] == [STARTED, f"{cache}:{cache}/cuda:{tmp_path}/tmp", f"{ENDED}0"]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a b", "tmp"]
    code, lines, given = run_wrapped(replace(folders, scratch_dir="$DTFPERF_NOT_SET/tmp"), shown)
    assert code != 0
    assert STARTED not in lines
    assert "DTFPERF_NOT_SET" in given


# -- for people


def test_commands_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dry run lists what would be submitted and started, ready for a shell; inside a job there is nothing to submit."""
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    daint = replace(config(gpus_per_node=1, constraint="gpu", setup=["module load x"]), python="/opt/py")
    job, keepalive, agents = BACKENDS["slurm"].list_commands(daint, Resources(devices=8))
    assert job.startswith("JOB=$(sbatch --parsable")
    assert "--nodes=8 " in job
    assert "--constraint=gpu" in job
    assert 'srun --jobid="$JOB" --job-name=keepalive' in keepalive
    assert 'srun --jobid="$JOB" --job-name=agents' in agents
    assert "module load x" in agents
    assert shlex.split(agents)[-4:] == ["/opt/py", "-P", "-m", "pytest_dtfperf.node.agent"]
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    assert BACKENDS["slurm"].list_commands(daint, Resources(devices=8)) == ["JOB=17", agents]


def test_commands_need_nodes_enough() -> None:
    """A dry run also reports requests that are too large for the cluster."""
    with pytest.raises(AllocationError, match="need 9 hosts"):
        BACKENDS["slurm"].list_commands(config(gpus_per_node=1, nodes=8), Resources(devices=9))


def test_local_takes_no_commands() -> None:
    """A cluster that is started by nothing but this process has nothing to show."""
    assert BACKENDS["local"].list_commands(ClusterConfig(name="local"), Resources(devices=1)) == ()


# -- on a real Slurm


ALL_IT_SEES = (
    "import os; print(os.environ.get('CUDA_VISIBLE_DEVICES'), len(os.sched_getaffinity(0)), os.environ['SLURMD_NODENAME'])"
)


class Job:
    """A job on a site, submitted with the package's request; it can be used as soon as it runs."""

    def __init__(self, site: Site, backend_keys: dict[str, Any]) -> None:
        self.config = config(**backend_keys)
        asked = request.make_submit_command(self.config, nodes=2, name="dtfperf-x-1", comment="dtfperf session=x y|z")
        script = subprocess.run(
            asked,
            input="#!/bin/sh\nexec sleep 300\n",
            env=os.environ | site.environment,
            capture_output=True,
            text=True,
            check=True,
        )
        self.id = script.stdout.strip()
        deadline = time.monotonic() + PATIENCE_S
        while site.run("squeue", "-h", "-j", self.id, "-o", "%T").strip() != "RUNNING":
            assert time.monotonic() < deadline, site.run("scontrol", "show", "job", self.id)
        self.nodes = site.run(
            "scontrol", "show", "hostnames", site.run("squeue", "-h", "-j", self.id, "-o", "%N").strip()
        ).split()

    def agents(self, *argv: str) -> list[str]:
        return request.make_agents_command(
            self.config, job=self.id, nodes=self.nodes, argv=request.make_wrapper(self.config, argv)
        )


@contextmanager
def start_process(site: Site, argv: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """A command that runs until the end of the block."""
    with site.popen(*argv) as process:
        yield process
        process.kill()


BACKEND_KEYS: dict[str, tuple[dict[str, Any], str]] = {  # keys of the file, and the GPUs that an agent then sees
    "gpus": ({"gpus_per_node": 4}, "0,1,2,3"),
    "part of a node": ({"gres": "gpu:p100:2", "cpus_per_node": 2, "memory": "1G", "time_limit": 12}, "0,1"),
    "shared nodes": ({"exclusive": False, "memory": "500M"}, "None"),
    "these nodes": ({"gpus_per_node": 4, "include_nodes": "n[1-4]", "exclude_nodes": "n4", "setup": ["true"]}, "0,1,2,3"),
}


@pytest.mark.parametrize("name", BACKEND_KEYS)
def test_agents_start_beside_agents_that_hang(new_site: NewSite, name: str) -> None:
    """Agents have all requested GPUs and cores, and start while earlier agents, keep-alive and sweep still run."""
    backend_keys, gpus = BACKEND_KEYS[name]
    site = new_site(nodes=4, gpus=4, cpus=2, slurm_conf="TaskPlugin=task/affinity\nSelectTypeParameters=CR_Core_Memory")
    job = Job(site, backend_keys)
    hanging = job.agents("sleep", "300")
    keepalive = request.make_keepalive_step(job.config, job=job.id, node=job.nodes[0], argv=["sleep", "300"])
    sweep = request.make_sweep_command(job.config, job=job.id, nodes=job.nodes, argv=["sh", "-c", "echo $SLURMD_NODENAME"])
    cores = min(2, len(os.sched_getaffinity(0))) if backend_keys.get("exclusive", True) else 1
    with start_process(site, hanging) as first, start_process(site, keepalive) as second:
        lines = site.run(*job.agents("python3", "-c", ALL_IT_SEES)).splitlines()
        assert sorted(site.run(*sweep).split()) == job.nodes
        assert (first.poll(), second.poll()) == (None, None)
    for index, node in enumerate(job.nodes):
        mine = [line for line in lines if line.startswith(f"{index}: ")]
        assert mine == [f"{index}: {STARTED}", f"{index}: {gpus} {cores} {node}", f"{index}: {ENDED}0"]
