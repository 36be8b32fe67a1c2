"""How hosts are divided into groups, and groups into other groups, so that all links are used. Pure."""

import math
from collections.abc import Sequence

from pytest_dtfperf.launch.link_rounds import count_rounds, make_matching
from pytest_dtfperf.qualify.group_rates import Group

FEW_HOSTS = 8  # fewer train alone first: one slow host in each of two or three groups would leave nothing to compare with
MOST_IN_ALL_LAYOUTS = 16  # hosts: all layouts of them cost up to about 20 runs


def choose_group_size(hosts: int) -> int:
    """Return the size of groups: about the square root of the number of hosts, with few hosts left over.

    There are at least three groups of eight hosts or more. One, two or three hosts train alone, because there would be no
    other group of two to compare with.
    """
    if hosts < FEW_HOSTS:
        return 1 if hosts < 4 else 2
    root = math.sqrt(hosts)
    sizes = [size for size in range(2, hosts // 3 + 1) if root / 1.7 <= size <= root * 1.4]
    return min(sizes, key=lambda size: (hosts % size) / size + abs(math.log(size / root)))


def choose_layouts(hosts: int) -> int:
    """Return in how many ways hosts are divided by default: few hosts in all ways, so that nearly each link trains."""
    size = choose_group_size(hosts)
    return (hosts if size == 2 else hosts // size + 1) if hosts <= MOST_IN_ALL_LAYOUTS else 2


def make_layout(hosts: Sequence[str], size: int, number: int) -> list[Group]:
    """Return groups of hosts of different rows. Layouts of different numbers bring other hosts together.

    Hosts are a grid of rows of `size`. A group takes one host of each column, `number` rows further in each. After as many
    layouts as there are rows come the columns themselves. With a prime number of rows, any two hosts meet exactly once.
    Groups of two are the rounds of a tournament.
    """
    if size == 2:
        return list(make_matching(hosts, number - 1)) if number <= count_rounds(len(hosts)) else []
    rows = len(hosts) // size
    if number < rows:
        return [
            tuple(hosts[(first + number * column) % rows * size + column] for column in range(size)) for first in range(rows)
        ]
    if number > rows:
        return []
    columns = [[hosts[row * size + column] for row in range(rows)] for column in range(size)]
    return [tuple(each[at : at + size]) for each in columns for at in range(0, rows - size + 1, size)]
