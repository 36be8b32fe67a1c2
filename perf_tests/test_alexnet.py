"""Measure AlexNet on synthetic images: little arithmetic and 61 million parameters, which are expensive to share."""

import pytest


@pytest.mark.dtfperf(variable_update=["parameter_server", "collective_all_reduce"])
def test_throughput(train, baseline, gpus, num_ps, variable_update):
    """AlexNet trains no slower than its baseline."""
    measurement = train(model="alexnet", gpus=gpus, num_ps=num_ps, variable_update=variable_update)
    baseline.check(measurement)
