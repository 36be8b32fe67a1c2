"""Tests of the study of how much network a training needs: its cells and its tables."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.capacity import BATCH, EQUAL, EQUAL_RATES, KEPT, RATES, SERVERS, Cell, Result, busy_s, cells, tables
from benchmarks.shaped import load_results
from pytest_dtfperf.spec import VARIABLE_PLACEMENTS
from pytest_dtfperf.spec.tables import WIRE_PRECISIONS
from tests.baselines.examples import run_of
from tests.records.host_states import make_state


def test_cells_have_each_placement_and_precision_once() -> None:
    """No cell occurs twice, and one server has one placement."""
    found = list(cells())
    trainings = len(RATES) * len(BATCH) * len(WIRE_PRECISIONS) + 1
    larger = len(EQUAL) * len(EQUAL_RATES) * (len(SERVERS) - 1)
    assert len(set(found)) == len(found) == trainings * (1 + (len(SERVERS) - 1) * len(VARIABLE_PLACEMENTS)) + larger
    assert {cell.placement for cell in found if cell.num_ps == 1} == {"greedy"}


def test_result_survives_json() -> None:
    """A result is the same after JSON, with its day, also one that was not measured."""
    cell = Cell("vgg16", "1gbit", 2, "split", "bf16")
    for one in (Result(cell, 4.0, "link", (5.0, 5.5), day="2026-11-25"), Result(cell, 90.0, "link", why="more than 60 s")):
        assert Result.from_json(one.to_json()) == one


@pytest.mark.parametrize(("limit_s", "steps"), [(9.9, 3), (10.1, 1)])
def test_cell_with_long_steps_measures_one(limit_s: float, steps: int) -> None:
    """A cell with a limit above 10 s has one step and one of warm-up, a shorter one has three and two."""
    cell = Cell("vgg16", "1gbit", 2, "split", "bf16")
    spec = cell.as_long(limit_s)
    assert (spec.steps, spec.warmup_steps) == (steps, 2 if steps > 1 else 1)
    assert spec.replace(steps=3, warmup_steps=2) == cell.spec


@pytest.mark.parametrize(
    ("result", "rate", "row"),
    [
        (
            Result(Cell("vgg16", "1gbit", 2, "split", "fp32"), 4.0, "link", (5, 9, 4)),
            "1",
            "| vgg16, 1 | 2 | 5.00 s, 80 % link |",
        ),
        (
            Result(Cell("vgg16", "10gbit", 4, "split", "bf16"), 1, "worker", (2,)),
            "10",
            "| vgg16, 1 | 4 | 2.00 s, 50 % worker |",
        ),
        (Result(Cell("vgg16", "100mbit", 2, "split", "fp32"), 93.6, "link", why="long"), "0.1", "| vgg16, 1 | 2 | > 94 s |"),
    ],
)
def test_table_shows_step_and_limit(result: Result, rate: str, row: str) -> None:
    """A row has the seconds of a step, the share of its limit and the limit's name, or the least time of a step that was not
    measured."""
    lines = list(tables([result]))
    assert lines[0] == f"At {rate} Gbit/s, on {result.processor}:"
    assert row in lines


def test_larger_batch_has_its_own_row() -> None:
    """A larger batch has a row below its model's small one, and a stored line without a batch is the small one."""
    cells_ = [Cell("resnet50", "300mbit", 2, "split", "fp32", batch_size) for batch_size in (None, 8)]
    results = [Result(cell, 3.0, "link", (4.0,)) for cell in cells_]
    assert [line for line in tables(results) if "resnet50" in line] == [
        "| resnet50, 2 | 2 | 4.00 s, 75 % link |",
        "| resnet50, 8 | 2 | 4.00 s, 75 % link |",
    ]
    old = results[0].to_json().replace(', "larger_batch": null', "")
    assert "batch" not in old
    assert Result.from_json(old) == results[0]


def test_busy_time_is_the_mean_of_workers() -> None:
    """Workers with one and two cores that are busy for 6 and 8 s in 2 steps have a mean of 2.5 s per step, and the server's
    host does not count."""
    state = {
        host: make_state(cores=cores, cpu={"busy_s": busy})
        for host, cores, busy in (("a", 1, 6.0), ("b", 2, 8.0), ("c", 2, 99.0))
    }
    run = replace(
        run_of(10.0),
        step_s={"worker:0": [3.0, 3.0], "worker:1": [3.0, 3.5]},
        task_hosts={"worker:0": "a", "worker:1": "b", "ps:0": "c"},
        state=state,
    )
    assert busy_s(run) == 2.5


def test_each_processor_has_its_own_table() -> None:
    """Steps of two processors at one rate are in two tables with the processor's name, and slow links come first."""
    cells_ = [Cell("vgg16", rate, 1, "greedy", "fp32") for rate in ("10gbit", "10gbit", "1gbit")]
    names = ("Xeon", "EPYC", "Xeon")
    results = [Result(cell, 4.0, "link", (5.0,), processor=name) for cell, name in zip(cells_, names, strict=True)]
    lines = list(tables(results))
    assert [line for line in lines if line.startswith("At")] == [
        "At 1 Gbit/s, on Xeon:",
        "At 10 Gbit/s, on EPYC:",
        "At 10 Gbit/s, on Xeon:",
    ]
    assert lines.count("| vgg16, 1 | 1 | 5.00 s, 80 % link |") == 3


def test_one_server_is_in_each_placement_column() -> None:
    """A row of one server has the same step in the column of each placement."""
    one = Result(Cell("vgg16", "1gbit", 1, "greedy", "fp32"), 4.0, "link", (5.0,))
    two = [Result(Cell("vgg16", "1gbit", 2, placement, "fp32"), 4.0, "link", (8.0,)) for placement in ("greedy", "split")]
    assert "| vgg16, 1 | 1 | 5.00 s, 80 % link | 5.00 s, 80 % link |" in list(tables([one, *two]))


def test_page_has_tables_of_the_stored_cells() -> None:
    """The tables of capacity in docs/network-study.md are complete and are those of the stored cells."""
    page = (Path(__file__).parents[2] / "docs" / "network-study.md").read_text(encoding="utf-8")
    made = "\n".join([*tables(load_results(KEPT, Result.from_json)), "\n"])
    shown = re.findall(r"(?ms)^At [^\n]+, on [^\n]+:\n\n.+?\n\n", page)
    assert len(shown) > 2
    assert not [table for table in shown if table not in made]
