"""Which links are measured at once: rounds of pairs that have no host in common, so that none disturbs another. Pure."""

from collections.abc import Sequence

FEW = 8  # hosts: of so many every pair is measured, in 14 rounds; of more a ring, in 4 or 6

Pair = tuple[int, int]  # from, to


def rounds(hosts: Sequence[int]) -> list[list[Pair]]:
    """Every ordered pair of few hosts; of many, every host with the next one, both ways."""
    return _both_ways(_everybody_once(hosts)) if len(hosts) <= FEW else ring(hosts)


def ring(hosts: Sequence[int]) -> list[list[Pair]]:
    """Every host with the next one, both ways."""
    return _both_ways(_ring(hosts) if len(hosts) > 2 else _everybody_once(hosts))


def _both_ways(one_way: Sequence[list[Pair]]) -> list[list[Pair]]:
    return [way for pairs in one_way for way in (pairs, [(there, here) for here, there in pairs])]


def _everybody_once(hosts: Sequence[int]) -> list[list[Pair]]:
    """A round-robin tournament by the circle method: one player stays, the others move on by one seat every round."""
    seats: list[int | None] = [*hosts, *([None] if len(hosts) % 2 else [])]
    half = len(seats) // 2
    found = []
    for _ in range(len(seats) - 1):
        opposite = zip(seats[:half], reversed(seats[half:]), strict=True)
        found.append([(here, there) for here, there in opposite if here is not None and there is not None])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return found if len(hosts) > 1 else []


def _ring(hosts: Sequence[int]) -> list[list[Pair]]:
    """Every second link of the ring, then the others; of an odd ring the last one by itself."""
    links = [(here, hosts[(i + 1) % len(hosts)]) for i, here in enumerate(hosts)]
    even = len(links) - len(links) % 2
    return [part for part in (links[0:even:2], links[1:even:2], links[even:]) if part]


def split(pairs: Sequence[Pair]) -> list[list[Pair]]:
    """Any pairs, in as many rounds as they need."""
    found: list[list[Pair]] = []
    for pair in pairs:
        free = next((each for each in found if not {*pair} & {host for taken in each for host in taken}), None)
        if free is None:
            found.append(free := [])
        free.append(pair)
    return found
