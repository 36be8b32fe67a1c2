"""When a run says nothing of its hosts' speed: by what the hosts have seen, and with somebody really at work beside it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.datamodel.explanation import CauseKind
from pytest_dtfperf.datamodel.host_state import HostState
from pytest_dtfperf.datamodel.measurement import Run
from pytest_dtfperf.launch import disturbance
from pytest_dtfperf.launch.disturbance import compute_others_s, compute_taken_s, find_disturbances
from pytest_dtfperf.node.host_state import add_siblings
from pytest_dtfperf.testing.backends import PATIENCE_S
from tests.launch.stage import CONFIG, TWO_HOSTS, Stage, staged
from tests.records.host_states import make_state


def gpu(
    *,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
    others: tuple[Mapping[str, Any], ...] = (),
    samples: int = 10,
    **reasons: int,
) -> HostState:
    unknown = {"ecc_uncorrected": None, "utilisation": None}
    during = {"samples": samples, "reasons": reasons}
    return make_state(
        gpus=[
            {
                "index": "1",
                "before": {**unknown, **(before or {})},
                "after": {**unknown, **(after or {})},
                "others": list(others),
                "during": during,
            }
        ]
    )


PYTHON = {"pid": 4321, "name": "/usr/bin/python3", "memory_mib": 800}
STATES: dict[str, tuple[HostState, list[str]]] = {
    "no other process": (make_state(), []),
    "a busy process": (
        make_state(cpu={"busy_s": 19.8, "own_s": 11.8}),
        ["host n3: other processes used 0.78 of 2 cores for the length of the run"],
    ),
    "housekeeping": (make_state(cpu={"busy_s": 19.0, "own_s": 18.0}), []),
    "a controller that works": (make_state(cpu={"busy_s": 19.0, "own_s": 11.0, "controller_s": 7.5}), []),
    "a few ticks of a short run": (make_state(window_s=0.5, cpu={"busy_s": 0.58, "own_s": 0.3}), []),
    "a busy process on a part of the machine that is ours by the clock": (
        make_state(quota=True, cpu={"busy_s": 19.8, "own_s": 9.8}),
        [],
    ),
    "busy processes on a large machine": (
        make_state(cores=256, cpu={"busy_s": 1302.0}),
        ["host n3: other processes used 128 of 256 cores for the length of the run"],
    ),
    "a busy process on a large machine": (make_state(cores=64, cpu={"busy_s": 28.7}), []),
    "steal": (make_state(cpu={"steal_s": 1.8}), ["host n3: the hypervisor gave 9 % of its cores' time to others (steal)"]),
    "a little steal": (make_state(cpu={"steal_s": 0.5}), []),
    "want of memory": (make_state(memory={"some_s": 1.2}), ["host n3: memory pressure: stalled for 12 % of the run"]),
    "a moment's want of memory in a short run": (make_state(window_s=0.2, cpu={"busy_s": 0.0}, memory={"some_s": 0.05}), []),
    "a kernel that does not count it": (make_state(memory={"some_s": None, "swapped_in_mib": None}), []),
    "swapping": (make_state(memory={"swapped_in_mib": 500}), ["host n3: memory pressure: 500 MiB came back from swap"]),
    "as much want of memory, and swapping, in a long run": (
        make_state(window_s=1000.0, memory={"some_s": 1.2, "swapped_in_mib": 500}),
        [],
    ),
    "a hot core": (make_state(throttled_s=4.0), ["host n3: a core's clock was lowered for heat for 40 % of the run"]),
    "a warm core": (make_state(throttled_s=0.5), []),
    "a cool GPU": (gpu(sw_power_cap=10, applications_clocks_setting=10, gpu_idle=1), []),
    "a hot GPU": (
        gpu(hw_slowdown=4, hw_thermal_slowdown=4),
        ["gpu 1 of n3: clocks lowered by heat (hw_thermal_slowdown) for 40 % of the run"],
    ),
    "a GPU that does not say why": (
        gpu(hw_slowdown=4),
        ["gpu 1 of n3: clocks lowered by the hardware (heat or power) (hw_slowdown) for 40 % of the run"],
    ),
    "a GPU that was hot for a moment": (gpu(samples=1, hw_slowdown=1), []),
    "a GPU that was hot now and then": (gpu(samples=100, hw_slowdown=3), []),
    "new errors in memory": (
        gpu(before={"ecc_uncorrected": 1}, after={"ecc_uncorrected": 3}),
        ["gpu 1 of n3: ECC: 2 uncorrected errors"],
    ),
    "old errors in memory": (gpu(before={"ecc_uncorrected": 3}, after={"ecc_uncorrected": 3}), []),
    "a GPU in use": (
        gpu(before={"utilisation": 35}, others=(PYTHON,)),
        ["gpu 1 of n3: 35 % in use before the run, by python3 (4321)"],
    ),
    "a GPU that was in use by nobody else": (gpu(before={"utilisation": 35}), []),
    "a GPU that somebody only holds": (gpu(before={"utilisation": 0}, others=(PYTHON,)), []),
    "a GPU that nobody could look at": (
        make_state(gpus=[{"index": "1", "before": None, "after": None, "others": [], "during": {"samples": 0, "reasons": {}}}]),
        [],
    ),
}


@pytest.mark.parametrize("state, found", STATES.values(), ids=STATES)
def test_what_disturbs(state: HostState, found: list[str]) -> None:
    """Each disturbance is one phrase that names the host or GPU and says how much; what proves nothing is none."""
    assert [str(each) for each in find_disturbances({"n3": state})] == found


SHARED = {
    "a busy process": [],
    "steal": [],
    "a GPU in use": [],
    "want of memory": STATES["want of memory"][1],
    "a hot core": STATES["a hot core"][1],
    "a hot GPU": STATES["a hot GPU"][1],
}


@pytest.mark.parametrize("name, found", SHARED.items(), ids=SHARED)
def test_hosts_that_are_not_ours_alone(name: str, found: list[str]) -> None:
    """Where others have their part of the hosts, that they are at work is no news; what ails the machine still is."""
    assert [str(each) for each in find_disturbances({"n3": STATES[name][0]}, alone=False)] == found


def test_hosts_that_share_cores() -> None:
    """What the run does on another host of the same machine and cores is no stranger's work; on other machines it may be."""
    shared = make_state(cpu={"busy_s": 19.0, "own_s": 9.3})
    assert compute_others_s("a", {"a": shared, "b": shared}) == pytest.approx(0.2)
    assert compute_others_s("a", {"a": shared, "b": replace(shared, cpus="2-3")}) == pytest.approx(9.5)
    assert compute_others_s("a", {"a": shared, "b": replace(shared, machine="b45d1e5a")}) == pytest.approx(9.5)


def test_host_that_is_sampled_longer_than_others_on_its_cores() -> None:
    """A host of parameter servers sees what workers' hosts on its cores do before they train, which is no stranger's work; what
    a stranger does there, those hosts tell.
    """
    server = make_state(window_s=20.0, cpu={"busy_s": 38.0, "own_s": 2.0})
    assert find_disturbances({"a": server, "b": make_state()}) == []
    assert [str(each) for each in find_disturbances({"a": server, "b": make_state(machine="b45d1e5a")})] == [
        "host a: other processes used 1.8 of 2 cores for the length of the run"
    ]
    strange = make_state(cpu={"busy_s": 19.0, "own_s": 9.0})
    assert [str(each) for each in find_disturbances({"a": server, "b": strange})] == [
        "host b: other processes used 0.78 of 2 cores for the length of the run"
    ]


def test_documented_limits() -> None:
    """The page on fingerprints says from where on something disturbs."""
    page = (Path(__file__).parents[2] / "docs" / "fingerprints.md").read_text()
    table = page.partition("## What disturbs a run")[2]
    for row, limits in {
        "other processes": f"{disturbance.OTHERS_SHARE:.0%} of their time, and {disturbance.LEAST_S:g} s",
        "steal": f"{disturbance.STEAL_SHARE:.0%} of the cores' time, and {disturbance.LEAST_S:g} s",
        "some process waits": f"{disturbance.MEMORY_STALL_SHARE:.0%} of the run, and {disturbance.LEAST_S:g} s",
        "memory is read from swap": f"{disturbance.SWAP_MIB_PER_S} MiB/s",
        "a core's clock": f"{disturbance.CORE_HEAT_SHARE:.0%} of the run, and {disturbance.LEAST_S:g} s",
        "a GPU's clocks": f"{disturbance.GPU_HEAT_SHARE:.0%} of the samples",
        "others compute on a GPU": f"{disturbance.GPU_OTHERS_PERCENT} % in use before the run",
    }.items():
        (line,) = (line for line in table.splitlines() if line.startswith(f"| {row}"))
        assert limits.replace("%", " %").replace("  ", " ") in line


STEPS, STEP_S = 20, 0.05
SAMPLE_S = 0.5  # of how busy cores are
T = TypeVar("T")
ALONE = {"variable_update": "independent"}


@contextmanager
def busy_loop(cpus: Collection[int] = ()) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that keeps a core of this machine busy: one of these, or any."""
    loop = subprocess.Popen([sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=subprocess.PIPE)
    with loop:
        assert loop.stdout
        loop.stdout.readline()
        os.sched_setaffinity(loop.pid, cpus or os.sched_getaffinity(0))
        try:
            yield loop
        finally:  # or it would be waited for
            loop.kill()


def toys(stage: Stage) -> Run:
    for task in ("worker:0", "worker:1"):
        stage.script(task, step_s=STEP_S)
    return stage.run(steps=STEPS)


def test_busy_loop_beside_a_run(tmp_path: Path) -> None:
    """A run beside a process that keeps a core busy is disturbed, and says by how much; its state says how it was."""
    with staged(tmp_path, CONFIG) as stage:
        with busy_loop():
            run = toys(stage)
        (state,) = run.state.values()
        assert list(run.state) == list(run.hosts)
        assert state.window_s >= STEPS * STEP_S
        assert any(each.kind is CauseKind.OTHERS for each in run.disturbances)
        assert compute_others_s(run.hosts[0], run.state) > 0


def busy_s(cpus: Collection[int]) -> float:
    """Seconds that these cores have worked since this machine started, by the kernel's own sums, which do not tell for whom."""
    with open("/proc/stat", encoding="ascii") as file:
        cores = {line.split()[0]: line.split()[1:] for line in file if line.startswith("cpu")}
    worked = (int(ticks) for cpu in cpus for ticks in (*cores[f"cpu{cpu}"][:3], *cores[f"cpu{cpu}"][5:8]))
    return sum(worked) / os.sysconf("SC_CLK_TCK")


def busy_share(cpus: Collection[int], meanwhile: Callable[[], T]) -> tuple[float, T]:
    """How busy these cores were for the length of a call, and what it returned."""
    before_s, began = busy_s(cpus), time.monotonic()
    found = meanwhile()
    return (busy_s(cpus) - before_s) / (time.monotonic() - began) / len(cpus), found


def run_undisturbed(train: Callable[[], Run], cpus: Collection[int]) -> None:
    """Train, once these cores rest, until a run is not disturbed. One that is, though they were idle, fails the test.

    A toy sleeps through its steps: how busy its cores were meanwhile is how much others did. Where they never rest, nothing can
    be told of a run that has them to itself.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        while busy_share(cpus, lambda: time.sleep(SAMPLE_S))[0] > disturbance.OTHERS_SHARE and time.monotonic() < deadline:
            pass
        share, run = busy_share(cpus, train)
        if not run.disturbances:
            return
        idle = disturbance.OTHERS_SHARE / 2  # from the first order to the last exit, and not only while steps are measured
        assert share > idle, f"called disturbed on cores that were busy for {share:.1%}: {run.disturbances}"
        if time.monotonic() > deadline:
            pytest.skip(f"others keep this machine's cores busy for {share:.0%} of their time")


@pytest.mark.campaign(only=True)
def test_busy_loop_on_the_cores_that_a_run_leaves_free(tmp_path: Path) -> None:
    """A run that was given a core of its own is not disturbed by somebody on another, and is by somebody on the same."""
    mine, *rest = sorted(os.sched_getaffinity(0))
    if not rest or add_siblings({mine}) != {mine}:
        pytest.skip("needs two cores of one thread each")
    with staged(tmp_path, CONFIG) as stage:
        stage.script("worker:0", step_s=STEP_S)
        with busy_loop({mine}):
            assert stage.run(steps=STEPS, gpus=1, num_ps=0, **ALONE).disturbances

        with busy_loop({*rest}) as others:

            def beside_others() -> Run:
                others.send_signal(signal.SIGCONT)
                run = stage.run(steps=STEPS, gpus=1, num_ps=0, **ALONE)
                others.send_signal(signal.SIGSTOP)
                return run

            others.send_signal(signal.SIGSTOP)
            run_undisturbed(beside_others, {mine})


@pytest.mark.campaign(only=True)
@pytest.mark.parametrize("config", [CONFIG, TWO_HOSTS], ids=["one host", "two hosts on one machine"])
def test_ordinary_run(tmp_path: Path, config: ClusterConfig) -> None:
    """A run that has the machine to itself, its own launcher apart, is not disturbed; nor by its own other host."""
    with staged(tmp_path, config) as stage:
        run_undisturbed(lambda: toys(stage), os.sched_getaffinity(0))


def test_what_others_had_of_cores() -> None:
    """Of each host: what no task, agent or controller of ours has used of its cores, and what its hypervisor gave to others."""
    busy = make_state(cpu={"busy_s": 19.8, "own_s": 11.8}, machine="another")
    assert compute_taken_s({"n1": make_state(), "n2": busy}) == pytest.approx({"n1": 0.4, "n2": 7.9})
