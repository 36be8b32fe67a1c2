"""Variables over parameter servers."""

import pytest

from pytest_dtfperf.spec import VARIABLE_PLACEMENTS
from pytest_dtfperf.training.load import load
from pytest_dtfperf.training.variable_update.placement import Placement


def placement_of(name: str, num_ps: int) -> Placement:
    found: Placement = load(VARIABLE_PLACEMENTS[name])(num_ps)
    return found


@pytest.mark.parametrize(
    "placement, num_ps, sizes, servers",
    [
        ("greedy", 1, [5, 1, 3], [0, 0, 0]),
        ("greedy", 2, [5, 1, 3, 1, 1], [0, 1, 1, 1, 0]),
        ("greedy", 3, [4, 4, 4, 4], [0, 1, 2, 0]),
        ("round_robin", 2, [5, 1, 3, 1, 1], [0, 1, 0, 1, 0]),
        ("round_robin", 3, [9, 1, 1, 1], [0, 1, 2, 0]),
    ],
)
def test_each_variable_goes_to_its_server(placement: str, num_ps: int, sizes: list[int], servers: list[int]) -> None:
    """Greedy gives the next variable to the server with the fewest bytes, round robin to the next server."""
    server_of = placement_of(placement, num_ps).place
    assert [server_of(size) for size in sizes] == servers


def test_greedy_balances_bytes_where_turns_do_not() -> None:
    """Large and small variables in turn end on two servers within one large one of each other."""
    sizes = [1000, 1] * 50
    held = {"greedy": [0, 0], "round_robin": [0, 0]}
    for name, servers in held.items():
        placement = placement_of(name, 2)
        for size in sizes:
            servers[placement.place(size)] += size
    assert abs(held["greedy"][0] - held["greedy"][1]) <= 1000
    assert held["round_robin"] == [50_000, 50]
