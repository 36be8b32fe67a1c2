"""Which of a step's values are sent first."""

import random

import pytest

from pytest_dtfperf.spec import Spec, TaskOrder
from pytest_dtfperf.training.awaited import AWAITED, BEYOND, NOTHING, Precedence, precedence_of
from pytest_dtfperf.training.exchanged import bytes_on_servers, servers_of, sizes_of
from pytest_dtfperf.training.placement import FLOAT_BYTES

CASES = 200


def drawn(seed: int, servers: int) -> tuple[dict[str, int], dict[str, int]]:
    """Sizes and servers of a made-up network's values."""
    draw = random.Random(seed)
    names = [f"value{number}" for number in range(draw.randint(1, 60))]
    return {name: int(10 ** draw.uniform(0, 4)) for name in names}, {name: draw.randrange(servers) for name in names}


def sent_at_once(sizes: dict[str, int], servers: dict[str, int], found: Precedence) -> dict[int, int]:
    """Of each server that has a value."""
    return {
        server: sum(size for name, size in sizes.items() if servers[name] == server and name not in found.held_back)
        for server in set(servers.values())
    }


def test_one_server_sends_a_fifth_at_once() -> None:
    """Of a hundred equal values of one server the first 8 are awaited, and 20 are sent at once."""
    names = [f"value{number}" for number in range(100)]
    found = precedence_of(dict.fromkeys(names, 10), dict.fromkeys(names, 0))
    assert found == Precedence(frozenset(names[:8]), frozenset(names[20:]))


@pytest.mark.parametrize("servers", [1, 2, 3, 8])
def test_all_servers_have_something_to_send_until_the_first_are_there(servers: int) -> None:
    """Of made-up networks, what is awaited comes before all that is held back; and a server that holds anything back sends
    more at once than any server has of what is awaited, by an eighth of its even part.
    """
    some = 0
    for seed in range(CASES):
        sizes, on = drawn(seed, servers)
        found = precedence_of(sizes, on)
        if found == NOTHING:
            assert next(iter(sizes.values())) > AWAITED * sum(sizes.values())
            continue
        some += 1
        names = list(sizes)
        assert names[: len(found.awaited)] == [name for name in names if name in found.awaited]
        assert sum(sizes[name] for name in found.awaited) <= AWAITED * sum(sizes.values())
        assert not found.awaited & found.held_back
        awaited = [sum(sizes[name] for name in found.awaited if on[name] == server) for server in set(on.values())]
        holding = {on[name] for name in found.held_back}
        at_once = sent_at_once(sizes, on, found)
        beyond = BEYOND * sum(sizes.values()) / len(awaited)
        assert all(at_once[server] >= max(awaited) + beyond for server in holding)
    assert some > CASES / 2


@pytest.mark.parametrize("num_ps", [2, 4, 8])
def test_no_server_of_vgg16_waits_for_the_convolutions_of_others(num_ps: int) -> None:
    """VGG16's first values lie on few servers. The others send parts of its large matrix meanwhile, not all of them."""
    spec = Spec(model="vgg16", batch_size=1, gpus=2, num_ps=num_ps, variable_placement="split")
    cluster = {"ps": tuple(f"ps{i}:1" for i in range(num_ps)), "worker": ("worker0:1", "worker1:1")}
    order = TaskOrder(run="x", job="worker", index=0, spec=spec, cluster=cluster)
    sizes, servers = sizes_of(order), servers_of(order, num_ps)
    found = precedence_of(sizes, servers)
    held = [sum(size for name, size in sizes.items() if servers[name] == server) for server in range(num_ps)]
    assert [FLOAT_BYTES * size for size in held] == bytes_on_servers(spec)
    of_parts = [name for name in found.held_back if name.startswith("dense0/weights/part")]
    assert found.awaited
    assert of_parts
    first = max(sum(sizes[name] for name in found.awaited if servers[name] == server) for server in range(num_ps))
    at_once = sent_at_once(sizes, servers, found)
    assert all(first < at_once[server] <= held[server] for server in range(num_ps))
