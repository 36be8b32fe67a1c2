r"""External commands as the workload: their fields, the arguments of each task, and the rate that they report. Pure.

    train(command=["python", "train.py", "--batch_size={batch_size}"], rate_pattern=r"total images/sec: ([\d.]+)", ...)

docs/command.md describes all of it. Defaults are those of tf_cnn_benchmarks.
"""

import math
import os
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pytest_dtfperf.errors import InvalidMeasurement, SpecError, find_nearest, quote_lines, show_value
from pytest_dtfperf.spec.fields import Fields
from pytest_dtfperf.spec.printed_number import UnclearNumber, parse

ROLE_FLAGS = ("--job_name={job}", "--task_index={index}", "--ps_hosts={ps_hosts}", "--worker_hosts={worker_hosts}")
TF_CONFIG = "TF_CONFIG"  # instead of flags: https://www.tensorflow.org/api_docs/python/tf/distribute/cluster_resolver

# What a task's arguments may ask for beside the fields of the spec.
ROLE = (
    "job", "index", "ps_hosts", "worker_hosts", "chief_hosts", "chief_host", "chief_port", "hosts", "workers", "devices",
    "threads",
)  # fmt: skip
_NEED_ADDRESSES = {"chief_host", "chief_port", "hosts"}  # of a lone task, too, which has none otherwise
COMMAND_FIELDS = ("command", "command_dir", "rate_pattern", "rate_of", "role_flags")  # of a spec
_NO_WORDS = {"environment", *COMMAND_FIELDS}  # no single word each
# Decides where tasks are placed, what they compute on, or what people call it, whether or not a word asks for it.
_HEARD_ANYWAY = {"model", "batch_size", "gpus", "num_ps", "variable_update", "cross_replica_sync", "cpu_affinity"}
ASKED = re.compile(r"\{\{(\w+)\}\}|\{(\w+)\}")
_NAME = re.compile(r"[\w.+-]+")


def program_name(command: Sequence[str]) -> str:
    """Return what people call it: the script or the module that an interpreter is given, else the program itself."""
    arguments = list(map(str, command))
    scripts = [word for at, word in enumerate(arguments) if word.endswith((".py", ".sh")) or (at and arguments[at - 1] == "-m")]
    name = os.path.basename((scripts or arguments)[0]).removesuffix(".py").removesuffix(".sh")
    return re.sub(r"[^\w.+-]+", "_", name) or "program"


def requested_names(command: Iterable[str], role_flags: Iterable[str] | None, environment: Iterable[str]) -> list[str]:
    """Return the names in braces, in the order in which they are first used."""
    return names_in((*command, *flags_of(role_flags), *environment))


def names_in(arguments: Iterable[str]) -> list[str]:
    """Return the names in braces, without those in doubled ones, in the order in which they are first used."""
    return list(dict.fromkeys(match[2] for word in arguments for match in ASKED.finditer(str(word)) if match[2]))


def literal(text: str) -> str:
    """Return a word that is filled in as this text, whatever braces are in it."""
    return re.sub(r"\{(\w+)\}", r"{{\1}}", text)


def needs_addresses(spec: Fields) -> bool:
    """Return whether a command's task needs an address even where it is alone."""
    return bool(spec.command) and not _NEED_ADDRESSES.isdisjoint(
        requested_names(spec.command, spec.role_flags, spec.environment)
    )


def flags_of(role_flags: Iterable[str] | None) -> tuple[str, ...]:
    """Return the arguments that give a task its role and the others' addresses; none where TF_CONFIG does."""
    if role_flags is None:
        return ROLE_FLAGS
    return () if isinstance(role_flags, str) else tuple(role_flags)


def check(spec: Fields) -> None:
    """Raise `SpecError` with what is wrong and what is allowed."""
    if not spec.command:
        _check_absent(spec)
        return
    _check_kinds(spec)
    _check_commands(spec)
    check_rate(spec)


def _check_absent(spec: Fields) -> None:
    for name in COMMAND_FIELDS:
        if getattr(spec, name) != spec.__dataclass_fields__[name].default:
            raise SpecError(f"{name} is for an external command, and there is no command: command=['python', 'train.py', ...]")
    for name in names_in(spec.environment):
        if name in ROLE or name in spec.__dataclass_fields__:
            raise SpecError(
                f"environment asks for {{{name}}}, and there is no command: only the environment of an external command is "
                f"filled in. Braces that mean themselves are allowed around any other name"
            )


def _check_kinds(spec: Fields) -> None:
    for name in ("command", "role_flags"):
        value = getattr(spec, name)
        if name == "role_flags" and (value is None or value == TF_CONFIG):
            continue
        if not isinstance(value, tuple) or not all(isinstance(word, str) and word for word in value):
            also = f", or {TF_CONFIG!r}" if name == "role_flags" else ""
            raise SpecError(
                f"{name} must be a list of arguments, as in ['python', 'train.py', '--steps=20']{also}, not {value!r}"
            )
    if not (isinstance(spec.model, str) and _NAME.fullmatch(spec.model)):
        raise SpecError(f"model={spec.model!r} is what the program's results are called: letters, digits and ._+- only")
    if spec.evaluate:
        raise SpecError("evaluate=true is for our own training: what an external command has learnt is not known")


def _check_commands(spec: Fields) -> None:
    values = values_of(spec)
    flags = flags_of(spec.role_flags)
    for what, arguments in {"command": spec.command, "role_flags": flags, "environment": spec.environment}.items():
        for name in names_in(arguments):
            if name in ROLE or name in values:
                continue
            if name in spec.__dataclass_fields__ and name not in _NO_WORDS:
                raise SpecError(f"{what} asks for {{{name}}}, which has no value. Pass {name}=... to train()")
            raise SpecError(
                _describe_unknown(what, name, (*ROLE, *(n for n in spec.__dataclass_fields__ if n not in _NO_WORDS)))
            )
    names = requested_names(spec.command, spec.role_flags, spec.environment)
    for name, field in spec.__dataclass_fields__.items():
        if getattr(spec, name) != field.default and name not in {*names, *_HEARD_ANYWAY, *_NO_WORDS}:
            raise SpecError(
                f"{name} has no effect on an external command unless its command or environment asks for {{{name}}}"
            )
    if spec.num_ps and spec.role_flags != TF_CONFIG and "index" not in names:
        raise SpecError(
            "nothing tells the program's tasks which of them is which: role_flags or environment must ask for {index}, or "
            "role_flags be "
            f"{TF_CONFIG!r}, or be left out for {' '.join(ROLE_FLAGS)}"
        )


def _describe_unknown(what: str, name: str, known: Sequence[str]) -> str:
    found = find_nearest(name, known)
    hint = f" Did you mean {{{found}}}?" if found else ""
    return (
        f"{what} asks for {{{name}}}, which is unknown.{hint} Known are {', '.join(ROLE)} and the fields of a spec. "
        f"Braces that mean themselves are doubled: {{{{{name}}}}}"
    )


def values_of(spec: Fields) -> dict[str, str]:
    """Return the fields of the spec as text, where they have a value."""
    found = {name: getattr(spec, name) for name in spec.__dataclass_fields__ if name not in _NO_WORDS}
    if not spec.batch_size:  # the program's own affair
        del found["batch_size"]
    return {name: _format_word(value) for name, value in found.items() if value is not None}


def _format_word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


RATE_PATTERN = r"total images/sec: ([\d.]+)"  # of tf_cnn_benchmarks' last line but one
HOW_TO_PRINT = (
    "Print the rate as 1234.5 or 1,234.5, in images per second, with a blank or a unit behind it; or have the pattern's group "
    'take all of the number, and the pattern what is beside it (docs/command.md, "How a number is read").'
)
# Workers that step together report the same of themselves, but for the ends of the windows that each has measured.
TOLERANCE = 0.2
# Workers that do not wait may well differ. Where one is so many times as fast as another, though, they have trained
# together for no more than half of the slower's time, and no one rate was the cluster's; or not all of them print it.
DISTANCE = 2.0


def _sum_devices(rates: Sequence[float], devices: Sequence[int]) -> float:
    return sum(devices) * min(rate / own for rate, own in zip(rates, devices, strict=True))


# Of the workers' numbers, chief first, and their devices. Never a sum: its terms would come from different windows of time.
RATE_RULES: Mapping[str, Callable[[Sequence[float], Sequence[int]], float]] = {
    "chief": lambda rates, devices: rates[0],
    "mean": lambda rates, devices: statistics.fmean(rates),
    "slowest": lambda rates, devices: min(rates),
    "each": _sum_devices,
}


def rate_pattern_of(spec: Fields) -> str:
    return spec.rate_pattern or RATE_PATTERN


def format_pattern(pattern: str) -> str:
    """Return a regular expression as a test has it: what can be pasted there."""
    raw = next((f"r{quote}{pattern}{quote}" for quote in "\"'" if quote not in pattern), "")
    return raw if raw and pattern.isprintable() and not pattern.endswith("\\") else repr(pattern)


def check_rate(spec: Fields) -> None:
    """Raise `SpecError` where no rate could be read so, or it would be wrong."""
    written = format_pattern(rate_pattern_of(spec))
    try:
        groups = re.compile(rate_pattern_of(spec)).groups
    except (re.error, RecursionError, OverflowError) as exc:
        raise SpecError(f"rate_pattern={written} is no regular expression: {exc}") from exc
    if not groups:
        raise SpecError(f"rate_pattern={written} needs a group around the number: {format_pattern(RATE_PATTERN)}")
    if spec.rate_of == "each" and not spec.cross_replica_sync:
        raise SpecError(
            "rate_of='each' takes workers to step together, so that the slowest speaks for all, and cross_replica_sync=false "
            "defines that they do not. Have the program print the whole cluster's rate"
        )


def cluster_rate(
    spec: Fields,
    reported: Mapping[str, str | None],
    devices: Sequence[int],
    last_lines: Mapping[str, Sequence[str]],
    unclear: Mapping[str, str] = {},
) -> float:
    """Return images/sec of the whole cluster.

    Args:
        reported: The number that each worker, chief first, printed last; None if it printed none.
        devices: The number of devices of each worker.
        last_lines: The last lines of workers that printed no number; of an unclear one, the line that cannot be read.
        unclear: Why the number of a worker cannot be read.

    Raises:
        InvalidMeasurement: A number is missing or cannot be read.
    """
    workers = list(reported)[:1] if spec.rate_of == "chief" else list(reported)
    for worker in workers:
        if worker in unclear:
            raise InvalidMeasurement(
                f"the rate of {worker} cannot be read, because {unclear[worker]}: "
                f"rate_pattern={format_pattern(rate_pattern_of(spec))}."
                f"{quote_lines(last_lines.get(worker, ()))}\n{HOW_TO_PRINT}"
            )
    rates = [_number(spec, worker, reported[worker], last_lines.get(worker, ())) for worker in workers]
    if spec.rate_of == "mean":
        _check_distance(dict(zip(workers, rates, strict=True)))
    if spec.rate_of == "each":
        _check_consistency(dict(zip(workers, [rate / own for rate, own in zip(rates, devices, strict=True)], strict=True)))
    return RATE_RULES[spec.rate_of](rates, devices)


def _number(spec: Fields, worker: str, reported: str | None, last_lines: Sequence[str]) -> float:
    pattern = format_pattern(rate_pattern_of(spec))
    if reported is None:
        last = quote_lines(last_lines)
        so = f"its last lines are:{last}" if last_lines else "it has printed nothing"
        raise InvalidMeasurement(f"no line of {worker}'s output matches rate_pattern={pattern}; {so}")
    try:
        number = parse(reported)
    except UnclearNumber:
        number = math.nan
    if not (math.isfinite(number) and number > 0):
        raise InvalidMeasurement(f"rate_pattern={pattern} found {show_value(reported)} in {worker}'s output, which is no rate")
    return number


def _check_distance(rates: Mapping[str, float]) -> None:
    """Raise `InvalidMeasurement` where the numbers cannot all be the cluster's rate."""
    slowest, fastest = _find_slowest_and_fastest(rates)
    if rates[fastest] >= DISTANCE * rates[slowest]:
        raise InvalidMeasurement(
            f"rate_of='mean' takes every worker's number for the cluster's rate, but {slowest} prints {rates[slowest]:.6g} "
            f"images/sec and {fastest} {rates[fastest]:.6g}: {DISTANCE:g} times as many or more cannot both be true. "
            "If only the first worker prints it, set rate_of='chief'; if each prints its own, have it print workers x its own"
        )


def _check_consistency(of_a_device: Mapping[str, float]) -> None:
    """Raise `InvalidMeasurement` where the workers cannot have stepped together."""
    slowest, fastest = _find_slowest_and_fastest(of_a_device)
    if of_a_device[fastest] > (1 + TOLERANCE) * of_a_device[slowest]:
        raise InvalidMeasurement(
            f"rate_of='each' takes workers to step together, but {slowest} prints {of_a_device[slowest]:.6g} images/sec per "
            f"device and {fastest} {of_a_device[fastest]:.6g}: more than {100 * TOLERANCE:g} % apart"
        )


def _find_slowest_and_fastest(rates: Mapping[str, float]) -> tuple[str, str]:
    """Return the slowest worker and the fastest."""
    by_rate = sorted(rates, key=lambda worker: rates[worker])
    return by_rate[0], by_rate[-1]
