"""Models of one's own, for `train(model=...)`. Keras is imported when a model is made: in the tasks, not where pytest runs."""


def small_cnn(image_shape=(32, 32, 3), classes=10):
    """A function that returns a Keras model for the given size of the input, so that CIFAR-10 and MNIST can feed it."""
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
    """A function from images to logits, of TensorFlow's operations; its variables are made as TensorFlow 1's tutorial does."""
    import tensorflow as tf

    weights = tf.compat.v1.get_variable("weights", [28 * 28, 10])
    bias = tf.Variable(tf.zeros([10]), name="bias")
    return tf.matmul(tf.reshape(images, [-1, 28 * 28]), weights) + bias


tutorial.image_shape = (28, 28, 1)


class TwoLayers:
    """A `Network` of pytest-dtfperf's own layers: counted without TensorFlow, and computed in NCHW, too."""

    def __init__(self, image_shape=(28, 28, 1), classes=10):
        self.image_shape = image_shape
        self.classes = classes

    def logits(self, net, images):
        hidden = net.relu(net.dense(net.flatten(images), 100))
        return net.dense(hidden, self.classes)
