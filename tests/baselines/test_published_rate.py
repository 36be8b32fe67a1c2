"""Measurements against published numbers."""

from typing import Any

import pytest

from pytest_dtfperf.baselines.compare import judge_published
from pytest_dtfperf.baselines.judgement import PublishedRate
from pytest_dtfperf.baselines.references import find
from pytest_dtfperf.baselines.terms import ComparisonPolicy
from pytest_dtfperf.baselines.verdict import Verdict
from tests.baselines.examples import HARDWARE, SOFTWARE, measurement_of

DGX1 = PublishedRate.from_reference(find("dgx1", 8, model="inception3", batch_size=64, data="synthetic"))
P100 = {"name": "Tesla P100-SXM2-16GB", "memory_gib": 16}
RULE: dict[str, tuple[list[float], Verdict]] = {
    "as published": ([1130, 1131, 1130], Verdict.PASSED),
    "much slower, seen once": ([800], Verdict.INCONCLUSIVE),
    "much slower, and confirmed": ([800, 801, 800, 801], Verdict.REGRESSED),
    "much faster": ([1500, 1501, 1500], Verdict.IMPROVED),
    "a little slower": ([1060, 1061, 1060], Verdict.INCONCLUSIVE),
}


def make_hardware(*gpus: dict[str, Any], cpu: str = "Intel Xeon E5-2698 v4") -> dict[str, Any]:
    return {**HARDWARE, "cpu": cpu, "gpus": list(gpus)}


@pytest.mark.parametrize("rates, verdict", RULE.values(), ids=RULE)
def test_verdict_against_a_published_rate(rates: list[float], verdict: Verdict) -> None:
    """A rate on eight P100 is compared with Google's DGX-1, and the reason states the assumed noise."""
    measured = measurement_of(rates, gpus=8, hardware=make_hardware(*[P100] * 8))
    judgement = judge_published(measured, DGX1, ComparisonPolicy(margin=0.08))
    assert judgement.verdict is verdict, judgement.reason
    assert f"against {DGX1.images_per_sec:.6g} images/sec (Google" in judgement.reason
    assert "against one value, noise 1.0 % (2.0 % is assumed of the published value)" in judgement.reason


ELSEWHERE: dict[str, tuple[dict[str, Any], str]] = {
    "another model": (
        make_hardware(*[{"name": "NVIDIA A100-SXM4-40GB"}] * 8),
        "hosts of 8 x NVIDIA Tesla P100, this on 8 x NVIDIA A100",
    ),
    "fewer per host": (make_hardware(P100), "this on 1 x Tesla P100-SXM2-16GB"),
    "none": (make_hardware(cpu="AMD EPYC 9B45"), "this on AMD EPYC 9B45"),
}


@pytest.mark.parametrize("hardware, words", ELSEWHERE.values(), ids=ELSEWHERE)
def test_other_hardware_is_incomparable(hardware: dict[str, Any], words: str) -> None:
    """Other GPUs, or another number of them in a host, make the verdict INCOMPARABLE with both hardwares."""
    judgement = judge_published(measurement_of([2000, 2000], hardware=hardware, software=SOFTWARE), DGX1, ComparisonPolicy())
    assert judgement.verdict is Verdict.INCOMPARABLE
    assert words in judgement.reason


@pytest.mark.parametrize(
    "cpu, verdict",
    [("Intel(R) Xeon(R) CPU E5-2686 v4 @ 2.30GHz", Verdict.PASSED), ("Intel(R) Xeon(R) CPU E5-2698 v4", Verdict.INCOMPARABLE)],
)
def test_cpu_is_matched_by_its_model(cpu: str, verdict: Verdict) -> None:
    """A published rate of a CPU is compared with rates of the same model only."""
    published = PublishedRate(
        system="x", citation="Google", images_per_sec=100, gpu=None, cpu="Intel Xeon E5-2686 v4 (Broadwell)", gpus_per_node=0
    )
    measured = measurement_of([100, 100, 100], hardware=make_hardware(cpu=cpu))
    assert judge_published(measured, published, ComparisonPolicy(margin=0.1)).verdict is verdict


def test_published_rate_survives_json() -> None:
    """A published rate is the same after JSON."""
    assert PublishedRate.from_json(DGX1.to_json()) == DGX1
