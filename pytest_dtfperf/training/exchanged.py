"""What a network's variables are when they are exchanged: packs of small ones, parts of large ones. Pure."""

from collections.abc import Mapping, Sequence

from pytest_dtfperf.spec import VARIABLE_PLACEMENTS, Spec, TaskOrder, VariableUpdate
from pytest_dtfperf.training.load import load
from pytest_dtfperf.training.models.outline import Shape, Variable, outline_of
from pytest_dtfperf.training.packs import SMALL_BYTES, Pack, plan
from pytest_dtfperf.training.placement import (
    PIECES_PER_SERVER,
    Piece,
    Placed,
    Placement,
    finer,
    held_by,
    in_parts,
    round_robin,
    rows_of,
    size_of,
)


def packs_of(order: TaskOrder) -> list[Pack]:
    """If they can help, or if the spec asks for them."""
    return _packs(order.spec, crosses_the_wire=bool(order.cluster))


def _packs(spec: Spec, *, crosses_the_wire: bool) -> list[Pack]:
    small_bytes = spec.agg_small_grads_max_bytes
    if small_bytes is None:
        crosses_the_wire = crosses_the_wire and "agg_small_grads_max_bytes" in spec.mode.knows
        small_bytes = SMALL_BYTES if crosses_the_wire else 0
    variables = outline_of(spec).trained
    return plan(variables, small_bytes=small_bytes, most=spec.agg_small_grads_max_group, servers=max(1, spec.num_ps))


def shapes_of(variables: Sequence[Variable], packs: Sequence[Pack]) -> dict[str, Shape]:
    """By name, a pack in the place of its first member, as they are made."""
    pack_of = {member.name: pack for pack in packs for member in pack.members}
    found: dict[str, Shape] = {}
    for variable in variables:
        pack = pack_of.get(variable.name)
        found[pack.name if pack else variable.name] = (pack.size,) if pack else variable.shape
    return found


def parts_of(order: TaskOrder) -> dict[str, dict[str, int]]:
    """Of each variable or pack that is cut, its parts and their rows."""
    placed = _placed(order, order.spec.num_ps) if order.spec.num_ps else {}
    return {
        name: {part: piece.rows for part, piece in zip(part_names(name, len(pieces)), pieces, strict=True)}
        for name, pieces in placed.items()
        if len(pieces) > 1
    }


def servers_of(order: TaskOrder, servers: int) -> dict[str, int]:
    """Of each variable, pack or part the server that holds it, of so many."""
    return {
        part: piece.server
        for name, pieces in _placed(order, servers).items()
        for part, piece in zip(part_names(name, len(pieces)), pieces, strict=True)
    }


def sizes_of(order: TaskOrder) -> dict[str, int]:
    """Bytes of each variable, pack or part that parameter servers hold, in the order in which the network makes them."""
    parts = parts_of(order)
    return {
        part: size_of((rows, *shape[1:]))
        for name, shape in _shapes(order).items()
        for part, rows in parts.get(name, {name: rows_of(shape)}).items()
    }


def part_names(name: str, parts: int) -> list[str]:
    """`dense0/weights/part2of7`; what is not cut keeps its name."""
    return [name] if parts == 1 else [f"{name}/part{number}of{parts}" for number in range(1, parts + 1)]


def bytes_on_servers(spec: Spec) -> list[int]:
    """What each of the spec's parameter servers holds of the trained variables, when several tasks share them."""
    variables = outline_of(spec).trained
    if spec.mode.engine != VariableUpdate.engine and not VARIABLE_PLACEMENTS[spec.variable_placement].in_strategies:
        whole = [variable.shape for variable in variables]
        return held_by(whole, round_robin(whole, spec.num_ps), spec.num_ps)
    shapes = list(shapes_of(variables, _packs(spec, crosses_the_wire=True)).values())
    return held_by(shapes, _pieces_of(spec, shapes, spec.num_ps), spec.num_ps)


def _shapes(order: TaskOrder) -> dict[str, Shape]:
    return shapes_of(outline_of(order.spec).trained, packs_of(order))


def _placed(order: TaskOrder, servers: int) -> Mapping[str, tuple[Piece, ...]]:
    spec = order.spec
    named = _shapes(order)
    shapes = list(named.values())
    placed = _pieces_of(spec, shapes, servers)
    if order.is_between_hosts and spec.mode.has_variable_placement and not VARIABLE_PLACEMENTS[spec.variable_placement].cuts:
        placed = in_parts(shapes, placed, servers, spec.mode.pieces_per_server or PIECES_PER_SERVER)
    return dict(zip(named, placed, strict=True))


def _pieces_of(spec: Spec, shapes: Sequence[Shape], servers: int) -> Placed:
    """Of a lone process, whose own devices are the servers then, as usual: nothing is sent, and no part would be known."""
    row = VARIABLE_PLACEMENTS[spec.variable_placement if spec.num_ps else Spec.variable_placement]
    pieces = spec.mode.pieces_per_server
    placement: Placement = load(row.implementation)
    placed = placement(shapes, servers)
    return finer(shapes, placed, servers, pieces) if row.cuts and pieces else placed
