"""Measure ResNet-50 on synthetic images: many convolutions and few parameters, which are cheap to share."""

import pytest


@pytest.mark.dtfperf(variable_update=["parameter_server"])
def test_throughput(train, baseline, gpus, num_ps, variable_update):
    """ResNet-50 trains no slower than its baseline."""
    measurement = train(model="resnet50", gpus=gpus, num_ps=num_ps, variable_update=variable_update)
    baseline.check(measurement)
