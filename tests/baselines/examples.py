"""Measurements as a launcher would make them, for tests that need no run."""

from collections.abc import Collection, Sequence
from typing import Any

from pytest_dtfperf.baselines.comparability import system_name
from pytest_dtfperf.baselines.entry import CalibratedNoise, Entry, Provenance
from pytest_dtfperf.datamodel.fingerprint import Fingerprint, Hardware
from pytest_dtfperf.datamodel.host_state import Disturbance
from pytest_dtfperf.datamodel.measurement import Measurement, Run
from pytest_dtfperf.spec import Spec

HARDWARE = {"cpu": "AMD EPYC 9B45", "cores": 2, "memory_gib": 8, "gpus": []}
AS_ASKED = {
    "requested": ["1 node"],
    "granted": ["1 node"],
    "nodes": [{"name": "n1", "gpus": 4, "switch": None}],
    "matches": True,
}
MISPLACED = {
    "requested": ["1 node", "4 GPUs each"],
    "granted": ["1 node", "3 GPUs each"],
    "nodes": [{"name": "n1", "gpus": 3, "switch": None}],
    "matches": False,
}
SYSTEM = system_name(Hardware.from_json(HARDWARE))
SOFTWARE = {"python": "3.11.2", "tensorflow": "2.21.0", "kernel": "6.1.0", "driver": None}


def spec_of(**changes: Any) -> Spec:
    return Spec(**{"model": "trivial", "batch_size": 32, "gpus": 2, "num_ps": 1, **changes})


def run_of(images_per_sec: float, accuracy: float | None = None, disturbances: Sequence[str] = ()) -> Run:
    return Run(
        images_per_sec=images_per_sec,
        elapsed_s=1.5,
        step_s={"worker:0": [0.5, 0.5, 0.5], "worker:1": [0.5, 0.5, 0.5]},
        loss=[2.3, 2.2, 2.1],
        startup_s={"reserve": 0.01, "build": 0.4},
        bytes_sent=1000,
        bytes_received=1000,
        peak_rss_bytes={"ps:0": 1 << 20, "worker:0": 1 << 20, "worker:1": 1 << 20},
        cpu_s={"ps:0": 0.1, "worker:0": 1.0, "worker:1": 1.0},
        wall_s=2.5,
        accuracy=accuracy,
        disturbances=[Disturbance(message=each) for each in disturbances],
    )


def measurement_of(
    rates: Sequence[float],
    *,
    accuracies: Sequence[float] | None = None,
    hosts: int = 1,
    hardware: dict[str, Any] | None = None,
    software: dict[str, Any] | None = None,
    placement: dict[str, Any] | None = None,
    injected_slowdowns: dict[str, float] | None = None,
    program: str | None = None,
    disturbed: Collection[int] = (),
    **spec: Any,
) -> Measurement:
    return Measurement(
        spec=spec_of(**spec),
        runs=[
            run_of(rate, accuracies[i] if accuracies else None, ["somebody else's job"] if i in disturbed else [])
            for i, rate in enumerate(rates)
        ],
        hosts=[f"host{i}" for i in range(hosts)],
        fingerprint=Fingerprint.from_json(
            {
                "hardware": hardware or HARDWARE,
                "software": software or SOFTWARE,
                "program": program_of(program) if program else {},
                "state": {"load": 0.1},
                **({"placement": placement} if placement else {}),
            }
        ),
        injected_slowdowns=injected_slowdowns or {},
    )


def program_of(graph: str, **operations: int) -> dict[str, Any]:
    """Return a trained program that is identified by the hash of its graph."""
    return {"graph": graph, "operations": operations or {"Conv2D": 4}, "settings": {"worker": {"malloc": "as it is"}}}


def provenance_of(**changes: Any) -> Provenance:
    given = {"session": "20260131T021503Z-9f3c1a", "test": "test_x.py::test_y", "date": "2026-01-31T02:15:03Z"}
    return Provenance(**{**given, "versions": {"pytest-dtfperf": "0.1.0"}, **changes})


def entry_of(rates: Sequence[float], *, date: str = "2026-01-31T02:15:03Z", **measured: Any) -> Entry:
    return Entry.from_measurement(measurement_of(rates, **measured), provenance_of(date=date))


def calibrated_of(run: float = 0.02, session: float = 0.01) -> CalibratedNoise:
    return CalibratedNoise(run=run, degrees_of_freedom=20, session=session, sessions=6, date="2026-01-30T00:00:00Z")
