"""Models of users, for these tests. TensorFlow and Keras are imported when a model is called."""

from functools import partial
from typing import Any

from pytest_dtfperf.training.models.layers import Layers, T


def small_cnn(image_shape: tuple[int, int, int] = (28, 28, 1), classes: int = 10) -> Any:
    """Return a model with layers that differ in training, and with a loss of its own."""
    from keras import Input, Sequential, layers

    return Sequential(
        [
            Input(image_shape),
            layers.Conv2D(4, 3, strides=2, kernel_regularizer="l2"),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dropout(0.25),
            layers.Dense(classes, activation="softmax"),
        ],
        name="small",
    )


def plain_cnn() -> Any:
    """Return a model that learns from its variables and images alone."""
    from keras import Input, Sequential, layers

    convolution = layers.Conv2D(4, 3, strides=2, activation="relu", bias_initializer="ones")
    return Sequential([Input((28, 28, 1)), convolution, layers.Flatten(), layers.Dense(10)], name="plain")


def softmax(images: Any) -> Any:
    """Compute logits as the tutorial of TensorFlow 1 does."""
    import tensorflow as tf

    weights = tf.compat.v1.get_variable("weights", [784, 10])
    bias = tf.Variable(tf.zeros([10]), name="bias")
    return tf.matmul(tf.reshape(images, [-1, 784]), weights) + bias


softmax.image_shape = (28, 28, 1)  # type: ignore[attr-defined]


def keras_layers(images: Any) -> Any:
    """A function of Keras' layers."""
    from keras import layers

    return layers.Dense(10)(layers.Flatten()(images))


keras_layers.image_shape = (28, 28, 1)  # type: ignore[attr-defined]


def with_transposed_product(images: Any) -> Any:
    """Compute its second product with transposed weights, which have another gradient than plain ones."""
    import tensorflow as tf

    hidden = tf.nn.relu(tf.matmul(tf.reshape(images, [-1, 784]), tf.compat.v1.get_variable("hidden", [784, 16])))
    return tf.matmul(hidden, tf.compat.v1.get_variable("out", [10, 16]), transpose_b=True)


with_transposed_product.image_shape = (28, 28, 1)  # type: ignore[attr-defined]


class Dense:
    """One layer, of ours."""

    def __init__(self, image_shape: tuple[int, int, int] = (28, 28, 1), classes: int = 10) -> None:
        self.image_shape = image_shape
        self.classes = classes

    def logits(self, net: Layers[T], images: T) -> T:
        return net.dense(net.flatten(images), self.classes)


class Fixed:
    """One layer, for images of one size alone."""

    image_shape = (8, 8, 3)
    classes = 5

    def logits(self, net: Layers[T], images: T) -> T:
        return net.dense(net.flatten(images), self.classes)


class Misfit(Fixed):
    def logits(self, net: Layers[T], images: T) -> T:
        return net.concat([images, net.max_pool(images, 2, stride=2)])


HELD = Fixed()


def two_headed() -> Any:
    from keras import Input, Model, layers

    images = Input((28, 28, 1))
    flat = layers.Flatten()(images)
    return Model(images, [layers.Dense(10)(flat), layers.Dense(2)(flat)])


def vector_input() -> Any:
    from keras import Input, Sequential, layers

    return Sequential([Input((784,)), layers.Dense(10)])


def shapeless() -> Any:
    from keras import Sequential, layers

    return Sequential([layers.Flatten(), layers.Dense(10)])


def a_list() -> Any:
    return [1, 2]


def broken() -> Any:
    raise OSError("no weights.h5 here")


def numpy_call(images: Any) -> Any:
    return images.numpy()


numpy_call.image_shape = (28, 28, 1)  # type: ignore[attr-defined]


def sizeless(images: Any) -> Any:
    return images


def constant(images: Any) -> Any:
    import tensorflow as tf

    return tf.reshape(images, [-1, 784])[:, :10]


constant.image_shape = (28, 28, 1)  # type: ignore[attr-defined]


def moving_mean(images: Any) -> Any:
    import tensorflow as tf

    return tf.reshape(images, [-1, 784])[:, :10] + tf.Variable(0.0, trainable=False, name="mean")


moving_mean.image_shape = (28, 28, 1)  # type: ignore[attr-defined]


def image_to_image(images: Any) -> Any:
    import tensorflow as tf

    return images * tf.Variable(1.0)


image_to_image.image_shape = (28, 28, 1)  # type: ignore[attr-defined]


def in_float32() -> Any:
    from keras import Input, Sequential, layers

    return Sequential([Input((28, 28, 1)), layers.Flatten(), layers.Dense(10, dtype="float32")])


def keras_subclass() -> Any:
    """A class of Keras' that is not built before it is called, with layers within others."""
    from keras import Model, Sequential, layers

    class Derived(Model):  # type: ignore[misc]  # Keras has no types
        def __init__(self) -> None:
            super().__init__()
            self.body = Sequential([layers.Conv2D(4, 3, strides=2), layers.BatchNormalization(), layers.Flatten()])
            self.head = layers.Dense(10)

        def call(self, images: Any, training: bool = False) -> Any:
            return self.head(self.body(images, training=training))

    return Derived()


keras_subclass.image_shape = (28, 28, 1)  # type: ignore[attr-defined]


def embedding(images: Any) -> Any:
    """Its gradient of a table is of a few rows, and of another variable there is none."""
    import tensorflow as tf

    table = tf.compat.v1.get_variable("table", [16, 10])
    tf.compat.v1.get_variable("unused", [3])
    rows = tf.cast(tf.abs(images[:, 0, 0, 0]) * 8, tf.int32)
    return tf.gather(table, rows)


embedding.image_shape = (28, 28, 1)  # type: ignore[attr-defined]


def recurrent() -> Any:
    """Return a model with a loop, which cannot be counted."""
    from keras import Input, Sequential, layers

    return Sequential([Input((28, 28, 1)), layers.Reshape((28, 28)), layers.SimpleRNN(8), layers.Dense(10)])


def without_defaults(image_shape: tuple[int, int, int], classes: int) -> Any:
    """Return a model without a default size."""
    return small_cnn(image_shape, classes)


def _scale_logits(images: Any, scale: float) -> Any:
    return softmax(images) * scale


SIZELESS = partial(_scale_logits, scale=2.0)


def flat_shape(images: Any) -> Any:
    return images


flat_shape.image_shape = (28, 28)  # type: ignore[attr-defined]


def scalar_shape(images: Any) -> Any:
    return images


scalar_shape.image_shape = 28  # type: ignore[attr-defined]


def dropout(images: Any, training: bool = False) -> Any:
    """Of Keras' layers, of which one is there only while it is trained."""
    from keras import layers

    flat = layers.Flatten()(images)
    if training:
        flat = layers.Dropout(0.5)(flat)
    return layers.Dense(10)(flat)


dropout.image_shape = (28, 28, 1)  # type: ignore[attr-defined]


def with_training_argument(images: Any, training: bool) -> Any:
    """Use Keras' layers, with its argument `training`."""
    from keras import layers

    return layers.Dense(10)(layers.BatchNormalization()(layers.Flatten()(images), training=training))


with_training_argument.image_shape = (28, 28, 1)  # type: ignore[attr-defined]


def bare_weights() -> Any:
    """A class of Keras' without a layer."""
    from keras import Model, ops

    class OfWeights(Model):  # type: ignore[misc]  # Keras has no types
        def build(self, shape: Any) -> None:
            self.weight = self.add_weight(shape=(784, 10), name="weight")

        def call(self, images: Any) -> Any:
            return ops.matmul(ops.reshape(images, (-1, 784)), self.weight)

    return OfWeights()


bare_weights.image_shape = (28, 28, 1)  # type: ignore[attr-defined]


def weightless() -> Any:
    from keras import Input, Sequential, layers

    return Sequential([Input((28, 28, 1)), layers.Flatten(), layers.ReLU()])


def shared_weights(images: Any) -> Any:
    """Both halves of an image go through one variable."""
    import tensorflow as tf

    def product(half: Any) -> Any:
        with tf.compat.v1.variable_scope("both", reuse=tf.compat.v1.AUTO_REUSE):
            return tf.matmul(half, tf.compat.v1.get_variable("weights", [392, 10]))

    flat = tf.reshape(images, [-1, 784])
    return product(flat[:, :392]) + product(flat[:, 392:])


shared_weights.image_shape = (28, 28, 1)  # type: ignore[attr-defined]
