"""What timestamps cost is told from other reasons why steps differ."""

from math import sin
from random import Random

import pytest

from benchmarks.timestamps import BLOCK, MODES, by_lot, drawn, interval, main

STEPS = 4000


def steps(timestamped: list[bool], cost: float) -> list[float]:
    """Of a machine that gets slower, whose every second step is longer, and which is noisy."""
    noise = Random(7)
    return [
        (1.0 + 0.1 * at / STEPS + 0.02 * (at % 2) + 0.02 * sin(at / 3) + noise.gauss(0, 0.02)) * (1 + cost * has)
        for at, has in enumerate(timestamped)
    ]


@pytest.mark.parametrize("cost", [0.0, 0.01])
def test_cost_is_found(cost: float) -> None:
    """The interval holds what timestamps were made to cost, to half a percent, though steps differ by more."""
    timestamped = drawn(STEPS, Random(1))
    low, high = interval(by_lot(steps(timestamped, cost), timestamped))
    assert low < 1 + cost < high
    assert high - low < 0.01


def test_half_of_each_two_blocks_is_stamped() -> None:
    """Of two blocks one is, sometimes the first and sometimes the second; what is left over is not."""
    timestamped = drawn(20 * BLOCK + 3, Random(1))
    pairs = [timestamped[at : at + 2 * BLOCK] for at in range(0, 20 * BLOCK, 2 * BLOCK)]
    yes, no = [True] * BLOCK, [False] * BLOCK
    assert {tuple(pair) for pair in pairs} == {tuple(yes + no), tuple(no + yes)}
    assert timestamped[20 * BLOCK :] == [False] * 3


def test_only_modes_whose_steps_differ_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    """Where all steps have timestamps or none has, blocks would be compared with their like, and nothing be found."""
    assert MODES == ["parameter_server", "distributed_replicated"]
    with pytest.raises(SystemExit, match="2"):
        main(["--variable-update=parameter_server_v2"])
    assert "distributed_replicated" in capsys.readouterr().err
