"""Tests of the links that are measured at the same time."""

from collections.abc import Sequence

import pytest

from pytest_dtfperf.clusters.placement import PlacedTask
from pytest_dtfperf.launch.link_rounds import MOST_CONNECTIONS, MOST_TURNS, MOST_WORKERS_TURNS, plan_fans

NAMES = [f"h{i}" for i in range(64)]


def make_tasks(servers: Sequence[int], workers: Sequence[int]) -> list[PlacedTask]:
    """Make servers and workers on the hosts with these numbers."""
    of_servers = [PlacedTask("ps", i, host, 0, (), 1) for i, host in enumerate(servers)]
    return [*of_servers, *(PlacedTask("worker", i, host, 0, (), 1) for i, host in enumerate(workers))]


def list_links(servers: Sequence[int], workers: Sequence[int], *, pairs: bool = False) -> list[list[str]]:
    return [[fan.link(NAMES) for fan in each] for each in plan_fans(make_tasks(servers, workers), pairs=pairs)]


@pytest.mark.parametrize(
    "servers, workers, expected",
    [
        ([0], [0], []),
        ([0], [0, 0], []),
        ([], [0], []),
        ([0], [0, 1], [["*>h0"], ["h0>*"]]),
        ([0, 1], [0, 1], [["*>h0"], ["h0>*"], ["*>h1"], ["h1>*"]]),
        ([0, 0], [1, 2], [["*>h0"], ["h0>*"]]),
        ([0, 1], [2], [["*>h0"], ["h0>*"], ["*>h1"], ["h1>*"], ["*>h2"], ["h2>*"]]),
        ([0, 1], [0, 2], [["*>h0"], ["h0>*"], ["*>h1"], ["h1>*"], ["*>h2"], ["h2>*"]]),
        ([], [0, 1], [["h0>h1"], ["h1>h0"]]),
        ([], [0, 1, 2, 3], [["h0>h1", "h2>h3"], ["h1>h0", "h3>h2"], ["h1>h2", "h3>h0"], ["h2>h1", "h0>h3"]]),
    ],
    ids=[
        "one host", "one host, two workers", "a worker alone", "a server beside a worker", "on each host both",
        "two servers on a host of their own", "a worker with two servers elsewhere", "both, apart and together",
        "two workers without servers", "a ring",
    ],
)  # fmt: skip
def test_plan_has_fans_or_a_ring(servers: Sequence[int], workers: Sequence[int], expected: list[list[str]]) -> None:
    """The plan has fan-in and fan-out of each server's host, and of workers' hosts with several servers elsewhere; without
    servers, a ring."""
    assert list_links(servers, workers) == expected


def test_fan_has_a_stream_for_each_host() -> None:
    """The host of a server has one stream with each other host that has workers."""
    (fan_in,), (fan_out,) = plan_fans(make_tasks([0, 0], [0, 1, 2, 1]))
    assert fan_in.streams == ((1, 0), (2, 0))
    assert fan_out.streams == ((0, 1), (0, 2))
    assert (
        [fan_in.find_other_host(stream) for stream in fan_in.streams]
        == [fan_out.find_other_host(stream) for stream in fan_out.streams]
        == [1, 2]
    )


@pytest.mark.parametrize("hosts", range(2, 40))
def test_many_servers_are_measured_in_few_rounds(hosts: int) -> None:
    """All hosts of servers are measured in few rounds, and no host is in two fans of a round."""
    found = plan_fans(make_tasks(range(hosts), range(hosts)))
    assert len(found) <= max(2 * MOST_TURNS, 2 * 3)
    assert sorted(fan.link(NAMES) for each in found for fan in each) == sorted(
        name for host in NAMES[:hosts] for name in (f"*>{host}", f"{host}>*")
    )
    for each in found:
        taken = [{host for stream in fan.streams for host in stream} for fan in each]
        assert sum(map(len, taken)) == len(set().union(*taken))


@pytest.mark.parametrize("workers", range(1, 20))
def test_workers_are_measured_in_few_rounds(workers: int) -> None:
    """All hosts of workers without a server are measured in few rounds."""
    found = plan_fans(make_tasks([0, 1, 2], range(3, 3 + workers)))
    most = 2 * (3 + max(MOST_WORKERS_TURNS, -(-workers // 3)))
    assert len(found) <= most
    names = {fan.link(NAMES) for each in found for fan in each}
    assert {f"*>h{host}" for host in range(3 + workers)} <= names


@pytest.mark.parametrize(
    "servers, workers, expected",
    [
        ([0], [0, 1, 2], {(1, 0): 1, (2, 0): 1}),
        ([0, 0], [1, 1, 2], {(1, 0): 4, (2, 0): 2}),
        ([0, 1], [0, 1], {(1, 0): 2}),
        ([0] * 4, [1] * 4, {(1, 0): MOST_CONNECTIONS}),
    ],
    ids=["one of each", "two servers, two workers on a host", "both on both hosts", "no more than have cores to run on"],
)
def test_streams_have_as_many_connections_as_the_training(
    servers: Sequence[int], workers: Sequence[int], expected: dict[tuple[int, int], int]
) -> None:
    """The stream between two hosts has as many connections as the training, in both directions, up to a limit."""
    (fan_in, *_), (fan_out, *_) = plan_fans(make_tasks(servers, workers))[:2]
    assert fan_in.count_connections() == expected
    assert fan_out.count_connections() == {(there, here): count for (here, there), count in expected.items()}


def test_workers_without_servers_have_one_connection() -> None:
    """A host in a ring sends over one connection, also with several workers on it."""
    rounds = plan_fans(make_tasks([], [0, 0, 1, 1]))
    assert [fan.count_connections() for each in rounds for fan in each] == [{(0, 1): 1}, {(1, 0): 1}]


def test_requested_pairs_follow_the_fans() -> None:
    """Requested pairs of a worker and a server follow the fans, one at a time."""
    found = list_links([0], [0, 1, 2], pairs=True)
    assert found == [["*>h0"], ["h0>*"], ["h0>h1"], ["h1>h0"], ["h0>h2"], ["h2>h0"]]
