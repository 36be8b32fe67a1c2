"""Which numbers of parameter servers are worth a run: those whose busiest link is not in the way. Pure.

A step is predicted from what it computes, t, a third of it forward, and from what the busiest link needs for values, `down`,
and gradients, `up`:

    parameter_server, synchronous       max(t / 3, down) + max(2 t / 3, up)     values come while it goes forward
    distributed_replicated              t + max(0, up - 2 t / 3) + down         gradients leave while it goes backward
    asynchronous, or staged_vars        max(t, down + up)

t follows from one measured step. With two fitted numbers this tells the rates that the report of 2017 has of Piz Daint within
7 % (InceptionV3 on 2 to 128 GPUs), where scaling without links is 92 % off. It ranks; what is chosen is measured.
"""

import math
from collections.abc import Mapping, Sequence

from pytest_dtfperf.limits.limit import Links
from pytest_dtfperf.limits.needs import Layout, pulls_before_it_pushes, with_servers
from pytest_dtfperf.spec import Spec

FORWARD = 1 / 3  # of a step's arithmetic; docs/numbers.md
ALL_UP_TO = 8  # counts that are all considered; above, each is a quarter more than the one before
WITHIN = 0.10  # of the best predicted rate: what is predicted to be slower than that is not tried
MOST_TRIED = 4
_HALVINGS = 60  # of an interval that begins as long as a step


def counts(most: int) -> list[int]:
    """The numbers of parameter servers that are considered, with one and `most` among them."""
    found = list(range(1, min(most, ALL_UP_TO) + 1))
    while found[-1] < most:
        found.append(min(most, math.ceil(found[-1] * 1.25)))
    return found


def step_s(spec: Spec, layout: Layout, links: Links, compute_s: float) -> float:
    """Of a training that would compute for `compute_s` if nothing kept it waiting."""
    phases = with_servers(spec, layout) if len(set(layout.hosts.values())) > 1 else ({}, {})
    down, up = (links.phase_s(phase) for phase in phases)
    if pulls_before_it_pushes(spec):
        return max(compute_s * FORWARD, down) + max(compute_s * (1 - FORWARD), up)
    if spec.variable_update == "distributed_replicated":
        return compute_s + max(0.0, up - compute_s * (1 - FORWARD)) + down
    return max(compute_s, down + up)


def compute_s(spec: Spec, layout: Layout, links: Links, measured_s: float) -> float:
    """The least time that a step computes, if it takes so long in all: where links decide, it may be anything up to that."""
    low, high = 0.0, measured_s
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if step_s(spec, layout, links, middle) < measured_s:
            low = middle
        else:
            high = middle
    return high


def predicted(spec: Spec, layouts: Mapping[int, Layout], links: Links, compute: float) -> dict[int, float]:
    """images/sec by number of parameter servers, each with its layout."""
    images = spec.gpus * spec.batch_size
    return {count: images / step_s(spec.but(num_ps=count), layout, links, compute) for count, layout in layouts.items()}


def worth_trying(rates: Mapping[int, float], most: int = MOST_TRIED) -> list[int]:
    """The counts to try, the most promising first: the fewest servers of the best rate, then others near it.

    `rates`: as predicted. A count that is predicted to be more than 10 % slower than the best is left out; of the others those
    are chosen that are far from each other.
    """
    near = [count for count in sorted(rates) if rates[count] >= (1 - WITHIN) * max(rates.values())]
    chosen = [proposed(rates)]
    while len(chosen) < min(most, len(near)):
        left = [count for count in near if count not in chosen]
        chosen.append(max(left, key=lambda count: (round(_distance(count, chosen), 9), rates[count], -count)))
    return [chosen[0], *sorted(chosen[1:], key=lambda count: (-rates[count], count))]


def proposed(rates: Mapping[int, float]) -> int:
    """The fewest servers whose rate is within a hundredth of the best: each one more is a process more."""
    return min(count for count, rate in rates.items() if rate >= 0.99 * max(rates.values()))


def _distance(count: int, chosen: Sequence[int]) -> float:
    return min(abs(math.log(count / other)) for other in chosen)
