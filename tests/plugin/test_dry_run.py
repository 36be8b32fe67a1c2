"""Tests of --dry-run: the requests to a cluster, and the placement of each task."""

import re
from typing import Any

import pytest

from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.clusters.placement import place
from pytest_dtfperf.plugin.dry_run import describe, make_hosts
from pytest_dtfperf.spec import Spec
from tests.plugin.conftest import THROUGHPUT, Ended, PerfTests
from tests.plugin.test_allocations import add_keys, cloud

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


def describe_placement(spec: dict[str, Any], count: int, on_each: int, device: str = "gpu", **given: Any) -> list[str]:
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
def test_placement_is_described_by_ranges_of_tasks(
    spec: dict[str, Any], count: int, on_each: int, given: dict[str, Any], lines: list[str]
) -> None:
    """The placement of any number of tasks is one or two exact lines for each job."""
    assert describe_placement(spec, count, on_each, **given) == lines


def test_dry_run_shows_all_trainings_and_starts_none(cloud: PerfTests) -> None:
    """A dry run shows the allocation with its command and the trainings of each test, requests nothing and leaves no folder."""
    cloud.write(THROUGHPUT + EFFICIENCY)
    ended = cloud.run("--dry-run", "--gpus=1,2", "-rs")
    assert ended.code == 0, ended.out
    ended.line("4 skipped")
    ended.line("SKIPPED [4]", "dry run")
    assert not (cloud.folder / "pretend.log").exists()
    assert not (cloud.folder / "perf_results").exists()
    lines = section(ended)
    assert lines[3].startswith("    allocate --hosts=2 --session=20")
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


def test_dry_run_with_xdist_shows_the_same_section(cloud: PerfTests) -> None:
    """With xdist the section is the same, in the order of the tests, with the number of workers and of their allocations."""
    cloud.write(THROUGHPUT + EFFICIENCY)
    alone, together = (section(cloud.run("--dry-run", "--gpus=1,2", *more)) for more in ((), ("-n2",)))
    assert together[2] == "2 nodes, for each of 2 xdist workers, 2 at once:"
    assert together[5:] == alone[5:]


def test_dry_run_counts_allocations_of_each_measurement(cloud: PerfTests) -> None:
    """With allocation = "test" each distinct allocation is shown once, with the number of its measurements."""
    add_keys(cloud, 'allocation = "test"', "fixed_ports = true")
    lines = section(cloud.run("--dry-run", "--gpus=1,2", "--num-ps=1,2"))
    assert "1 node, for each of 2 measurements:" in lines
    assert "2 nodes, for each of 2 measurements:" in lines
    assert "Ports: fixed, on each node counted from worker 2220, ps 2230." in lines


def test_dry_run_counts_runs(cloud: PerfTests) -> None:
    """The number of runs is a range, or one number with --update-baselines."""
    assert section(cloud.run("--dry-run", "--gpus=1", "--repeats=5"))[-1] == "In all: 1 test, 1 measurement, 2 to 5 runs."
    ended = cloud.run("--dry-run", "--gpus=1", "--repeats=5", "--update-baselines")
    assert section(ended)[-1] == "In all: 1 test, 1 measurement, 5 runs."
    assert not (cloud.folder / "baselines").exists()


def test_dry_run_names_the_time_budget(cloud: PerfTests) -> None:
    """With a time budget, the planned runs are the most that it allows, and a line states what it changes."""
    line = "--time-budget=6min shortens runs, and leaves out tests without time."
    assert line in cloud.run("--cluster=cloud", "--gpus=1", "--dry-run", "--time-budget=6min").out
    assert "--time-budget" not in cloud.run("--cluster=cloud", "--gpus=1", "--dry-run").out


def test_dry_run_estimates_the_time_with_its_source(cloud: PerfTests) -> None:
    """The time is unknown at first, and later is estimated from earlier sessions, or from similar trainings."""
    cloud.write()
    assert "Time: unknown: none of this was measured on this cluster before" in cloud.run("--dry-run", "--gpus=1").out
    assert cloud.run("--gpus=1").code == 0
    ended = cloud.run("--dry-run", "--gpus=1,2")
    assert re.search(r"gpus=1 .*: 2 runs of 1 \+ 4 steps, about \d+ s \(measured before\)\n", ended.out)
    assert re.search(r"gpus=2 .*: 2 runs of 1 \+ 4 steps, about \d+ s \(by similar trainings, roughly\)\n", ended.out)
    ended.line("Time: about", "up to", "if every verdict takes all its runs.")
    ended.line("  1 measured before, 1 by similar trainings, roughly. Waiting for hosts and preparing them is not in it.")
    assert "unknown" not in ended.out


def test_dry_run_counts_trainings_of_unknown_length(cloud: PerfTests) -> None:
    """A training of unknown length is counted in the total as unknown."""
    cloud.write()
    assert cloud.run("--gpus=1").code == 0
    cloud.write("def test_new(train): train(model='trivial', batch_size=77)\n", "test_new.py")
    ended = cloud.run("--dry-run", "--gpus=1")
    ended.line("trivial b77", "2 runs of 1 + 4 steps, time unknown")
    ended.line("Time: about", "and 1 measurement of unknown length; up to")


RESULTS = {
    "nothing": "train(model='trivial', batch_size=1)",
    "the verdict": "baseline.check(train(model='trivial', batch_size=2))",
    "the rate": "assert train(model='trivial', batch_size=3).images_per_sec > 1",
    "the hosts": "train(model='trivial', batch_size=4)\n    assert cluster.hosts",
    "the fingerprint": "train(model='trivial', batch_size=5)\n    assert cluster.fingerprint",
}


def test_dry_run_skips_a_test_at_its_first_result(cloud: PerfTests) -> None:
    """A test that reads a result or the hosts is skipped there, and so is one that reads nothing."""
    cloud.write("".join(f"def test_{at}(train, baseline, cluster):\n    {how}\n" for at, how in enumerate(RESULTS.values())))
    ended = cloud.run("--dry-run")
    ended.line("5 skipped")
    assert section(ended)[-1] == "In all: 5 tests, 5 measurements, 10 runs."


def test_dry_run_fails_a_misspelt_check(cloud: PerfTests) -> None:
    """A dry run fails a test that calls a misspelt method of `baseline`."""
    cloud.write("def test_x(train, baseline): baseline.chekc(train(model='trivial'))\n")
    ended = cloud.run("--dry-run")
    assert ended.code == 1
    ended.line("AttributeError", "chekc")


def test_dry_run_fails_an_impossible_training(cloud: PerfTests) -> None:
    """An impossible training fails its test in a dry run, with the reason."""
    cloud.write("def test_x(train): train(model='trivial', gpus=7)\ndef test_y(train): train(model='trivial', batch_size=0)\n")
    ended = cloud.run("--dry-run")
    assert ended.code == 1
    ended.line("trivial b10 gpus=7", "needs 7 devices, but cluster 'cloud' has 6 hosts")
    ended.line("batch_size must be a whole number of at least 1")


def test_dry_run_does_not_choose_the_best_number_of_servers(cloud: PerfTests) -> None:
    """With --num-ps=best a line states that the number depends on the hosts."""
    assert "      (num_ps=best is looked up once the hosts have said what they are)" in section(
        cloud.run("--dry-run", "--gpus=2", "--num-ps=best")
    )
