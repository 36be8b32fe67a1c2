"""What to train, and what each task of a run gets of it.

It is sent to the hosts as JSON, so it needs nothing but Python there.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

from pytest_dtfperf.codec import JsonData, describe
from pytest_dtfperf.spec import tables
from pytest_dtfperf.spec.checks import check, check_field
from pytest_dtfperf.spec.command import ASKED, COMMAND_FIELDS, TF_CONFIG, flags_of, names_in, program_name, values_of
from pytest_dtfperf.spec.fields import Fields
from pytest_dtfperf.spec.tables import OwnModel

# In every key, in this order. Whatever else a rate depends on is in it only where it is not as usual, so that a new
# option leaves the baselines of old specs where they are.
KEY_FIELDS = (
    "model", "batch_size", "gpus", "num_ps", "variable_update", "data", "data_format", "precision", "xla", "optimizer",
    "cross_replica_sync", "variable_placement",
)  # fmt: skip

# Does not change what is measured, only from where, how long, or what is looked at afterwards.
NOT_IN_KEY = frozenset({
    "data_dir", "learning_rate", "evaluate", "stop_at_top_1_accuracy", "eval_during_training_every_n_steps", "warmup_steps",
    "steps", "seed", "own_model", "command_dir", "rate_pattern", "rate_of", "role_flags",
})  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Spec(Fields, JsonData):
    """One training: model, input, devices, strategy and length. Raises `SpecError` if no such training can be."""

    def __post_init__(self) -> None:
        check(self)

    @classmethod
    def check_field(cls, name: str, value: object) -> None:
        """Raise `SpecError` if no spec can have this value there."""
        check_field(name, value, cls.__dataclass_fields__[name].default)

    @cached_property
    def key(self) -> str:
        """The part of the spec a rate depends on, as one line: what a baseline is stored under."""
        unusual = [name for name in self._unusual if name in UNUSUAL_KEY_FIELDS]
        return " ".join(f"{name}={format_value(self._as_trained(name))}" for name in (*KEY_FIELDS, *unusual))

    @cached_property
    def label(self) -> str:
        """A short name for people: `inception3 b8 gpus=2 num_ps=1 parameter_server`, and what is unusual about it."""
        batch = [f"b{self.batch_size}"] if self.batch_size else []
        fields = [self.model, *batch, f"gpus={self.gpus}", f"num_ps={self.num_ps}", self.variable_update]
        shown = {"model", "batch_size", "gpus", "num_ps", "variable_update"}
        silent = {"data_format", "optimizer", *(NOT_IN_KEY - {"evaluate", "stop_at_top_1_accuracy"}), *COMMAND_FIELDS}
        if self.command and program_name(self.command) != self.model:
            fields.append(f"command={program_name(self.command)}")
        unusual = self._unusual_fields
        fields += [f"{name}={format_value(getattr(self, name))}" for name in unusual if name not in shown | silent]
        return " ".join(fields)

    def _as_trained(self, name: str) -> object:
        """Return a field's value without what makes no difference: a single server has all variables, however placed."""
        if name == "variable_placement" and self.num_ps <= 1:
            return type(self).variable_placement
        return getattr(self, name)

    @property
    def _unusual(self) -> list[str]:
        """Names of the fields that are not as usual, in their order."""
        return [field.name for field in fields(self) if getattr(self, field.name) != field.default]

    @property
    def _unusual_fields(self) -> list[str]:
        """The same for people: of an own model, what is not as usual of such models."""
        usual = tables.OWN_MODEL_DEFAULTS[self.own_model] if self.own_model else {}
        return [field.name for field in fields(self) if self._as_trained(field.name) != usual.get(field.name, field.default)]

    def to_arguments(self) -> list[str]:
        """Return the training as arguments of `dtfperf run`, without its length; empty for programs and own models."""
        if self.command or self.own_model:
            return []
        named = [name for name in self._unusual if name != "model" and (name not in NOT_IN_KEY or name == "data_dir")]
        values = {name: getattr(self, name) for name in named}
        return [
            self.model,
            *(f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in values.items()),
        ]

    def replace(self, **changes: Any) -> "Spec":
        """Return the same training with some things changed."""
        return replace(self, **changes)


def labels(specs: Iterable[Spec]) -> dict[Spec, str]:
    """Return the label of each; where some have the same one, with the fields that differ: `... optimizer=momentum`."""
    alike: dict[str, dict[Spec, None]] = defaultdict(dict)
    for spec in specs:
        alike[spec.label][spec] = None
    return {
        spec: " ".join([label, *(f"{name}={format_value(getattr(spec, name))}" for name in names)])
        for label, group in alike.items()
        for names in [_list_differing_fields(group)]
        for spec in group
    }


def _list_differing_fields(specs: Iterable[Spec]) -> list[str]:
    """Return the names of the fields in which the specs differ, in the order of the fields."""
    values = {field.name: {getattr(each, field.name) for each in specs} for field in fields(Spec)}
    return [name for name, found in values.items() if len(found) > 1]


def format_value(value: object) -> str:
    """Return a field's value as it is written in keys and labels."""
    if isinstance(value, bool):
        return str(value).lower()
    text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return re.sub(r"[\s%]", lambda blank: f"%{ord(blank[0]):02X}", text)  # a key is cut at its blanks


# In a key, behind the others, where it is not as usual.
UNUSUAL_KEY_FIELDS = tuple(field.name for field in fields(Spec) if field.name not in NOT_IN_KEY.union(KEY_FIELDS))


@dataclass(frozen=True, kw_only=True)
class TaskOrder(JsonData):
    """The order of one task: the training, its own part in it, and the other tasks."""

    run: str  # id of the run
    job: str  # "ps" or "worker"; of an external command "chief" and "evaluator", too
    index: int
    spec: Spec
    cluster: Mapping[str, tuple[str, ...]]  # job -> "address:port" of each of its tasks; empty for a lone process
    own: OwnModel | None = field(default=None, metadata=describe("The spec's own model and its code", omit_empty=True))
    device: str = "cpu"  # "cpu" or "gpu": what does the arithmetic here. A ps always computes on its CPU
    num_devices: int = 1  # of this task
    threads: int = 1  # intra_op and inter_op threads of the task: its share of the host's cores
    sleep_s: float = 0.0  # an injected slow-down: sleep so long within every step, to see that the alarm works
    timestamped: tuple[bool, ...] = (
        True,
    )  # whether a step has timestamps, over and over. All have, but where their cost is measured
    traced_steps: int = 0  # to train after the measured ones, each with TensorFlow's full account of it
    streams: bool = False  # what an external command prints goes to the controller line by line, too
    stays: bool = False  # until it is sent away, though an external command may have ended: a ps, and a server for a chief
    grace_s: float = 0.0  # how long such a command may then go on before it is signalled to end
    checkpoint: str | None = None  # the chief saves the trained variables there (npz, by name)

    @property
    def name(self) -> str:
        return f"{self.job}:{self.index}"

    @property
    def is_chief(self) -> bool:
        return self.job == "worker" and self.index == 0

    @property
    def serves_devices(self) -> bool:
        """Whether the chief's session computes on this worker, which has none of its own."""
        return self.spec.mode.single_session and self.job == "worker" and self.index > 0

    @property
    def workers(self) -> int:
        """How many worker tasks the run has."""
        return len(self.cluster["worker"]) if self.cluster else 1

    @property
    def is_between_hosts(self) -> bool:
        """Whether there are links between tasks."""
        return len({address.rpartition(":")[0] for addresses in self.cluster.values() for address in addresses}) > 1


def task_arguments(order: TaskOrder) -> list[str]:
    """Return the program and its arguments, as this task starts it.

    A single process gets no role, and a flag for parameter servers, or a chief, is left out where there are none.
    """
    spec, values = order.spec, _values(order)
    flags = [] if _is_alone(order) else [flag for flag in flags_of(spec.role_flags) if not _is_none_requested(flag, values)]
    return [_fill_in(word, values) for word in (*spec.command, *flags)]


def task_variables(order: TaskOrder) -> dict[str, str]:
    """Return the variables for the task's environment. A variable for tasks that there are none of is left out."""
    values = _values(order)
    variables = {
        name: _fill_in(value, values)
        for name, _, value in (word.partition("=") for word in order.spec.environment)
        if not _is_none_requested(value, values)
    }
    if order.spec.role_flags == TF_CONFIG and not _is_alone(order):
        task = {"type": order.job, "index": order.index}
        cluster = {job: list(at) for job, at in order.cluster.items() if job != "evaluator"}  # which does not train
        variables[TF_CONFIG] = json.dumps({"cluster": cluster, "task": task})
    return variables


def _is_alone(order: TaskOrder) -> bool:
    return sum(map(len, order.cluster.values())) <= 1


def _values(order: TaskOrder) -> Mapping[str, str]:
    """Return the value of each name in braces for this task."""
    addresses = {job: order.cluster.get(job, ()) for job in ("chief", "worker", "ps", "evaluator")}
    chief = next((at for job in ("chief", "worker") for at in addresses[job]), ":")
    own = {
        "job": order.job,
        "index": order.index,
        **{f"{job}_hosts": ",".join(addresses[job]) for job in ("ps", "worker", "chief")},
        "chief_host": _host(chief),
        "chief_port": chief.rpartition(":")[2],
        "hosts": ",".join(dict.fromkeys(_host(at) for each in addresses.values() for at in each)),
        "workers": order.workers,
        "devices": order.num_devices if order.job != "ps" else -(-order.spec.gpus // order.workers),
        "threads": order.threads,
    }
    return {**values_of(order.spec), **{name: str(value) for name, value in own.items()}}


def _host(address: str) -> str:
    """Return a host as programs take it beside a port of its own: IPv6 without brackets."""
    return address.rpartition(":")[0].removeprefix("[").removesuffix("]")


def _fill_in(word: str, values: Mapping[str, str]) -> str:
    return ASKED.sub(lambda match: f"{{{match[1]}}}" if match[1] else values[match[2]], word)


def _is_none_requested(word: str, values: Mapping[str, str]) -> bool:
    return any(name.endswith("_hosts") and not values[name] for name in names_in([word]))
