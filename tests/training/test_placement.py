"""The placement of variables on parameter servers: the server of each, and that divided variables are complete."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_dtfperf.extensions import load
from pytest_dtfperf.spec import VARIABLE_PLACEMENTS, Spec, TaskOrder
from pytest_dtfperf.training.exchange_plan import (
    assign_servers,
    bytes_on_servers,
    compute_parts,
    compute_sizes,
    map_shapes,
    plan_task_packs,
)
from pytest_dtfperf.training.models import make_default_network
from pytest_dtfperf.training.models.outline import compute_outline
from pytest_dtfperf.training.placement import (
    BALANCE,
    LEAST_PIECE_BYTES,
    PIECES_PER_SERVER,
    Placed,
    Placement,
    Shape,
    compute_bytes,
    count_rows,
    sum_by_server,
)
from tests import campaign
from tests.training.programs import run_program

SERVERS = (1, 2, 3, 8)
CASES = 200 if campaign.WHOLE else 50


def placed_by(name: str, shapes: Sequence[Shape], servers: int) -> Placed:
    placement: Placement = load(VARIABLE_PLACEMENTS[name].implementation)
    return placement(shapes, servers)


def drawn_shapes(seed: int) -> list[Shape]:
    """Draw the shapes of a network: some variables of many rows, some of few, of one, and of a single number."""
    draw = random.Random(seed)
    kinds: list[Callable[[], Shape]] = [
        lambda: (draw.randint(1, 3000), draw.randint(1, 40)),
        lambda: (3, 3, draw.randint(1, 30), draw.randint(1, 30)),
        lambda: (1, 1, draw.randint(1, 60), draw.randint(1, 60)),
        lambda: (draw.randint(1, 500),),
        lambda: (),
    ]
    return [draw.choice(kinds)() for _ in range(draw.randint(1, 40))]


def hottest(model: str, placement: str, servers: int) -> float:
    """MB on the fullest server."""
    shapes = [variable.shape for variable in compute_outline(make_default_network(model)).trained]
    return max(sum_by_server(shapes, placed_by(placement, shapes, servers), servers)) / 1e6


@pytest.mark.parametrize(
    "placement, servers, sizes, expected",
    [
        ("greedy", 1, [5, 1, 3], [0, 0, 0]),
        ("greedy", 2, [5, 1, 3, 1, 1], [0, 1, 1, 1, 0]),
        ("greedy", 3, [4, 4, 4, 4], [0, 1, 2, 0]),
        ("round_robin", 2, [5, 1, 3, 1, 1], [0, 1, 0, 1, 0]),
        ("round_robin", 3, [9, 1, 1, 1], [0, 1, 2, 0]),
        ("largest_first", 2, [1, 3, 5, 1, 4], [0, 1, 0, 0, 1]),
        ("largest_first", 3, [4, 4, 4, 4], [0, 1, 2, 0]),
        ("split", 2, [4, 4, 4, 4], [0, 1, 0, 1]),
    ],
)
def test_each_variable_goes_to_its_server(placement: str, servers: int, sizes: list[int], expected: list[int]) -> None:
    """Greedy and largest first give the next one to the server with the fewest bytes, round robin to the next server."""
    placed = placed_by(placement, [(1, size) for size in sizes], servers)
    assert [[piece.server for piece in pieces] for pieces in placed] == [[server] for server in expected]


@pytest.mark.campaign
@pytest.mark.parametrize("servers", SERVERS)
@pytest.mark.parametrize("placement", VARIABLE_PLACEMENTS)
def test_every_row_is_placed_once(placement: str, servers: int) -> None:
    """The pieces of each variable have all of its rows, on existing servers, and none is empty."""
    for seed in range(CASES):
        shapes = drawn_shapes(seed)
        for shape, pieces in zip(shapes, placed_by(placement, shapes, servers), strict=True):
            assert sum(piece.rows for piece in pieces) == count_rows(shape)
            assert all(piece.rows > 0 and 0 <= piece.server < servers for piece in pieces)
            assert placement == "split" or len(pieces) == 1


@pytest.mark.campaign
@pytest.mark.parametrize("servers", SERVERS)
def test_split_leaves_servers_within_2_percent_or_a_row(servers: int) -> None:
    """No server is farther from the mean than 2 % of it, or than the largest row."""
    closer = 0
    for seed in range(CASES):
        shapes = drawn_shapes(seed)
        held = sum_by_server(shapes, placed_by("split", shapes, servers), servers)
        mean = sum(held) / servers
        row = max(compute_bytes(shape) // count_rows(shape) for shape in shapes)
        assert max(abs(each - mean) for each in held) <= max(BALANCE * mean, row)
        closer += max(abs(each - mean) for each in held) <= BALANCE * mean
    assert closer > CASES / 2  # the bound of a row is not what most of them need


@pytest.mark.campaign
@pytest.mark.parametrize("servers", SERVERS)
def test_fine_rows_make_servers_even(servers: int) -> None:
    """All servers are within 2 % of the mean, in few pieces, if no row is larger than that."""
    for seed in range(CASES):
        draw = random.Random(seed)
        shapes = [(draw.randint(200, 5000), draw.randint(1, 4)) for _ in range(draw.randint(1, 30))]
        placed = placed_by("split", shapes, servers)
        held = sum_by_server(shapes, placed, servers)
        mean = sum(held) / servers
        assert all(compute_bytes(shape[1:]) <= BALANCE * mean for shape in shapes)
        assert max(abs(each - mean) for each in held) <= BALANCE * mean
        assert sum(map(len, placed)) <= len(shapes) + 2 * PIECES_PER_SERVER * servers


@pytest.mark.parametrize("placement", VARIABLE_PLACEMENTS)
def test_equal_sizes_stay_in_their_order(placement: str) -> None:
    """Equal variables are placed on the servers in turn, in the network's order, and the same in each call."""
    shapes = [(64, 10)] * 24
    placed = placed_by(placement, shapes, 8)
    assert [pieces[0].server for pieces in placed] == [*range(8)] * 3
    assert all(placed_by(placement, drawn_shapes(7), 3) == placed_by(placement, drawn_shapes(7), 3) for _ in range(3))


@pytest.mark.parametrize(
    "model, placement, expected",
    [
        ("inception3", "greedy", 17.6),
        ("inception3", "largest_first", 11.9),
        ("inception3", "split", 11.9),
        ("vgg16", "greedy", 413.4),
        ("vgg16", "largest_first", 411.0),
        ("vgg16", "split", 69.2),
    ],
)
def test_the_hottest_of_eight_servers(model: str, placement: str, expected: float) -> None:
    """MB on the fullest server: InceptionV3 needs another order, VGG16 to have its largest variable cut."""
    assert hottest(model, placement, 8) == pytest.approx(expected, abs=0.05)


@pytest.mark.parametrize("model, variables", [("inception3", 0), ("resnet50", 0), ("vgg16", 1), ("alexnet", 2)])
def test_split_cuts_no_more_than_it_must(model: str, variables: int) -> None:
    """Variables are cut over eight servers only in networks that cannot be placed evenly, and only the largest ones."""
    shapes = [variable.shape for variable in compute_outline(make_default_network(model)).trained]
    sizes = [compute_bytes(shape) for shape in shapes]
    placed = placed_by("split", shapes, 8)
    cut = [number for number, pieces in enumerate(placed) if len(pieces) > 1]
    assert sorted(sizes[number] for number in cut) == sorted(sizes)[len(sizes) - variables :]
    assert sum(len(placed[number]) for number in cut) <= PIECES_PER_SERVER * 8


def test_parts_are_large_enough_to_be_updated_in_one_pass(tmp_path: Path) -> None:
    """A server's part of a variable is cut further if all parts have at least 4 MiB: 8.5 MB in two, 7.9 MB not."""
    shapes = [variable.shape for variable in compute_outline(make_default_network("trivial")).trained]
    placed = placed_by("split", shapes, 2)
    (cut,) = [(shape, pieces) for shape, pieces in zip(shapes, placed, strict=True) if len(pieces) > 1]
    shape, pieces = cut
    assert shape == (4096, 1001)
    large = run_program(
        tmp_path / "log", "-c", "from pytest_dtfperf.training.optimizers import LARGE_BYTES; print(LARGE_BYTES)"
    )
    assert int(large) == LEAST_PIECE_BYTES
    assert [piece.server for piece in pieces] == [1, 1, 0]
    assert all(compute_bytes((piece.rows, *shape[1:])) >= LEAST_PIECE_BYTES for piece in pieces)


def order_of(**changes: object) -> TaskOrder:
    spec = Spec(**{"model": "vgg16", "batch_size": 1, "gpus": 2, "num_ps": 4, "variable_placement": "split", **changes})  # type: ignore[arg-type]
    cluster = {job: tuple(f"{job}:{i}" for i in range(count)) for job, count in {"ps": spec.num_ps, "worker": 2}.items()}
    return TaskOrder(run="x", job="worker", index=0, spec=spec, cluster=cluster)


def test_parts_are_named_by_their_variable() -> None:
    """The names of parts have their variable, number and count; packs and whole variables keep their names."""
    order = order_of()
    parts, servers = compute_parts(order), assign_servers(order, 4)
    largest = parts["dense0/weights"]
    assert [*largest][:2] == [f"dense0/weights/part1of{len(largest)}", f"dense0/weights/part2of{len(largest)}"]
    assert sum(largest.values()) == 25088
    assert set(servers.values()) == {0, 1, 2, 3}
    assert {"small_pack0", *largest} <= servers.keys()
    assert not parts.keys() & servers.keys()


@pytest.mark.parametrize(
    "changes, between_hosts",
    [
        ({"num_ps": 1}, True),
        ({"num_ps": 1, "variable_placement": "greedy"}, True),
        ({"variable_placement": "largest_first"}, False),
        ({"variable_placement": "greedy", "model": "resnet50", "num_ps": 8}, True),
        ({"variable_placement": "largest_first", "variable_update": "parameter_server_v2", "cross_replica_sync": False}, True),
    ],
)
def test_variables_are_cut_only_if_needed(changes: dict[str, object], between_hosts: bool) -> None:
    """A single server has whole variables, and other placements cut only those above a server's mean, between hosts."""
    order = order_of(**changes)
    if not between_hosts:
        cluster = {job: tuple(f"here:{number}" for number, _ in enumerate(at)) for job, at in order.cluster.items()}
        order = replace(order, cluster=cluster)
    assert compute_parts(order) == {}


@pytest.mark.parametrize("mode, of_largest", [("parameter_server", 11), ("distributed_replicated", 47)])
@pytest.mark.parametrize("placement", ["greedy", "round_robin", "largest_first"])
def test_too_large_variable_stays_on_its_server_in_parts(placement: str, mode: str, of_largest: int) -> None:
    """A variable above a server's mean is cut between hosts, and its parts stay on one server."""
    order = order_of(variable_placement=placement, variable_update=mode)
    parts, servers = compute_parts(order), assign_servers(order, 4)
    assert {name: len(theirs) for name, theirs in parts.items()} == {"dense0/weights": of_largest}
    assert sum(parts["dense0/weights"].values()) == 25088
    assert len({servers[part] for part in parts["dense0/weights"]}) == 1
    held = Counter[int]()
    for name, size in compute_sizes(order).items():
        held[servers[name]] += size
    assert [held[server] for server in range(4)] == bytes_on_servers(order.spec)


@pytest.mark.parametrize("placement", VARIABLE_PLACEMENTS)
@pytest.mark.parametrize(
    "changes, holders",
    [
        ({"variable_update": "distributed_replicated", "gpus": 1}, 1),
        ({"variable_update": "parameter_server", "gpus": 2, "local_parameter_device": "gpu"}, 2),
    ],
    ids=["replicated", "on two towers"],
)
def test_lone_process_has_whole_variables(changes: dict[str, object], holders: int, placement: str) -> None:
    """A process without parameter servers has whole variables, and the placement is not part of its key."""
    lone, usual = (
        replace(order_of(num_ps=0, variable_placement=name, **changes), cluster={}) for name in (placement, "greedy")
    )
    assert compute_parts(lone) == {}
    assert lone.spec.key == usual.spec.key
    assert assign_servers(lone, holders) == assign_servers(usual, holders)
    assert {"dense0/weights", "dense1/weights"} <= assign_servers(lone, holders).keys()


def test_distributed_replicated_cuts_finely() -> None:
    """distributed_replicated cuts large variables into up to 16 pieces per server of at least 4 MiB."""
    for servers, pieces in ((1, 11), (4, 47)):
        fine, coarse = (
            order_of(num_ps=servers, variable_update=mode) for mode in ("distributed_replicated", "parameter_server")
        )
        parts = compute_parts(fine)
        assert len(parts["dense0/weights"]) == pieces
        assert sum(parts["dense0/weights"].values()) == 25088
        assert len(parts["dense0/weights"]) > len(compute_parts(coarse).get("dense0/weights", ()))
        assert bytes_on_servers(fine.spec) == bytes_on_servers(coarse.spec)
        assert min(rows * 4096 * 4 for rows in parts["dense0/weights"].values()) >= LEAST_PIECE_BYTES


def test_greedy_placement_follows_the_order_of_packs() -> None:
    """A pack is placed in the order of its first member."""
    order = order_of(model="inception3", variable_placement="greedy")
    variables, packs = compute_outline(make_default_network("inception3")).trained, plan_task_packs(order)
    assert packs
    names = list(map_shapes(variables, packs))
    whose = {member.name: pack.name for pack in packs for member in pack.members}
    assert names == list(dict.fromkeys(whose.get(variable.name, variable.name) for variable in variables))
    held, expected = [0] * 4, {}
    for name, shape in map_shapes(variables, packs).items():
        expected[name] = held.index(min(held))
        held[expected[name]] += compute_bytes(shape)
    assert assign_servers(order, 4) == expected
