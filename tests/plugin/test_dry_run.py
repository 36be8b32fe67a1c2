"""--dry-run: what would be asked of a cluster, and where every task would run."""

import re
from typing import Any

import pytest

from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.launch.placement import place
from pytest_dtfperf.plugin.dry_run import describe, make_hosts
from pytest_dtfperf.spec import Spec
from tests.plugin.conftest import THROUGHPUT, Ended, PerfTests
from tests.plugin.test_lending import cloud, say

__all__ = ["cloud"]

EFFICIENCY = """
def test_efficiency(train, baseline, gpus):
    one = train(model="trivial", gpus=1)
    many = train(model="trivial", gpus=gpus)
    baseline.check_efficiency(many, anchor=one, at_least=0.7)
"""


def section(ended: Ended) -> list[str]:
    """The lines of the dry run, as far as they are the same everywhere."""
    lines = ended.out.splitlines()
    begins = next(i for i, line in enumerate(lines) if " dry run: cluster " in line)
    return lines[begins + 1 : next(i for i, line in enumerate(lines) if line.startswith("In all: ")) + 1]


def placed(spec: dict[str, Any], count: int, on_each: int, device: str = "gpu", **given: Any) -> list[str]:
    config = ClusterConfig(name="daint", backend="slurm", devices_per_host=on_each, device=device, **given)
    training = Spec(model="inception3", batch_size=8, **spec)
    return describe(place(training, make_hosts(config, count, device, on_each), config))


@pytest.mark.parametrize(
    "spec, count, on_each, given, lines",
    [
        ({"gpus": 1, "num_ps": 1}, 1, 1, {}, ["worker 0 on node 1, 1 GPU", "ps 0 on node 1"]),
        ({"gpus": 128, "num_ps": 116}, 128, 1, {}, ["worker 0-127 on nodes 1-128, 1 GPU each", "ps 0-115 on nodes 1-116"]),
        ({"gpus": 8, "num_ps": 1}, 2, 4, {}, ["worker 0-7 on nodes 1-2, 4 on each, 1 GPU each", "ps 0 on node 1"]),
        (
            {"gpus": 6, "num_ps": 3},
            2,
            4,
            {},
            ["worker 0-3 on node 1, 1 GPU each", "worker 4-5 on node 2, 1 GPU each", "ps 0-2 in turn on nodes 1-2"],
        ),
        (
            {"gpus": 4, "num_ps": 3},
            4,
            2,
            {"ps_on_worker_hosts": False, "ps_per_host": 2},
            ["worker 0-3 on nodes 3-4, 2 on each, 1 GPU each", "ps 0-1 on node 1", "ps 2 on node 2"],
        ),
        ({"gpus": 4, "variable_update": "replicated"}, 1, 4, {}, ["worker 0 on node 1, 4 GPUs"]),
        (
            {"gpus": 8, "num_ps": 1},
            2,
            4,
            {"devices_per_worker": 2},
            ["worker 0-3 on nodes 1-2, 2 on each, 2 GPUs each", "ps 0 on node 1"],
        ),
        (
            {"gpus": 2, "num_ps": 1},
            1,
            2,
            {"device": "cpu"},
            ["worker 0-1 on node 1, 1 share of the cores each", "ps 0 on node 1"],
        ),
    ],
    ids=["one", "one each", "four each", "not full", "apart", "one process", "two GPUs each", "cores"],
)  # fmt: skip
def test_placement_in_words(spec: dict[str, Any], count: int, on_each: int, given: dict[str, Any], lines: list[str]) -> None:
    """However many tasks there are, their placement is a line or two for each job, and exact."""
    assert placed(spec, count, on_each, **given) == lines


def test_nothing_is_started_and_everything_is_shown(cloud: PerfTests) -> None:
    """A dry run shows the allocation with its commands and every test's trainings, asks for nothing and leaves no folder."""
    cloud.write(THROUGHPUT + EFFICIENCY)
    ended = cloud.run("--dry-run", "--gpus=1,2", "-rs")
    assert ended.code == 0, ended.out
    ended.line("4 skipped")
    ended.line("SKIPPED [4]", "dry run")
    assert not (cloud.folder / "pretend.log").exists()
    assert not (cloud.folder / "perf_results").exists()
    lines = section(ended)
    assert lines[3].startswith("    lend --hosts=2 --session=20")
    assert lines[:3] + lines[4:] == [
        "Nothing was asked of the cluster, allocated or started.",
        "",
        "2 nodes, for the session:",
        "",
        "Ports: free ones, found on each node when a run starts.",
        "",
        "perf/test_perf.py",
        "  test_throughput[gpus1-ps1-parameter_server]",
        "    trivial b10 gpus=1 num_ps=1 parameter_server: 2 runs of 1 + 4 steps, time unknown",
        "      worker 0 on node 1, 1 share of the cores",
        "      ps 0 on node 1",
        "  test_throughput[gpus2-ps1-parameter_server]",
        "    trivial b10 gpus=2 num_ps=1 parameter_server: 2 runs of 1 + 4 steps, time unknown",
        "      worker 0-1 on nodes 1-2, 1 share of the cores each",
        "      ps 0 on node 1",
        "  test_efficiency[gpus1]",
        "    trivial b10 gpus=1 num_ps=1 parameter_server: as measured by test_throughput[gpus1-ps1-parameter_server]",
        "    trivial b10 gpus=1 num_ps=1 parameter_server: as measured by test_throughput[gpus1-ps1-parameter_server]",
        "  test_efficiency[gpus2]",
        "    trivial b10 gpus=1 num_ps=1 parameter_server: as measured by test_throughput[gpus1-ps1-parameter_server]",
        "    trivial b10 gpus=2 num_ps=1 parameter_server: as measured by test_throughput[gpus2-ps1-parameter_server]",
        "",
        "In all: 4 tests, 2 measurements, 4 runs.",
    ]


def test_workers_notes_reach_the_controller(cloud: PerfTests) -> None:
    """With xdist the section is the same, in the order of the tests, with a note that each worker has its own allocation."""
    cloud.write(THROUGHPUT + EFFICIENCY)
    alone, together = (section(cloud.run("--dry-run", "--gpus=1,2", *more)) for more in ((), ("-n2",)))
    assert together[2] == "2 nodes, for each of 2 xdist workers, 2 at once:"
    assert together[5:] == alone[5:]


def test_allocations_for_each_measurement(cloud: PerfTests) -> None:
    """With allocation = "test" each distinct allocation is shown once, with the number of measurements that need one."""
    say(cloud, 'allocation = "test"', "fixed_ports = true")
    lines = section(cloud.run("--dry-run", "--gpus=1,2", "--num-ps=1,2"))
    assert "1 node, for each of 2 measurements:" in lines
    assert "2 nodes, for each of 2 measurements:" in lines
    assert "Ports: fixed, on each node counted from worker 2220, ps 2230." in lines


def test_runs_are_counted_as_they_would_be(cloud: PerfTests) -> None:
    """The number of runs is a range, or one number if baselines are to be written."""
    assert section(cloud.run("--dry-run", "--gpus=1", "--repeats=5"))[-1] == "In all: 1 test, 1 measurement, 2 to 5 runs."
    ended = cloud.run("--dry-run", "--gpus=1", "--repeats=5", "--update-baselines")
    assert section(ended)[-1] == "In all: 1 test, 1 measurement, 5 runs."
    assert not (cloud.folder / "baselines").exists()


def test_dry_run_names_the_time_budget(cloud: PerfTests) -> None:
    """With a time budget, the planned runs are the most that it allows, and a line states what it changes."""
    line = "--time-budget=6min shortens runs, and leaves out tests without time."
    assert line in cloud.run("--cluster=cloud", "--gpus=1", "--dry-run", "--time-budget=6min").out
    assert "--time-budget" not in cloud.run("--cluster=cloud", "--gpus=1", "--dry-run").out


def test_the_time_is_said_with_what_it_rests_on(cloud: PerfTests) -> None:
    """Unknown before anything was measured; afterwards by this cluster's sessions, and what is new by what is similar to it."""
    cloud.write()
    assert "Time: unknown: none of this was measured on this cluster before" in cloud.run("--dry-run", "--gpus=1").out
    assert cloud.run("--gpus=1").code == 0
    ended = cloud.run("--dry-run", "--gpus=1,2")
    assert re.search(r"gpus=1 .*: 2 runs of 1 \+ 4 steps, about \d+ s \(measured before\)\n", ended.out)
    assert re.search(r"gpus=2 .*: 2 runs of 1 \+ 4 steps, about \d+ s \(by similar trainings, roughly\)\n", ended.out)
    ended.line("Time: about", "up to", "if every verdict takes all its runs.")
    ended.line("  1 measured before, 1 by similar trainings, roughly. Waiting for hosts and preparing them is not in it.")
    assert "unknown" not in ended.out


def test_what_has_no_ground_is_counted_as_unknown(cloud: PerfTests) -> None:
    """A training of unknown duration is not 0 in the total, which shows how many are left out."""
    cloud.write()
    assert cloud.run("--gpus=1").code == 0
    cloud.write("def test_new(train): train(model='trivial', batch_size=77)\n", "test_new.py")
    ended = cloud.run("--dry-run", "--gpus=1")
    ended.line("trivial b77", "2 runs of 1 + 4 steps, time unknown")
    ended.line("Time: about", "and 1 measurement of unknown length; up to")


RESULTS = {
    "nothing": "train(model='trivial')",
    "the verdict": "baseline.check(train(model='trivial'))",
    "the rate": "assert train(model='trivial').images_per_sec > 1",
    "the hosts": "train(model='trivial')\n    assert cluster.hosts",
    "the fingerprint": "train(model='trivial')\n    assert cluster.fingerprint",
}


@pytest.mark.parametrize("result", RESULTS)
def test_a_test_ends_where_it_looks_at_a_result(cloud: PerfTests, result: str) -> None:
    """A test that looks at a result, or at the hosts, is skipped there, and so is one that looks at nothing."""
    cloud.write(f"def test_x(train, baseline, cluster):\n    {RESULTS[result]}\n")
    ended = cloud.run("--dry-run")
    ended.line("1 skipped")
    assert section(ended)[-1] == "In all: 1 test, 1 measurement, 2 runs."


def test_a_judgement_that_does_not_exist_fails(cloud: PerfTests) -> None:
    """A dry run finds a misspelt method of `baseline`, before node hours are spent."""
    cloud.write("def test_x(train, baseline): baseline.chekc(train(model='trivial'))\n")
    ended = cloud.run("--dry-run")
    assert ended.code == 1
    ended.line("AttributeError", "chekc")


def test_what_could_not_run_fails(cloud: PerfTests) -> None:
    """An impossible training fails in a dry run with the same message as otherwise."""
    cloud.write("def test_x(train): train(model='trivial', gpus=7)\ndef test_y(train): train(model='trivial', batch_size=0)\n")
    ended = cloud.run("--dry-run")
    assert ended.code == 1
    ended.line("trivial b10 gpus=7", "needs 7 devices, but cluster 'cloud' has 6 hosts")
    ended.line("batch_size must be a whole number of at least 1")


def test_the_best_number_of_parameter_servers_is_not_guessed(cloud: PerfTests) -> None:
    """--num-ps=best requires the hardware, which the section states."""
    assert "      (num_ps=best is looked up once the hosts have said what they are)" in section(
        cloud.run("--dry-run", "--gpus=2", "--num-ps=best")
    )
