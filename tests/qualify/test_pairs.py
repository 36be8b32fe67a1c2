"""Tests of rounds of pairs, and of the decision between a slow sender, a slow receiver and a slow pair."""

import math
from collections.abc import Callable, Mapping
from random import Random

import pytest

from pytest_dtfperf.datamodel.qualification import HostVerdict
from pytest_dtfperf.launch.link_rounds import count_rounds
from pytest_dtfperf.qualify.pairs import (
    LINK_IN,
    LINK_OUT,
    LINK_POLICY,
    MOST_FOR_ALL_PAIRS,
    MOST_SUSPECT_PAIRS,
    PAIR_READINGS,
    PAIR_TRAINING,
    Pair,
    PairReadings,
    Tournament,
    count_matchings,
    count_training_matchings,
    draw_matching,
    select_better,
)
from pytest_dtfperf.qualify.peers import PeerComparison
from tests import campaign

FIT, SLOW = HostVerdict.FIT, HostVerdict.SLOW
SEED = 11
SEEDS = 20 if campaign.WHOLE else 6


def name_hosts(count: int) -> list[str]:
    return [f"n{i}" for i in range(count)]


def judge_streams(hosts: int, slow: Callable[[Pair], float]) -> tuple[Mapping[str, list[str]], list[tuple[Pair, HostVerdict]]]:
    """Return the slow capacities of each host, and the slow pairs; `slow` gives the loss of a stream."""
    random = Random(SEED)
    names = name_hosts(hosts)
    comparison = PeerComparison(dict.fromkeys(names, "kind"), LINK_POLICY)
    readings = PairReadings()

    def stream(pair: Pair) -> float:
        return 1e9 * (1 - slow(pair)) * (1 - 0.02 * random.random())

    number = 0
    while not comparison.is_decided:
        rates: dict[Pair, float] = {}
        for _ in range(count_matchings(hosts)):
            for here, there in draw_matching(names, number, SEED):
                rates |= {pair: stream(pair) for pair in ((here, there), (there, here))}
            number += 1
        comparison.add_round(readings.add_round(rates))
    for _ in range(PAIR_READINGS):
        readings.add_again({pair: stream(pair) for pair in readings.find_suspects()})
    slow_ones = {
        host: names
        for host, found in comparison.results().items()
        if (names := [name for name, each in found.items() if each.verdict is SLOW])
    }
    return slow_ones, [((each.hosts[0], each.hosts[1]), each.verdict) for each in readings.judge_suspects()]


@pytest.mark.parametrize("hosts", [2, 3, 4, 7, 8, 33])
def test_matchings_meet_all_others_once(hosts: int) -> None:
    """Every pair meets exactly once in a tournament, and no host is in two pairs of a round."""
    names = name_hosts(hosts)
    rounds = hosts - 1 + hosts % 2
    met = []
    for number in range(rounds):
        matching = draw_matching(names, number, SEED)
        assert len({host for pair in matching for host in pair}) == 2 * len(matching) == hosts - hosts % 2
        met += [frozenset(pair) for pair in matching]
    assert len(met) == len(set(met)) == hosts * (hosts - 1) // 2


def test_matching_of_one_host_is_empty() -> None:
    """One host alone meets no other."""
    assert draw_matching(["n0"], 0, SEED) == []


@pytest.mark.parametrize("hosts", [3, 4, 5, 8, 16])
def test_pairs_name_the_host_that_receives_slowly(hosts: int) -> None:
    """A host that receives slowly from all is named with its link in, and its link out and all others are fit."""
    assert judge_streams(hosts, lambda pair: 0.7 * (pair[1] == "n1")) == ({"n1": [LINK_IN]}, [])


@pytest.mark.parametrize("hosts", [3, 4, 5, 8, 16])
def test_pairs_name_the_host_that_sends_slowly(hosts: int) -> None:
    """A host that sends slowly to all is named with its link out alone."""
    assert judge_streams(hosts, lambda pair: 0.7 * (pair[0] == "n2")) == ({"n2": [LINK_OUT]}, [])


def test_pairs_name_a_slow_pair_and_no_host() -> None:
    """A pair that is slow in one direction, while both hosts are fast with others, is named, and no host is."""
    found = judge_streams(4, lambda pair: 0.6 * (pair == ("n0", "n3")))
    assert found == ({}, [(("n0", "n3"), SLOW)])


@pytest.mark.parametrize("hosts", [3, 4, 8, 16])
def test_pairs_of_equal_hosts_are_fit(hosts: int) -> None:
    """Equal links make no host and no pair slow."""
    assert judge_streams(hosts, lambda pair: 0.0) == ({}, [])


def test_pairs_with_a_slow_partner_are_no_readings() -> None:
    """After two rounds, hosts have no reading with a host that was slow with all others, so that these are no noise."""
    readings = PairReadings()
    slow = [{pair: 2e8 if "n1" in pair else 1e9 for here, there in matching for pair in ((here, there), (there, here))}
            for matching in (draw_matching(name_hosts(8), number, SEED) for number in range(4))]  # fmt: skip
    found = [readings.add_round(rates) for rates in slow]
    assert [sum(2e8 in each.values() for each in of_round.values()) for of_round in found] == [2, 2, 1, 1]
    assert [len(of_round) for of_round in found[2:]] == [7, 7]


def test_pairs_that_are_slow_once_are_not_named() -> None:
    """A pair with a single slow reading is read again, and is not named."""
    readings = PairReadings()
    names = name_hosts(4)
    for number in range(3):
        matching = draw_matching(names, number, SEED)
        readings.add_round(
            {pair: 2e8 if pair == ("n0", "n1") else 1e9 for here, there in matching for pair in ((here, there), (there, here))}
        )
    assert readings.find_suspects() == [("n0", "n1")]
    assert [each.verdict for each in readings.judge_suspects()] == [HostVerdict.NOT_JUDGED]
    for _ in range(PAIR_READINGS):
        readings.add_again({("n0", "n1"): 1e9})
    assert list(readings.judge_suspects()) == []


@pytest.mark.parametrize("hosts", [4, 8, MOST_FOR_ALL_PAIRS])
def test_pair_that_did_not_meet_in_the_rounds_is_measured(hosts: int) -> None:
    """Of few hosts, the slow pair is found also if its hosts did not meet while the others were decided."""
    names, readings = name_hosts(hosts), PairReadings()
    matchings = [draw_matching(names, number, SEED) for number in range(count_rounds(hosts))]
    slow = matchings[-1][0]
    for matching in matchings[:-1]:
        readings.add_round(dict.fromkeys([*matching, *(pair[::-1] for pair in matching)], 1e9))
    unmet = readings.list_unmet(names)
    assert {frozenset(pair) for pair in unmet} == {frozenset(pair) for pair in matchings[-1]}
    readings.add_unmet({way: 2e8 if way == slow else 1e9 for pair in unmet for way in (pair, pair[::-1])})
    assert readings.find_suspects() == [slow]
    assert readings.list_unmet(names) == []


def test_pairs_of_many_hosts_need_not_all_meet() -> None:
    """Of more hosts not all pairs are measured, which would take a second for each host."""
    assert PairReadings().list_unmet(name_hosts(MOST_FOR_ALL_PAIRS + 1)) == []


def test_slow_switch_is_not_measured_pair_by_pair() -> None:
    """Where one switch makes many pairs slow, only the slowest 64 are read again, each of which takes seconds."""
    names, readings = name_hosts(60), PairReadings()
    near = set(names[:30])
    for number in range(30):
        matching = draw_matching(names, number, SEED)
        pairs = [pair for here, there in matching for pair in ((here, there), (there, here))]
        readings.add_round({pair: 1e9 if len(near & set(pair)) != 1 or number % 2 else 2e8 for pair in pairs})
    assert len(readings.find_suspects()) == MOST_SUSPECT_PAIRS
    assert len(list(readings.judge_suspects())) == MOST_SUSPECT_PAIRS


def train_in_pairs(hosts: int, losses: Mapping[str, float], seed: int) -> Mapping[str, HostVerdict]:
    """Return the verdict on each host by trainings in pairs, which are as fast as the slower host; their CV is 1 %."""
    random, names, tournament = Random(seed), name_hosts(hosts), Tournament(seed)
    comparison = PeerComparison(dict.fromkeys(names, "kind"), LINK_POLICY)
    while not comparison.is_decided:
        rates: dict[Pair, float] = {}
        for matching in tournament.draw(names, count_training_matchings(hosts)):
            for pair in matching:
                loss = max(losses.get(host, 0.0) for host in pair)
                rates[pair] = 1000.0 * (1 - loss) * math.exp(random.gauss(0, 0.01))
        comparison.add_round({host: {PAIR_TRAINING: rate} for host, rate in select_better(rates).items()})
    return {host: found[PAIR_TRAINING].verdict for host, found in comparison.results().items()}


@pytest.mark.campaign
@pytest.mark.parametrize("hosts", [3, 4, 5, 8, 9, 32])
@pytest.mark.parametrize("loss", [0.3, 0.6])
def test_slow_host_is_found_by_trainings_in_pairs(hosts: int, loss: float) -> None:
    """One slow host makes each of its partners slow for one training, and is named alone; without one, all are fit."""
    for seed in range(SEEDS):
        assert train_in_pairs(hosts, {"n1": loss}, seed) == {host: SLOW if host == "n1" else FIT for host in name_hosts(hosts)}
        assert set(train_in_pairs(hosts, {}, seed).values()) == {FIT}


@pytest.mark.campaign
@pytest.mark.parametrize("hosts", [4, 5, 8])
def test_host_that_trains_with_no_other_is_not_judged(hosts: int) -> None:
    """If all trainings of one host with others fail, it is not judged, and its partners are, by their other trainings."""
    for seed in range(SEEDS):
        expected = {host: HostVerdict.NOT_JUDGED if host == "n1" else FIT for host in name_hosts(hosts)}
        assert train_in_pairs(hosts, {"n1": 1.0}, seed) == expected


@pytest.mark.parametrize("hosts", [3, 4, 5, 6, 9])
def test_host_trains_with_two_others_in_each_round(hosts: int) -> None:
    """In the matchings of one round, each host has two partners or more, which differ."""
    tournament = Tournament(SEED)
    for _ in range(4):
        pairs = [pair for matching in tournament.draw(name_hosts(hosts), count_training_matchings(hosts)) for pair in matching]
        for host in name_hosts(hosts):
            assert len({name for pair in pairs if host in pair for name in pair} - {host}) >= 2
