"""The network as the bottleneck: the same training over links of 10 Gbit/s, 1 Gbit/s and 100 Mbit/s between two machines.

It is what the report of 2017 found in the cloud. MNIST with one image per step has next to nothing to compute and 13.1 MB of
variables, which travel to the worker and back as gradients, one after the other: a step takes what the training takes by itself
and what the bytes take, and the rate is one over it.
"""

import statistics
import sys
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from pytest_dtfperf.datamodel.measurement import Run
from tests.clusters.ssh.lab import Lab, why_not
from tests.machines.machine import bit_per_s
from tests.real.test_ssh import ON_THE_WIRE, train_mnist

STEPS = {"10gbit": 60, "1gbit": 40, "100mbit": 15}
WITHIN = 0.15  # of the rate that bytes and bandwidth say


def step_s(run: Run) -> float:
    return statistics.median(run.step_s["worker:0"])


def test_rate_falls_with_bandwidth(benchmark: BenchmarkFixture, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """images/sec at each bandwidth, and how near it is to what bytes per step over bandwidth say. What a step takes besides is
    known from the fastest link, which so is as expected by itself."""
    if reason := why_not(namespaces=True):
        pytest.skip(reason)
    runs: list[Run] = []
    with Lab(2, namespaces=True) as lab:
        benchmark.pedantic(lambda: runs.extend(train_mnist(lab, list(STEPS.items()), tmp_path)), rounds=1)
    fastest = runs[0]
    bits = (fastest.bytes_sent + fastest.bytes_received) * 8 * ON_THE_WIRE / STEPS["10gbit"]
    by_itself_s = step_s(fastest) - bits / bit_per_s("10gbit")
    rows = []
    for (rate, _), run in zip(STEPS.items(), runs, strict=True):
        expected = 1 / (by_itself_s + bits / bit_per_s(rate))
        measured = 1 / step_s(run)
        rows.append((rate, measured, expected))
        benchmark.extra_info[f"{rate}, images/sec"] = f"{measured:.3f}, expected {expected:.3f}"
    with capsys.disabled():
        for rate, measured, expected in rows:
            sys.stdout.write(
                f"\n{rate:>8}  {measured:8.3f} images/sec, expected {expected:8.3f} ({measured / expected - 1:+.1%})"
            )
        sys.stdout.write(f"\n{bits / 8e6:.1f} MB per step on the wire, {by_itself_s:.4f} s per step without a network\n")
    for rate, measured, expected in rows:
        assert measured == pytest.approx(expected, rel=WITHIN), rate
