"""Suspects of several kinds of work that have one cause: a server that answers late, a graph that is another one."""

from collections import defaultdict
from collections.abc import Sequence

from pytest_dtfperf.explain.evidence import Evidence
from pytest_dtfperf.explain.kinds import is_server
from pytest_dtfperf.explain.model import Cell, Suspect
from pytest_dtfperf.explain.suspects import FLOOR

PROGRAM, SERVER = "program", "server"

_OF_THE_PROGRAM = ("compute", "apply", "transfer", "host", "input", FLOOR)
_APPLIES_LONGER = 1.5  # times: a server without a core does all it does more slowly
_APPLIES_PART = 0.02  # of what its transfers became longer by: operations of a millisecond may meet anything
_GAPS = 0.12  # of what became longer, in which nothing was under way: on a slow link there is, all the time


def joined(suspects: Sequence[Suspect], then: Evidence, now: Evidence) -> list[Suspect]:
    """The rest stays last."""
    *found, rest = suspects
    if (
        now.program_changes
    ):  # of another program nothing is expected to take as long as it did: what is nobody else's is its own
        of_all = [each for each in found if each.location is None and each.what in _OF_THE_PROGRAM]
        found = _join(PROGRAM, None, [*of_all, rest], found)
        rest = Suspect(rest.what, {})
    for transfer in [each for each in found if each.what == "transfer" and each.location and is_server(each.location)]:
        if "<>" not in str(transfer.location) and answers_late(transfer, then, now):
            found = _join(SERVER, transfer.location, [transfer, *_of(found, "apply", FLOOR)], found)
    found = _join(SERVER, slowest_server(then, now), _of(found, "apply"), found)
    largest = max(_of(found, "transfer", SERVER), key=lambda each: each.largest_s, default=None)
    if largest:
        found = _join(largest.what, largest.location, [largest, *_of(found, FLOOR)], found)
    return [*found, rest]


def _of(suspects: Sequence[Suspect], *what: str) -> list[Suspect]:
    return [each for each in suspects if each.what in what]


def _join(what: str, location: str | None, parts: Sequence[Suspect], among: Sequence[Suspect]) -> list[Suspect]:
    """One in the place of these; nothing changes where there are none."""
    if not parts:
        return list(among)
    cells: dict[Cell, float] = defaultdict(float)
    for part in parts:
        for cell, seconds in part.cells.items():
            cells[cell] += seconds
    one = Suspect(what, cells, sum(part.floor_s for part in parts), location)
    return [one, *(each for each in among if not any(each is part for part in parts))]


def answers_late(transfer: Suspect, then: Evidence, now: Evidence) -> bool:
    """Whether all links of a server are slow because of itself, and not of its host's link."""
    ratio = applies(transfer.location or "", then, now)
    longer_s = sum(sign * (_applied(transfer.location or "", side) or 0.0) for sign, side in ((-1, then), (1, now)))
    gaps = sum(seconds for (_, kind), seconds in transfer.cells.items() if kind == "host")
    total = sum(transfer.cells.values())
    starved = ratio is not None and ratio > _APPLIES_LONGER and longer_s > _APPLIES_PART * total
    return starved or gaps > _GAPS * total


def applies(server: str, then: Evidence, now: Evidence) -> float | None:
    """How many times as long a server's own operations take; None: not known."""
    before, after = (_applied(server, side) for side in (then, now))
    return after / before if before and after else None


def _applied(server: str, side: Evidence) -> float | None:
    task = side.anatomy.tasks.get(server) if side.anatomy else None
    return task.parts.get("apply") if task else None


def slowest_server(then: Evidence, now: Evidence) -> str | None:
    """Whose own operations have become longer by far more than the others'; None: all alike, or not known."""
    servers = [task for task in (now.anatomy.tasks if now.anatomy else ()) if is_server(task)]
    if len(servers) == 1:
        return servers[0]
    ratios = {server: ratio for server in servers if (ratio := applies(server, then, now)) is not None}
    ordered = sorted(ratios, key=lambda server: -ratios[server])
    if len(ordered) < 2 or ratios[ordered[0]] < _APPLIES_LONGER * ratios[ordered[1]]:
        return None
    return ordered[0]
