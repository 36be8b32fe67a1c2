"""Which points make a line of the scaling figure, and what the line is called."""

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


def ps(gpus: int, num_ps: int, images_per_sec: float = 10.0) -> Record:
    return record(spec(gpus=gpus, num_ps=num_ps), images_per_sec)


def lines_of(records: Sequence[Record]) -> list[ScalingSeries]:
    """The lines of a session that has measured these."""
    return make_measured_series(with_efficiencies(replace(each, id=f"r{number}") for number, each in enumerate(records)))


@pytest.mark.parametrize(
    "records, expected",
    [
        ([LONE, ps(2, 1), ps(4, 1)], {"parameter_server, 1 ps": [1, 2, 4]}),
        ([LONE, ps(2, 2), ps(4, 4)], {"parameter_server, one ps per device": [1, 2, 4]}),
        ([LONE, ps(2, 1), ps(4, 2)], {"parameter_server, 1, 2 ps": [1, 2, 4]}),
        ([LONE, ps(2, 1), ps(2, 2), ps(4, 2)], {"parameter_server, 1 ps": [1, 2], "parameter_server, 2 ps": [1, 2, 4]}),
        ([ps(1, 1), ps(2, 1)], {"parameter_server, 1 ps": [1, 2]}),
        ([LONE, ps(1, 1), ps(2, 1)], {"parameter_server, 1 ps": [1, 2], "parameter_server": [1]}),
        (
            [LONE, record(spec(gpus=2, variable_update="replicated"), 18.0)],
            {"replicated": [2], "parameter_server": [1]},
        ),
        (
            [record(spec(**MNIST), 10.0), record(spec(**MNIST, gpus=2, num_ps=1), 18.0)],
            {"parameter_server data=mnist, 1 ps": [1, 2]},
        ),
        ([ps(2, 1), replace(ps(2, 1), verdict=Verdict.TAINTED)], {"parameter_server, 1 ps": [2]}),
        (
            [ps(1, 1), ps(2, 1), *(record(spec(gpus=n, num_ps=1, precision="bf16"), 20.0) for n in (1, 2))],
            {"parameter_server precision=fp32, 1 ps": [1, 2], "parameter_server precision=bf16, 1 ps": [1, 2]},
        ),
        (
            [ps(2, 1), record(spec(gpus=2, num_ps=1, data_format="NCHW", optimizer="momentum"), 20.0)],
            {
                "parameter_server data_format=nhwc optimizer=sgd, 1 ps": [2],
                "parameter_server data_format=nchw optimizer=momentum, 1 ps": [2],
            },
        ),
    ],
)
def test_lines(records: list[Record], expected: dict[str, list[int]]) -> None:
    """One line per configuration and number of parameter servers; its own 1-device measurement begins each, if there is one."""
    lines = lines_of(records)
    assert {line.label: [point.gpus for point in line.points] for line in lines} == expected
    assert len(lines) == len(expected)


def test_a_line_has_the_efficiencies_of_its_records() -> None:
    """What the records say is drawn; the line's own 1-device measurement has 1, and what has no anchor has none."""
    records = [LONE, ps(2, 1, 18.0), record(spec(**MNIST, gpus=2, num_ps=1), 12.0)]
    synthetic, real = sorted(lines_of(records), key=lambda line: line.data, reverse=True)
    assert [(point.efficiency, point.ideal) for point in synthetic.points] == [(1.0, 10.0), (0.9, 20.0)]
    assert [(point.efficiency, point.ideal) for point in real.points] == [(None, None)]


def test_what_was_disturbed_is_marked() -> None:
    """A measurement that others disturbed is shown as such, with no efficiency; a later sound one takes its place."""
    disturbed = replace(ps(2, 1, 9.0), verdict=Verdict.TAINTED)
    (line,) = lines_of([ps(1, 1, 10.0), disturbed])
    assert [(point.is_tainted, point.efficiency) for point in line.points] == [(False, 1.0), (True, None)]
    (line,) = lines_of([ps(1, 1, 10.0), disturbed, ps(2, 1, 18.0)])
    assert [(point.is_tainted, point.efficiency) for point in line.points] == [(False, 1.0), (False, 0.9)]


def test_what_is_invalid_is_not_shown() -> None:
    """Numbers that cannot be true are no point, and take no other's place, though something disturbed their runs as well."""
    disturbed = replace(ps(2, 1, 9.0), verdict=Verdict.TAINTED)
    runs = [replace(run, disturbances=[ANOTHER_USER]) for run in ps(2, 1, 99.0).measurement.runs]
    invalid = replace(ps(2, 1), verdict=Verdict.INVALID, measurement=replace(ps(2, 1).measurement, runs=runs))
    assert (invalid.is_disturbed, invalid.is_tainted, invalid.is_valid) == (True, False, False)
    (line,) = lines_of([ps(1, 1, 10.0), invalid])
    assert [point.gpus for point in line.points] == [1]
    (line,) = lines_of([ps(1, 1, 10.0), disturbed, invalid])
    assert [(point.gpus, point.images_per_sec) for point in line.points] == [(1, 10.0), (2, 9.0)]


def test_published_lines_are_few_and_of_different_hardware() -> None:
    """One line per system, synthetic input and full batches first, every kind of GPU before a second of one kind."""
    published = [PublishedPoint.of(reference) for reference in references_for(spec())]
    lines = make_published_series(published, [spec()], most_gpus=8)

    assert len(lines) == 4
    assert {line.data for line in lines} == {"synthetic"}
    assert all(len(line.points) > 1 and line.points[-1].gpus <= 8 for line in lines)
    assert any(line.label == "Piz Daint (CSCS), b64: E. Bugliarello (CSCS) 2017-08, Table 1" for line in lines)
    assert any(line.label.startswith("NVIDIA DGX-1") for line in lines)


def test_no_published_line_for_an_unknown_model() -> None:
    """A model that nobody published has no lines beside its own."""
    assert make_published_series([], [spec(model="mnist", batch_size=64)], most_gpus=8) == []
