"""Train a small convolutional network with Keras' `fit`, on one device: python keras_fit.py --steps=100

A batch is a step. Validation and checkpoints, between epochs, are not in a step.
"""

import argparse
import tempfile

import keras
import numpy as np

from pytest_dtfperf.steps import StepTimes

parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=64)
parser.add_argument("--steps", type=int, default=100, help="of each of two epochs")
flags = parser.parse_args()

chance = np.random.default_rng(1)
images = chance.random((flags.steps * flags.batch_size, 14, 14, 1), dtype=np.float32)
labels = images[:, 0, :10, 0].argmax(axis=1)
some = slice(10 * flags.batch_size)

model = keras.Sequential(
    [
        keras.Input((14, 14, 1)),
        keras.layers.Conv2D(8, 3, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(10),
    ]
)
model.compile(keras.optimizers.SGD(0.05), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
with tempfile.TemporaryDirectory() as folder:
    model.fit(
        images,
        labels,
        batch_size=flags.batch_size,
        epochs=2,
        validation_data=(images[some], labels[some]),
        callbacks=[
            StepTimes(images_per_step=flags.batch_size, warmup=10),
            keras.callbacks.ModelCheckpoint(f"{folder}/model.keras"),
        ],
        verbose=2,
    )
