"""Tests of the rounds in which links are measured."""

from itertools import permutations

import pytest

from pytest_dtfperf.launch.link_rounds import FEW, make_rounds, split


@pytest.mark.parametrize("hosts", range(2, FEW + 1))
def test_few_hosts_have_every_ordered_pair_once(hosts: int) -> None:
    """Up to FEW hosts, each ordered pair is measured exactly once."""
    pairs = [pair for each in make_rounds(range(hosts)) for pair in each]
    assert sorted(pairs) == sorted(permutations(range(hosts), 2))


@pytest.mark.parametrize("hosts", [FEW + 1, 16, 17, 128])
def test_many_hosts_are_measured_in_a_ring(hosts: int) -> None:
    """More hosts are measured in a ring, in both directions, in at most six rounds."""
    found = make_rounds(range(hosts))
    pairs = [pair for each in found for pair in each]
    ring = [(i, (i + 1) % hosts) for i in range(hosts)]
    assert sorted(pairs) == sorted([*ring, *((there, here) for here, there in ring)])
    assert len(found) == (4 if hosts % 2 == 0 else 6)


@pytest.mark.parametrize("hosts", [*range(2, 20), 33])
def test_no_host_is_in_two_links_of_a_round(hosts: int) -> None:
    """The links of a round have no host in common."""
    for pairs in make_rounds(range(hosts)):
        taken = [host for pair in pairs for host in pair]
        assert len(taken) == len(set(taken))
        assert pairs


def test_missing_hosts_are_left_out() -> None:
    """Missing hosts are left out, and the others keep their numbers."""
    assert sorted(pair for each in make_rounds([1, 4, 7]) for pair in each) == sorted(permutations([1, 4, 7], 2))


@pytest.mark.parametrize("hosts", [[], [3]])
def test_single_host_has_no_rounds(hosts: list[int]) -> None:
    """One host, or none, has no rounds."""
    assert make_rounds(hosts) == []


def test_any_pairs_are_split_into_rounds() -> None:
    """Given pairs are split into as few rounds as possible."""
    assert split([(0, 1), (1, 0), (2, 3), (0, 2)]) == [[(0, 1), (2, 3)], [(1, 0)], [(0, 2)]]
