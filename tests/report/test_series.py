"""Lines of the scaling figure: their points and labels."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from pytest_dtfperf.baselines.references import references_for
from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.records.record import Record, with_efficiencies
from pytest_dtfperf.report.series import PublishedPoint, ScalingSeries, make_measured_series, make_published_series
from tests.records.host_states import ANOTHER_USER
from tests.records.samples import record, spec

LONE = record(spec(), 10.0)
MNIST = {"model": "mnist", "batch_size": 64, "data": "mnist", "data_dir": "/digits"}


def make_record(gpus: int, num_ps: int, images_per_sec: float = 10.0) -> Record:
    return record(spec(gpus=gpus, num_ps=num_ps), images_per_sec)


def lines_of(records: Sequence[Record]) -> list[ScalingSeries]:
    """Return the lines of a session with these records."""
    return make_measured_series(with_efficiencies(replace(each, id=f"r{number}") for number, each in enumerate(records)))


@pytest.mark.parametrize(
    "records, expected",
    [
        ([LONE, make_record(2, 1), make_record(4, 1)], {"parameter_server, 1 ps": [1, 2, 4]}),
        ([LONE, make_record(2, 2), make_record(4, 4)], {"parameter_server, one ps per device": [1, 2, 4]}),
        ([LONE, make_record(2, 1), make_record(4, 2)], {"parameter_server, 1, 2 ps": [1, 2, 4]}),
        (
            [LONE, make_record(2, 1), make_record(2, 2), make_record(4, 2)],
            {"parameter_server, 1 ps": [1, 2], "parameter_server, 2 ps": [1, 2, 4]},
        ),
        ([make_record(1, 1), make_record(2, 1)], {"parameter_server, 1 ps": [1, 2]}),
        ([LONE, make_record(1, 1), make_record(2, 1)], {"parameter_server, 1 ps": [1, 2], "parameter_server": [1]}),
        (
            [LONE, record(spec(gpus=2, variable_update="replicated"), 18.0)],
            {"replicated": [2], "parameter_server": [1]},
        ),
        (
            [record(spec(**MNIST), 10.0), record(spec(**MNIST, gpus=2, num_ps=1), 18.0)],
            {"parameter_server data=mnist, 1 ps": [1, 2]},
        ),
        ([make_record(2, 1), replace(make_record(2, 1), verdict=Verdict.TAINTED)], {"parameter_server, 1 ps": [2]}),
        (
            [make_record(1, 1), make_record(2, 1), *(record(spec(gpus=n, num_ps=1, precision="bf16"), 20.0) for n in (1, 2))],
            {"parameter_server precision=fp32, 1 ps": [1, 2], "parameter_server precision=bf16, 1 ps": [1, 2]},
        ),
        (
            [make_record(2, 1), record(spec(gpus=2, num_ps=1, data_format="NCHW", optimizer="momentum"), 20.0)],
            {
                "parameter_server data_format=nhwc optimizer=sgd, 1 ps": [2],
                "parameter_server data_format=nchw optimizer=momentum, 1 ps": [2],
            },
        ),
    ],
)
def test_each_configuration_has_a_line(records: list[Record], expected: dict[str, list[int]]) -> None:
    """Each configuration and number of servers has a line, which begins with its own 1-device measurement if there is one."""
    lines = lines_of(records)
    assert {line.label: [point.gpus for point in line.points] for line in lines} == expected
    assert len(lines) == len(expected)


def test_line_has_the_efficiencies_of_its_records() -> None:
    """A line has the records' efficiencies; the 1-device measurement has 1, and without an anchor there is none."""
    records = [LONE, make_record(2, 1, 18.0), record(spec(**MNIST, gpus=2, num_ps=1), 12.0)]
    synthetic, real = sorted(lines_of(records), key=lambda line: line.data, reverse=True)
    assert [(point.efficiency, point.ideal) for point in synthetic.points] == [(1.0, 10.0), (0.9, 20.0)]
    assert [(point.efficiency, point.ideal) for point in real.points] == [(None, None)]


def test_disturbed_point_is_marked() -> None:
    """A disturbed measurement is marked and has no efficiency; a later valid one replaces it."""
    disturbed = replace(make_record(2, 1, 9.0), verdict=Verdict.TAINTED)
    (line,) = lines_of([make_record(1, 1, 10.0), disturbed])
    assert [(point.is_tainted, point.efficiency) for point in line.points] == [(False, 1.0), (True, None)]
    (line,) = lines_of([make_record(1, 1, 10.0), disturbed, make_record(2, 1, 18.0)])
    assert [(point.is_tainted, point.efficiency) for point in line.points] == [(False, 1.0), (False, 0.9)]


def test_invalid_point_is_not_shown() -> None:
    """An INVALID measurement is no point, and replaces no other one."""
    disturbed = replace(make_record(2, 1, 9.0), verdict=Verdict.TAINTED)
    runs = [replace(run, disturbances=[ANOTHER_USER]) for run in make_record(2, 1, 99.0).measurement.runs]
    invalid = replace(make_record(2, 1), verdict=Verdict.INVALID, measurement=replace(make_record(2, 1).measurement, runs=runs))
    assert (invalid.is_disturbed, invalid.is_tainted, invalid.is_valid) == (True, False, False)
    (line,) = lines_of([make_record(1, 1, 10.0), invalid])
    assert [point.gpus for point in line.points] == [1]
    (line,) = lines_of([make_record(1, 1, 10.0), disturbed, invalid])
    assert [(point.gpus, point.images_per_sec) for point in line.points] == [(1, 10.0), (2, 9.0)]


def test_published_lines_are_few_and_of_different_hardware() -> None:
    """Published lines are limited, one for each system, with synthetic input."""
    published = [PublishedPoint.from_reference(reference) for reference in references_for(spec())]
    lines = make_published_series(published, [spec()], most_gpus=8)

    assert len(lines) == 4
    assert {line.data for line in lines} == {"synthetic"}
    assert all(len(line.points) > 1 and line.points[-1].gpus <= 8 for line in lines)
    assert any(line.label == "Piz Daint (CSCS), b64: E. Bugliarello (CSCS) 2017-08, Table 1" for line in lines)
    assert any(line.label.startswith("NVIDIA DGX-1") for line in lines)


def test_no_published_line_for_an_unknown_model() -> None:
    """A model without published rates has no published lines."""
    assert make_published_series([], [spec(model="mnist", batch_size=64)], most_gpus=8) == []
