"""Measurements and records with the few values that a test sets."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pytest_dtfperf.baselines.judgement import Judgement
from pytest_dtfperf.baselines.terms import ComparisonPolicy
from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.datamodel.explanation import Limit
from pytest_dtfperf.datamodel.fingerprint import Fingerprint
from pytest_dtfperf.datamodel.measurement import Measurement, Run
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.spec import Spec
from tests.records.host_states import ANOTHER_USER


def spec(**changes: Any) -> Spec:
    return Spec(model="inception3", batch_size=8).replace(**changes)


def run(images_per_sec: float, **changes: Any) -> Run:
    numbers: dict[str, Any] = {
        "images_per_sec": images_per_sec,
        "elapsed_s": 2.0,
        "step_s": {"worker:0": [1.0, 1.0]},
        "loss": [7.0, 6.5],
        "startup_s": {"fork": 0.1, "build": 1.5},
        "bytes_sent": 1000,
        "bytes_received": 2000,
        "peak_rss_bytes": {"worker:0": 3000},
        "cpu_s": {"worker:0": 1.9},
        "wall_s": 5.0,
    }
    return Run(**(numbers | changes))


def program(what: Spec) -> dict[str, Any]:
    """Return a program with a graph of its own for each spec, also with another number of devices."""
    return {
        "graph": hashlib.sha256(what.key.encode()).hexdigest()[:12],
        "operations": {"Conv2D": 94 * what.gpus},
        "settings": {},
    }


def measurement(what: Spec, rates: Sequence[float], injected_slowdowns: Mapping[str, float] | None = None) -> Measurement:
    return Measurement(
        spec=what,
        runs=[run(rate) for rate in rates],
        hosts=["localhost"],
        fingerprint=Fingerprint.from_json({"hardware": {"cpu": "any"}, "software": {}, "program": program(what)}),
        injected_slowdowns=injected_slowdowns or {},
    )


def make_comparison(
    baseline_rate: float,
    change: float,
    *,
    margin: float = 0.05,
    verdict: Verdict = Verdict.PASSED,
    reason: str = "",
    **others: Any,
) -> Judgement:
    """Return a judgement against a baseline, with these numbers."""
    terms = ComparisonPolicy(margin=margin)
    return Judgement(verdict, reason, terms=terms, runs=1, baseline_rate=baseline_rate, change=change, **others)


def record(
    what: Spec,
    *rates: float,
    name: str = "a1",
    test: str = "perf_tests/test_inception3.py::test_throughput",
    efficiency: float | None = None,
    baseline: Judgement | None = None,
    verdict: Verdict | None = None,
    reason: str | None = None,
    injected_slowdowns: Mapping[str, float] | None = None,
    limit: Limit | None = None,
) -> Record:
    return Record(
        id=name,
        test=test,
        measurement=measurement(what, rates, injected_slowdowns),
        limit=limit,
        efficiency=efficiency,
        anchor=None if efficiency is None else "a0",
        checks=(replace(baseline, verdict=verdict or baseline.verdict, reason=reason or ""),) if baseline else (),
        verdict=verdict,
        reason=reason,
    )


def disturbed_but_one(found: Record) -> Record:
    """Return the record with a disturbance in each run but the first."""
    first, *others = found.measurement.runs
    runs = [first, *(replace(each, disturbances=[ANOTHER_USER]) for each in others)]
    return replace(found, measurement=replace(found.measurement, runs=runs))
