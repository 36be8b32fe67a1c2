"""Tables of sweeps, like those of the report of 2017."""

from dataclasses import replace

import pytest

from pytest_dtfperf.baselines.files import validate
from pytest_dtfperf.datamodel.explanation import SweepState
from pytest_dtfperf.errors import DtfPerfError
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.report import terminal
from pytest_dtfperf.report.measurement_text import ABOUT_SWEEPS, make_sweep_grids
from tests.records.samples import record, spec

SWEEP = SweepState(
    most=8,
    tried={"1 servers, 10 steps": 90.0, "3 servers, 10 steps": 99.0, "3 servers, 20 steps": 101.0},
    predicted={"1": 92.0, "3": 104.0},
    failed={"8": "no memory"},
)
FOUND = [
    replace(record(spec(gpus=8, num_ps=3), 100.0, 102.0, efficiency=0.9), sweep=SWEEP),
    replace(record(spec(gpus=2, num_ps=1), 30.0), sweep=replace(SWEEP, most=2, tried={})),
    record(spec(gpus=8, num_ps=1), 90.0),
]


def test_each_sweep_has_a_row() -> None:
    """Each sweep has a row, the smallest first, with the longest short run of each count."""
    (grid,) = make_sweep_grids(FOUND)
    assert [row[1:] for row in grid.rows] == [
        ["2", "1", "2", "30.00", "-", "-"],
        ["8", "3", "8", "101.0", "90.0 %", "1: 90.00, 3: 101.0"],
    ]
    assert all(row[0] == "inception3 b8 parameter_server" for row in grid.rows)
    assert make_sweep_grids(FOUND[2:]) == []


@pytest.mark.parametrize("name", ["1", "0 servers, 10 steps", "many servers, 10 steps", "1 servers"])
def test_invalid_name_of_a_short_run_is_refused(name: str) -> None:
    """A stored record with an invalid name of a short run is refused."""
    whole = FOUND[0].to_json()
    validate(Record, whole, "measurements.jsonl:1")
    with pytest.raises(DtfPerfError, match=r"measurements.jsonl:1.*sweep"):
        validate(Record, {**whole, "sweep": {**SWEEP.to_json(), "tried": {name: 90.0}}}, "measurements.jsonl:1")


def test_summary_has_the_sweeps() -> None:
    """The summary has the table of sweeps without -v, and nothing without sweeps."""
    assert ABOUT_SWEEPS in " ".join(terminal.format_summary(FOUND, width=120).split())
    assert "1: 90.00, 3: 101.0" in terminal.format_summary(FOUND, width=120)
    assert ABOUT_SWEEPS not in " ".join(terminal.format_summary(FOUND[2:], width=120).split())
