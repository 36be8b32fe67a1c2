"""Prints, as JSON, what InceptionV3 is here and in Keras: parameters, and every block's shape. A program of its own."""

import json

import tensorflow as tf

from pytest_dtfperf.training.models.inception import InceptionV3
from pytest_dtfperf.training.models.layers import Layers

BLOCKS = [f"mixed{number}" for number in range(11)]


def ours() -> dict[str, object]:
    with tf.Graph().as_default() as graph:
        made: dict[str, tf.Tensor] = {}
        averages: dict[str, tf.Variable] = {}
        net = Layers(lambda name, shape, initial: made.setdefault(name, tf.zeros(shape)), averages, data_format="NHWC", seed=1)
        logits = InceptionV3(classes=1000).logits(net, tf.zeros([1, 299, 299, 3]))
        parameters = sum(value.shape.num_elements() for value in (*made.values(), *averages.values()))
        shapes = [list(graph.get_tensor_by_name(f"{block}:0").shape[1:]) for block in BLOCKS]
        return {"parameters": parameters, "shapes": shapes, "logits": list(logits.shape)}


def keras() -> dict[str, object]:
    model = tf.keras.applications.InceptionV3(weights=None, classes=1000)
    shapes = [list(model.get_layer(block).output.shape[1:]) for block in BLOCKS]
    return {"parameters": model.count_params(), "shapes": shapes, "logits": [1, model.output.shape[1]]}


if __name__ == "__main__":
    print(json.dumps({"ours": ours(), "keras": keras()}))
