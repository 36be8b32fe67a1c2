"""Own models in tasks: trained in every mode as Keras, or one process, would train them, or refused in one line."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_dtfperf.datamodel.task_report import TaskReport
from pytest_dtfperf.session.own_models import describe_model
from pytest_dtfperf.spec import VARIABLE_UPDATES, Spec, tables
from tests.training.conftest import RunTasks, RunTraining, assert_same_variables, driver, orders_of, report_of
from tests.training.own import models
from tests.training.programs import run_program
from tests.training.test_conformance import DOUBLE, PAIR, Layout, list_layouts

Train = Callable[..., list[TaskReport]]
BATCH, STEPS = 8, 4


@pytest.fixture(scope="module")
def train(run_training: RunTraining) -> Train:
    """Train an own model of this folder's; what every task reports."""

    def train_model(model: Any, *, workers: int = 1, order: dict[str, Any] | None = None, **wanted: Any) -> list[TaskReport]:
        return run_training(spec_of(model, **wanted), workers=workers, own=describe_model(model), **(order or {}))

    return train_model


def spec_of(model: Any, **wanted: Any) -> Spec:
    found = describe_model(model)
    usual = {"batch_size": BATCH, "steps": STEPS, "warmup_steps": 0, "learning_rate": 0.05, "weight_decay": 0.0}
    return Spec(model=found.name, own_model=found.kind, **{"variable_update": "independent", **usual, **wanted})


def mode_cases() -> Iterator[Any]:
    for mode, row in VARIABLE_UPDATES.items():
        last = list_layouts(row)[-1]
        last = last if row.alone or last.num_ps else last._replace(num_ps=1)
        if "no_such" not in str(row.requires):
            yield pytest.param(mode, last, id=f"{mode}-{last}")


@pytest.mark.campaign(part=10)  # what several devices learn in these modes is looked at below
@pytest.mark.parametrize("model", [models.small_cnn, models.softmax], ids=["keras", "function"])
@pytest.mark.parametrize("mode, layout", [*mode_cases()])
def test_own_model_trains_in_every_mode(train: Train, mode: str, layout: Layout, model: Any) -> None:
    """A Keras CNN with batch normalisation and dropout, and a function of tensors, make their steps over several devices."""
    row = VARIABLE_UPDATES[mode]
    sizes = {"gpus": layout.gpus, "num_ps": layout.num_ps, "cross_replica_sync": row.synchronous}
    reports = train(model, workers=layout.workers, variable_update=mode, **sizes)
    chief = reports[layout.num_ps]
    assert len(chief.loss) == STEPS
    assert all(np.isfinite(chief.loss))
    assert chief.network is not None
    assert chief.network.image_shape == [28, 28, 1]
    assert chief.network.classes == 10
    assert sum(chief.variable_bytes.values()) >= 4 * chief.network.trained_parameters


KERAS = """
import json, sys
import numpy as np, tensorflow as tf, keras
from tests.training.own import models
keras.utils.set_random_seed(1234)
keras.config.set_dtype_policy(sys.argv[3])
with tf.device("/CPU:0"):
    model = getattr(models, sys.argv[1])()
cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=sys.argv[1] != "small_cnn")
model.compile(optimizer=keras.optimizers.SGD(0.05), loss=cross_entropy)
images = 2 * tf.raw_ops.RandomUniform(shape=(8, 28, 28, 1), dtype=tf.float32, seed=1234, seed2=1) - 1
labels = tf.raw_ops.RandomUniformInt(shape=[8], minval=0, maxval=10, seed=1234, seed2=1)
losses = []
for step in range(4):
    penalty = sum(float(loss) for loss in model.losses)
    losses.append(float(model.train_on_batch(images, labels)) - penalty)
np.savez(sys.argv[2], **{each.path.partition("/")[2]: each.numpy() for each in model.trainable_variables})
print(json.dumps(losses))
"""


@pytest.mark.campaign
@pytest.mark.parametrize(
    "name, precision, policy, rtol",
    [
        ("small_cnn", "fp32", "float32", 1e-5),
        ("plain_cnn", "fp32", "float32", 1e-5),
        ("small_cnn", "bf16", "mixed_bfloat16", 0.02),
    ],
)
def test_own_model_learns_as_in_keras(
    train: Train, tmp_path: Path, name: str, precision: str, policy: str, rtol: float
) -> None:
    """Losses and variables equal those of `train_on_batch` on the same images, with dropout and batch norm."""
    keras = json.loads(run_program(tmp_path / "log", "-c", KERAS, name, str(tmp_path / "keras.npz"), policy))
    (report,) = train(getattr(models, name), precision=precision, order={"checkpoint": str(tmp_path / "ours.npz")})
    np.testing.assert_allclose(report.loss, keras, rtol=rtol)
    assert_same_variables(tmp_path / "ours.npz", tmp_path / "keras.npz", rtol=10 * rtol, atol=rtol / 10)


def same_cases() -> Iterator[Any]:
    ways: list[tuple[str, Layout, dict[str, Any]]] = [
        ("parameter_server", Layout(2, 2, 2), {}),
        ("parameter_server", Layout(2, 2, 2), {"variable_placement": "split", "agg_small_grads_max_bytes": 0}),
        ("parameter_server", Layout(2, 2, 1), {"agg_small_grads_max_bytes": 1 << 20}),
        ("distributed_replicated", PAIR._replace(num_ps=1), {}),
        ("replicated", DOUBLE, {}),
        ("distributed_all_reduce", PAIR, {}),
        ("collective_all_reduce", PAIR, {}),
        ("mirrored", DOUBLE, {}),
        ("multi_worker_mirrored", PAIR, {}),
        ("replicated", DOUBLE, {"xla_compile": True}),
    ]
    for mode, layout, option in ways:
        yield pytest.param(mode, layout, option, id="-".join([mode, str(layout), *(f"{k}={v}" for k, v in option.items())]))


@pytest.fixture(scope="module")
def images(digit_files: Path) -> dict[str, Any]:
    return {"data": "mnist", "data_dir": str(digit_files), "steps": 3}


@pytest.fixture(scope="module")
def learn_on_one_device(
    train: Train, images: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Any], Path]:
    """Return the variables that one device learns of a model."""

    @cache
    def train_on_one_device(model: Any) -> Path:
        path = tmp_path_factory.mktemp("one") / "variables.npz"
        train(model, batch_size=12, **images, order={"checkpoint": str(path)})
        return path

    return train_on_one_device


@pytest.mark.campaign(part=7)  # the modes are tested with built-in models, and read own models' variables in the same way
@pytest.mark.parametrize("mode, layout, option", [*same_cases()])
@pytest.mark.parametrize("model", [models.plain_cnn, models.with_transposed_product], ids=["keras", "function"])
def test_several_devices_learn_as_one(
    train: Train, learn_on_one_device: Callable[[Any], Path], images: dict[str, Any], tmp_path: Path, model: Any, mode: str,
    layout: Layout, option: dict[str, Any],
) -> None:  # fmt: skip
    """Each device's gradients count once and equally, placed, packed, cut or compiled in any way."""
    several = tmp_path / "several.npz"
    sizes = {"gpus": layout.gpus, "num_ps": layout.num_ps, "batch_size": 12 // layout.gpus}
    train(model, workers=layout.workers, variable_update=mode, **sizes, **images, **option, order={"checkpoint": str(several)})
    assert_same_variables(several, learn_on_one_device(model), rtol=1e-4, atol=1e-6)


@pytest.mark.campaign(part=4)
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("model", [models.plain_cnn, models.softmax], ids=["keras", "function"])
def test_own_model_in_short_floats(train: Train, model: Any, precision: str) -> None:
    """The loss in short floats is near that in float32, and not equal to it."""
    (long,) = train(model)
    (short,) = train(model, precision=precision)
    np.testing.assert_allclose(short.loss, long.loss, rtol=0.1)
    assert short.loss != long.loss


def test_short_floats_on_the_wire(train: Train) -> None:
    """Values and gradients that are sent in bfloat16 train an own model, too."""
    reports = train(models.small_cnn, workers=2, gpus=2, num_ps=1, variable_update="parameter_server", wire_precision="bf16")
    assert np.isfinite(reports[1].loss).all()


@pytest.mark.campaign(part=4)
@pytest.mark.parametrize("mode", ["independent", "mirrored"])
@pytest.mark.parametrize("model", [models.small_cnn, models.softmax], ids=["keras", "function"])
def test_own_model_is_evaluated(train: Train, digit_files: Path, model: Any, mode: str) -> None:
    """An own model is evaluated with its moving averages and without dropout, also in TensorFlow 2's strategies."""
    digits = {"data": "mnist", "data_dir": str(digit_files), "evaluate": True, "steps": 30}
    (report,) = train(model, variable_update=mode, **digits)
    (found,) = report.evaluations
    assert found.score.top_1 > 0.3


@pytest.mark.campaign(part=2)
@pytest.mark.parametrize("mode", ["independent", "mirrored"])
def test_towers_drop_their_own(train: Train, mode: str) -> None:
    """Two devices with the same variables do not lose the same neurons: their loss is not that of one of them alone."""
    (one,) = train(models.small_cnn, variable_update=mode, learning_rate=0.0, steps=1)
    (two,) = train(models.small_cnn, variable_update=mode, gpus=2, learning_rate=0.0, steps=1)
    assert one.loss != two.loss


def test_function_gets_the_size_of_its_images(train: Train, images: dict[str, Any]) -> None:
    """Parameters without defaults get the image size and the classes of the data set."""
    (report,) = train(models.without_defaults, **images)
    assert report.network is not None
    assert (report.network.image_shape, report.network.classes) == ([28, 28, 1], 10)


@pytest.mark.campaign
@pytest.mark.parametrize(
    "model",
    [
        models.keras_subclass,
        models.embedding,
        models.keras_layers,
        models.with_training_argument,
        models.bare_weights,
        models.shared_weights,
    ],
    ids=lambda model: model.__name__,
)
@pytest.mark.parametrize("mode", ["replicated", "mirrored"])
def test_other_kinds_of_models(train: Train, mode: str, model: Any) -> None:
    """Models of other kinds train: derived Keras classes, sparse or missing gradients, shared variables."""
    (report,) = train(model, variable_update=mode, gpus=2)
    assert report.loss[-1] < report.loss[0]


def test_forward_only(train: Train) -> None:
    """A forward pass has no gradients, updates or batch statistics."""
    (report,) = train(models.small_cnn, forward_only=True)
    assert len(set(report.loss)) == 1


@pytest.mark.campaign(part=3)
@pytest.mark.parametrize(
    "model, multiply_adds, parameters",
    [
        (models.small_cnn, 13 * 13 * 4 * 9 + 144 * 10, 4 * 9 + 4 + 4 * 4 + 144 * 10 + 10 + 2),
        (models.plain_cnn, 13 * 13 * 4 * 9 + 676 * 10, 4 * 9 + 4 + 676 * 10 + 10),
        (models.softmax, 7840, 7850),
        (models.keras_layers, 7840, 7850),
        (models.Dense, 7840, 7850),
        (models.dropout, 7840, 7850 + 2),
        (models.shared_weights, 7840, 3920),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_own_model_is_counted(train: Train, model: Any, multiply_adds: int, parameters: int) -> None:
    """The task's report has the variables and the arithmetic of an own model."""
    (report,) = train(model, steps=1)
    assert report.network is not None
    assert (report.network.multiply_adds, report.network.parameters) == (multiply_adds, parameters)


def test_uncounted_arithmetic_has_a_reason(train: Train) -> None:
    """The arithmetic of a loop is None, with the reason."""
    (report,) = train(models.recurrent, steps=1)
    assert report.network is not None
    assert report.network.multiply_adds is None
    assert "operation that is not counted" in report.network.uncounted


def refusals() -> Iterator[Any]:
    for model, wanted, words in (
        (models.two_headed, {}, "has 1 inputs and 2 outputs: images go in, and logits come out"),
        (models.vector_input, {}, "looks at inputs of shape (784,): images are (height, width, channels)"),
        (models.shapeless, {}, "does not define its image shape: begin it with keras.Input((height, width, channels))"),
        (models.a_list, {}, "makes a builtins.list, where it must make a keras.Model of Keras 3"),
        (models.broken, {}, "makes no model: OSError: no weights.h5 here"),
        (models.numpy_call, {}, "cannot be computed within a graph: "),
        (models.without_defaults, {}, "makes no model: TypeError: without_defaults() missing 2 required positional arguments"),
        (models.weightless, {}, "has no variables to train"),
        (models.flat_shape, {}, "has image_shape = (28, 28): it must be (height, width, channels), three whole numbers"),
        (models.scalar_shape, {}, "has image_shape = 28: it must be (height, width, channels), three whole numbers"),
        (models.SIZELESS, {}, "SIZELESS.image_shape = (height, width, channels)"),
        (models.sizeless, {}, "sizeless.image_shape = (height, width, channels)"),
        (models.constant, {}, "makes no variables by tf.Variable or tf.compat.v1.get_variable"),
        (models.moving_mean, {}, "makes a variable that is not trained, 'mean'"),
        (models.image_to_image, {}, "makes [1, 28, 28, 1] of an image: it must be (batch, classes)"),
        (models.in_float32, {"precision": "bf16"}, "has layers that compute in float32, precision=bf16"),
        (models.plain_cnn, {"data": "cifar10", "data_dir": "/"}, "looks at images of (28, 28, 1)"),
    ):
        yield pytest.param(model, wanted, words, id=getattr(model, "__name__", "a partial"))


@pytest.mark.campaign(part=3)
@pytest.mark.parametrize("model, wanted, words", [*refusals()])
def test_invalid_models_are_refused(run_tasks: RunTasks, model: Any, wanted: dict[str, Any], words: str) -> None:
    """An invalid model is refused in one line with its name and the reason."""
    with orders_of(spec_of(model, **wanted), workers=1, own=describe_model(model)) as orders:
        (outcome,) = run_tasks(orders)
    (failed,) = (event for event in outcome["events"] if event["kind"] == "failed")
    (line,) = failed["reason"]
    assert line.startswith(f"SpecError: {describe_model(model).name}")
    assert words in line


def test_host_with_another_backend_is_refused(tmp_path: Path) -> None:
    """A host with another backend of Keras refuses a Keras model in one line, and trains other models."""
    with driver(tmp_path / "log", KERAS_BACKEND="torch") as run_tasks:
        with orders_of(spec_of(models.plain_cnn), workers=1, own=describe_model(models.plain_cnn)) as orders:
            (outcome,) = run_tasks(orders)
        (failed,) = (event for event in outcome["events"] if event["kind"] == "failed")
        (line,) = failed["reason"]
        assert line == (
            f"SpecError: {describe_model(models.plain_cnn).name}: on this host KERAS_BACKEND defines that "
            "Keras' backend is 'torch', "
            'and tasks train with tensorflow alone: change it there, or set environment=["KERAS_BACKEND=tensorflow"]'
        )
        plain = Spec(model="trivial", batch_size=BATCH, steps=1, warmup_steps=0, variable_update="independent")
        with orders_of(plain, workers=1) as orders:
            assert report_of(run_tasks(orders)[0]).loss


def test_model_of_a_missing_package(run_tasks: RunTasks) -> None:
    """A model of a package that the host lacks is reported as missing, so that its test is skipped."""
    found = tables.OwnModel(module="no_such_package.models", attribute="cnn", kind=tables.TENSORFLOW)
    spec = spec_of(models.plain_cnn).replace(model=found.name)
    with orders_of(spec, workers=1, own=found) as orders:
        (outcome,) = run_tasks(orders)
    assert outcome["events"] == [{"kind": "missing", "what": "model", "name": "no_such_package.models.cnn"}]


def test_module_with_a_missing_import(run_tasks: RunTasks) -> None:
    """The missing import of a model's module is named, with a remedy."""
    packed = tables.pack_sources({"my_models.py": "import no_such_module\n\ndef cnn(): pass\n"})
    found = tables.OwnModel(module="my_models", attribute="cnn", kind=tables.TENSORFLOW, packed=packed)
    with orders_of(spec_of(models.plain_cnn).replace(model=found.name), workers=1, own=found) as orders:
        (outcome,) = run_tasks(orders)
    (failed,) = (event for event in outcome["events"] if event["kind"] == "failed")
    assert (
        "needs no_such_module, which this host's Python has not: put the model into a module without it" in failed["reason"][0]
    )


def test_seed_sets_the_first_values(train: Train, run_tasks: RunTasks) -> None:
    """Equal seeds have equal first losses in any process, and different seeds different ones."""
    losses = []
    for seed in (1, 1, 2):
        found = describe_model(models.plain_cnn)
        with orders_of(replace(spec_of(models.plain_cnn), seed=seed), workers=1, own=found) as orders:
            losses.append(report_of(run_tasks(orders)[0]).loss[0])
    assert losses[0] == losses[1] != losses[2]
