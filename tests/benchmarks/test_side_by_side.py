"""Tests of the comparison with another program over links of a known rate: its order and its tables."""

import math
from pathlib import Path

import pytest

from benchmarks.ratios import compare_pairs
from benchmarks.shaped import load_results
from benchmarks.side_by_side import BATCH, KEPT, MODES, OURS, RATES, STEPS, THEIRS, Cell, Result, Turn, tables, turns

CELL = Cell("vgg16", "1gbit", "parameter_server")


def result(number: int, who: str, *step_s: float, limit_s: float = 4.0) -> Result:
    return Result(Turn(CELL, number, who), step_s, limit_s)


def test_turns_reverse_their_order_in_each_round() -> None:
    """Two rounds have each contender in each cell twice, and the second one has the opposite order."""
    found = list(turns(2))
    assert len(set(found)) == len(found) == 2 * len(RATES) * len(BATCH) * len(MODES) * (1 + len(OURS))
    of_cell = [[turn.who for turn in found if (turn.cell, turn.number) == (CELL, number)] for number in range(2)]
    assert of_cell[0][0] == of_cell[1][-1] == THEIRS
    assert of_cell[0] == of_cell[1][::-1]


@pytest.mark.parametrize("who", [THEIRS, *OURS])
def test_specs_differ_in_the_compared_settings_only(who: str) -> None:
    """Specs of the contenders differ in placement and wire precision only, and the other program has greedy and fp32."""
    spec = CELL.spec(who)
    settings = {"variable_placement": "greedy", "wire_precision": "fp32", **OURS.get(who, {})}
    assert spec == CELL.spec(THEIRS).replace(**settings)
    assert (spec.gpus, spec.num_ps, spec.steps) == (2, 4, STEPS["vgg16"])


def test_result_survives_json() -> None:
    """A result is the same after JSON, also one of a failed training."""
    for one in (result(0, "split", 1.5, 1.25), Result(Turn(CELL, 1, THEIRS), why="worker:1:\nno such thing")):
        assert Result.from_json(one.to_json()).to_json() == one.to_json()
        assert Result.from_json(one.to_json()).turn == one.turn


def test_table_compares_steps_of_the_same_round() -> None:
    """A row has the median step, its share of the limit, and the ratio within rounds, in which a drift of both cancels out."""
    rows = [result(0, THEIRS, 8.0, 8.0), result(0, "split", 4.0, 4.0, limit_s=3.6), result(1, THEIRS, 16.0, 16.0)]
    rows += [result(1, "split", 8.0, 8.0, limit_s=3.6), result(2, "split, bf16", 2.0, 2.0)]
    text = "\n".join(tables(rows))
    expected = "12.00 s, 33 % | - | 6.00 s, 60 %, 2.00 x (2.00 to 2.00) | 2.00 s, 200 % |"
    assert f"| vgg16, batch 1 | `parameter_server` | {expected}" in text
    assert "distributed_replicated" not in text


def test_interval_is_students_t_of_logarithms() -> None:
    """Ratios 1 and 4 have the mean 2 and the interval of Student's t with one degree of freedom, and one ratio has an infinite
    interval."""
    found = compare_pairs([(1.0, 1.0), (4.0, 1.0)])
    half = 12.7062 * math.log(4) / math.sqrt(2) / math.sqrt(2)
    assert found.centre == pytest.approx(2.0)
    assert math.log(found.high / 2) == pytest.approx(half, rel=1e-4)
    assert (compare_pairs([(3.0, 2.0)]).low, compare_pairs([(3.0, 2.0)]).high) == (0.0, math.inf)


def test_page_has_each_table_row() -> None:
    """Each row of the tables from the stored trainings is in docs/network-study.md."""
    page = (Path(__file__).parents[2] / "docs" / "network-study.md").read_text(encoding="utf-8")
    rows = [line for line in tables(load_results(KEPT, Result.from_json)) if line.startswith("| ")]
    assert len(rows) > 2
    assert not [row for row in rows if row not in page]
