"""What to train, on how many devices, and what every task gets of it."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_dtfperf.spec.spec import KEY_FIELDS, NOT_IN_KEY, UNUSUAL_KEY_FIELDS, Spec, TaskOrder, labels
    from pytest_dtfperf.spec.tables import (
        INPUTS,
        MODE_OPTIONS,
        MODELS,
        OPTIMIZERS,
        VARIABLE_PLACEMENTS,
        VARIABLE_UPDATES,
        Input,
        Model,
        VariablePlacement,
        VariableUpdate,
        inputs_of,
    )
else:
    # Found when it is asked for: every pytest run on a machine with this plugin needs the tables, and no foreign one more.
    _OF_SPEC = ("KEY_FIELDS", "NOT_IN_KEY", "Spec", "TaskOrder", "UNUSUAL_KEY_FIELDS", "labels")
    _HOMES = dict.fromkeys(_OF_SPEC, "spec")

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'tables')}"), name)
        globals()[name] = found
        return found


__all__ = [
    "INPUTS",
    "KEY_FIELDS",
    "MODELS",
    "MODE_OPTIONS",
    "NOT_IN_KEY",
    "OPTIMIZERS",
    "UNUSUAL_KEY_FIELDS",
    "VARIABLE_PLACEMENTS",
    "VARIABLE_UPDATES",
    "Input",
    "Model",
    "Spec",
    "TaskOrder",
    "VariablePlacement",
    "VariableUpdate",
    "inputs_of",
    "labels",
]
