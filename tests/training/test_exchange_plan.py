"""The values of a step are planned in waves, in which they are sent."""

import random
from itertools import pairwise

import pytest

from pytest_dtfperf.spec import Spec, TaskOrder
from pytest_dtfperf.training.exchange_plan import BEYOND, Wave, assign_servers, bytes_on_servers, compute_sizes, plan_waves

CASES = 200


def draw_values(seed: int, servers: int) -> tuple[dict[str, int], dict[str, int]]:
    """Sizes and servers of a made-up network's values."""
    draw = random.Random(seed)
    names = [f"value{number}" for number in range(draw.randint(1, 60))]
    return {name: int(10 ** draw.uniform(0, 4)) for name in names}, {name: draw.randrange(servers) for name in names}


def sent_before(sizes: dict[str, int], servers: dict[str, int], waves: list[Wave]) -> dict[int, int]:
    """Return for each server the size of its values in none of these waves."""
    later = frozenset[str]().union(*(wave.held_back for wave in waves))
    return {
        server: sum(size for name, size in sizes.items() if servers[name] == server and name not in later)
        for server in set(servers.values())
    }


def of_each(names: frozenset[str], sizes: dict[str, int], servers: dict[str, int]) -> list[int]:
    """Return the size of these values by server."""
    return [sum(sizes[name] for name in names if servers[name] == server) for server in sorted(set(servers.values()))]


def test_one_server_sends_in_waves() -> None:
    """One server sends 20 of a hundred equal values at once, 12 more than the first 8 that are awaited, and so on."""
    names = [f"value{number}" for number in range(100)]
    waves = plan_waves(dict.fromkeys(names, 10), dict.fromkeys(names, 0))
    assert [len(wave.awaited) for wave in waves] == [8, 20, 35, 50, 70]
    sent = [20, 32, 47, 62, 82, 100]
    assert [wave.held_back for wave in waves] == [frozenset(names[begin:end]) for begin, end in pairwise(sent)]


@pytest.mark.parametrize("servers", [1, 2, 3, 8])
def test_all_servers_have_something_to_send_until_a_wave_comes(servers: int) -> None:
    """Each value is in at most one wave, and each server has enough to send until its wave."""
    seen = 0
    for seed in range(CASES):
        sizes, on = draw_values(seed, servers)
        waves, names = plan_waves(sizes, on), list(sizes)
        assert sum(len(wave.held_back) for wave in waves) == len(frozenset[str]().union(*(wave.held_back for wave in waves)))
        for number, (awaited, held_back) in enumerate(waves):
            seen += 1
            assert awaited == set(names[: len(awaited)])
            assert min(names.index(name) for name in held_back) >= len(awaited)
            before, even = sent_before(sizes, on, waves[number:]), sum(sizes.values()) / len(set(on.values()))
            assert all(before[on[name]] >= max(of_each(awaited, sizes, on)) + BEYOND * even for name in held_back)
    assert seen > CASES


def test_large_first_value_makes_no_waves() -> None:
    """All values are sent at once if the first one has most of the bytes."""
    assert plan_waves({"large": 900, "small": 50, "other": 50}, {"large": 0, "small": 1, "other": 1}) == []


@pytest.mark.parametrize("num_ps", [2, 4, 8])
def test_no_server_of_vgg16_waits_for_the_convolutions_of_others(num_ps: int) -> None:
    """Servers without VGG16's first values send parts of its large matrix during the first wave, but not all of them."""
    spec = Spec(model="vgg16", batch_size=1, gpus=2, num_ps=num_ps, variable_placement="split")
    cluster = {"ps": tuple(f"ps{i}:1" for i in range(num_ps)), "worker": ("worker0:1", "worker1:1")}
    order = TaskOrder(run="x", job="worker", index=0, spec=spec, cluster=cluster)
    sizes, servers = compute_sizes(order), assign_servers(order, num_ps)
    waves = plan_waves(sizes, servers)
    held = [sum(size for name, size in sizes.items() if servers[name] == server) for server in range(num_ps)]
    assert held == bytes_on_servers(spec)
    assert any(name.startswith("dense0/weights/part") for name in waves[0].held_back)
    first, at_once = max(of_each(waves[0].awaited, sizes, servers)), sent_before(sizes, servers, waves)
    assert first > 0
    assert all(first < at_once[server] <= held[server] for server in range(num_ps))
