"""The outlines of networks agree with numbers from other sources, without TensorFlow."""

import math
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from pytest_dtfperf.errors import SpecError
from pytest_dtfperf.spec import MODELS, Spec
from pytest_dtfperf.training.models import get_network, make_default_network, make_network
from pytest_dtfperf.training.models.layers import BATCH_NORM, BatchNorm, compute_padding
from pytest_dtfperf.training.models.outline import Outline, Shape, Shapes, compute_outline, multiply_adds
from tests.training.models.known import KNOWN, TF_CNN_BENCHMARKS

OF_CIFAR_RESNETS: dict[str, tuple[int, ...]] = {"stage1": (32, 32, 16), "stage2": (16, 16, 32), "stage3": (8, 8, 64)}

# Of one image after some stages, as the papers' tables and Keras have them.
STAGES: dict[str, dict[str, tuple[int, ...]]] = {
    "alexnet": {"pool1": (27, 27, 64), "pool2": (13, 13, 192), "pool5": (6, 6, 256)},
    "overfeat": {"pool1": (28, 28, 96), "pool2": (12, 12, 256), "pool5": (6, 6, 1024)},
    "vgg": {"pool1": (112, 112, 64), "pool3": (28, 28, 256), "pool5": (7, 7, 512)},
    "googlenet": {"stem": (28, 28, 192), "3a": (28, 28, 256), "4e": (14, 14, 832), "5b": (7, 7, 1024)},
    "inception3": {"stem": (35, 35, 192), "mixed2": (35, 35, 288), "mixed7": (17, 17, 768), "mixed10": (8, 8, 2048)},
    "inception4": {"stem": (35, 35, 384), "a3": (35, 35, 384), "b6": (17, 17, 1024), "c2": (8, 8, 1536)},
    "resnet": {"stem": (56, 56, 64), "stage1": (56, 56, 256), "stage2": (28, 28, 512), "stage4": (7, 7, 2048)},
    **{f"resnet{layers}": OF_CIFAR_RESNETS for layers in (20, 32, 44, 56, 110)},
    "densenet40": {"block1": (32, 32, 160), "block2": (16, 16, 304), "block3": (8, 8, 448)},
    "densenet100": {"block1": (32, 32, 400), "block2": (16, 16, 784), "block3": (8, 8, 1168)},
    "densenet100_k24": {"block1": (32, 32, 784), "block2": (16, 16, 1552), "block3": (8, 8, 2320)},
    "lenet": {"pool1": (14, 14, 32), "pool2": (7, 7, 64)},
    "mnist": {"logits": (10,)},
    "trivial": {"logits": (1001,)},
}


def compute_known_outline(model: str) -> Outline:
    """Compute the outline of a model with the classes of its source."""
    network: Any = make_default_network(model)
    if model == "lenet":  # known for MNIST's size, which is not its own
        network = get_network(Spec(model="lenet", batch_size=1, data="mnist", data_dir="/data"))
    return compute_outline(replace(network, classes=KNOWN[model].classes))


def missing_scales(found: Outline) -> int:
    """Count the scales that batch norms with an offset alone do not have."""
    names = {variable.name for variable in found.variables}
    means = [variable for variable in found.variables if variable.name.endswith("/mean")]
    return sum(mean.size for mean in means if mean.name.replace("/mean", "/scale") not in names)


@pytest.mark.parametrize("model", MODELS)
def test_parameters_agree_with_the_source(model: str) -> None:
    """Trained parameters are those of the paper or of another implementation, to the last one where the source is exact."""
    known, found = KNOWN[model], compute_known_outline(model)
    scales = missing_scales(found) if known.scales else 0
    assert found.trained_parameters + scales == pytest.approx(known.parameters, rel=known.parameters_rtol, abs=0), known.source


@pytest.mark.parametrize("model", TF_CNN_BENCHMARKS)
def test_variables_are_those_of_tf_cnn_benchmarks(model: str) -> None:
    """Parameters and moving averages are exactly those of tf_cnn_benchmarks, for all of its models."""
    found = compute_outline(make_default_network(model))
    assert (found.trained_parameters, found.parameters - found.trained_parameters) == TF_CNN_BENCHMARKS[model]


class Norms(Shapes):
    """Remembers how each batch norm is done."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[BatchNorm] = Counter()

    def batch_norm(self, images: Shape, settings: BatchNorm) -> Shape:
        self.found[settings] += 1
        return super().batch_norm(images, settings)


@pytest.mark.parametrize("model, behind, before", [("resnet50_v2", 33, 17), ("resnet20_v2", 10, 10)])
def test_v2_has_two_kinds_of_batch_norm(model: str, behind: int, before: int) -> None:
    """A v2 network has different batch norms behind convolutions and before units, as in tf_cnn_benchmarks."""
    norms, network = Norms(), make_default_network(model)
    network.logits(norms, network.image_shape)
    assert norms.found == {BatchNorm(0.9, 1e-5, scale=True): behind, BatchNorm(0.999, 1e-3, scale=False): before}


@pytest.mark.parametrize("model", [name for name, known in KNOWN.items() if known.multiply_adds])
def test_multiply_adds_agree_with_the_source(model: str) -> None:
    """Forward multiply-adds per image agree with the paper's or another implementation's figure, which is rounded."""
    known = KNOWN[model]
    assert compute_known_outline(model).multiply_adds == pytest.approx(known.multiply_adds, rel=known.multiply_adds_rtol), (
        known.source
    )


@pytest.mark.parametrize("model", MODELS)
def test_stages_have_the_shapes_of_the_tables(model: str) -> None:
    """Each stage in a paper's table has the shape in that table."""
    stages = compute_outline(make_default_network(model)).stages
    expected = STAGES[max((name for name in STAGES if model.startswith(name)), key=len)]
    assert {name: stages[name] for name in expected} == expected


@pytest.mark.parametrize("model", MODELS)
def test_variables_are_named_once_and_counted_by_kind(model: str) -> None:
    """No name comes twice, parameters are the sum of all sizes, and only batch norm has what is not trained."""
    found = compute_outline(make_default_network(model))
    assert len({variable.name for variable in found.variables}) == len(found.variables)
    assert found.parameters == sum(math.prod(variable.shape) for variable in found.variables)
    assert all(variable.name.startswith(BATCH_NORM) for variable in found.variables if not variable.trainable)
    assert found.trained_parameters == sum(variable.size for variable in found.variables if variable.trainable)


def test_inception3_has_keras_parameters() -> None:
    """23,851,784 at 1000 classes, moving averages included: the figure that the first version was proven with."""
    assert compute_outline(make_network("inception3", classes=1000)).parameters == 23_851_784


@pytest.mark.parametrize(
    "model, data, shape, classes, parameters",
    [
        ("lenet", "synthetic", (28, 28, 3), 1001, 2_173_353),
        ("lenet", "mnist", (28, 28, 1), 10, 1_663_370),
        ("alexnet", "cifar10", (32, 32, 3), 10, 1_756_426),
        ("trivial", "cifar10", (32, 32, 3), 10, 52_235),
        ("densenet40_k12", "cifar10", (32, 32, 3), 10, 1_019_722),
        ("vgg16", "imagenet", (224, 224, 3), 1001, 138_361_641),
    ],
)
def test_input_sets_the_size(model: str, data: str, shape: tuple[int, int, int], classes: int, parameters: int) -> None:
    """A network has the size and classes of its input if that has one size, and otherwise its own."""
    network = get_network(Spec(model=model, batch_size=1, data=data, data_dir="/data"))
    assert (network.image_shape, network.classes) == (shape, classes)
    assert compute_outline(network).trained_parameters == parameters


def test_every_input_of_a_model_fits_it() -> None:
    """Each input of a model in the table has an outline with the input's number of classes."""
    for model, row in MODELS.items():
        for data in row.data:
            network = get_network(Spec(model=model, batch_size=1, data=data, data_dir="/data"))
            assert compute_outline(network).stages["logits"] == (network.classes,)


def test_images_that_are_too_small_are_refused() -> None:
    """Images that are too small for a network are refused with the size of the window."""
    with pytest.raises(SpecError, match="too small for this network: a window of 3 does not fit into 2 pixels"):
        compute_outline(make_network("inception3", image_shape=(40, 40, 3)))


@pytest.mark.parametrize(
    "padding, size, pixels, stride, expected",
    [
        ("VALID", 3, 32, 1, (0, 0)),
        ("SAME", 3, 32, 1, (1, 1)),
        ("SAME", 3, 32, 2, (0, 1)),
        ("SAME", 7, 224, 2, (2, 3)),
        ("SAME", 1, 56, 2, (0, 0)),
        ("SAME_RESNET", 7, 224, 2, (3, 3)),
        ("SAME_RESNET", 3, 56, 2, (1, 1)),
        ("SAME_RESNET", 1, 56, 2, (0, 0)),
    ],
)
def test_padding(padding: str, size: int, pixels: int, stride: int, expected: tuple[int, int]) -> None:
    """TensorFlow's own padding depends on the stride and may be uneven; ResNet's is the same on both sides."""
    assert compute_padding(padding, size, pixels, stride) == expected


def test_an_outline_needs_no_tensorflow() -> None:
    """A process that counts a model's multiply-adds has loaded neither TensorFlow nor numpy."""
    program = (
        "import sys; from pytest_dtfperf.training.models.outline import multiply_adds; "
        "print(multiply_adds('resnet50'), [m for m in ('tensorflow', 'numpy') if m in sys.modules])"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert printed.split(maxsplit=1) == [str(multiply_adds("resnet50")), "[]\n"]
