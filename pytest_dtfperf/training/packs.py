"""Which small variables live together: on the wire a tensor costs some 40 microseconds, however small it is. Pure.

InceptionV3 has 190 trained variables, 96 of them of less than 16 KiB, which together are 0.08 MB of its 95.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from pytest_dtfperf.training.models.layers import BATCH_NORM, decays
from pytest_dtfperf.training.models.outline import Variable

SMALL_BYTES = 64 << 10  # what is packed unless the spec says otherwise: joining larger ones costs more than it saves
PACK_BYTES = 1 << 20  # of a whole pack, likewise


@dataclass(frozen=True)
class Pack:
    """Variables that are one, flat and in this order."""

    name: str
    members: tuple[Variable, ...]

    @property
    def size(self) -> int:
        return sum(member.size for member in self.members)


def plan(
    variables: Iterable[Variable], *, small_bytes: int = SMALL_BYTES, most: int | None = None, servers: int = 1
) -> list[Pack]:
    """Pack all variables of at most `small_bytes`, no more than `most` in one. What would be alone in a pack stays as it is.

    No pack is more than a parameter server's even part of them. Batch norm's are apart, for weight decay is not for them.
    """
    small = [variable for variable in variables if _bytes([variable]) <= small_bytes]
    full_bytes = min(PACK_BYTES, -(-_bytes(small) // servers))
    packs: list[Pack] = []
    for kind, decaying in (("small", True), (BATCH_NORM, False)):
        rows: list[list[Variable]] = []
        for variable in (each for each in small if decays(each.name) == decaying):
            if not rows or len(rows[-1]) == most or _bytes([*rows[-1], variable]) > full_bytes:
                rows.append([])
            rows[-1].append(variable)
        packs += [Pack(f"{kind}_pack{number}", tuple(row)) for number, row in enumerate(rows) if len(row) > 1]
    return packs


def _bytes(variables: Iterable[Variable]) -> int:
    return 4 * sum(variable.size for variable in variables)
