"""Tests of the search for slow hosts and links, on simulated clusters."""

import math
from random import Random

import pytest

from benchmarks.isolation import SimulatedCluster, draw_cluster, draw_heavy, is_right, search, simulate
from pytest_dtfperf.qualify.group_rates import Group, SearchPolicy, choose_group_size, choose_layouts, make_layout
from pytest_dtfperf.qualify.search import Conclusion, HostSearch, Outcome, SlowSetKind, estimate_cost
from pytest_dtfperf.stats.noise import Noise

CALIBRATED = Noise(run=0.01, degrees_of_freedom=20)


def make_hosts(number: int) -> list[str]:
    return [f"n{at}" for at in range(number)]


def carry_out_search(
    cluster: SimulatedCluster, *, seed: int = 1, layouts: int = 2, suspects: tuple[str, ...] = ()
) -> HostSearch:
    """Carry out a search on a cluster."""
    random = Random(seed)
    found = HostSearch(cluster.hosts, SearchPolicy(layouts=layouts), noise=CALIBRATED, suspects=suspects)
    while groups := found.propose():
        assert len({host for group in groups for host in group}) == sum(map(len, groups)), (
            "a host trains in one group at a time"
        )
        found.record(cluster.train(groups, random))
    return found


def list_findings(conclusion: Conclusion) -> list[tuple[str, set[str]]]:
    return sorted((each.kind.value, set(each.hosts)) for each in conclusion.findings)


@pytest.mark.parametrize("size", [2, 3, 4, 5, 7, 8, 9, 16, 33, 64, 232])
def test_search_names_one_slow_host(size: int) -> None:
    """A host that is slower by 15 % is found among any number of hosts, and the others are fit."""
    cluster = SimulatedCluster(make_hosts(size), {f"n{size - 1}": 0.15}, {}, 0.01)
    conclusion = carry_out_search(cluster).conclude()
    assert (conclusion.outcome, list_findings(conclusion)) == (Outcome.FOUND, [("host", {f"n{size - 1}"})])
    assert conclusion.fit == cluster.hosts[:-1]
    assert 0.1 < conclusion.findings[0].slowdown < 0.2


@pytest.mark.parametrize("size", [2, 3, 4, 8, 16, 64])
def test_search_of_equal_hosts_names_none(size: int) -> None:
    """Hosts of the same speed are all fit."""
    conclusion = carry_out_search(SimulatedCluster(make_hosts(size), {}, {}, 0.01)).conclude()
    assert (conclusion.outcome, conclusion.findings, len(conclusion.fit)) == (Outcome.EQUAL, [], size)


def test_search_does_not_call_a_group_fit_that_may_be_slow() -> None:
    """A group about which all allowed runs leave both answers possible is not known to be fit, and no result is claimed."""
    hosts = make_hosts(16)
    found = HostSearch(hosts, SearchPolicy(layouts=1, most_repeats=3), noise=Noise(run=0.03, degrees_of_freedom=100))
    while groups := found.propose():
        found.record([0.97 if "n4" in group else 1.0 for group in groups])
    conclusion = found.conclude()
    assert (conclusion.outcome, conclusion.findings, conclusion.unknown) == (Outcome.NOT_JUDGED, [], hosts[4:8])
    assert "no group is certainly slower than the others by 5 %, but 1 group may be, after 3 runs" in conclusion.reason


def test_search_of_one_host_is_not_judged() -> None:
    """A search of a single host proposes no training, and judges nothing."""
    found = HostSearch(["alone"])
    assert found.propose() == []
    assert found.conclude().outcome is Outcome.NOT_JUDGED


@pytest.mark.parametrize("slow", [("n0", "n1"), ("n0", "n15"), ("n3", "n6", "n9"), ("n0", "n1", "n2", "n3")])
def test_search_names_several_slow_hosts(slow: tuple[str, ...]) -> None:
    """Slow hosts of one group or of several are all named, each for itself."""
    cluster = SimulatedCluster(make_hosts(16), dict.fromkeys(slow, 0.2), {}, 0.01)
    conclusion = carry_out_search(cluster).conclude()
    assert list_findings(conclusion) == sorted(("host", {host}) for host in slow)


def test_search_names_most_hosts_if_most_are_slow() -> None:
    """If most of the hosts are slow, each of them is named."""
    slow = {"n0": 0.1, "n2": 0.15, "n3": 0.2, "n5": 0.25, "n6": 0.3}
    conclusion = carry_out_search(SimulatedCluster(make_hosts(8), slow, {}, 0.005)).conclude()
    assert list_findings(conclusion) == sorted(("host", {host}) for host in slow)


@pytest.mark.parametrize("pair", [("n0", "n1"), ("n0", "n5"), ("n2", "n7")])
def test_search_names_a_slow_link_of_two_hosts(pair: tuple[str, str]) -> None:
    """Two hosts that are slow only together are one finding, in any position."""
    cluster = SimulatedCluster(make_hosts(9), {}, {frozenset(pair): 0.2}, 0.01)
    conclusion = carry_out_search(cluster, layouts=4).conclude()
    assert list_findings(conclusion) == [("link", set(pair))]


def test_search_of_four_hosts_compares_all_links() -> None:
    """All layouts of four hosts train each of the six pairs."""
    conclusion = carry_out_search(SimulatedCluster(make_hosts(4), {}, {}, 0.01), layouts=choose_layouts(4)).conclude()
    assert conclusion.pairs == 1.0


def test_search_names_a_group_with_slow_links_to_all_others() -> None:
    """A switch that is slow to all others is named by its hosts, which are fit among themselves."""
    far = frozenset(make_hosts(16)[4:8])
    conclusion = carry_out_search(SimulatedCluster(make_hosts(16), {}, {}, 0.01, far_hosts=far, far_loss=0.2)).conclude()
    assert list_findings(conclusion) == [("between", set(far))]


def test_search_reports_that_all_links_between_groups_are_slow() -> None:
    """If every group of hosts of different rows is slow, no host is named."""
    hosts = make_hosts(16)
    rows = [set(hosts[at : at + 4]) for at in range(0, 16, 4)]
    found = HostSearch(hosts, noise=CALIBRATED)
    while groups := found.propose():
        found.record([1.0 if any(set(group) <= row for row in rows) else 0.8 for group in groups])
    conclusion = found.conclude()
    assert list_findings(conclusion) == [("between", set())]
    assert len(conclusion.fit) == 16


def test_search_confirms_the_host_that_step_timings_show() -> None:
    """A host that step timings have named is confirmed in two rounds of two trainings."""
    cluster = SimulatedCluster(make_hosts(8), {"n3": 0.2}, {}, 0.01)
    conclusion = carry_out_search(cluster, suspects=("n3",)).conclude()
    assert (list_findings(conclusion), conclusion.runs, conclusion.rounds) == ([("host", {"n3"})], 4, 2)
    assert conclusion.reason.endswith("the other hosts were not searched")


def test_search_continues_if_the_suspect_is_fit() -> None:
    """After a wrong suspect the search continues and names the slow host."""
    cluster = SimulatedCluster(make_hosts(16), {"n3": 0.2}, {}, 0.01)
    assert list_findings(carry_out_search(cluster, suspects=("n9",)).conclude()) == [("host", {"n3"})]


def test_search_names_a_host_with_failing_trainings() -> None:
    """A host with only failing trainings is named with a loss of everything."""
    found = HostSearch(make_hosts(9), noise=CALIBRATED)
    while groups := found.propose():
        found.record([None if "n4" in group else 1.0 for group in groups])
    (finding,) = found.conclude().findings
    assert (finding.kind, finding.hosts, finding.slowdown) == (SlowSetKind.HOST, ["n4"], 1.0)


def test_search_that_is_stopped_reports_what_is_known() -> None:
    """Before its end, a search names what it confirmed, and no suspected host as fit."""
    cluster, random = SimulatedCluster(make_hosts(16), {"n3": 0.2}, {}, 0.01), Random(1)
    found = HostSearch(cluster.hosts, noise=CALIBRATED)
    for _ in range(3):
        found.record(cluster.train(found.propose(), random))
    conclusion = found.conclude()
    assert (conclusion.outcome, found.suspected_hosts) == (Outcome.STOPPED, make_hosts(4))
    assert conclusion.fit == make_hosts(16)[4:]
    assert conclusion.unknown == make_hosts(4)
    assert Conclusion.from_json(conclusion.to_json()) == conclusion


def test_search_does_not_decide_by_one_slow_run() -> None:
    """A group that is slow once is trained again, and nothing is named."""
    found = HostSearch(make_hosts(16), noise=CALIBRATED)
    first = found.propose()
    found.record([0.5, *[1.0] * (len(first) - 1)])
    assert first[0] in found.propose()
    while groups := found.propose():
        found.record([1.0] * len(groups))
    assert found.conclude().outcome is Outcome.EQUAL


def test_search_repeats_groups_while_the_noise_is_unknown() -> None:
    """Without calibrated noise, each group trains twice before anything is decided."""
    found = HostSearch(make_hosts(16))
    first = found.propose()
    found.record([1.0] * len(first))
    assert found.propose() == first


def test_search_of_232_hosts_takes_fewer_than_55_runs() -> None:
    """One slow host of 232 costs fewer than 55 trainings, and none of 1,024 fewer than 100."""
    runs, rounds = estimate_cost(232, noise=CALIBRATED, slow_hosts=1)
    assert runs < 55
    assert rounds < 25
    assert estimate_cost(1024, noise=CALIBRATED)[0] < 100


@pytest.mark.campaign(part=2)
@pytest.mark.parametrize(
    ("size", "bad", "cv", "loss"),
    [
        (8, 0, 0.01, 0.05),
        (16, 1, 0.01, 0.05),
        (64, 2, 0.01, 0.05),
        (64, 5, 0.02, 0.10),
        (16, 1, 0.005, 0.02),
        (8, 1, 0.03, 0.1),
    ],
)
def test_search_keeps_its_error_rates(size: int, bad: int, cv: float, loss: float) -> None:
    """In simulated clusters nearly all slow hosts are found, and fit ones are named in few searches."""
    found, false, _, _ = simulate(40, 7, size=size, bad=bad, cv=cv, loss=loss, policy=SearchPolicy(smallest=loss))
    assert found >= 0.95
    assert false <= 0.05


def test_search_is_not_misled_by_rare_slow_runs() -> None:
    """With one much slower run in twenty, nearly all slow hosts are found, and fit ones are named in few searches."""
    found, false, _, _ = simulate(40, 3, size=16, bad=1, scatter=draw_heavy)
    assert found >= 0.95
    assert false <= 0.05


def test_group_size_leaves_groups_to_compare_with() -> None:
    """Groups are about the square root of all hosts, at least two of them, and three of eight hosts or more."""
    for size in range(4, 1100):
        group = choose_group_size(size)
        assert size // group >= (2 if size < 8 else 3)
        assert math.sqrt(size) / 1.75 <= group <= math.sqrt(size) * 1.5


def test_layouts_bring_each_two_hosts_together_once() -> None:
    """With a prime number of rows, all layouts together have each pair of hosts exactly once."""
    hosts = make_hosts(25)
    rows: list[Group] = [tuple(hosts[at : at + 5]) for at in range(0, 25, 5)]
    groups = [*rows, *(group for number in range(1, 6) for group in make_layout(hosts, 5, number))]
    pairs = [frozenset((one, other)) for group in groups for one in group for other in group if one < other]
    assert len(pairs) == len(set(pairs)) == 25 * 24 // 2


def test_benchmark_search_finds_slow_hosts_of_a_drawn_cluster() -> None:
    """The benchmark's own search names all slow hosts of a drawn cluster, and only bad sets."""
    random = Random(5)
    cluster = draw_cluster(random, 36, 2, 0.1, 0.01, pairs=1)
    named, _ = search(cluster, random, SearchPolicy(), CALIBRATED)
    assert all(is_right(each, cluster.bad) for each in named)
    assert {frozenset([host]) for host in cluster.losses} <= named


def test_search_ends_if_rates_scatter_too_much() -> None:
    """With a scatter of 25 % nothing is named, and the reason has the scatter."""
    conclusion = simulate_noisy(0.25)
    assert conclusion.outcome is Outcome.NOT_JUDGED
    assert "scatter by" in conclusion.reason
    assert conclusion.findings == []


def simulate_noisy(cv: float) -> Conclusion:
    random = Random(1)
    _, found = search(SimulatedCluster(make_hosts(16), {"n3": 0.1}, {}, cv), random, SearchPolicy())
    return found.conclude()
