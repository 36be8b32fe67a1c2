"""The numbers of a measurement as text, the same in all reports: rate and spread, limit, versions."""

from collections.abc import Iterable, Mapping
from typing import Any

from pytest_dtfperf.datamodel.measurement import SIMULATED, Measurement
from pytest_dtfperf.formats import NONE, percent, rate
from pytest_dtfperf.limits.limit import describe_limit
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.spec import labels

DISTURBED_MARK = " !"  # behind a rate


def list_measurement_notes(measurements: Iterable[Measurement]) -> list[str]:
    """Return that hosts are simulated, and the meaning of the mark behind the rate of a disturbed measurement."""
    measurements = list(measurements)
    clusters = sorted({measurement.simulated for measurement in measurements if measurement.simulated})
    notes = [f"{SIMULATED}: the hosts of {', '.join(clusters)} are simulated, and nothing was trained"] if clusters else []
    if any(measurement.disturbances for measurement in measurements):
        meaning = "something else disturbed every run, so that it does not describe the training"
        notes.append(f"{DISTURBED_MARK.strip()} behind a rate: {meaning}")
    return notes


def format_rate_with_spread(measurement: Measurement) -> str:
    """Return the median rate, and half the range of the runs over it: `9.81 ±2.1 %`. A single run has no spread.

    A mark shows that each run was disturbed.
    """
    mark = DISTURBED_MARK if measurement.disturbances else ""
    spread = "" if measurement.spread is None else f" ±{percent(measurement.spread)}"
    return f"{rate(measurement.images_per_sec)}{spread}{mark}"


def format_footnote(measurements: Iterable[Measurement]) -> str:
    """Return the meaning of the rate and of ±, and the number of runs."""
    counts = {len(measurement.rates) for measurement in measurements}
    least, most = min(counts), max(counts)
    if most == 1:
        return "images/sec is of a single run, which has no spread"
    runs = f"{most} runs" if least == most else f"{least} to {most} runs"
    return f"images/sec is the median of {runs}; ± is half their range, (largest - smallest) / 2, over the median"


ABOUT_LIMITS = "limit: what cores or GPUs, links and memory each allow alone; a step that needs several in turn is below it"


def format_limit_share(record: Record) -> str:
    """Return `91 % link`, for a table."""
    return f"{format_share_of_limit(record)} {find_binding_resource(record)}" if record.share_of_limit else NONE


def format_share_of_limit(record: Record) -> str:
    """Return `91 %`, for a narrow table."""
    share = record.share_of_limit
    return NONE if share is None else f"{100 * share:.0f} %"


def find_binding_resource(record: Record) -> str | None:
    """Return the resource that limits the rate: cores, gpus, link or memory."""
    found = record.limit.binding if record.limit else None
    return found.resource if found else None


def format_limit(record: Record) -> str:
    """Return `describe_limit`; empty if the limit is unknown."""
    return describe_limit(record.limit, record.images_per_sec) if record.limit else ""


def format_limit_or_reason(record: Record) -> str:
    """Return the limit, or why it is unknown; empty if it was not computed."""
    if not record.limit or record.share_of_limit:
        return format_limit(record)
    return f"not known: {next(iter(record.limit.unknown.values()), 'nothing binds it that was looked for')}"


def list_limits(records: Iterable[Record]) -> list[str]:
    """Return the limit of the fastest measurement of each model, and what a limit is; empty if none is known."""
    limited = [record for record in records if record.is_valid and record.share_of_limit]
    fastest = {record.spec.model: record for record in sorted(limited, key=lambda record: record.images_per_sec)}
    label = labels(record.spec for record in fastest.values())
    found = [f"{label[record.spec]}: {format_limit(record)}" for _, record in sorted(fastest.items())]
    return [*found, ABOUT_LIMITS] if found else []


def format_versions(record: Record, session: Mapping[str, Any]) -> str:
    """Return the versions used for training and measurement: `tensorflow=2.21.0 python=3.11.9 pytest-dtfperf=0.1.0`."""
    found = {**session["versions"], **record.measurement.fingerprint.get("software", {})}
    return " ".join(f"{name}={str(version).replace(' ', '_')}" for name, version in sorted(found.items()) if version)
