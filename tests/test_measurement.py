"""Tests of a measurement of several runs, and of values computed from several measurements."""

import json

import pytest

from pytest_dtfperf.datamodel.fingerprint import Fingerprint
from pytest_dtfperf.datamodel.measurement import Measurement, Run, efficiency, io_overhead, scaling_efficiency
from pytest_dtfperf.spec import Spec

SPEC = Spec(model="trivial", batch_size=10, gpus=2, num_ps=1, steps=4)


def measurement(*rates: float, gpus: int = 1) -> Measurement:
    runs = [
        Run(
            images_per_sec=rate, elapsed_s=1.0, step_s={}, loss=[], startup_s={}, bytes_sent=0, bytes_received=0,
            peak_rss_bytes={}, cpu_s={}, wall_s=1.0,
        )
        for rate in rates
    ]  # fmt: skip
    return Measurement(spec=SPEC.replace(gpus=gpus), runs=runs, hosts=["n1"], fingerprint=Fingerprint())


def test_measurement_is_the_median_of_its_runs() -> None:
    """Rate and spread of a measurement are the median and the half range of its runs, relative to the median."""
    assert measurement(90, 120, 100).images_per_sec == 100
    assert measurement(90, 120, 100).spread == pytest.approx(0.15)
    assert measurement(90).spread is None


def test_measurement_survives_json() -> None:
    """A measurement comes back from JSON as it was."""
    one = measurement(90, 100)
    assert Measurement.from_json(json.loads(json.dumps(one.to_json()))) == one


def test_efficiency_and_overhead_follow_their_formulas() -> None:
    """Efficiency is rate(n) / (n x rate(1)), and overhead (synthetic - real) / synthetic, which may be negative."""
    assert efficiency(measurement(180, gpus=2), measurement(100)) == pytest.approx(0.9)
    assert scaling_efficiency(1018.18, 8, 138.23) == pytest.approx(0.9207, abs=5e-5)
    assert io_overhead(1077.59, 1080.12) == pytest.approx(-0.0023, abs=5e-5)
