"""The comparison over links of a known rate: who trains when, and what the tables say of what was measured."""

import math
from pathlib import Path

import pytest

from benchmarks.ratios import paired
from benchmarks.shaped import kept
from benchmarks.side_by_side import BATCH, KEPT, MODES, OURS, RATES, STEPS, THEIRS, Cell, Result, Turn, tables, turns

CELL = Cell("vgg16", "1gbit", "parameter_server")


def result(number: int, who: str, *step_s: float, limit_s: float = 4.0) -> Result:
    return Result(Turn(CELL, number, who), step_s, limit_s)


def test_everybody_trains_once_in_each_round_and_in_the_other_order_in_the_next() -> None:
    """Two rounds are all cells by all contenders, twice; whoever went first goes last in the next."""
    found = list(turns(2))
    assert len(set(found)) == len(found) == 2 * len(RATES) * len(BATCH) * len(MODES) * (1 + len(OURS))
    of_cell = [[turn.who for turn in found if (turn.cell, turn.number) == (CELL, number)] for number in range(2)]
    assert of_cell[0][0] == of_cell[1][-1] == THEIRS
    assert of_cell[0] == of_cell[1][::-1]


@pytest.mark.parametrize("who", [THEIRS, *OURS])
def test_all_train_the_same_but_for_what_is_compared(who: str) -> None:
    """Placement and wire precision are the contender's; the other program's are its own greedy rule and whole numbers."""
    spec = CELL.spec(who)
    told = {"variable_placement": "greedy", "wire_precision": "fp32", **OURS.get(who, {})}
    assert spec == CELL.spec(THEIRS).replace(**told)
    assert (spec.gpus, spec.num_ps, spec.steps) == (2, 4, STEPS["vgg16"])


def test_what_was_measured_is_read_as_it_was_written() -> None:
    """A line of the file is the result again, a failed one too."""
    for one in (result(0, "split", 1.5, 1.25), Result(Turn(CELL, 1, THEIRS), why="worker:1:\nno such thing")):
        assert Result.from_json(one.to_json()).to_json() == one.to_json()
        assert Result.from_json(one.to_json()).turn == one.turn


def test_the_table_compares_steps_of_the_same_round() -> None:
    """The median of all steps, its part of the limit, and the ratio with its interval: a drift of both is no difference."""
    rows = [result(0, THEIRS, 8.0, 8.0), result(0, "split", 4.0, 4.0, limit_s=3.6), result(1, THEIRS, 16.0, 16.0)]
    rows += [result(1, "split", 8.0, 8.0, limit_s=3.6), result(2, "split, bf16", 2.0, 2.0)]
    text = "\n".join(tables(rows))
    expected = "12.00 s, 33 % | - | 6.00 s, 60 %, 2.00 x (2.00 to 2.00) | 2.00 s, 200 % |"
    assert f"| vgg16, batch 1 | `parameter_server` | {expected}" in text
    assert "distributed_replicated" not in text


def test_an_interval_is_student_s_t_of_the_logarithms() -> None:
    """Of ratios 1 and 4 the mean is 2, and with one degree of freedom nearly anything; of a single ratio nothing is said."""
    found = paired([(1.0, 1.0), (4.0, 1.0)])
    half = 12.7062 * math.log(4) / math.sqrt(2) / math.sqrt(2)
    assert found.centre == pytest.approx(2.0)
    assert math.log(found.high / 2) == pytest.approx(half, rel=1e-4)
    assert (paired([(3.0, 2.0)]).low, paired([(3.0, 2.0)]).high) == (0.0, math.inf)


def test_the_page_states_what_was_kept() -> None:
    """Each row of the tables that stands in docs/variable-update.md is made from the trainings that are kept."""
    page = (Path(__file__).parents[2] / "docs" / "variable-update.md").read_text(encoding="utf-8")
    rows = [line for line in tables(kept(KEPT, Result.from_json)) if line.startswith("| ")]
    assert len(rows) > 2
    assert not [row for row in rows if row not in page]
