"""Train a dense network with JAX, on one device: python jax_steps.py --steps=100"""

import argparse

import jax
import jax.numpy as jnp

from pytest_dtfperf.steps import Steps

parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=64)
parser.add_argument("--steps", type=int, default=100)
flags = parser.parse_args()

keys = jax.random.split(jax.random.key(1), 3)
weights = [0.05 * jax.random.normal(keys[0], (784, 256)), 0.05 * jax.random.normal(keys[1], (256, 10))]
images = jax.random.uniform(keys[2], (flags.batch_size, 784))
labels = images[:, :10].argmax(axis=1)


@jax.jit
def step(weights):
    def loss_of(weights):
        logits = jax.nn.relu(images @ weights[0]) @ weights[1]
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1))

    loss, gradients = jax.value_and_grad(loss_of)(weights)
    return [weight - 0.1 * gradient for weight, gradient in zip(weights, gradients, strict=True)], loss


steps = Steps(images_per_step=flags.batch_size, warmup=3)
for _ in range(flags.steps + 3):
    with steps:
        weights, loss = step(weights)
        steps.wait_for(loss)  # JAX returns before the device has computed
print(f"loss {loss:.3f}")
