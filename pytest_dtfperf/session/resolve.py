"""Resolve a test's arguments to a training, by the precedence of all settings. Pure functions.

The order is: a test's own argument, the command line, the cluster's table for the model, its table for all models, the
model's default. An external command gets only settings that it uses.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from pytest_dtfperf.baselines import verdict
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.errors import SpecError, UsageError, describe_unknown_name, show_value
from pytest_dtfperf.formats import parse_time_budget
from pytest_dtfperf.session.settings import Settings
from pytest_dtfperf.spec import MODELS, VARIABLE_UPDATES, Spec, tables
from pytest_dtfperf.spec.command import program_name, requested_names
from pytest_dtfperf.training.models import get_network
from pytest_dtfperf.training.models.outline import get_outline

# If a link connects servers and workers, all others wait for the server with most bytes: VGG16 trains 1.5 times as
# fast over four servers at 1 Gbit/s as with the usual placement. On one host there is no such link, and joining parts
# costs a copy. docs/network-study.md has the measurements.
BETWEEN_HOSTS = "split"

SPEC_FIELDS = tuple(field.name for field in fields(Spec) if field.name != "own_model")  # follows from the model


@dataclass(frozen=True)
class RepeatPlan:
    """The number of runs of a spec."""

    repeats: int = verdict.MOST_RUNS  # most runs; close cases need so many
    min_repeats: int | None = None  # fewest before a verdict may end the runs; None: as few as the known noise allows
    is_fixed: bool = False  # the test has set the number of runs, independent of the verdict

    @property
    def fewest(self) -> int:
        return min(self.min_repeats or verdict.LEAST_RUNS, self.repeats)


def merge_cluster_settings(training: Mapping[str, Any], models: Mapping[str, Mapping[str, Any]], model: str) -> dict[str, Any]:
    """Return the settings in a cluster's tables for a model."""
    return {**training, **models.get(model, {})}


def resolve(
    wanted: Mapping[str, Any],
    options: Settings,
    cluster_settings: Mapping[str, Any],
    device: str,
    *,
    between_hosts: bool = False,
) -> Spec:
    """Return the training of a test.

    Args:
        device: "cpu" or "gpu".
        between_hosts: whether tasks may be on several hosts.

    Raises:
        SpecError: the training is impossible.
    """
    for name in wanted:
        if name not in SPEC_FIELDS:
            raise SpecError(f"train(): {describe_unknown_name('argument', name, SPEC_FIELDS)}")
    given = {key: _frozen(value) for key, value in wanted.items() if value is not None}
    if given.get("command"):
        return Spec(**_choose_for_command(given, options, cluster_settings, device))
    model = given.get("model", "")
    if model not in MODELS:
        raise SpecError(f"train(): {describe_unknown_name('model', model, MODELS)}")
    mine = tables.find_own_model(model)
    layered: dict[str, Any] = {
        **_defaults(model, given.get("data", "synthetic"), device),
        **{key: _frozen(value) for key, value in cluster_settings.items() if key in SPEC_FIELDS},
        **options.overrides,
        **given,
    }
    if layered["data"] == "synthetic":
        layered.pop("data_dir", None)
    spec = Spec(**_with_mode(layered, between_hosts=between_hosts), own_model=mine.kind if mine else None)
    if mine and mine.kind == tables.LAYERS:
        _check_layers(spec)
    return spec


def _check_layers(spec: Spec) -> None:
    """Check that parameters and operations of an own model of layers can be counted. Raises `SpecError`."""
    try:
        found, classes = get_outline(spec), get_network(spec).classes
    except SpecError:
        raise
    except Exception as error:
        raise SpecError(f"train(): the layers of {spec.model} do not fit together: {type(error).__name__}: {error}") from error
    if found.stages["logits"] != (classes,):
        raise SpecError(
            f"train(): {spec.model} has classes = {classes}, but makes {show_value(found.stages['logits'])} of an image: "
            f"logits are one number for each class, ({classes},)"
        )


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _with_mode(layered: Mapping[str, Any], *, between_hosts: bool = False) -> dict[str, Any]:
    """Return the values with the defaults of their variable update."""
    mode = VARIABLE_UPDATES.get(layered.get("variable_update", "parameter_server"))
    if mode is None:
        return dict(layered)
    placed = {"variable_placement": BETWEEN_HOSTS} if between_hosts and mode.has_variable_placement else {}
    return {"num_ps": 1 if mode.parameter_servers else 0, "cross_replica_sync": mode.synchronous, **placed, **layered}


def _choose_for_command(
    given: Mapping[str, Any], options: Settings, cluster_settings: Mapping[str, Any], device: str
) -> dict[str, Any]:
    """Return the values for a command: the test's own, and of the settings only those that the command uses."""
    name = given.get("model") or program_name(given["command"])
    defaults = {"data_format": _data_format(device), **({"batch_size": MODELS[name].batch_size} if name in MODELS else {})}
    layered = {**defaults, **cluster_settings, **options.overrides}
    requested = {
        *requested_names(given["command"], given.get("role_flags"), given.get("environment", ())),
        "gpus",
        "num_ps",
        "variable_update",
    }
    kept = {key: value for key, value in layered.items() if key in requested and key in SPEC_FIELDS}
    return _with_mode({"model": name, "batch_size": 0, **kept, **given})


def _defaults(name: str, data: str, device: str) -> dict[str, Any]:
    model, mine = MODELS[name], tables.find_own_model(name)
    return {
        "batch_size": model.batch_size,
        "optimizer": model.optimizer,
        "learning_rate": model.learning_rate,
        "data": data,
        "data_format": _data_format(device),
        **(tables.OWN_MODEL_DEFAULTS[mine.kind] if mine else {}),
    }


def _data_format(device: str) -> str:
    """Return the data format in which a device computes fastest."""
    return "NCHW" if device == "gpu" else "NHWC"


def plan(options: Settings, cluster_settings: Mapping[str, Any], *, repeats: int | None = None) -> RepeatPlan:
    """Return how often a spec is run: by the test, the command line, then the cluster. Raises `SpecError`."""
    for given in (repeats, options.repeats):
        if given is not None and not (type(given) is int and given >= 1):
            raise SpecError(f"repeats must be a whole number of at least 1, not {given!r}")
    most = repeats or options.repeats or cluster_settings.get("repeats", RepeatPlan.repeats)
    least = cluster_settings.get("min_repeats")
    return RepeatPlan(repeats=most, min_repeats=min(least, most) if least else None, is_fixed=repeats is not None)


def choose_time_budget(options: Settings, config: ClusterConfig) -> float | None:
    """Return the seconds that all measurements may take: by the command line, then the cluster. None: any time.

    Baselines take all runs they need, so that a session which accepts what it measures is limited by the command line alone.
    """
    if options.time_budget is not None:
        return options.time_budget if isinstance(options.time_budget, float) else None
    if options.update_baselines or config.time_budget is None:
        return None
    return parse_time_budget(config.time_budget)


def choose_margin(options: Settings, given: float | None, system: float | None, cluster_settings: Mapping[str, Any]) -> float:
    """Return how much slower a rate may be: by the command line, the test, its system's baseline file, then the cluster."""
    return take_first(options.margin, given, system, cluster_settings.get("margin"), verdict.MARGIN)


def choose_min_efficiency(options: Settings, given: float | None, system: float | None) -> float:
    """Return the least scaling efficiency: by the command line, the test, then its system's baseline file."""
    return take_first(options.min_efficiency, given, system, verdict.EFFICIENCY)


def take_first(*values: float | None) -> float:
    return next(value for value in values if value is not None)


SLOWDOWN_VARIABLE = "DTFPERF_SLOWDOWN"
_ENTRY = re.compile(r"(worker:(?:0|[1-9]\d*))=(\d+\.?\d*|\.\d+)", re.ASCII)


def read_slowdowns(environment: Mapping[str, str]) -> dict[str, float]:
    """Return task -> seconds that it sleeps in every step. Raises `UsageError`."""
    found: dict[str, float] = {}
    for entry in filter(None, environment.get(SLOWDOWN_VARIABLE, "").replace(" ", "").split(",")):
        match = _ENTRY.fullmatch(entry)
        if not match or not math.isfinite(float(match[2])):
            raise UsageError(f"{SLOWDOWN_VARIABLE} takes tasks and seconds per step, as in worker:1=0.2, not {entry!r}")
        if match[1] in found:
            raise UsageError(f"{SLOWDOWN_VARIABLE} has {match[1]} twice: {found[match[1]]:g} s and {match[2]} s")
        found[match[1]] = float(match[2])
    return found


def check_slowdowns(spec: Spec, injected_slowdowns: Mapping[str, float]) -> None:
    """Raise `SpecError` if no task would sleep."""
    if spec.command and injected_slowdowns:
        raise SpecError(f"{SLOWDOWN_VARIABLE} does not make commands sleep; {spec.label} is an external command")
