"""The combinations of devices, parameter servers and variable update that a test runs with. Pure functions."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Integral
from typing import Any

from pytest_dtfperf.baselines.verdict import MOST_EFFICIENT
from pytest_dtfperf.errors import UsageError, describe_unknown_name, show_value
from pytest_dtfperf.formats import format_count
from pytest_dtfperf.plugin.options import NUM_PS_WORDS, Options
from pytest_dtfperf.spec import VARIABLE_UPDATES

NAMES = ("gpus", "num_ps", "variable_update")
TOO_FEW = "too few"  # in place of a test's parameters if its min_gpus excludes all
DEFAULT_UPDATE = ("parameter_server",)


@dataclass(frozen=True)
class Marker:
    """The declarations of a test: `@pytest.mark.dtfperf(margin=0.05, variable_update=["replicated"])`."""

    margin: float | None = None  # largest allowed loss of rate, as a fraction of the baseline
    efficiency: float | None = None  # smallest allowed scaling efficiency, as a fraction
    checks: int | None = None  # number of its checks, which share its part of the false alarms evenly
    min_gpus: int = 1  # minimum number of devices of the test
    gpus: tuple[int, ...] | None = None
    num_ps: tuple[int, ...] | None = None
    variable_update: tuple[str, ...] = DEFAULT_UPDATE

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any], where: str) -> "Marker":
        """Check a marker's keyword arguments. Raises `UsageError` that names the test."""
        known = [field.name for field in fields(cls)]
        for name in arguments:
            if name not in known:
                raise UsageError(f"{where}: {describe_unknown_name('argument of the dtfperf marker', name, known)}")
        given = {name: value for name, value in arguments.items() if value is not None}
        values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
        for name, value in values.items():
            what, accepts = _MAY_BE[name]
            if not accepts(value):
                raise UsageError(f"{where}: the dtfperf marker's {name} must be {what}, not {show_value(arguments[name])}")
        for mode in values.get("variable_update", ()):
            if mode not in VARIABLE_UPDATES:
                raise UsageError(f"{where}: {describe_unknown_name('variable update', mode, VARIABLE_UPDATES)}")
        return cls(**values)


def _is_count(value: object, least: int) -> bool:
    return type(value) is int and value >= least


def _are_counts(values: object, least: int) -> bool:
    return isinstance(values, tuple) and bool(values) and all(_is_count(each, least) for each in values)


def _is_fraction(value: object, most: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= most


def _are_names(values: object) -> bool:
    return isinstance(values, tuple) and bool(values) and all(isinstance(each, str) for each in values)


# The allowed values of the marker's arguments, as text and as a function.
_MAY_BE: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "margin": ("a fraction of the rate, as 0.05 for 5 %", lambda value: _is_fraction(value, 1) and value < 1),
    "efficiency": ("a fraction, as 0.9 for 90 %", lambda value: _is_fraction(value, MOST_EFFICIENT)),
    "checks": ("a whole number of at least 1", lambda value: _is_count(value, 1)),
    "min_gpus": ("a whole number of at least 1", lambda value: _is_count(value, 1)),
    "gpus": ("a list of whole numbers of at least 1, as [1, 2]", lambda value: _are_counts(value, 1)),
    "num_ps": ("a list of whole numbers of at least 0, as [1, 2]", lambda value: _are_counts(value, 0)),
    "variable_update": ('a list of variable updates, as ["replicated"]', _are_names),
}


def make_combinations(asked: Iterable[str], options: Options, marker: Marker, devices: int) -> list[dict[str, Any]]:
    """Return every combination of the names in a test's signature, in the order of the runs: small to large.

    A mode without parameter servers appears once per device count, with num_ps=0.

    Args:
        devices: number of the cluster's devices.
    """
    from pytest_dtfperf.session.allocation_manager import powers_of_two  # late: other tests do not need it

    names = [name for name in NAMES if name in set(asked)]
    counts = options.gpus or marker.gpus or powers_of_two(devices)
    found = [
        {"gpus": gpus, "num_ps": num_ps, "variable_update": mode}
        for gpus in counts
        if gpus >= marker.min_gpus
        for mode in options.variable_update or marker.variable_update
        for num_ps in _list_parameter_servers(options, marker, mode)
    ]
    unique = {tuple(combination[name] for name in names): None for combination in found}
    return [dict(zip(names, values, strict=True)) for values in unique]


def _list_parameter_servers(options: Options, marker: Marker, mode: str) -> Sequence[int | str]:
    if not VARIABLE_UPDATES[mode].parameter_servers:
        return (0,)
    if isinstance(options.num_ps, str):  # determined after the allocation
        return (options.num_ps,)
    return options.num_ps or marker.num_ps or (1,)


def is_value(name: str, value: object) -> bool:
    """Return whether a combination may have this value by that name."""
    if isinstance(value, str):
        return value in {"num_ps": NUM_PS_WORDS, "variable_update": VARIABLE_UPDATES}.get(name, ())
    least = {"gpus": 1, "num_ps": 0}
    return name in least and isinstance(value, Integral) and int(value) >= least[name]


def identify(combination: Mapping[str, Any]) -> str:
    """Return the part of the test id in brackets, of characters that `-k` allows: `gpus2-ps1-parameter_server`."""
    prefixes = {"gpus": "gpus", "num_ps": "ps", "variable_update": ""}
    return "-".join(f"{prefixes[name]}{value}" for name, value in combination.items())


def explain_lack(combination: Mapping[str, Any], cluster: str, devices: int | None, devices_per_host: int) -> str | None:
    """Return why the cluster cannot run a combination, or None; `devices`: of the whole cluster, if known."""
    gpus = combination.get("gpus", 1)
    mode = VARIABLE_UPDATES.get(combination.get("variable_update", ""))
    if devices is not None and gpus > devices:
        return f"{cluster} has {format_count(devices, 'device')}, gpus={gpus} needs more"
    one_process = mode and (mode.one_process or (mode.local and combination.get("num_ps") == 0))
    if one_process and gpus > devices_per_host:
        name = combination["variable_update"]
        return f"{name} keeps all devices in one process, and a host of {cluster} has {devices_per_host}"
    return None
