"""A measurement's rate as people read it, the same in the terminal, in Markdown and in figures."""

from collections.abc import Iterable

from pytest_dtfperf.formats import percent, rate
from pytest_dtfperf.measurement import Measurement

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
