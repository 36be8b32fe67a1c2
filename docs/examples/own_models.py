"""Own models for `train(model=...)`. Keras is imported when a model is made: in the tasks, not in pytest's process."""


def small_cnn(image_shape=(32, 32, 3), classes=10):
    """Return a Keras model for the given size of the input. It can train on CIFAR-10 and MNIST."""
    from keras import Input, Sequential, layers

    return Sequential(
        [
            Input(image_shape),
            layers.Conv2D(16, 3, kernel_regularizer="l2"),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dropout(0.25),
            layers.Dense(classes, activation="softmax"),
        ]
    )


def tutorial(images):
    """Return the logits of images, by TensorFlow's operations. Variables are made as in TensorFlow 1's tutorial."""
    import tensorflow as tf

    weights = tf.compat.v1.get_variable("weights", [28 * 28, 10])
    bias = tf.Variable(tf.zeros([10]), name="bias")
    return tf.matmul(tf.reshape(images, [-1, 28 * 28]), weights) + bias


tutorial.image_shape = (28, 28, 1)


class TwoLayers:
    """A `Network` of pytest-dtfperf's own layers. It is counted without TensorFlow, and supports NCHW."""

    def __init__(self, image_shape=(28, 28, 1), classes=10):
        self.image_shape = image_shape
        self.classes = classes

    def logits(self, net, images):
        hidden = net.relu(net.dense(net.flatten(images), 100))
        return net.dense(hidden, self.classes)
