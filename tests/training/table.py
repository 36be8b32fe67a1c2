"""Rows of the tables that only these tests know."""

from pytest_dtfperf.spec import Model, VariableUpdate

TINY = {
    "tiny": Model("tests.training.tiny:Tiny", batch_size=8, data=("synthetic", "mnist")),
    "tiny_normed": Model("tests.training.tiny:Normed", batch_size=8, data=("synthetic", "mnist")),
    "colours": Model("tests.training.tiny:Colours", batch_size=4, data=("synthetic", "imagenet")),
    "wide": Model("tests.training.tiny:Wide", batch_size=1, data=("synthetic",)),
    "heavy": Model("tests.training.tiny:Heavy", batch_size=4, data=("synthetic", "mnist")),
    "uneven": Model("tests.training.tiny:Uneven", batch_size=4, data=("synthetic", "mnist")),
    "saturated": Model("tests.training.saturated:Saturated", batch_size=8, data=("mnist",)),
}

UNHEARD_OF = {"unheard_of": VariableUpdate("no_such_module:Update", requires="no_such_module.tensorflow")}
