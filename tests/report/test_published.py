"""Selection of the published rows that are shown."""

from dataclasses import replace

import pytest

from pytest_dtfperf.baselines.references import references_for
from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.datamodel.fingerprint import Fingerprint
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.report.notes import list_published_rates
from pytest_dtfperf.report.series import PublishedPoint, find_nearest, take_in_turns
from pytest_dtfperf.report.terminal import format_summary
from tests.records.samples import record, spec

ALL = [PublishedPoint.from_reference(reference) for reference in references_for(spec())]


def test_each_system_has_one_row() -> None:
    """A 2-device measurement has one 2-device row of every system that published one."""
    chosen = find_nearest(ALL, {spec(), spec(gpus=2, num_ps=1)}, most=6)
    assert [(row.system, row.gpus, row.data) for row in chosen] == [
        ("EC2 p2.8xlarge (CSCS)", 2, "synthetic"),
        ("EC2 p2.8xlarge (Google)", 2, "synthetic"),
        ("EC2 p2.xlarge (CSCS)", 2, "synthetic"),
        ("GCE n1-standard-32, 8 K80 (Google)", 2, "synthetic"),
        ("NVIDIA DGX-1 (Google)", 2, "synthetic"),
        ("Piz Daint (CSCS)", 2, "synthetic"),
    ]


def test_other_device_counts_are_used() -> None:
    """If no system published the measured device count, rows of other counts are selected."""
    chosen = find_nearest(ALL, {spec(gpus=3, num_ps=1)}, most=6)
    assert len(chosen) == 6
    assert len({row.system for row in chosen}) == 6


def test_few_rows_are_all_selected() -> None:
    """Few rows are all selected, each once."""
    assert len(find_nearest(ALL[:3], {spec()}, most=6)) == 3
    assert find_nearest([], {spec()}, most=6) == []


def test_take_in_turns_alternates_kinds() -> None:
    """The first of every kind comes before the second of any."""
    assert take_in_turns([1, 2, 3, 4, 5], ["a", "a", "a", "b", "b"]) == [1, 4, 2, 5, 3]


def make_record_on_gpus(name: str, count: int, *, verdict: Verdict = Verdict.NO_BASELINE) -> Record:
    """Return a record of InceptionV3 on 8 devices in hosts with these GPUs."""
    found = record(spec(batch_size=64, gpus=8, num_ps=2), 950.0, verdict=verdict)
    gpus = {"gpus": [{"name": name, "memory_gib": 16}] * count}
    return replace(found, measurement=replace(found.measurement, fingerprint=Fingerprint.from_json({"hardware": gpus})))


def test_published_rate_of_equal_gpus_is_beside_a_measurement_without_a_baseline() -> None:
    """The nearest published rate of the same training on the same GPUs has a line, once, with its source and the difference."""
    (line,) = list_published_rates([make_record_on_gpus("Tesla P100-PCIE-16GB", 1)] * 2)
    assert line == (
        "Published (no verdict): inception3 b64 gpus=8 num_ps=2 parameter_server: 1018 images/sec on "
        "Piz Daint (CSCS), E. Bugliarello (CSCS) 2017-08, Table 1: here -6.7 %"
    )
    assert "Published (no verdict)" in format_summary([make_record_on_gpus("Tesla P100-PCIE-16GB", 1)], width=200)


@pytest.mark.parametrize(
    "other",
    [
        make_record_on_gpus("NVIDIA H100 80GB HBM3", 1),
        make_record_on_gpus("Tesla P100-PCIE-16GB", 4),
        make_record_on_gpus("Tesla P100-PCIE-16GB", 1, verdict=Verdict.PASSED),
        make_record_on_gpus("Tesla P100-PCIE-16GB", 1, verdict=Verdict.INVALID),
        record(spec(batch_size=64, gpus=8, num_ps=2), 950.0, verdict=Verdict.NO_BASELINE),
    ],
    ids=["other GPUs", "other hosts", "with a baseline", "invalid", "cores"],
)
def test_published_rates_of_other_trainings_are_not_shown(other: Record) -> None:
    """A measurement on other hardware, with a baseline or without a valid rate has no published rate beside it."""
    assert list_published_rates([other]) == []
