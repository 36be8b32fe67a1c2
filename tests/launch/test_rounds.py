"""Which links are measured at once."""

from itertools import permutations

import pytest

from pytest_dtfperf.launch.link_rounds import FEW, make_rounds, split


@pytest.mark.parametrize("hosts", range(2, FEW + 1))
def test_every_ordered_pair_of_few_hosts_once(hosts: int) -> None:
    """Up to FEW hosts, each measures its way to every other exactly once."""
    pairs = [pair for each in make_rounds(range(hosts)) for pair in each]
    assert sorted(pairs) == sorted(permutations(range(hosts), 2))


@pytest.mark.parametrize("hosts", [FEW + 1, 16, 17, 128])
def test_ring_of_many_hosts(hosts: int) -> None:
    """More hosts are measured along a ring: each to the next and to the one before, in no more than six rounds."""
    found = make_rounds(range(hosts))
    pairs = [pair for each in found for pair in each]
    ring = [(i, (i + 1) % hosts) for i in range(hosts)]
    assert sorted(pairs) == sorted([*ring, *((there, here) for here, there in ring)])
    assert len(found) == (4 if hosts % 2 == 0 else 6)


@pytest.mark.parametrize("hosts", [*range(2, 20), 33])
def test_no_host_is_in_two_links_of_a_round(hosts: int) -> None:
    """Links that are measured at once have no host in common, so that none disturbs another."""
    for pairs in make_rounds(range(hosts)):
        taken = [host for pair in pairs for host in pair]
        assert len(taken) == len(set(taken))
        assert pairs


def test_hosts_keep_their_numbers() -> None:
    """Hosts that are missing are left out, and the others are called what they were."""
    assert sorted(pair for each in make_rounds([1, 4, 7]) for pair in each) == sorted(permutations([1, 4, 7], 2))


@pytest.mark.parametrize("hosts", [[], [3]])
def test_nobody_to_talk_to(hosts: list[int]) -> None:
    """One host, or none, has no links."""
    assert make_rounds(hosts) == []


def test_any_pairs_are_split_into_rounds() -> None:
    """Pairs that are measured again get as many rounds as they need, and no more."""
    assert split([(0, 1), (1, 0), (2, 3), (0, 2)]) == [[(0, 1), (2, 3)], [(1, 0)], [(0, 2)]]
