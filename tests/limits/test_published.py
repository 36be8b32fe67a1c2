"""Tests of limits from data sheets, for published rates."""

import pytest

from pytest_dtfperf.baselines.references import Reference, references
from pytest_dtfperf.limits.limit import HARDWARE, compute_published_limit
from pytest_dtfperf.records.arithmetic import peak_of


def list_rows(system: str, **wanted: object) -> list[Reference]:
    """Return the rows of a system with these values, of which there is at least one."""
    found = [
        row
        for row in references()
        if row.system == system and all(getattr(row, name) == value for name, value in wanted.items())
    ]
    assert found
    return found


def test_every_system_is_published_and_has_a_peak() -> None:
    """Each system of the table has published rates, a GPU with a known peak, and a source."""
    assert HARDWARE.keys() <= {row.system for row in references()}
    for hardware in HARDWARE.values():
        assert peak_of(hardware.gpu, "fp32")
        assert hardware.source


def test_gpus_bind_on_one_machine() -> None:
    """The GPUs of a DGX-1 set the limit of InceptionV3, at 10.6 TFLOP/s each and three times 11.4 GFLOP an image."""
    for row in list_rows("dgx1", model="inception3", gpus=8, precision="fp32"):
        found = compute_published_limit(row)
        assert found.binding
        assert found.binding.resource == "gpus"
        assert found.images_per_sec == pytest.approx(8 * 10.6e12 / 34.3e9, rel=0.01)


def test_published_link_bounds_the_rate() -> None:
    """A published link is a bound, and without a published number of servers only the GPUs are."""
    (row,) = list_rows("cscs-ec2-p2.8xlarge", gpus=128, data="synthetic")
    assert {bound.resource for bound in compute_published_limit(row).bounds} >= {"gpus", "link"}
    unsaid = [row for row in list_rows("google-ec2-p2.8xlarge-distributed") if row.num_ps is None]
    assert unsaid
    for row in unsaid:
        assert {bound.resource for bound in compute_published_limit(row).bounds} == {"gpus"}


def test_unknown_hardware_has_no_limit() -> None:
    """A system with unknown hardware has no limit, and has the reason."""
    for system in ("ec2-m4.xlarge", "8xp100"):
        for row in list_rows(system):
            found = compute_published_limit(row)
            assert (found.images_per_sec, found.unknown["gpus"]) == (
                None,
                f"the hardware of {system}, or its training, is not known",
            )
