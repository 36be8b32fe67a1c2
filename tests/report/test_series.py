"""Which points make a line of the scaling figure, and what the line is called."""

import pytest

from pytest_dtfperf.baselines.references import references_for
from pytest_dtfperf.report.published import Published
from pytest_dtfperf.report.record import Record
from pytest_dtfperf.report.series import measured_series, published_series
from tests.report.records import record, spec

LONE = record(spec(), 10.0)
MNIST = {"model": "mnist", "batch_size": 64, "data": "mnist", "data_dir": "/digits"}


def ps(gpus: int, num_ps: int, images_per_sec: float = 10.0) -> Record:
    return record(spec(gpus=gpus, num_ps=num_ps), images_per_sec)


@pytest.mark.parametrize(
    "records, expected",
    [
        ([LONE, ps(2, 1), ps(4, 1)], {"parameter_server, 1 ps": [1, 2, 4]}),
        ([LONE, ps(2, 2), ps(4, 4)], {"parameter_server, one ps per device": [1, 2, 4]}),
        ([LONE, ps(2, 1), ps(4, 2)], {"parameter_server, 1, 2 ps": [1, 2, 4]}),
        ([LONE, ps(2, 1), ps(2, 2), ps(4, 2)], {"parameter_server, 1 ps": [1, 2], "parameter_server, 2 ps": [1, 2, 4]}),
        ([ps(1, 1), ps(2, 1)], {"parameter_server, 1 ps": [1, 2]}),
        ([LONE, ps(1, 1), ps(2, 1)], {"parameter_server, 1 ps": [1, 2]}),
        ([LONE, record(spec(gpus=2, variable_update="replicated"), 18.0)], {"replicated": [1, 2]}),
        (
            [record(spec(**MNIST), 10.0), record(spec(**MNIST, gpus=2, num_ps=1), 18.0)],
            {"parameter_server data=mnist, 1 ps": [1, 2]},
        ),
        ([LONE], {"one device, synthetic": [1]}),
    ],
)
def test_lines(records: list[Record], expected: dict[str, list[int]]) -> None:
    """One line per kind of training and number of parameter servers, each begun by the lone process."""
    assert {line.label: [point.gpus for point in line.points] for line in measured_series(records)} == expected


def test_efficiency_is_anchored_at_the_one_device_rate_of_the_same_input() -> None:
    """Real input is divided by real input's own 1-device rate; without one there is no efficiency."""
    records = [LONE, ps(2, 1, 18.0), record(spec(**MNIST, gpus=2, num_ps=1), 12.0)]
    synthetic, real = sorted(measured_series(records), key=lambda line: line.data, reverse=True)
    assert [point.efficiency for point in synthetic.points] == [1.0, 0.9]
    assert [point.efficiency for point in real.points] == [None]


def test_published_lines_are_few_and_of_different_hardware() -> None:
    """One line per system, synthetic input and full batches first, every kind of GPU before a second of one kind."""
    published = [Published.of(reference) for reference in references_for(spec())]
    lines = published_series(published, "inception3", 8, most_gpus=8)

    assert len(lines) == 4
    assert {line.data for line in lines} == {"synthetic"}
    assert all(len(line.points) > 1 and line.points[-1].gpus <= 8 for line in lines)
    assert any(line.label == "Piz Daint (CSCS): E. Bugliarello (CSCS) 2017-08, Table 1" for line in lines)
    assert any(line.label.startswith("NVIDIA DGX-1") for line in lines)


def test_no_published_line_for_an_unknown_model() -> None:
    """A model that nobody published has no lines beside its own."""
    assert published_series([], "mnist", 64, most_gpus=8) == []
