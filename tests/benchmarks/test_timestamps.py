"""Tests of the measured cost of timestamps, in the presence of other differences between steps."""

from math import sin
from random import Random

import pytest

from benchmarks.timestamps import BLOCK, MODES, by_lot, draw_lots, interval, main

STEPS = 4000


def steps(timestamped: list[bool], cost: float) -> list[float]:
    """Return the steps of a noisy machine that gets slower and has a longer step after each short one."""
    noise = Random(7)
    return [
        (1.0 + 0.1 * at / STEPS + 0.02 * (at % 2) + 0.02 * sin(at / 3) + noise.gauss(0, 0.02)) * (1 + cost * has)
        for at, has in enumerate(timestamped)
    ]


@pytest.mark.parametrize("cost", [0.0, 0.01])
def test_interval_covers_the_cost(cost: float) -> None:
    """The interval covers the cost of timestamps and is at most 1 % wide, though steps differ by more."""
    timestamped = draw_lots(STEPS, Random(1))
    low, high = interval(by_lot(steps(timestamped, cost), timestamped))
    assert low < 1 + cost < high
    assert high - low < 0.01


def test_one_of_two_blocks_has_timestamps() -> None:
    """Of each two blocks one has timestamps, sometimes the first and sometimes the second, and an incomplete block has none."""
    timestamped = draw_lots(20 * BLOCK + 3, Random(1))
    pairs = [timestamped[at : at + 2 * BLOCK] for at in range(0, 20 * BLOCK, 2 * BLOCK)]
    yes, no = [True] * BLOCK, [False] * BLOCK
    assert {tuple(pair) for pair in pairs} == {tuple(yes + no), tuple(no + yes)}
    assert timestamped[20 * BLOCK :] == [False] * 3


def test_modes_are_those_with_optional_timestamps(capsys: pytest.CaptureFixture[str]) -> None:
    """Only two modes are compared, and another one is refused with their names."""
    assert MODES == ["parameter_server", "distributed_replicated"]
    with pytest.raises(SystemExit, match="2"):
        main(["--variable-update=parameter_server_v2"])
    assert "distributed_replicated" in capsys.readouterr().err
