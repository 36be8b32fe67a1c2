"""The fixtures of a perf test: `cluster`, `train`, `baseline`."""

from typing import TYPE_CHECKING

import pytest

from pytest_dtfperf.plugin import begin

if TYPE_CHECKING:  # heavy: imported when there is a perf test
    from pytest_dtfperf.plugin.judge import Baseline
    from pytest_dtfperf.plugin.train import Train
    from pytest_dtfperf.session.cluster import ClusterInfo


@pytest.fixture(scope="session")
def cluster(pytestconfig: pytest.Config) -> "ClusterInfo":
    """What tests train on, read-only: `.name`, `.backend`, `.devices`, `.device`, `.settings(model)`, `.hosts`, and theirs:
    `.fingerprint`, `.system`.

    Nothing is allocated until somebody trains or asks for the hosts; it is given back when the session ends.
    """
    return begin.state(pytestconfig).cluster


@pytest.fixture
def train(request: pytest.FixtureRequest, cluster: "ClusterInfo") -> "Train":
    """Trains and measures: `train(model="inception3", gpus=2, num_ps=1, variable_update="parameter_server")`.

    Takes every field of `Spec`; what is not said is decided by the command line, the cluster and the model, in this order.
    With `command=["python", "train.py", ...]` it runs an external command instead: docs/command.md.
    Returns the recorded measurement. A spec that another test of this session has measured is not trained again.
    """
    from pytest_dtfperf.plugin.train import Train

    config = request.config
    return Train(begin.state(config), request.node, begin.marker_of(request.node), begin.dry_run(config))


@pytest.fixture
def baseline(request: pytest.FixtureRequest, cluster: "ClusterInfo") -> "Baseline":
    """Judges what was measured: `.check(...)`, `.check_published(...)`, `.check_efficiency(...)`, `.check_overhead(...)`, ...

    A verdict that fails the test fails it in the verdict's own words.
    """
    from pytest_dtfperf.plugin.dry_run import DryRunBaseline
    from pytest_dtfperf.plugin.judge import Baseline

    kind = DryRunBaseline if begin.dry_run(request.config) else Baseline
    return kind(begin.state(request.config), request.node, begin.marker_of(request.node))
