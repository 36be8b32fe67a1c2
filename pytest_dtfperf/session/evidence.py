"""What is known of a measurement or a baseline, as `explain/` takes it. Values in, values out."""

import statistics
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pytest_dtfperf.baselines import system
from pytest_dtfperf.baselines.comparability import other_program
from pytest_dtfperf.baselines.entry import Entry
from pytest_dtfperf.explain.anatomy import Anatomy
from pytest_dtfperf.explain.evidence import Evidence
from pytest_dtfperf.explain.probes import Probes
from pytest_dtfperf.explain.scores import Scores
from pytest_dtfperf.launch.orders import CHIEF
from pytest_dtfperf.measurement import Measurement, Run


def of_measurement(measurement: Measurement, cluster: str | None = None) -> Evidence:
    """`cluster`: its name, for the commands that look further."""
    run, traced = _told(measurement), measurement.traced_run
    images = images_of_a_step(measurement)
    return Evidence(
        step_s=[images / rate for rate in measurement.rates] if images else [],
        anatomy=Anatomy.from_json(traced.anatomy) if traced and traced.anatomy else None,
        scores=Scores.from_json(run.stragglers) if run.stragglers else None,
        probes=Probes.from_json(measurement.probes) if measurement.probes else None,
        states=run.state,
        disturbances=measurement.disturbances,  # of a run that was thrown away for one, nothing is in these seconds
        hosts=run.task_hosts,
        sleeps=measurement.injected_slowdowns,
        cluster=cluster,
        coordinated=measurement.spec.mode.coordinated,
        in_lockstep=measurement.spec.in_lockstep,
        is_own_program=bool(measurement.spec.command),
        graph=_graph(measurement.fingerprint),
    )


def of_entry(entry: Entry, measurement: Measurement) -> Evidence:
    """Return what is known of a baseline, which this measurement is compared with."""
    spec, images = measurement.spec, images_of_a_step(measurement)
    return Evidence(
        step_s=[images / rate for rate in entry.samples] if images else [],
        anatomy=Anatomy.from_json(entry.anatomy) if entry.anatomy else None,
        scores=Scores.from_json(entry.stragglers) if entry.stragglers else None,
        probes=Probes.from_json(entry.probes) if entry.probes else None,
        coordinated=spec.mode.coordinated,
        in_lockstep=spec.in_lockstep,
        is_own_program=bool(spec.command),
        graph=_graph(entry.fingerprint),
    )


def with_changes(now: Evidence, before: Mapping[str, Any], after: Mapping[str, Any], *, program: bool = True) -> Evidence:
    """With what differs between two fingerprints. `program`: whether both were to train with the same graph."""
    return replace(
        now,
        program_changes=other_program(before, after) if program else [],
        software_changes=system.software_changes(before.get("software") or {}, after.get("software") or {}),
        hardware_changes=system.differences(before.get("hardware") or {}, after.get("hardware") or {}),
    )


def _told(measurement: Measurement) -> Run:
    """The last run that was traced; else the last one that was stamped; else the last."""
    last_first = [*reversed(measurement.samples), *reversed(measurement.runs)]
    told = (run for wanted in ("anatomy", "stragglers") for run in last_first if getattr(run, wanted))
    return next(told, last_first[0])


def images_of_a_step(measurement: Measurement) -> float | None:
    """Return how many images all devices train in a step: by the steps that a program reports, if any. None: not known."""
    spec = measurement.spec
    run = next((run for run in reversed(measurement.samples) if run.step_s.get(CHIEF)), None) if spec.command else None
    if run:
        return run.images_per_sec * statistics.fmean(run.step_s[CHIEF])
    return spec.gpus * spec.batch_size or None


def _graph(fingerprint: Mapping[str, Any]) -> str | None:
    found: str | None = (fingerprint.get("program") or {}).get("graph")
    return found
