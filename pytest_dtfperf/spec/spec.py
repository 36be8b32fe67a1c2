"""What to train, and on how much. Goes down to the hosts as JSON, so it needs nothing but Python there."""

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from pytest_dtfperf.plain import Plain
from pytest_dtfperf.spec import own
from pytest_dtfperf.spec.checks import check, check_field
from pytest_dtfperf.spec.command import COMMAND_FIELDS, program
from pytest_dtfperf.spec.fields import Fields

# Stands in every key, in this order. Whatever else a rate depends on stands in it only where it is not as usual, so that a new
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
class Spec(Fields, Plain):
    """One training: model, input, devices, strategy and length. Raises `SpecError` if no such training can be."""

    def __post_init__(self) -> None:
        check(self)

    def to_json(self) -> dict[str, Any]:
        """Of models of the tables as it was before there were others."""
        found = super().to_json()
        return found if self.own_model else {name: value for name, value in found.items() if name != "own_model"}

    @classmethod
    def check_field(cls, name: str, value: object) -> None:
        """Raise `SpecError` if no spec can have this value there."""
        check_field(name, value, cls.__dataclass_fields__[name].default)

    @cached_property
    def key(self) -> str:
        """The part of the spec a rate depends on, as one line: what a baseline is stored under."""
        unusual = [name for name in self._unusual if name in UNUSUAL_KEY_FIELDS]
        return " ".join(f"{name}={word_of(self._as_trained(name))}" for name in (*KEY_FIELDS, *unusual))

    @cached_property
    def label(self) -> str:
        """A short name for people: `inception3 b8 gpus=2 num_ps=1 parameter_server`, and what is unusual about it."""
        batch = [f"b{self.batch_size}"] if self.batch_size else []
        words = [self.model, *batch, f"gpus={self.gpus}", f"num_ps={self.num_ps}", self.variable_update]
        shown = {"model", "batch_size", "gpus", "num_ps", "variable_update"}
        silent = {"data_format", "optimizer", *(NOT_IN_KEY - {"evaluate", "stop_at_top_1_accuracy"}), *COMMAND_FIELDS}
        if self.command and program(self.command) != self.model:
            words.append(f"command={program(self.command)}")
        unusual = self._told
        words += [f"{name}={word_of(getattr(self, name))}" for name in unusual if name not in shown | silent]
        return " ".join(words)

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
    def _told(self) -> list[str]:
        """The same for people: of an own model, what is not as usual of such models."""
        usual = own.USUAL[self.own_model] if self.own_model else {}
        return [field.name for field in fields(self) if self._as_trained(field.name) != usual.get(field.name, field.default)]

    def but(self, **changes: Any) -> "Spec":
        """The same training with some things changed."""
        return replace(self, **changes)


def labels(specs: Iterable[Spec]) -> dict[Spec, str]:
    """The label of each; where some have the same one, with the fields that tell them apart: `... optimizer=momentum`."""
    alike: dict[str, dict[Spec, None]] = defaultdict(dict)
    for spec in specs:
        alike[spec.label][spec] = None
    return {
        spec: " ".join([label, *(f"{name}={word_of(getattr(spec, name))}" for name in names)])
        for label, group in alike.items()
        for names in [_differing_fields(group)]
        for spec in group
    }


def _differing_fields(specs: Iterable[Spec]) -> list[str]:
    """Return the names of the fields in which the specs differ, in the order of the fields."""
    values = {field.name: {getattr(each, field.name) for each in specs} for field in fields(Spec)}
    return [name for name, found in values.items() if len(found) > 1]


def word_of(value: object) -> str:
    """A field's value as it stands in keys and labels."""
    if isinstance(value, bool):
        return str(value).lower()
    text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return re.sub(r"[\s%]", lambda blank: f"%{ord(blank[0]):02X}", text)  # a key is cut at its blanks


# Stands in a key, behind the others, where it is not as usual.
UNUSUAL_KEY_FIELDS = tuple(field.name for field in fields(Spec) if field.name not in NOT_IN_KEY.union(KEY_FIELDS))
