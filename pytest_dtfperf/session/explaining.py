"""Why a judgement is not green: its two sides compared with each other. Whatever goes wrong costs the explanation alone."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from pytest_dtfperf.baselines.checks import Check
from pytest_dtfperf.baselines.verdict import Judgement, Verdict
from pytest_dtfperf.explain.causes import Explanation, explain
from pytest_dtfperf.explain.evidence import Evidence
from pytest_dtfperf.measurement import Measurement
from pytest_dtfperf.session.evidence import of_entry, of_measurement, with_changes


class Compared(NamedTuple):
    """How messages name what a measurement is compared with."""

    against: str
    name: str
    when: str


# Checks that compare a step of one training with a step of another, which is to take as long: of the baseline; of one device
# alone; of the same training without reading its input.
AGAINST = {
    "baseline": Compared("its baseline", "the baseline", "then"),
    "efficiency": Compared("the anchor, on one device", "the anchor", "in the anchor"),
    "overhead": Compared("the same training with synthetic input", "the training with synthetic input", "with synthetic input"),
}


def told(
    check: Check,
    measurement: Measurement,
    other: Measurement | None,
    cluster: str | None,
    judgement: Judgement | None = None,
) -> dict[str, Any]:
    """Return what a record keeps of it: `explanation`, or `unexplained` with the reason; nothing where there is none to give.

    `judgement` is that of the check. Where by its interval nothing may have been lost, nothing is explained.
    """
    if check.verdict.row.outcome == "pass" or check.verdict.row.numbers == "void" or check.kind not in AGAINST:
        return {}
    if judgement and check.verdict is Verdict.INCONCLUSIVE and _may_be_no_loss(check, measurement, judgement):
        return {}
    try:
        found = explained(check, measurement, other, cluster)
        why = found.to_json() if found else None
        json.dumps(why, allow_nan=False)  # as it will be written
    except Exception as error:  # a verdict must be told, and not be lost for want of its reasons
        return {"unexplained": f"cannot be explained: {type(error).__name__}: {' '.join(str(error).split())}"}
    return {"explanation": why} if why else {}


def explained(check: Check, measurement: Measurement, other: Measurement | None, cluster: str | None) -> Explanation | None:
    """Return why it is slower; None where there is nothing to compare it with, or it is not slower."""
    sides = _sides(check, measurement, other, cluster)
    found = explain(*sides) if sides else None
    if found is None or found.change_s <= 0:
        return None
    if check.kind == "efficiency" and found.causes and (hosts := _shared_hosts(measurement)):
        found = _without_sharing(found, hosts, measurement)
    return replace(found, against=AGAINST[check.kind].against)


def _may_be_no_loss(check: Check, measurement: Measurement, judgement: Judgement) -> bool:
    """Return whether the interval of the ratio of rates contains that of a training that has lost nothing."""
    lossless = measurement.spec.gpus if check.kind == "efficiency" else 1.0
    return judgement.estimate is not None and judgement.estimate.high >= lossless


def _shared_hosts(measurement: Measurement) -> Sequence[str]:
    """Return the hosts without GPUs on whose machine several devices compute: these share its memory bus and caches."""
    if (measurement.fingerprint.get("hardware") or {}).get("gpus"):
        return []
    run = measurement.runs[-1]
    machine_of = {host: run.state.get(host, {}).get("machine", host) for host in run.task_hosts.values()}
    devices: Counter[str] = Counter()
    for task, host in run.task_hosts.items():
        devices[machine_of[host]] += run.task_devices.get(task, int(task.startswith("worker:")))
    return [host for host, machine in machine_of.items() if devices[machine] > 1]


def _without_sharing(found: Explanation, hosts: Sequence[str], measurement: Measurement) -> Explanation:
    """Return the explanation without the causes that one device alone has not, for it shares its host with none: whatever
    computes, sends or receives beside another device takes longer. An injected slow-down is none of these.
    """
    kept = [each for each in found.causes if each.kind == "straggler" and each.location in measurement.injected_slowdowns]
    dropped_s = sum(each.seconds for each in found.causes if each not in kept)
    note = (
        f"the devices of {', '.join(hosts)} are cores that share a memory bus: each of them is slower beside the others than "
        "alone, so that no cause is named against one device"
    )
    return replace(found, causes=kept, unexplained_s=found.unexplained_s + dropped_s, notes=[*found.notes, note])


def _sides(
    check: Check, measurement: Measurement, other: Measurement | None, cluster: str | None
) -> tuple[Evidence, Evidence] | None:
    now = of_measurement(measurement, cluster)
    if check.kind == "baseline":
        entry = check.side.entry
        return (of_entry(entry, measurement), with_changes(now, entry.fingerprint, measurement.fingerprint)) if entry else None
    if other is None:
        return None
    names = AGAINST[check.kind]
    then = replace(of_measurement(other, cluster), name=names.name, when=names.when)
    return then, with_changes(now, other.fingerprint, measurement.fingerprint, program=False)
