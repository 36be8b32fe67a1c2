"""Which published rows are shown, out of all that there are."""

from pytest_dtfperf.baselines.references import references_for
from pytest_dtfperf.report.series import PublishedPoint, find_nearest, take_in_turns
from tests.records.samples import spec

ALL = [PublishedPoint.of(reference) for reference in references_for(spec())]


def test_every_system_has_its_turn() -> None:
    """Beside a 2-device measurement stands one 2-device row of every system that published one, trained alike."""
    chosen = find_nearest(ALL, {spec(), spec(gpus=2, num_ps=1)}, most=6)
    assert [(row.system, row.gpus, row.data) for row in chosen] == [
        ("EC2 p2.8xlarge (CSCS)", 2, "synthetic"),
        ("EC2 p2.8xlarge (Google)", 2, "synthetic"),
        ("EC2 p2.xlarge (CSCS)", 2, "synthetic"),
        ("GCE n1-standard-32, 8 K80 (Google)", 2, "synthetic"),
        ("NVIDIA DGX-1 (Google)", 2, "synthetic"),
        ("Piz Daint (CSCS)", 2, "synthetic"),
    ]


def test_other_device_counts_fill_up() -> None:
    """Where nobody published the device count that was measured, other counts are shown rather than nothing."""
    chosen = find_nearest(ALL, {spec(gpus=3, num_ps=1)}, most=6)
    assert len(chosen) == 6
    assert len({row.system for row in chosen}) == 6


def test_no_more_than_there_are() -> None:
    """Few rows are all shown, each once."""
    assert len(find_nearest(ALL[:3], {spec()}, most=6)) == 3
    assert find_nearest([], {spec()}, most=6) == []


def test_in_turn() -> None:
    """The first of every kind comes before the second of any."""
    assert take_in_turns([1, 2, 3, 4, 5], ["a", "a", "a", "b", "b"]) == [1, 4, 2, 5, 3]
