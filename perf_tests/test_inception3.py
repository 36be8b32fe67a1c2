"""InceptionV3 on synthetic images: is it as fast as it was, and does it scale?"""

import pytest


@pytest.mark.dtfperf(variable_update=["parameter_server", "replicated"])
def test_throughput(train, baseline, gpus, num_ps, variable_update):
    """InceptionV3 trains no slower than its baseline."""
    measurement = train(model="inception3", gpus=gpus, num_ps=num_ps, variable_update=variable_update)
    baseline.check(measurement)


@pytest.mark.dtfperf(min_gpus=2)
def test_scaling_efficiency(train, baseline, gpus, num_ps):
    """n devices do nearly n times the work of one: as nearly as the system's baseline file asks for, or 70 % of it."""
    one, many = train.in_turn({"gpus": 1}, {"gpus": gpus, "num_ps": num_ps}, model="inception3")
    baseline.check_efficiency(many, anchor=one)
