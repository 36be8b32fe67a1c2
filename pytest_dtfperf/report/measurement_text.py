"""A measurement's rate as people read it, the same in the terminal, in Markdown and in figures."""

from collections.abc import Iterable, Mapping
from typing import Any

from pytest_dtfperf.formats import NONE, percent, rate
from pytest_dtfperf.limits.limit import Limit
from pytest_dtfperf.measurement import Measurement
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.spec import labels

DISTURBED_MARK = " !"  # behind a rate


def list_disturbed_notes(measurements: Iterable[Measurement]) -> list[str]:
    """Return what the mark behind a rate means, where one has it."""
    words = (
        f"{DISTURBED_MARK.strip()} behind a rate: something else disturbed every run, so that it says nothing of the training"
    )
    return [words] if any(measurement.disturbances for measurement in measurements) else []


def format_rate_with_spread(measurement: Measurement) -> str:
    """The median rate, and half the range of the runs over it: `9.81 ±2.1 %`. A single run has no spread to show.

    A mark says that each run was disturbed.
    """
    mark = DISTURBED_MARK if measurement.disturbances else ""
    spread = "" if measurement.spread is None else f" ±{percent(measurement.spread)}"
    return f"{rate(measurement.images_per_sec)}{spread}{mark}"


def format_footnote(measurements: Iterable[Measurement]) -> str:
    """What the number before the ± is, what the ± is, and over how many runs: those that the rate rests on."""
    counts = {len(measurement.rates) for measurement in measurements}
    least, most = min(counts), max(counts)
    if most == 1:
        return "images/sec is of a single run, which has no spread"
    runs = f"{most} runs" if least == most else f"{least} to {most} runs"
    return f"images/sec is the median of {runs}; ± is half their range, (largest - smallest) / 2, over the median"


ABOUT_LIMITS = "limit: what cores or GPUs, links and memory each allow alone; a step that needs several in turn is below it"


def format_limit_share(record: Record) -> str:
    """`91 % link`: for a table."""
    return f"{format_share_of_limit(record)} {find_binding_resource(record)}" if record.share_of_limit else NONE


def format_share_of_limit(record: Record) -> str:
    """`91 %`: where there is no room for more."""
    share = record.share_of_limit
    return NONE if share is None else f"{100 * share:.0f} %"


def find_binding_resource(record: Record) -> str | None:
    """The resource that allows no more: cores, gpus, link or memory."""
    found = Limit.from_json(record.limit).binding if record.limit else None
    return found.resource if found else None


def format_limit(record: Record) -> str:
    """As `Limit.words` has it; empty where it is not known."""
    return Limit.from_json(record.limit).words(record.images_per_sec) if record.limit else ""


def format_limit_or_reason(record: Record) -> str:
    """The same, or why it is not known; empty where nobody has looked for it."""
    if not record.limit or record.share_of_limit:
        return format_limit(record)
    return f"not known: {next(iter(record.limit['unknown'].values()), 'nothing binds it that was looked for')}"


def list_limits(records: Iterable[Record]) -> list[str]:
    """Of each model the fastest that has one, and what it is. Nothing where none has; the table has those of all."""
    limited = [record for record in records if record.is_valid and record.share_of_limit]
    fastest = {record.spec.model: record for record in sorted(limited, key=lambda record: record.images_per_sec)}
    label = labels(record.spec for record in fastest.values())
    found = [f"{label[record.spec]}: {format_limit(record)}" for _, record in sorted(fastest.items())]
    return [*found, ABOUT_LIMITS] if found else []


def format_versions(record: Record, session: Mapping[str, Any]) -> str:
    """Of what trained, as its hosts said, and of what measured it: `tensorflow=2.21.0 python=3.11.9 pytest-dtfperf=0.1.0`."""
    found = {**session["versions"], **record.measurement.fingerprint.get("software", {})}
    return " ".join(f"{name}={str(version).replace(' ', '_')}" for name, version in sorted(found.items()) if version)
