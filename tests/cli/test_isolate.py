"""`dtfperf isolate`: slow hosts and links found on machines over ssh. What is measured is made up, and exact."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.cli.table import read
from tests.clusters.ssh.lab import Lab, why_not
from tests.plugin.conftest import Ended, PerfTests, perf_tests_in
from tests.plugin.test_ssh import SETUP, TOY, TRAINING

SLOW_S = 0.02


@pytest.fixture(scope="module")
def machines() -> Iterator[Lab]:
    """Four machines."""
    if reason := why_not():
        pytest.skip(reason)
    with Lab(4) as lab:
        yield lab


@pytest.fixture
def perf(tmp_path: Path) -> PerfTests:
    return perf_tests_in(tmp_path)


def isolate(perf: PerfTests, lab: Lab, slow: Mapping[str, float], *arguments: str, lines: tuple[str, ...] = ()) -> Ended:
    """Search with one worker on each machine; `slow` is seconds of a step by machines, as in "m1+m2"."""
    of_hosts = {"+".join(lab[name].address for name in key.split("+")): seconds for key, seconds in slow.items()}
    setup = [SETUP, f"export TOY_SLOW_HOSTS='{json.dumps(of_hosts)}'"]
    table = lab.toml(TRAINING, TOY, "connect_s = 300", f"setup = {json.dumps(setup)}", *lines)
    (perf.folder / "perf" / "clusters.toml").write_text(table)
    command = ["isolate", "trivial", f"gpus={len(lab.machines)}", "--cluster=lab", "--clusters-file=perf/clusters.toml"]
    return perf.run_python("-m", "pytest_dtfperf.cli", *command, *arguments)


def test_isolate_names_the_slow_host(perf: PerfTests, machines: Lab) -> None:
    """A host that doubles a step is named and confirmed, the others are fit, and the exit code is 1."""
    ended = isolate(perf, machines, {"m3": SLOW_S})
    assert ended.code == 1, ended.err
    ended.line("4 hosts: one training on all of them")
    ended.line("the search takes")
    ended.line("host m3", "-50")
    ended.line("Found:", "3 of 4 hosts fit")
    ended.line("--exclude=m3")
    (folder,) = (perf.folder / "perf_results").iterdir()
    assert json.loads((folder / "isolation.json").read_text())["conclusion"]["findings"][0]["hosts"] == ["m3"]


def test_isolate_of_equal_hosts_ends_with_0(perf: PerfTests, machines: Lab) -> None:
    """Where all hosts are equal, no host is named, and all pairs of hosts have trained together."""
    ended = isolate(perf, machines, {}, "--json")
    assert ended.code == 0, ended.err
    found = read("isolate", ended.out)
    assert found["conclusion"]["outcome"] == "equal"
    assert found["conclusion"]["fit"] == ["m1", "m2", "m3", "m4"]
    assert found["conclusion"]["pairs"] == 1


def test_isolate_names_two_hosts_that_are_slow_together(perf: PerfTests, machines: Lab) -> None:
    """A slow link between two hosts is one finding, and no host is named by itself."""
    ended = isolate(perf, machines, {"m1+m4": SLOW_S}, "--json")
    assert ended.code == 1, ended.err
    found = read("isolate", ended.out)
    (finding,) = found["conclusion"]["findings"]
    assert (finding["kind"], finding["hosts"]) == ("link", ["m1", "m4"])


def test_isolate_stops_at_the_time_limit(perf: PerfTests, machines: Lab) -> None:
    """A search without time for a round reports that it is not judged, with exit code 3."""
    ended = isolate(perf, machines, {"m3": SLOW_S}, "--time-limit=1s", "--json")
    assert ended.code == 3, ended.err
    found = read("isolate", ended.out)
    assert (found["conclusion"]["outcome"], found["conclusion"]["reason"]) == ("stopped", "the time limit was reached")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--smallest=2"], "--smallest is a fraction below 0.5"),
        (["--layouts=0"], "--layouts must be 1 or more"),
        (["mnist"], "with one training"),
        (["num_ps=best"], "with the number of parameter servers itself"),
        (["variable_update=replicated"], "trains in one process"),
    ],
)
def test_isolate_refuses_what_it_cannot_search(perf: PerfTests, machines: Lab, arguments: list[str], message: str) -> None:
    """Wrong arguments are one line with exit code 2, before anything is started."""
    ended = isolate(perf, machines, {}, *arguments)
    assert ended.code == 2, ended.err
    assert message in ended.err
    assert not (perf.folder / "perf_results").exists()
