"""The study of how much network a training needs: its cells, and what the tables say of them."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.capacity import BATCH, EQUAL, EQUAL_RATES, KEPT, RATES, SERVERS, Cell, Result, busy_s, cells, tables
from benchmarks.shaped import kept
from pytest_dtfperf.spec import VARIABLE_PLACEMENTS
from pytest_dtfperf.spec.tables import WIRE_PRECISIONS
from tests.baselines.examples import run_of
from tests.records.host_states import make_state


def test_every_placement_and_precision_is_a_cell_but_that_one_server_has_no_choice() -> None:
    """No cell comes twice, and of one server there is one placement."""
    found = list(cells())
    trainings = len(RATES) * len(BATCH) * len(WIRE_PRECISIONS) + 1
    larger = len(EQUAL) * len(EQUAL_RATES) * (len(SERVERS) - 1)
    assert len(set(found)) == len(found) == trainings * (1 + (len(SERVERS) - 1) * len(VARIABLE_PLACEMENTS)) + larger
    assert {cell.placement for cell in found if cell.num_ps == 1} == {"greedy"}


def test_what_was_measured_is_read_as_it_was_written() -> None:
    """A line of the file is the result again, one that was not tried too, with the day on which it was measured."""
    cell = Cell("vgg16", "1gbit", 2, "split", "bf16")
    for one in (Result(cell, 4.0, "link", (5.0, 5.5), day="2026-11-25"), Result(cell, 90.0, "link", why="more than 60 s")):
        assert Result.from_json(one.to_json()) == one


@pytest.mark.parametrize(("limit_s", "steps"), [(9.9, 3), (10.1, 1)])
def test_of_long_steps_one_is_measured(limit_s: float, steps: int) -> None:
    """Where the links make a step long, one tells; of shorter ones there are three, and the heap has grown before."""
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
def test_a_table_says_whose_limit_a_step_is_near(result: Result, rate: str, row: str) -> None:
    """Seconds of a step, its part of the limit, and what binds; or what it takes at least where it was not tried."""
    told = list(tables([result]))
    assert told[0] == f"At {rate} Gbit/s, on {result.processor}:"
    assert row in told


def test_a_larger_batch_is_a_row_of_its_own() -> None:
    """Below its model's small one, whose line of the file says nothing of batches."""
    cells_ = [Cell("resnet50", "300mbit", 2, "split", "fp32", batch_size) for batch_size in (None, 8)]
    results = [Result(cell, 3.0, "link", (4.0,)) for cell in cells_]
    assert [line for line in tables(results) if "resnet50" in line] == [
        "| resnet50, 2 | 2 | 4.00 s, 75 % link |",
        "| resnet50, 8 | 2 | 4.00 s, 75 % link |",
    ]
    old = results[0].to_json().replace(', "larger_batch": null', "")
    assert "batch" not in old
    assert Result.from_json(old) == results[0]


def test_cores_are_busy_for_a_part_of_a_step() -> None:
    """Of two workers with a core and with two, busy for 6 and for 8 seconds of 2 steps, the mean is 2.5 seconds of each; what
    the servers' host says of the same cores does not count.
    """
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


def test_what_other_processors_computed_is_another_table() -> None:
    """Steps of two processors at one rate stand in a table each, which names its own; those on slow links come first."""
    cells_ = [Cell("vgg16", rate, 1, "greedy", "fp32") for rate in ("10gbit", "10gbit", "1gbit")]
    names = ("Xeon", "EPYC", "Xeon")
    results = [Result(cell, 4.0, "link", (5.0,), processor=name) for cell, name in zip(cells_, names, strict=True)]
    told = list(tables(results))
    assert [line for line in told if line.startswith("At")] == [
        "At 1 Gbit/s, on Xeon:",
        "At 10 Gbit/s, on EPYC:",
        "At 10 Gbit/s, on Xeon:",
    ]
    assert told.count("| vgg16, 1 | 1 | 5.00 s, 80 % link |") == 3


def test_one_server_stands_below_every_placement() -> None:
    """Where there is one server its step is that of each placement."""
    one = Result(Cell("vgg16", "1gbit", 1, "greedy", "fp32"), 4.0, "link", (5.0,))
    two = [Result(Cell("vgg16", "1gbit", 2, placement, "fp32"), 4.0, "link", (8.0,)) for placement in ("greedy", "split")]
    assert "| vgg16, 1 | 1 | 5.00 s, 80 % link | 5.00 s, 80 % link |" in list(tables([one, *two]))


def test_the_page_states_what_was_kept() -> None:
    """Each line of the tables in docs/variable-update.md is made from the cells that are kept."""
    page = (Path(__file__).parents[2] / "docs" / "variable-update.md").read_text(encoding="utf-8").splitlines()
    lines = [line for line in tables(kept(KEPT, Result.from_json)) if line]
    assert len(lines) > 2
    assert not [line for line in lines if line not in page]
