"""Networks as TensorFlow runs them: one suite over the table, without the deepest networks of families."""

import math
from itertools import product
from typing import Any

import numpy as np
import pytest

from pytest_dtfperf.spec import MODELS
from pytest_dtfperf.training.models import make_network
from pytest_dtfperf.training.models.outline import compute_outline
from tests import campaign
from tests.training.models.conftest import Ask
from tests.training.models.test_outline import missing_scales

# Small images keep a step short; a network's variables, but for dense layers behind a `flatten`, are the same for all sizes.
SMALL = {
    "alexnet": 67, "densenet": 8, "googlenet": 32, "inception": 75, "overfeat": 71, "resnet": 48, "resnet20": 8, "trivial": 16,
    "vgg": 32,
}  # fmt: skip
LIGHT = ("trivial", "mnist", "mnist_softmax", "lenet")

RESNETS = [name for name in MODELS if name.startswith("resnet")]

# More of the same units as in the family's first. What they come to is held against the literature in test_outline.
DEEPER = ("resnet101", "resnet152", "vgg19", "resnet32", "resnet44", "resnet56", "resnet110", "densenet100_k24")

# How far from ln(classes) a loss may begin. Labels know nothing of the images yet, so it begins there, and above by half of the
# logits' variance, which is small where every layer keeps or shrinks the variance of what passes through it; and four labels
# are drawn, which moves it by half of the logits' deviation.
NEAR = 0.75
FAR = {
    "mnist": 40.0,  # the tutorial's weights of 0.1 are large for 800 and 3,136 inputs: logits deviate by 17
    **dict.fromkeys(RESNETS, 2.5),  # the last units add to what comes to them, and nothing scales that down: by 1
}
RATE = 0.01
SHORT = {"mnist": 1e-4, **dict.fromkeys(RESNETS, 0.003)}  # rates of steps where the loss bends sharply


def size_of(model: str) -> dict[str, Any]:
    """Return the size of small images for the model."""
    family = max((name for name in SMALL if model.startswith(name)), key=len, default=None)
    return {} if family is None else {"image_shape": (SMALL[family], SMALL[family], 3)}


@pytest.mark.campaign(part=8)  # test_outline.py compares all with the literature
@pytest.mark.parametrize("model", [model for model in MODELS if not model.startswith(DEEPER[1:] if campaign.WHOLE else DEEPER)])
def test_network_learns(ask: Ask, model: str) -> None:
    """A network has its outline's variables and shapes, starts near ln(classes), uses all variables, and its loss falls.

    It is trained on one batch, for twenty steps if a step is short, otherwise for one: then, plain descent must reduce the
    loss.
    """
    steps = 20 if model in LIGHT else 1
    seen = ask("train", model=model, size=size_of(model), steps=steps, rate=SHORT.get(model, RATE))
    network = make_network(model, **size_of(model))
    expected = compute_outline(network)
    assert seen["variables"] == [[variable.name, list(variable.shape)] for variable in expected.trained]
    assert seen["averages"] == [
        [variable.name, list(variable.shape)] for variable in expected.variables if not variable.trainable
    ]
    assert {**seen["stages"], "logits": [network.classes]} == {name: list(shape) for name, shape in expected.stages.items()}
    assert seen["idle"] == []
    assert seen["losses"][0] == pytest.approx(math.log(network.classes), abs=FAR.get(model, NEAR))
    assert seen["losses"][-1] < seen["losses"][0]


@pytest.mark.campaign(part=4)
@pytest.mark.parametrize("model", [model for model in MODELS if not model.startswith(DEEPER)])
def test_graph_has_the_arithmetic_of_its_outline(ask: Ask, model: str) -> None:
    """TensorFlow's profiler finds the outline's multiply-adds and shapes at a model's own size.

    No convolution pads explicitly, because that leaves its gradients to slow kernels.
    """
    seen, expected = ask("graph", model=model), compute_outline(make_network(model))
    assert seen["multiply_adds"] == expected.multiply_adds
    assert {**seen["stages"], "logits": list(expected.stages["logits"])} == {
        name: list(shape) for name, shape in expected.stages.items()
    }
    assert seen["explicit"] == []


@pytest.mark.campaign(part=3)
@pytest.mark.parametrize("model", ["resnet50", "inception3", "densenet100_k12"])
def test_pointwise_convolutions_are_products_on_cpus(ask: Ask, model: str) -> None:
    """Each convolution of 1 x 1 without strides or bias is a matrix product on CPUs, with the same total arithmetic."""
    on_gpus, on_cpus = ask("graph", model=model), ask("graph", model=model, device="cpu")
    assert on_gpus["pointwise"] > 0 == on_cpus["pointwise"]
    assert on_cpus["products"] == on_gpus["products"] + on_gpus["pointwise"]
    assert on_cpus["multiply_adds"] == on_gpus["multiply_adds"]


def test_weights_first_are_the_same_gradients(ask: Ask) -> None:
    """Gradients in the order "weights first" equal TensorFlow's, and each layer's inputs wait for its weights."""
    seen = ask("order")
    for ours, theirs in zip(*seen["gradients"].values(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    convolution = ["Conv2DBackpropInput", "Conv2DBackpropFilter"]
    assert sorted(seen["ours"]) == [convolution, convolution, ["MatMul", "MatMul"]]
    assert sorted(seen["theirs"]) == [["Conv2DBackpropInput"], ["Conv2DBackpropInput"], ["MatMul"]]


@pytest.mark.parametrize("precision, rtol", [("fp32", 1e-5), ("bf16", 2**-6), ("fp16", 2**-9)])
def test_parts_multiply_as_the_matrix_that_they_are(ask: Ask, precision: str, rtol: float) -> None:
    """Vectors times a matrix in parts are what they are times the whole, with the same gradients, to a few roundings."""
    seen = ask("products", precision=precision)
    for parts, whole in zip(seen["parts"], seen["whole"], strict=True):
        np.testing.assert_allclose(parts, whole, rtol=rtol, atol=rtol * np.abs(whole).max())


@pytest.mark.campaign
@pytest.mark.parametrize("timestamped", [False, True])
@pytest.mark.parametrize(
    "changes", [{"variable_update": "parameter_server"}, {"variable_update": "distributed_replicated"}, {"precision": "fp16"}]
)
def test_parts_of_a_dense_layer_are_never_joined(ask: Ask, changes: dict[str, str], timestamped: bool) -> None:
    """A step on a network makes no tensor of its whole largest matrix if that is divided into parts."""
    whole, spread, together = (
        ask("step", placement=placement, between_hosts=between_hosts, timestamped=timestamped, **changes)
        for placement, between_hosts in (("greedy", False), ("split", False), ("greedy", True))
    )
    assert whole["3136"] >= 2  # the value and the gradient
    for parts in spread, together:
        assert "3136" not in parts
        assert sum(parts.values()) > sum(whole.values())


@pytest.mark.campaign(part=4)
@pytest.mark.parametrize(
    "application, model",
    [("InceptionV3", "inception3"), ("ResNet50", "resnet50"), ("ResNet50V2", "resnet50_v2"), ("VGG16", "vgg16")],
)
def test_keras_has_the_same_network(ask: Ask, application: str, model: str) -> None:
    """The same weights, and the same arithmetic where Keras steps by two in the same places; its ResNets have more biases."""
    theirs, ours = ask("keras", application=application), compute_outline(make_network(model, classes=1000))
    weights = sum(variable.size for variable in ours.variables if variable.name.endswith("/weights"))
    assert theirs["weights"] == weights
    if model == "resnet50_v2":  # there, the stages' last units step by two, and no batch norm comes before the first pool
        assert theirs["parameters"] - theirs["biases"] == ours.parameters - 4 * 64 + missing_scales(ours)
        return
    assert theirs["multiply_adds"] == ours.multiply_adds
    assert all(list(ours.stages[block]) == theirs["shapes"][block] for block in ours.stages if block.startswith("mixed"))
    if model == "resnet50":
        assert theirs["parameters"] - theirs["biases"] == ours.parameters
    else:
        assert theirs["parameters"] == ours.parameters


# One network of each family with gradients that dropout does not change, in sizes at which batch norm is stable.
FORMATS = {
    "alexnet": {"image_shape": (16, 16, 3), "classes": 10},  # the one with local response normalisation
    "googlenet": {"image_shape": (32, 32, 3), "classes": 10},
    "inception3": {"image_shape": (75, 75, 3), "classes": 10},
    "resnet50": {"image_shape": (48, 48, 3), "classes": 10},
    "resnet50_v2": {"image_shape": (48, 48, 3), "classes": 10},
    "resnet20": {"image_shape": (16, 16, 3)},
    "resnet20_v2": {"image_shape": (16, 16, 3)},
    "densenet40_k12": {"image_shape": (8, 8, 3), "classes": 10},
}


# What of them is computed otherwise.
OTHERS: dict[str, dict[str, Any]] = {
    "NCHW": {"data_format": "NCHW"},
    "layers for GPUs": {"device": "gpu"},
    "fp16": {"precision": "fp16"},
    "bf16": {"precision": "bf16"},
}
COMPARED = [
    *((model, "NCHW") for model in FORMATS),
    *((model, "layers for GPUs") for model in ("inception3", "resnet50", "densenet40_k12")),
    *product(("alexnet", "googlenet", "densenet40_k12"), ("fp16", "bf16")),
]


@pytest.mark.campaign(part=6)  # networks share the layers, which differ
@pytest.mark.parametrize("model, other", COMPARED)
def test_formats_and_precisions_compute_the_same_network(ask: Ask, model: str, other: str) -> None:
    """Loss and gradients in NCHW and with layers for GPUs equal those of NHWC and CPUs, up to rounding.

    In fp16 and bf16 they have the direction of those in fp32; gradients themselves are in fp32.
    """
    seen = ask("compare", model=model, size=FORMATS[model], other=OTHERS[other])
    if "precision" in OTHERS[other]:
        assert seen["losses"][1] == pytest.approx(seen["losses"][0], abs=0.05)
        assert seen["cosine"] > 0.98
        assert seen["dtypes"] == ["float32"]
    else:
        assert seen["losses"][1] == pytest.approx(seen["losses"][0], rel=1e-4)
        assert seen["farthest"] < 1e-3


def test_outputs_of_a_network_repeat(ask: Ask) -> None:
    """The loss of a network is constant at a learning rate of zero, independent of earlier requests and dropout."""
    first, *others = [loss for _ in range(2) for loss in ask("train", model="mnist", size={}, steps=1, rate=0.0)["losses"]]
    assert others == pytest.approx([first] * 3, rel=1e-5)
