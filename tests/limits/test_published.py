"""What data sheets allow the systems of published rates."""

import pytest

from pytest_dtfperf.baselines.references import Reference, references
from pytest_dtfperf.limits.limit import HARDWARE, compute_published_limit
from pytest_dtfperf.records.arithmetic import peak_of


def rows(system: str, **wanted: object) -> list[Reference]:
    """There are some."""
    found = [
        row
        for row in references()
        if row.system == system and all(getattr(row, name) == value for name, value in wanted.items())
    ]
    assert found
    return found


def test_every_system_is_published_and_has_a_peak() -> None:
    """No row of the table is of nothing, and each GPU is in the table of peaks, with its source."""
    assert HARDWARE.keys() <= {row.system for row in references()}
    for hardware in HARDWARE.values():
        assert peak_of(hardware.gpu, "fp32")
        assert hardware.source


def test_a_gpu_binds() -> None:
    """InceptionV3 on the DGX-1's eight P100s: 10.6 TFLOP/s each, and three times 11.4 GFLOP an image."""
    for row in rows("dgx1", model="inception3", gpus=8, precision="fp32"):
        found = compute_published_limit(row)
        assert found.binding
        assert found.binding.resource == "gpus"
        assert found.images_per_sec == pytest.approx(8 * 10.6e12 / 34.3e9, rel=0.01)


def test_a_link_is_known_where_it_is_written_down() -> None:
    """Sixteen p2.8xlarge move known bytes at 10 Gbit/s; where a publication leaves something out, no link counts."""
    (row,) = rows("cscs-ec2-p2.8xlarge", gpus=128, data="synthetic")
    assert {bound.resource for bound in compute_published_limit(row).bounds} >= {"gpus", "link"}
    unsaid = [row for row in rows("google-ec2-p2.8xlarge-distributed") if row.num_ps is None]
    assert unsaid
    for row in unsaid:
        assert {bound.resource for bound in compute_published_limit(row).bounds} == {"gpus"}


def test_what_is_not_known_has_none() -> None:
    """CPUs, inference, and GPUs that the publication does not name exactly: the reason instead of a guess."""
    for system in ("ec2-m4.xlarge", "8xp100"):
        for row in rows(system):
            found = compute_published_limit(row)
            assert (found.images_per_sec, found.unknown["gpus"]) == (
                None,
                f"the hardware of {system}, or its training, is not known",
            )
