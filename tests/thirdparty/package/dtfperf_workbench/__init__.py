"""The rows of the tables: each names its code, so that reading them imports none of it."""

from pytest_dtfperf.report.session_exports import Export
from pytest_dtfperf.spec import Input, Model

PERCEPTRON = Model("dtfperf_workbench.perceptron:Perceptron", batch_size=16, data=("synthetic", "mnist", "stripes"))
STRIPES = Input("dtfperf_workbench.stripes:Stripes", classes=10, models=("lenet",))
RATES = Export(("rates.txt",), "dtfperf_workbench.rates:write")
