"""Tests of the comparison of hosts with their peers: single cases, and the stated error rates in small simulations."""

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from random import Random

import pytest

from benchmarks.qualify import QualifyCase, measure_rates
from pytest_dtfperf.datamodel.qualification import CapacityResult, HostVerdict
from pytest_dtfperf.explain.measurement_profile import find_medians_of_others
from pytest_dtfperf.qualify.peers import PeerComparison, QualifyPolicy, find_impossible
from tests import campaign

TIMES = 1.0 if campaign.WHOLE else 0.4  # as many simulated runs
FIT, SLOW, NOT_JUDGED = HostVerdict.FIT, HostVerdict.SLOW, HostVerdict.NOT_JUDGED
MEMORY = "memory"


def compare(
    losses: Mapping[str, float],
    *,
    kinds: Mapping[str, str] | None = None,
    cv: float = 0.005,
    missing: Sequence[str] = (),
    seed: int = 3,
    rounds: int = 24,
) -> Mapping[str, CapacityResult]:
    """Return the results of hosts with these losses after at most so many rounds; those of `missing` have no reading."""
    random = Random(seed)
    comparison = PeerComparison(kinds or dict.fromkeys(losses, "kind"), QualifyPolicy(confirming=rounds))
    while not comparison.is_decided:
        drift = 1 - 0.01 * comparison.rounds  # of all hosts alike
        comparison.add_round(
            {
                host: {MEMORY: 1e10 * drift * (1 - loss) * math.exp(random.gauss(0, cv))}
                for host, loss in losses.items()
                if host not in missing
            }
        )
    return {host: found[MEMORY] for host, found in comparison.results().items()}


def name_hosts(*losses: float) -> Mapping[str, float]:
    return {f"n{i}": loss for i, loss in enumerate(losses)}


def test_peers_equal_hosts_are_fit() -> None:
    """Hosts that differ by noise alone are fit, although all of them become slower from round to round."""
    assert {each.verdict for each in compare(name_hosts(0, 0, 0, 0)).values()} == {FIT}


def test_peers_that_were_read_together_in_one_round_are_not_judged() -> None:
    """Hosts that were read together only once, because other rounds had disturbed readings, have no noise to judge by."""
    comparison = PeerComparison(dict.fromkeys("abc", "kind"), QualifyPolicy())
    for hosts in ("abc", "ac", "b"):
        comparison.add_round({host: {MEMORY: 1e10} for host in hosts})
    assert comparison.is_decided
    results = {host: found[MEMORY] for host, found in comparison.results().items()}
    assert {each.verdict for each in results.values()} == {NOT_JUDGED}
    assert {each.reason for each in results.values()} == {"fewer than 3 hosts of its kind were read together"}


def test_peers_slow_host_is_named_with_its_loss() -> None:
    """A host that is 12 % slower than the others is slow, its loss is stated, and the others are fit."""
    found = compare(name_hosts(0, 0.12, 0, 0))
    assert [each.verdict for each in found.values()] == [FIT, SLOW, FIT, FIT]
    slow = found["n1"]
    assert slow.loss == pytest.approx(0.12, abs=0.02)
    assert slow.reason.endswith("% slower than its peers")
    assert slow.per_s
    assert slow.peers_per_s
    assert slow.per_s < slow.peers_per_s


def test_peers_faster_host_is_fit() -> None:
    """A host that is faster than the others is fit, and so are they."""
    assert {each.verdict for each in compare(name_hosts(0, -0.3, 0, 0)).values()} == {FIT}


@pytest.mark.parametrize("hosts", [1, 2])
def test_peers_too_few_are_not_judged(hosts: int) -> None:
    """One or two hosts of a kind are not judged, however much they differ, and their own rate is kept."""
    found = compare(name_hosts(*[0, 0.5][:hosts]))
    assert {each.verdict for each in found.values()} == {NOT_JUDGED}
    assert all(each.per_s and "fewer than 3 hosts" in each.reason for each in found.values())


def test_peers_three_hosts_show_a_slow_one() -> None:
    """Of three hosts, the one that differs from the two others is slow."""
    assert [each.verdict for each in compare(name_hosts(0, 0, 0.2)).values()] == [FIT, FIT, SLOW]


def test_peers_without_majority_are_not_judged() -> None:
    """Two hosts that are slower than the two others are not judged, since either two could be normal."""
    found = compare(name_hosts(0, 0, 0.2, 0.2))
    assert {each.verdict for each in found.values()} == {NOT_JUDGED}
    assert "no majority" in found["n0"].reason


def test_peers_are_compared_within_their_kind() -> None:
    """Each kind of hosts has its own centre, and a kind with too few hosts is not judged."""
    losses = {"a0": 0.0, "a1": 0.0, "a2": 0.0, "b0": 0.6, "b1": 0.6, "b2": 0.75, "b3": 0.6, "c0": 0.3}
    found = compare(losses, kinds={host: host[0] for host in losses})
    assert [host for host, each in found.items() if each.verdict is SLOW] == ["b2"]
    assert [host for host, each in found.items() if each.verdict is NOT_JUDGED] == ["c0"]


def test_peers_without_readings_are_not_judged() -> None:
    """A host without any undisturbed reading of what its peers have is not judged, and the others are."""
    found = compare(name_hosts(0, 0, 0, 0, 0.2), missing=["n1"])
    assert [found[f"n{i}"].verdict for i in range(5)] == [FIT, NOT_JUDGED, FIT, FIT, SLOW]
    assert found["n1"].reason == "it has no undisturbed reading"


def test_peers_single_slow_reading_does_not_decide() -> None:
    """A host with one very slow reading among many is fit."""
    comparison = PeerComparison(dict.fromkeys(name_hosts(0, 0, 0, 0), "kind"), QualifyPolicy())
    random = Random(5)
    while not comparison.is_decided:
        rates = {host: {MEMORY: math.exp(random.gauss(0, 0.003))} for host in name_hosts(0, 0, 0, 0)}
        if comparison.rounds == 1:
            rates["n2"][MEMORY] = 0.3
        comparison.add_round(rates)
    assert {each[MEMORY].verdict for each in comparison.results().values()} == {FIT}


def test_peers_need_few_rounds_when_all_are_equal() -> None:
    """Equal hosts with little noise are decided by the screening alone."""
    rates = measure_rates(QualifyCase(hosts=8, cv=0.005), runs=20)
    assert rates.rounds < 4


@pytest.mark.campaign
@pytest.mark.parametrize("heavy", [False, True], ids=["normal", "heavy tails"])
@pytest.mark.parametrize("hosts", [4, 8, 32])
def test_peers_call_few_fit_hosts_slow(hosts: int, heavy: bool) -> None:
    """At most 2 % of simulated runs call any fit host slow, with normal noise and with heavy tails."""
    runs = int(100 * TIMES)
    rates = measure_rates(QualifyCase(hosts=hosts, cv=0.02, heavy=heavy), runs=runs)
    assert rates.false_alarms <= 0.02 + 3.1 * math.sqrt(0.02 / runs)


@pytest.mark.campaign
@pytest.mark.parametrize(("hosts", "slow"), [(4, 1), (8, 2), (32, 2)])
def test_peers_find_hosts_that_are_5_percent_slower(hosts: int, slow: int) -> None:
    """A host that is 5 % slower than its peers is found in 95 % of simulated runs."""
    rates = measure_rates(QualifyCase(hosts=hosts, cv=0.005, slow=slow, hosts_cv=0.002), runs=int(60 * TIMES))
    assert rates.found >= 0.95 - 0.05


@pytest.mark.campaign
@pytest.mark.parametrize(("hosts", "slow"), [(4, 1), (8, 2)])
def test_peers_call_few_slow_hosts_fit_if_readings_vary(hosts: int, slow: int) -> None:
    """At most 5 % of simulated hosts that are 5 % slower are called fit, also if their readings vary by 3 %."""
    runs = int(150 * TIMES)
    rates = measure_rates(QualifyCase(hosts=hosts, cv=0.03, slow=slow), runs=runs)
    assert rates.called_fit <= 0.05 + 2 * math.sqrt(0.05 / (runs * slow))


def test_peers_round_of_one_host_does_not_count() -> None:
    """A slow host is not called fit by rounds in which no other host was read undisturbed."""
    comparison = PeerComparison(dict.fromkeys(name_hosts(0, 0, 0, 0), "kind"), QualifyPolicy())
    random = Random(5)
    while not comparison.is_decided:
        rates = {host: {MEMORY: math.exp(random.gauss(0, 0.003))} for host in name_hosts(0, 0, 0, 0)}
        rates["n2"][MEMORY] *= 0.9
        comparison.add_round(rates if comparison.rounds in (0, 1, 5) else {"n2": rates["n2"]})
    found = comparison.results()["n2"][MEMORY]
    assert found.verdict is not FIT
    assert found.loss == pytest.approx(0.1, abs=0.02)


def test_peers_two_of_four_hosts_are_not_judged_after_noisy_rounds() -> None:
    """Hosts without a majority that agrees are not judged, also if only the later rounds show it."""
    found = compare(name_hosts(0, 0, 0.1, 0.1), cv=0.03)
    assert {each.verdict for each in found.values()} == {NOT_JUDGED}


def test_peers_undecided_host_has_its_loss_in_plain_words() -> None:
    """The reason of a host that is not decided is how much faster or slower it is, and that its readings vary too much."""
    found = compare(name_hosts(0, 0, 0, 0), cv=0.1)
    reasons = [each.reason for each in found.values() if each.verdict is NOT_JUDGED]
    assert all(re.search("% (slower|faster) than its peers, standard error .* vary too much", each) for each in reasons)
    assert not any(each.startswith("-") for each in reasons)
    assert {" faster " in each for each in reasons} == {False, True}


def test_peers_undecided_host_has_the_number_of_rounds_that_would_decide() -> None:
    """Where 24 rounds do not decide, the reason has a number of rounds that does in most cases, unless it is very large."""
    losses = name_hosts(0, 0, 0.05, 0, 0, 0, 0, 0)
    results = {seed: compare(losses, cv=0.03, seed=seed)["n2"] for seed in range(40)}
    open_reasons = {seed: each.reason for seed, each in results.items() if each.verdict is NOT_JUDGED}
    found = {
        seed: re.search(r"; about (\d+) rounds would be enough \(--max-rounds=\1\)$", each)
        for seed, each in open_reasons.items()
    }
    advised = {seed: int(each[1]) for seed, each in found.items() if each}
    assert len(advised) >= len(open_reasons) - 1 >= 3
    assert set(advised.values()) <= {48, 96, 192}
    decided = [compare(losses, cv=0.03, seed=seed, rounds=rounds)["n2"].verdict for seed, rounds in advised.items()]
    assert 4 * decided.count(NOT_JUDGED) <= len(decided), (advised, decided)


def test_policy_analyses_double() -> None:
    """The numbers of rounds before the analyses of the confirmation double, and the last is at its end."""
    assert QualifyPolicy(confirming=24).analyses == [3, 6, 12, 24]
    assert QualifyPolicy(confirming=2).analyses == [2]


@pytest.mark.parametrize(
    ("rates", "impossible"),
    [
        ({"n0": 1e9, "n1": 1e9, "n2": 1e13}, ["n2"]),
        ({"n0": 1e9, "n1": 1e9, "n2": 9e11}, []),  # fast, as with another library
        ({"n0": 1e9, "n1": 1e9, "n2": 1e3}, []),  # slow
        ({"n0": 1e9, "n1": 1e13}, []),  # either could be wrong
        ({"n0": 1e9, "n1": 1e9, "n2": 1e9, "other": 1e13}, []),  # of another kind
    ],
)
def test_reading_of_a_thousand_times_its_peers_is_impossible(rates: Mapping[str, float], impossible: Sequence[str]) -> None:
    """A reading of more than 1,000 times the median is named, if at least three hosts are of this kind."""
    kinds = {host: "other" if host == "other" else "kind" for host in rates}
    found = find_impossible({host: {MEMORY: rate} for host, rate in rates.items()}, kinds)
    assert list(found) == impossible
    assert all("impossible memory of 1e+13 per second" in text for text in found.values())


@pytest.mark.parametrize("count", range(2, 9))
def test_medians_of_others_leave_out_one_value_each(count: int) -> None:
    """Each name gets the median of the values of all others, also if values are equal."""
    random = Random(count)
    values = {str(number): float(random.randrange(5)) for number in range(count)}
    expected = {name: statistics.median(each for other, each in values.items() if other != name) for name in values}
    assert find_medians_of_others(values) == expected
