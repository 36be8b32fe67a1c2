"""Perf tests of own models, one for each kind of model."""

import pytest
from own_models import TwoLayers, small_cnn, tutorial


@pytest.mark.parametrize("model", [small_cnn, tutorial, TwoLayers])
def test_throughput(train, baseline, model):
    """The model trains no slower than its baseline on two devices."""
    baseline.check(train(model=model, gpus=2, num_ps=1, batch_size=16, steps=5, warmup_steps=1))
