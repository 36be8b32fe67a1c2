"""Measure InceptionV3 on synthetic images: its rate against the baseline, and its scaling efficiency."""

import pytest


@pytest.mark.dtfperf(variable_update=["parameter_server", "replicated"])
def test_throughput(train, baseline, gpus, num_ps, variable_update):
    """InceptionV3 trains no slower than its baseline."""
    measurement = train(model="inception3", gpus=gpus, num_ps=num_ps, variable_update=variable_update)
    baseline.check(measurement)


@pytest.mark.dtfperf(min_gpus=2)
def test_scaling_efficiency(train, baseline, gpus, num_ps):
    """n devices reach n times the rate of one, within the efficiency that the system's baseline file requires, or 70 %."""
    one, many = train.in_turn({"gpus": 1}, {"gpus": gpus, "num_ps": num_ps}, model="inception3")
    baseline.check_efficiency(many, anchor=one)
