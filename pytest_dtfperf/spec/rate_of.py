"""What an external command says of its own rate, and how the numbers of its workers become the cluster's. Pure."""

import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence

from pytest_dtfperf.errors import InvalidMeasurement, SpecError, quoted_lines, shown
from pytest_dtfperf.spec.fields import Fields
from pytest_dtfperf.spec.printed_number import UnclearNumber, parse

RATE_PATTERN = r"total images/sec: ([\d.]+)"  # of tf_cnn_benchmarks' last line but one
HOW_TO_PRINT = (
    "Print the rate as 1234.5 or 1,234.5, in images per second, with a blank or a unit behind it; or have the pattern's group "
    'take all of the number, and the pattern what is beside it (docs/command.md, "How a number is read").'
)
# Workers that step together say the same of themselves, but for the ends of the windows that each has measured.
TOLERANCE = 0.2
# Workers that wait for nobody may well differ. Where one is so many times as fast as another, though, they have trained
# together for no more than half of the slower's time, and no one rate was the cluster's; or not all of them print it.
DISTANCE = 2.0


def _of_every_device(rates: Sequence[float], devices: Sequence[int]) -> float:
    return sum(devices) * min(rate / own for rate, own in zip(rates, devices, strict=True))


# Of the workers' numbers, chief first, and their devices. Never a sum: its terms would come from different windows of time.
RULES: Mapping[str, Callable[[Sequence[float], Sequence[int]], float]] = {
    "chief": lambda rates, devices: rates[0],
    "mean": lambda rates, devices: statistics.fmean(rates),
    "slowest": lambda rates, devices: min(rates),
    "each": _of_every_device,
}


def pattern_of(spec: Fields) -> str:
    return spec.rate_pattern or RATE_PATTERN


def as_python(pattern: str) -> str:
    """Return a regular expression as a test has it: what can be pasted there."""
    raw = next((f"r{quote}{pattern}{quote}" for quote in "\"'" if quote not in pattern), "")
    return raw if raw and pattern.isprintable() and not pattern.endswith("\\") else repr(pattern)


def check(spec: Fields) -> None:
    """Raise `SpecError` where no rate could be read so, or it would be wrong."""
    written = as_python(pattern_of(spec))
    try:
        groups = re.compile(pattern_of(spec)).groups
    except (re.error, RecursionError, OverflowError) as exc:
        raise SpecError(f"rate_pattern={written} is no regular expression: {exc}") from exc
    if not groups:
        raise SpecError(f"rate_pattern={written} needs a group around the number: {as_python(RATE_PATTERN)}")
    if spec.rate_of == "each" and not spec.cross_replica_sync:
        raise SpecError(
            "rate_of='each' takes workers to step together, so that the slowest speaks for all, and cross_replica_sync=false "
            "says that they do not. Have the program print the whole cluster's rate"
        )


def cluster_rate(
    spec: Fields,
    reported: Mapping[str, str | None],
    devices: Sequence[int],
    words: Mapping[str, Sequence[str]],
    unclear: Mapping[str, str] = {},
) -> float:
    """Return images/sec of the whole cluster.

    `reported` is the number that each worker, chief first, has printed last, and `devices` how many it has. `words` are the
    last lines of workers that have printed none; or, of those that are `unclear`, the one that cannot be read, and why.
    Raises `InvalidMeasurement`.
    """
    workers = list(reported)[:1] if spec.rate_of == "chief" else list(reported)
    for worker in workers:
        if worker in unclear:
            raise InvalidMeasurement(
                f"the rate of {worker} cannot be read, because {unclear[worker]}: rate_pattern={as_python(pattern_of(spec))}."
                f"{quoted_lines(words.get(worker, ()))}\n{HOW_TO_PRINT}"
            )
    rates = [_number(spec, worker, reported[worker], words.get(worker, ())) for worker in workers]
    if spec.rate_of == "mean":
        _check_distance(dict(zip(workers, rates, strict=True)))
    if spec.rate_of == "each":
        _check_consistency(dict(zip(workers, [rate / own for rate, own in zip(rates, devices, strict=True)], strict=True)))
    return RULES[spec.rate_of](rates, devices)


def _number(spec: Fields, worker: str, reported: str | None, words: Sequence[str]) -> float:
    pattern = as_python(pattern_of(spec))
    if reported is None:
        last = quoted_lines(words)
        so = f"its last lines are:{last}" if words else "it has printed nothing"
        raise InvalidMeasurement(f"no line of {worker}'s output matches rate_pattern={pattern}; {so}")
    try:
        number = parse(reported)
    except UnclearNumber:
        number = math.nan
    if not (math.isfinite(number) and number > 0):
        raise InvalidMeasurement(f"rate_pattern={pattern} found {shown(reported)} in {worker}'s output, which is no rate")
    return number


def _check_distance(rates: Mapping[str, float]) -> None:
    """Raises `InvalidMeasurement` where the numbers cannot all be the cluster's rate."""
    slowest, fastest = _ends(rates)
    if rates[fastest] >= DISTANCE * rates[slowest]:
        raise InvalidMeasurement(
            f"rate_of='mean' takes every worker's number for the cluster's rate, but {slowest} says {rates[slowest]:.6g} "
            f"images/sec and {fastest} {rates[fastest]:.6g}: {DISTANCE:g} times as many or more cannot both be true. "
            "If only the first worker prints it, say rate_of='chief'; if each prints its own, have it print workers x its own"
        )


def _check_consistency(of_a_device: Mapping[str, float]) -> None:
    """Raises `InvalidMeasurement` where the workers cannot have stepped together."""
    slowest, fastest = _ends(of_a_device)
    if of_a_device[fastest] > (1 + TOLERANCE) * of_a_device[slowest]:
        raise InvalidMeasurement(
            f"rate_of='each' takes workers to step together, but {slowest} says {of_a_device[slowest]:.6g} images/sec per "
            f"device and {fastest} {of_a_device[fastest]:.6g}: more than {TOLERANCE:.0%} apart"
        )


def _ends(rates: Mapping[str, float]) -> tuple[str, str]:
    """The slowest worker and the fastest."""
    by_rate = sorted(rates, key=lambda worker: rates[worker])
    return by_rate[0], by_rate[-1]
