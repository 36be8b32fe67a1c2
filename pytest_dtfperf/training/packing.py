"""Wrap a variable update: exchange small variables in packs, and large ones in parts."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import tensorflow as tf

from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.training.devices import Devices
from pytest_dtfperf.training.exchange_plan import Pack, compute_parts, plan_task_packs
from pytest_dtfperf.training.models.tensors import join_parts, make_first_value, parts_in
from pytest_dtfperf.training.variable_update import UpdateStrategy

v1 = tf.compat.v1


def pack_small_variables(update: UpdateStrategy, order: TaskOrder) -> UpdateStrategy:
    """Return the variable update, with small variables packed if that is faster or the spec asks for it."""
    packs = plan_task_packs(order)
    return PackedUpdate(update, packs, order.spec.seed) if packs else update


class PackedUpdate:
    """A variable update that receives packs instead of their members. See `UpdateStrategy` for its members."""

    def __init__(self, update: UpdateStrategy, packs: Iterable[Pack], seed: int) -> None:
        self._update = update
        self._seed = seed
        self._pack_of = {member.name: pack for pack in packs for member in pack.members}
        self._packs = {pack.name: pack for pack in self._pack_of.values()}
        self._pieces: dict[tuple[int, str], tf.Tensor] = {}  # by tower and name

    @property
    def variables(self) -> Mapping[str, Sequence[tf.Tensor]]:
        """Return the copies of each variable. Those of a packed one are its pieces, on the device of the pack."""
        found: dict[str, list[tf.Tensor]] = {}
        for name, copies in self._update.variables.items():
            for copy in copies:
                with v1.device(copy.device):
                    pieces = self._split(self._packs[name], copy) if name in self._packs else {name: copy}
                for each, piece in pieces.items():
                    found.setdefault(each, []).append(piece)
        return found

    def variable(self, tower: int, name: str, shape: Sequence[int], initial: Callable[[], tf.Tensor]) -> tf.Tensor:
        pack = self._pack_of.get(name)
        if pack is None:
            return self._update.variable(tower, name, shape, initial)
        if (tower, name) not in self._pieces:
            value = self._update.variable(tower, pack.name, (pack.size,), lambda: self._make_first_value(pack))
            self._pieces |= {(tower, each): piece for each, piece in self._split(pack, value).items()}
        return self._pieces[tower, name]

    def begin(self) -> tf.Operation:
        return self._update.begin()

    def update(self, gradients: Sequence[Mapping[str, tf.Tensor]]) -> list[tf.Operation]:
        return self._update.update([self._join_gradients(of_tower) for of_tower in gradients])

    def _make_first_value(self, pack: Pack) -> tf.Tensor:
        return tf.concat([tf.reshape(make_first_value(member, self._seed), [-1]) for member in pack.members], 0)

    def _split(self, pack: Pack, value: tf.Tensor) -> dict[str, tf.Tensor]:
        flat = tf.split(value, [member.size for member in pack.members])
        return {m.name: tf.reshape(piece, m.shape) for m, piece in zip(pack.members, flat, strict=True)}

    def _join_gradients(self, gradients: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Return the gradients with one for each pack, at the position of its first member's."""
        joined: dict[str, tf.Tensor] = {}
        for name, gradient in gradients.items():
            pack = self._pack_of.get(name)
            if pack is None:
                joined[name] = gradient
            elif pack.name not in joined:
                with v1.device(gradient.device):
                    pieces = [tf.reshape(gradients[member.name], [-1]) for member in pack.members]
                    joined[pack.name] = tf.concat(pieces, 0)
        return joined


Parts = Mapping[str, Mapping[str, int]]  # cut variable -> its parts -> their rows


def split_large_variables(update: UpdateStrategy, order: TaskOrder, devices: Devices) -> UpdateStrategy:
    """Return the variable update, with large variables in parts where the placement cuts them."""
    parts = compute_parts(order)
    return SplitUpdate(update, parts, devices.host) if parts else update


class SplitUpdate:
    """A variable update that receives parts instead of the variables that are cut. See `UpdateStrategy` for its members."""

    def __init__(self, update: UpdateStrategy, parts: Parts, host: str) -> None:
        self._update = update
        self._parts = parts
        self._host = host
        self._firsts: dict[str, tf.Tensor] = {}
        self._joined: dict[tuple[int, str], tf.Tensor] = {}  # by tower and name

    @property
    def variables(self) -> Mapping[str, Sequence[tf.Tensor]]:
        """Return the copies of each variable. The parts of a copy are joined on the worker's host."""
        theirs = self._update.variables
        found: dict[str, Sequence[tf.Tensor]] = {}
        of_cut = {part for parts in self._parts.values() for part in parts}
        with v1.device(self._host):
            for name, parts in self._parts.items():
                found[name] = [join_parts(of_copy) for of_copy in zip(*(theirs[part] for part in parts), strict=True)]
        return found | {name: copies for name, copies in theirs.items() if name not in of_cut}

    def variable(self, tower: int, name: str, shape: Sequence[int], initial: Callable[[], tf.Tensor]) -> tf.Tensor:
        if name not in self._parts:
            return self._update.variable(tower, name, shape, initial)
        if (tower, name) not in self._joined:
            values, begin = [], 0
            for part, rows in self._parts[name].items():
                first = self._make_first_value(name, initial, begin, rows)
                values.append(self._update.variable(tower, part, (rows, *shape[1:]), first))
                begin += rows
            self._joined[tower, name] = join_parts(values)
        return self._joined[tower, name]

    def begin(self) -> tf.Operation:
        return self._update.begin()

    def update(self, gradients: Sequence[Mapping[str, tf.Tensor]]) -> list[tf.Operation]:
        return self._update.update([cut_gradients(of_tower, self._parts) for of_tower in gradients])

    def _make_first_value(self, name: str, initial: Callable[[], tf.Tensor], begin: int, rows: int) -> Callable[[], tf.Tensor]:
        """Return a function that makes the first value of some rows.

        The whole variable is drawn once, where the first part is, and its rows are sent to the other parts. Drawn once per
        part, AlexNet's session took 19 s to start instead of 2.
        """

        def first() -> tf.Tensor:
            if name not in self._firsts:
                self._firsts[name] = initial()
            whole = self._firsts[name]
            with v1.device(whole.device):
                return whole[begin : begin + rows]

        return first


def cut_gradients(gradients: Mapping[str, tf.Tensor], parts: Parts) -> dict[str, tf.Tensor]:
    """Return the gradients with those of the parts at the position of each variable that is cut."""
    found: dict[str, tf.Tensor] = {}
    for name, gradient in gradients.items():
        if name not in parts:
            found[name] = gradient
            continue
        theirs = parts_in(gradient)
        rows = list(parts[name].values())
        if [part.shape[0] for part in theirs] != rows:
            with v1.device(gradient.device):
                theirs = tf.split(gradient, rows)
        found |= zip(parts[name], theirs, strict=True)
    return found
