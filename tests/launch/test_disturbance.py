"""Tests of disturbances of a run: from states of hosts, and with another process beside a run."""

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
from tests.launch.stage import CONFIG, TWO_HOSTS, Stage, start_stage
from tests.records.host_states import make_state


def make_gpu_state(
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
    "a cool GPU": (make_gpu_state(sw_power_cap=10, applications_clocks_setting=10, gpu_idle=1), []),
    "a hot GPU": (
        make_gpu_state(hw_slowdown=4, hw_thermal_slowdown=4),
        ["gpu 1 of n3: clocks lowered by heat (hw_thermal_slowdown) for 40 % of the run"],
    ),
    "a GPU that does not say why": (
        make_gpu_state(hw_slowdown=4),
        ["gpu 1 of n3: clocks lowered by the hardware (heat or power) (hw_slowdown) for 40 % of the run"],
    ),
    "a GPU that was hot for a moment": (make_gpu_state(samples=1, hw_slowdown=1), []),
    "a GPU that was hot now and then": (make_gpu_state(samples=100, hw_slowdown=3), []),
    "new errors in memory": (
        make_gpu_state(before={"ecc_uncorrected": 1}, after={"ecc_uncorrected": 3}),
        ["gpu 1 of n3: ECC: 2 uncorrected errors"],
    ),
    "old errors in memory": (make_gpu_state(before={"ecc_uncorrected": 3}, after={"ecc_uncorrected": 3}), []),
    "a GPU in use": (
        make_gpu_state(before={"utilisation": 35}, others=(PYTHON,)),
        ["gpu 1 of n3: 35 % in use before the run, by python3 (4321)"],
    ),
    "a GPU in use without other processes": (make_gpu_state(before={"utilisation": 35}), []),
    "a GPU that somebody only holds": (make_gpu_state(before={"utilisation": 0}, others=(PYTHON,)), []),
    "a GPU without samples": (
        make_state(gpus=[{"index": "1", "before": None, "after": None, "others": [], "during": {"samples": 0, "reasons": {}}}]),
        [],
    ),
}


@pytest.mark.parametrize("state, found", STATES.values(), ids=STATES)
def test_disturbance_is_one_phrase(state: HostState, found: list[str]) -> None:
    """Each disturbance is one phrase with the host or GPU and the amount, and a small amount is none."""
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
def test_other_processes_on_shared_hosts_are_no_disturbance(name: str, found: list[str]) -> None:
    """On shared hosts other processes are no disturbance, and faults of the machine still are."""
    assert [str(each) for each in find_disturbances({"n3": STATES[name][0]}, dedicated=False)] == found


def test_run_on_the_same_cores_is_not_another_process() -> None:
    """The run's work on another host of the same machine and cores is not that of other processes."""
    shared = make_state(cpu={"busy_s": 19.0, "own_s": 9.3})
    assert compute_others_s("a", {"a": shared, "b": shared}) == pytest.approx(0.2)
    assert compute_others_s("a", {"a": shared, "b": replace(shared, cpus="2-3")}) == pytest.approx(9.5)
    assert compute_others_s("a", {"a": shared, "b": replace(shared, machine="b45d1e5a")}) == pytest.approx(9.5)


def test_longer_sample_on_shared_cores_is_no_disturbance() -> None:
    """A host of servers that is sampled longer than a host of workers on its cores is not disturbed, and the latter still is by
    other processes."""
    server = make_state(window_s=20.0, cpu={"busy_s": 38.0, "own_s": 2.0})
    assert find_disturbances({"a": server, "b": make_state()}) == []
    assert [str(each) for each in find_disturbances({"a": server, "b": make_state(machine="b45d1e5a")})] == [
        "host a: other processes used 1.8 of 2 cores for the length of the run"
    ]
    strange = make_state(cpu={"busy_s": 19.0, "own_s": 9.0})
    assert [str(each) for each in find_disturbances({"a": server, "b": strange})] == [
        "host b: other processes used 0.78 of 2 cores for the length of the run"
    ]


def test_documentation_has_the_limits() -> None:
    """The page on fingerprints has the limits of all disturbances."""
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
def run_busy_loop(cpus: Collection[int] = ()) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a process that keeps one of these cores, or any, busy."""
    loop = subprocess.Popen([sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=subprocess.PIPE)
    with loop:
        assert loop.stdout
        loop.stdout.readline()
        os.sched_setaffinity(loop.pid, cpus or os.sched_getaffinity(0))
        try:
            yield loop
        finally:  # or it would be waited for
            loop.kill()


def run_toys(stage: Stage) -> Run:
    for task in ("worker:0", "worker:1"):
        stage.script(task, step_s=STEP_S)
    return stage.run(steps=STEPS)


def test_busy_process_disturbs_a_run(tmp_path: Path) -> None:
    """A run beside a busy process is disturbed by other processes, and its state has their seconds."""
    with start_stage(tmp_path, CONFIG) as stage:
        with run_busy_loop():
            run = run_toys(stage)
        (state,) = run.state.values()
        assert list(run.state) == list(run.hosts)
        assert state.window_s >= STEPS * STEP_S
        assert any(each.kind is CauseKind.OTHERS for each in run.disturbances)
        assert compute_others_s(run.hosts[0], run.state) > 0


def read_busy_s(cpus: Collection[int]) -> float:
    """Return the seconds that these cores have worked since the start of this machine, for any process."""
    with open("/proc/stat", encoding="ascii") as file:
        cores = {line.split()[0]: line.split()[1:] for line in file if line.startswith("cpu")}
    worked = (int(ticks) for cpu in cpus for ticks in (*cores[f"cpu{cpu}"][:3], *cores[f"cpu{cpu}"][5:8]))
    return sum(worked) / os.sysconf("SC_CLK_TCK")


def measure_busy_share(cpus: Collection[int], meanwhile: Callable[[], T]) -> tuple[float, T]:
    """Return the share of time in which these cores were busy during a call, and the result of the call."""
    before_s, began = read_busy_s(cpus), time.monotonic()
    found = meanwhile()
    return (read_busy_s(cpus) - before_s) / (time.monotonic() - began) / len(cpus), found


def run_undisturbed(train: Callable[[], Run], cpus: Collection[int]) -> None:
    """Train, once these cores are idle, until a run is not disturbed. A disturbed run on idle cores fails the test.

    A toy sleeps through its steps, so that the busy share of its cores is that of other processes. If the cores are never idle,
    the test is skipped.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        while (
            measure_busy_share(cpus, lambda: time.sleep(SAMPLE_S))[0] > disturbance.OTHERS_SHARE and time.monotonic() < deadline
        ):
            pass
        share, run = measure_busy_share(cpus, train)
        if not run.disturbances:
            return
        idle = disturbance.OTHERS_SHARE / 2  # from the first order to the last exit, and not only while steps are measured
        assert share > idle, f"called disturbed on cores that were busy for {share:.1%}: {run.disturbances}"
        if time.monotonic() > deadline:
            pytest.skip(f"others keep this machine's cores busy for {share:.0%} of their time")


@pytest.mark.campaign(only=True)
def test_only_processes_on_the_run_s_cores_disturb(tmp_path: Path) -> None:
    """A run with its own core is disturbed by a process on this core, and not by one on other cores."""
    mine, *rest = sorted(os.sched_getaffinity(0))
    if not rest or add_siblings({mine}) != {mine}:
        pytest.skip("needs two cores of one thread each")
    with start_stage(tmp_path, CONFIG) as stage:
        stage.script("worker:0", step_s=STEP_S)
        with run_busy_loop({mine}):
            assert stage.run(steps=STEPS, gpus=1, num_ps=0, **ALONE).disturbances

        with run_busy_loop({*rest}) as others:

            def run_beside_others() -> Run:
                others.send_signal(signal.SIGCONT)
                run = stage.run(steps=STEPS, gpus=1, num_ps=0, **ALONE)
                others.send_signal(signal.SIGSTOP)
                return run

            others.send_signal(signal.SIGSTOP)
            run_undisturbed(run_beside_others, {mine})


@pytest.mark.campaign(only=True)
@pytest.mark.parametrize("config", [CONFIG, TWO_HOSTS], ids=["one host", "two hosts on one machine"])
def test_run_alone_is_not_disturbed(tmp_path: Path, config: ClusterConfig) -> None:
    """A run alone on a machine is not disturbed by its own launcher, or by its own second host."""
    with start_stage(tmp_path, config) as stage:
        run_undisturbed(lambda: run_toys(stage), os.sched_getaffinity(0))


def test_taken_time_is_of_other_processes_and_steal() -> None:
    """The taken time of a host is that of other processes and of its hypervisor."""
    busy = make_state(cpu={"busy_s": 19.8, "own_s": 11.8}, machine="another")
    assert compute_taken_s({"n1": make_state(), "n2": busy}) == pytest.approx({"n1": 0.4, "n2": 7.9})
