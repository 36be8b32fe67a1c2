"""Why a judgement is not green: both of its sides held against each other. Whatever goes wrong costs the explanation alone."""

import json
from dataclasses import replace
from typing import Any

from pytest_dtfperf.baselines.checks import Check
from pytest_dtfperf.explain.causes import Explanation, explain
from pytest_dtfperf.explain.evidence import Evidence
from pytest_dtfperf.measurement import Measurement
from pytest_dtfperf.session.evidence import of_entry, of_measurement, with_changes

# Checks that hold a step of one training against a step of another, which is to take as long: of the baseline; of one device
# alone; of the same training without reading its input.
AGAINST = {
    "baseline": "its baseline",
    "efficiency": "the anchor, on one device",
    "overhead": "the same training with synthetic input",
}


def told(check: Check, measurement: Measurement, other: Measurement | None, cluster: str | None) -> dict[str, Any]:
    """What a record keeps of it: `explanation`, or `unexplained` with the reason; nothing where there is none to give."""
    if check.verdict.row.outcome == "pass" or check.verdict.row.numbers == "void" or check.kind not in AGAINST:
        return {}
    try:
        found = explained(check, measurement, other, cluster)
        why = found.to_json() if found else None
        json.dumps(why, allow_nan=False)  # as it will be written
    except Exception as error:  # a verdict must be told, and not be lost for want of its reasons
        return {"unexplained": f"cannot be explained: {type(error).__name__}: {' '.join(str(error).split())}"}
    return {"explanation": why} if why else {}


def explained(check: Check, measurement: Measurement, other: Measurement | None, cluster: str | None) -> Explanation | None:
    """None where there is nothing to hold it against, or it is not slower."""
    sides = _sides(check, measurement, other, cluster)
    found = explain(*sides) if sides else None
    if found is None or found.change_s <= 0:
        return None
    return replace(found, against=AGAINST[check.kind])


def _sides(
    check: Check, measurement: Measurement, other: Measurement | None, cluster: str | None
) -> tuple[Evidence, Evidence] | None:
    now = of_measurement(measurement, cluster)
    if check.kind == "baseline":
        entry = check.side.entry
        return (
            (of_entry(entry, measurement.spec), with_changes(now, entry.fingerprint, measurement.fingerprint))
            if entry
            else None
        )
    if other is None:
        return None
    return of_measurement(other, cluster), with_changes(now, other.fingerprint, measurement.fingerprint, program=False)
