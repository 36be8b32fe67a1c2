"""A row of the table of models that only these tests know."""

from pytest_dtfperf.spec import Model

TINY = {"tiny": Model("tests.training.tiny:Tiny", batch_size=8, data=("synthetic", "mnist"))}
