"""Any variable update, with its small variables in packs."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import tensorflow as tf

from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.training.exchanged import packs_of
from pytest_dtfperf.training.models.tensors import first_value
from pytest_dtfperf.training.packs import Pack
from pytest_dtfperf.training.variable_update.base import VariableUpdate

v1 = tf.compat.v1


def packed(update: VariableUpdate, order: TaskOrder) -> VariableUpdate:
    """The variable update, with small variables packed if that can help, or if the spec asks for it."""
    packs = packs_of(order)
    return Packed(update, packs, order.spec.seed) if packs else update


class Packed:
    """A variable update that is told of packs in the place of their members. See `VariableUpdate` for what it does."""

    def __init__(self, update: VariableUpdate, packs: Iterable[Pack], seed: int) -> None:
        self._update = update
        self._seed = seed
        self._pack_of = {member.name: pack for pack in packs for member in pack.members}
        self._packs = {pack.name: pack for pack in self._pack_of.values()}
        self._pieces: dict[tuple[int, str], tf.Tensor] = {}  # by tower and name

    @property
    def variables(self) -> Mapping[str, Sequence[tf.Tensor]]:
        """Of packed ones the pieces, where their pack is."""
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
            value = self._update.variable(tower, pack.name, (pack.size,), lambda: self._first_value(pack))
            self._pieces |= {(tower, each): piece for each, piece in self._split(pack, value).items()}
        return self._pieces[tower, name]

    def begin(self) -> tf.Operation:
        return self._update.begin()

    def update(self, gradients: Sequence[Mapping[str, tf.Tensor]]) -> list[tf.Operation]:
        return self._update.update([self._joined(of_tower) for of_tower in gradients])

    def _first_value(self, pack: Pack) -> tf.Tensor:
        return tf.concat([tf.reshape(first_value(member, self._seed), [-1]) for member in pack.members], 0)

    def _split(self, pack: Pack, value: tf.Tensor) -> dict[str, tf.Tensor]:
        flat = tf.split(value, [member.size for member in pack.members])
        return {m.name: tf.reshape(piece, m.shape) for m, piece in zip(pack.members, flat, strict=True)}

    def _joined(self, gradients: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """One gradient per pack, in the place of its first member's."""
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
