"""The all-reduce algorithms on numbers: results, additions and transfers. The conformance suite has real tensors."""

from fractions import Fraction

import pytest

from pytest_dtfperf.errors import SpecError
from pytest_dtfperf.training.variable_update.all_reduce_algorithms import (
    Algorithm,
    Topology,
    hierarchical_copy,
    nccl,
    nest_algorithms,
    pscpu,
    psgpu,
    rechd,
    xring,
)
from tests.training.modes.bookkeeping import Bookkeeping, Numbers

ALGORITHMS: dict[str, Algorithm] = {
    "xring": xring, "pscpu": pscpu, "psgpu": psgpu, "rechd": rechd, "nccl": nccl, "hierarchical_copy": hierarchical_copy,
    "pscpu/pscpu": nest_algorithms("pscpu", pscpu), "nccl/xring": nest_algorithms("nccl", xring),
    "nccl/rechd": nest_algorithms("nccl", rechd), "nccl/pscpu": nest_algorithms("nccl", pscpu),
}  # fmt: skip
LAYOUTS = [(1,), (2,), (3,), (1, 1), (2, 2), (2, 1), (1, 1, 1), (1, 1, 1, 1), (3, 3, 2)]  # devices of each host


def topology(*devices: int) -> Topology:
    """Return a topology with so many GPUs on each host: `0g1` is the second of the first host, `0c` its CPU."""
    towers = [(f"{host}g{gpu}", f"{host}c") for host, count in enumerate(devices) for gpu in range(count)]
    return Topology(tuple(tower for tower, _ in towers), tuple(host for _, host in towers))


def reduce_numbers(
    algorithm: Algorithm, where: Topology, size: int, *, turn: int = 0, shards: int = 1
) -> tuple[Bookkeeping, list[Numbers]]:
    """Reduce the numbers t, t + 10, t + 20, ... of each tower t."""
    work = Bookkeeping(len(where.towers))
    values = [Numbers(device, tuple(Fraction(t + 10 * i) for i in range(size))) for t, device in enumerate(where.towers)]
    means = algorithm(work, values, where, turn=turn, shards=shards)
    for mean, device in zip(means, where.towers, strict=True):
        work.fetch(mean, device)
    return work, means


def has_partners(algorithm: str, devices: tuple[int, ...]) -> bool:
    """Return whether all participants of halving have partners."""
    partners = {"rechd": sum(devices), "nccl/rechd": len(devices)}.get(algorithm, 1)
    return partners & (partners - 1) == 0


@pytest.mark.parametrize(
    "algorithm, devices", [(name, d) for name in ALGORITHMS for d in LAYOUTS if has_partners(name, d)], ids=str
)
def test_every_tower_gets_the_mean(algorithm: str, devices: tuple[int, ...]) -> None:
    """Each tower gets the mean, for variables of different sizes, numbers of shards and turns."""
    where = topology(*devices)
    n = len(where.towers)
    for size in (1, 2, 7, 24):
        expected = tuple(Fraction(n - 1, 2) + 10 * i for i in range(size))
        for shards in (1, 2, 5):
            for turn in (0, 1, 4):
                _, means = reduce_numbers(ALGORITHMS[algorithm], where, size, turn=turn, shards=shards)
                assert [mean.values for mean in means] == [expected] * n


@pytest.mark.parametrize("devices", [(4,), (2, 2), (1, 1, 1, 1)], ids=str)
def test_ring_sends_to_neighbours_alone(devices: tuple[int, ...]) -> None:
    """Each tower of a ring sends 2 (n - 1) / n of a variable's numbers to its neighbour, and all add as much."""
    where = topology(*devices)
    work, _ = reduce_numbers(xring, where, 24)
    neighbours = zip(where.towers, where.towers[1:] + where.towers[:1], strict=True)
    assert work.sent == dict.fromkeys(neighbours, 2 * 3 * 24 // 4)
    assert work.added == dict.fromkeys(where.towers, 3 * 24 // 4)
    assert work.divided == 24


def test_two_rings_use_both_directions_of_each_link() -> None:
    """The same bytes, half of them each way."""
    where = topology(1, 1, 1, 1)
    work, _ = reduce_numbers(xring, where, 24, shards=2)
    there = list(zip(where.towers, where.towers[1:] + where.towers[:1], strict=True))
    assert work.sent == dict.fromkeys([*there, *((b, a) for a, b in there)], 2 * 3 * 12 // 4)


def test_halving_sends_as_much_as_a_ring() -> None:
    """Each of four towers sends half to one partner and a quarter to the other, and as much on the way back."""
    work, _ = reduce_numbers(rechd, topology(1, 1, 1, 1), 24)
    far, near = {("0g0", "2g0"), ("1g0", "3g0")}, {("0g0", "1g0"), ("2g0", "3g0")}
    expected = {pair: 24 for a, b in far for pair in ((a, b), (b, a))} | {
        pair: 12 for a, b in near for pair in ((a, b), (b, a))
    }
    assert work.sent == expected
    assert work.divided == 24


@pytest.mark.parametrize("algorithm, devices", [("rechd", (1, 1, 1)), ("nccl/rechd", (2, 2, 2))])
def test_halving_without_partners_is_refused(algorithm: str, devices: tuple[int, ...]) -> None:
    """Halving with three participants is refused with the possible numbers."""
    with pytest.raises(SpecError, match=r"must be 2, 4, 8, \.\.\. of them, not 3: take xring"):
        reduce_numbers(ALGORITHMS[algorithm], topology(*devices), 24)


@pytest.mark.parametrize("algorithm, adders", [("pscpu", ["0c", "1c", "0c", "1c"]), ("psgpu", ["0g0", "0g1", "1g0", "1g1"])])
def test_variables_take_turns_in_where_they_are_added(algorithm: str, adders: list[str]) -> None:
    """The CPUs of the hosts or all GPUs, one after the other, each alone for its variable."""
    found = [reduce_numbers(ALGORITHMS[algorithm], topology(2, 2), 24, turn=turn)[0].added for turn in range(4)]
    assert found == [{adder: 3 * 24} for adder in adders]


def test_shards_of_a_variable_are_added_in_different_places() -> None:
    """psgpu#2 adds one half here and the other there; the next variable goes to the two after them."""
    found = [reduce_numbers(psgpu, topology(2, 2), 24, turn=turn, shards=2)[0].added for turn in range(2)]
    assert found == [{"0g0": 36, "0g1": 36}, {"1g0": 36, "1g1": 36}]


def test_two_levels_exchange_one_sum_per_host() -> None:
    """Hosts exchange their sums only, independent of their number of devices."""
    work, _ = reduce_numbers(ALGORITHMS["pscpu/pscpu"], topology(3, 3, 2), 24, turn=1)
    between = {way: count for way, count in work.sent.items() if way[0][0] != way[1][0]}
    assert between == {("0c", "1c"): 24, ("2c", "1c"): 24, ("1c", "0c"): 24, ("1c", "2c"): 24}
    flat, _ = reduce_numbers(pscpu, topology(3, 3, 2), 24, turn=1)
    assert sum(count for way, count in flat.sent.items() if way[0][0] != way[1][0]) == 2 * 5 * 24


def test_nccl_and_a_ring_share_the_work_between_hosts() -> None:
    """Two hosts of two GPUs: NCCL within each, and from each to the other 2 (2 - 1) / 2 of the numbers, GPU to GPU."""
    work, _ = reduce_numbers(ALGORITHMS["nccl/xring"], topology(2, 2), 24)
    between = {way: count for way, count in work.sent.items() if way[0][0] != way[1][0]}
    assert between == {("0g0", "1g0"): 24, ("1g0", "0g0"): 24}


@pytest.mark.parametrize("turn", range(4))
def test_hierarchical_copy_crosses_between_the_halves_once_each_way(turn: int) -> None:
    """One device of each half of eight adds for it, and only these two exchange data."""
    where = topology(8)
    work, _ = reduce_numbers(hierarchical_copy, where, 24, turn=turn)
    half = set(where.towers[:4])
    across = {way: count for way, count in work.sent.items() if (way[0] in half) != (way[1] in half)}
    one, other = where.towers[turn], where.towers[4 + turn]
    assert across == {(one, other): 24, (other, one): 24}
