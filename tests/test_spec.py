"""Tests of specs: refusals, keys, labels, and their way to a host and back."""

import ast
import json
from typing import Any

import pytest

from pytest_dtfperf.cli.run import parse_specs
from pytest_dtfperf.errors import SpecError
from pytest_dtfperf.spec import INPUTS, KEY_FIELDS, MODELS, VARIABLE_UPDATES, Spec, TaskOrder, labels


def spec(**changes: Any) -> Spec:
    return Spec(**{"model": "inception3", "batch_size": 8, **changes})


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "unknown model": ({"model": "incepton3"}, "unknown model 'incepton3'. Did you mean 'inception3'"),
    "unknown strategy": ({"variable_update": "replicate"}, "Did you mean 'replicated'"),
    "no images": ({"batch_size": 0}, "batch_size must be a whole number of at least 1, not 0"),
    "half a device": ({"gpus": 1.5}, "gpus must be a whole number"),
    "one word for a list of them": (
        {"environment": "NCCL_ALGO=Ring"},
        "environment must be a list of texts of the form NAME=value, not 'NCCL_ALGO=Ring'",
    ),
    "a seed that TensorFlow cannot hold": ({"seed": 2**63}, "seed must be at most 9223372036854775807, not"),
    "true is no number": ({"steps": True}, "steps must be a whole number"),
    "no parameter server for many": (
        {"gpus": 2, "variable_update": "distributed_replicated"},
        "needs num_ps of at least 1",
    ),
    "a parameter server for none": ({"variable_update": "replicated", "num_ps": 1}, "num_ps must be 0, not 1"),
    "asynchronous and always synchronous": (
        {"variable_update": "replicated", "cross_replica_sync": False},
        "always synchronous",
    ),
    "a foreign input": ({"data": "mnist", "data_dir": "/d"}, "cannot be fed from data=mnist"),
    "an input without its folder": ({"model": "mnist", "data": "mnist"}, "needs data_dir"),
    "accuracy of noise": ({"evaluate": True}, "accuracy on synthetic images means nothing"),
    "synchronous and never so": ({"variable_update": "parameter_server_v2", "num_ps": 1}, "set cross_replica_sync=false"),
    "a strategy of servers without any": (
        {"variable_update": "parameter_server_v2", "cross_replica_sync": False},
        "needs num_ps of at least 1",
    ),
    "a session's input without a session": (
        {"variable_update": "mirrored", "data": "zmq"},
        "mirrored cannot be fed from data=zmq. Allowed: synthetic, ",
    ),
    "an odd hierarchy": (
        {"variable_update": "mirrored", "gpus": 3, "hierarchical_copy": True},
        "would leave one of 3 out: use an even number",
    ),
    "a loss scale that a strategy cannot change": (
        {"variable_update": "mirrored", "precision": "fp16", "fp16_enable_auto_loss_scale": True},
        "has no dynamic loss scale",
    ),
    "a short wire where nothing is sent": (
        {"variable_update": "replicated", "wire_precision": "bf16"},
        "variable_update=replicated. It is for parameter_server, distributed_replicated, distributed_all_reduce, collective_",
    ),
    "an unknown wire": ({"wire_precision": "fp16"}, "unknown wire_precision 'fp16'"),
    "an endless rate": ({"learning_rate": float("inf")}, "learning_rate must be a finite number"),
}


@pytest.mark.parametrize("case", WRONG)
def test_spec_that_cannot_be_trained_is_refused(case: str) -> None:
    """An impossible training is refused when its spec is made, with the allowed values."""
    changes, words = WRONG[case]
    with pytest.raises(SpecError, match=words):
        spec(**changes)


def test_task_order_survives_json() -> None:
    """A task's order is the same after JSON."""
    order = TaskOrder(
        run="r1", job="worker", index=1, spec=spec(gpus=2, num_ps=1), cluster={"ps": ("a:1",), "worker": ("a:2", "b:3")}
    )
    assert TaskOrder.from_json(json.loads(json.dumps(order.to_json()))) == order


def test_key_escapes_blanks_in_values() -> None:
    """A value with blanks is one word of the key, since keys are split at blanks."""
    scheduled = spec(piecewise_learning_rate_schedule="0.1; 10;\t0.01")
    assert scheduled.key.split()[-1] == "piecewise_learning_rate_schedule=0.1;%2010;%090.01"
    assert [word.partition("=")[0] for word in scheduled.key.split()] == [*KEY_FIELDS, "piecewise_learning_rate_schedule"]


@pytest.mark.parametrize("name", ["steps", "warmup_steps", "seed", "learning_rate"])
def test_key_excludes_length_and_seed(name: str) -> None:
    """A spec with another length, seed or learning rate has the same key."""
    assert spec(**{name: 7}).key == spec().key


@pytest.mark.parametrize(
    "name, value", [("batch_size", 9), ("precision", "fp32"), ("data_format", "NCHW"), ("optimizer", "adam")]
)
def test_key_has_fields_that_affect_the_rate(name: str, value: Any) -> None:
    """A field that affects the rate is in the key by name."""
    assert f"{name}={value}" in spec(**{name: value}).key.split()


def test_key_has_every_field_once() -> None:
    """The key has each of its fields once, in one order."""
    assert tuple(word.partition("=")[0] for word in spec().key.split()) == KEY_FIELDS


def test_key_and_label_omit_the_placement_on_one_server() -> None:
    """The placement is in key and label with two parameter servers, and in neither with one."""
    split = spec(num_ps=1, variable_placement="split")
    assert (split.key, split.label) == (spec(num_ps=1).key, spec(num_ps=1).label)
    assert "variable_placement=split" in spec(num_ps=2, variable_placement="split").key.split()
    assert spec(num_ps=2, variable_placement="split").label.endswith(" variable_placement=split")


def test_labels_of_different_specs_differ() -> None:
    """Two specs of a list with the same label get the fields that differ, and another label stays short."""
    plain, momentum = spec(num_ps=1), spec(num_ps=1, optimizer="momentum", data_format="NCHW")
    assert plain.label == momentum.label
    label_of = labels([plain, momentum, spec(num_ps=2)])
    assert label_of[plain] == f"{plain.label} data_format=NHWC optimizer={plain.optimizer}"
    assert label_of[momentum] == f"{plain.label} data_format=NCHW optimizer=momentum"
    assert label_of[spec(num_ps=2)] == spec(num_ps=2).label


def test_label_has_values_other_than_defaults() -> None:
    """A label has the main fields, and another one only if it differs from its default."""
    assert spec(num_ps=1).label == "inception3 b8 gpus=1 num_ps=1 parameter_server"
    assert spec(num_ps=1, cross_replica_sync=False).label.endswith("parameter_server cross_replica_sync=false")


def implementations() -> list[str]:
    """What the rows of all tables name. A strategy of TensorFlow's own is not ours; the engine that drives it is."""
    rows = [row.implementation for table in (MODELS, INPUTS, VARIABLE_UPDATES) for row in table.values()]
    engines = {row.engine for row in VARIABLE_UPDATES.values()}
    return sorted(name for name in {*rows, *engines} if not name.startswith("tensorflow:"))


@pytest.mark.parametrize("implementation", implementations())
def test_tables_name_existing_code(implementation: str) -> None:
    """Each implementation is a name that is defined in a module of this package, found without importing TensorFlow."""
    from pathlib import Path

    import pytest_dtfperf

    module, _, name = implementation.partition(":")
    source = (Path(pytest_dtfperf.__file__).parents[1] / (module.replace(".", "/") + ".py")).read_text()
    assert name in names_of(ast.parse(source))


def names_of(module: ast.Module) -> set[str]:
    """What a module defines: classes, functions and whatever is assigned, in tuples too."""
    defined = {node.name for node in module.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    assigned = [target for node in module.body if isinstance(node, ast.Assign) for target in node.targets]
    return defined | {node.id for target in assigned for node in ast.walk(target) if isinstance(node, ast.Name)}


def test_arguments_of_a_spec_give_the_same_key() -> None:
    """The arguments of a spec, read as `dtfperf run` reads them, give its key, and an external command has none."""
    wanted = Spec(
        model="mnist",
        batch_size=8,
        gpus=4,
        num_ps=2,
        cross_replica_sync=False,
        environment=("NCCL_ALGO=Ring",),
        data_dir="/a b",
        data="mnist",
    )
    (read,) = parse_specs([*wanted.to_arguments(), "warmup_steps=3"])
    fields = {**read.fields, "environment": tuple(read.fields["environment"])}
    assert Spec(model=read.model, **fields).key == wanted.key
    assert Spec(model="mine", batch_size=1, command=("python", "x.py")).to_arguments() == []
