"""What a measurement's hosts and links would allow, by what was probed of them in this session, or with its baseline."""

from collections.abc import Mapping
from typing import Any

from pytest_dtfperf.baselines.comparability import other_hosts
from pytest_dtfperf.baselines.entry import Entry
from pytest_dtfperf.explain.probes import Probes
from pytest_dtfperf.limits.limit import Limit, limit
from pytest_dtfperf.limits.needs import Layout
from pytest_dtfperf.measurement import Measurement


def limit_of(measurement: Measurement, entry: Entry | None) -> Limit | None:
    """As `_limit_of` has it; whatever goes wrong there costs the limit alone, and no verdict."""
    try:
        return _limit_of(measurement, entry)
    except Exception as error:
        return Limit(unknown={"all": f"{type(error).__name__}: {' '.join(str(error).split())}"})


def _limit_of(measurement: Measurement, entry: Entry | None) -> Limit | None:
    """None of what an external command trains, and of what was measured before it was recorded where tasks were.

    What was probed in this session counts first: hosts may do less than when the baseline was accepted, and then less is what
    they allow. An INCOMPARABLE baseline's are of other hosts, and say nothing of these. Data sheets of GPUs need no probes.
    """
    run = measurement.samples[-1]
    if measurement.spec.command or not run.task_hosts:
        return None
    is_of_these = entry is not None and not other_hosts(entry.fingerprint, measurement.fingerprint)
    found = measurement.probes or (entry.probes if entry and is_of_these else None)
    probes = Probes.from_json(found) if found else Probes()
    layout = Layout(run.task_hosts, run.task_threads, run.task_devices)
    return limit(measurement.spec, layout, probes, _gpus(measurement.fingerprint))


def _gpus(fingerprint: Mapping[str, Any]) -> list[str]:
    """The names; none where cores compute: hosts without GPUs, or with GPUs that are not to be used."""
    hardware = fingerprint.get("hardware") or {}
    names = [gpu["name"] for gpu in hardware.get("gpus") or ()]
    return [] if hardware.get("cpu_devices") else names
