"""Measure the deep MNIST network: its rate, the cost of reading files, and its accuracy."""

import pytest


@pytest.mark.dtfperf(variable_update=["parameter_server", "replicated"])
def test_throughput(train, baseline, gpus, num_ps, variable_update):
    """Deep MNIST trains no slower than its baseline."""
    measurement = train(model="mnist", gpus=gpus, num_ps=num_ps, variable_update=variable_update)
    baseline.check(measurement)


def test_io_overhead(train, baseline, mnist_dir, gpus, num_ps):
    """Reading idx files costs at most a quarter of the rate on synthetic images."""
    inputs = {"data": "synthetic"}, {"data": "mnist", "data_dir": mnist_dir}
    synthetic, real = train.in_turn(*inputs, model="mnist", gpus=gpus, num_ps=num_ps)
    baseline.check_overhead(synthetic=synthetic, real=real, at_most=0.25)


@pytest.mark.dtfperf(min_gpus=2)
def test_accuracy(train, baseline, mnist_dir, gpus, num_ps):
    """A distributed run with the same number of images reaches the accuracy of a single process."""
    learning = {"data": "mnist", "data_dir": mnist_dir, "evaluate": True, "learning_rate": 1e-3, "batch_size": 64}
    one = train(model="mnist", gpus=1, num_ps=0, warmup_steps=0, steps=200, repeats=1, **learning)
    many = train(model="mnist", gpus=gpus, num_ps=num_ps, warmup_steps=0, steps=200 // gpus, repeats=1, **learning)
    baseline.check_accuracy(one, at_least=0.95)
    baseline.check_accuracy(many, at_least=one.accuracy - 0.03)
