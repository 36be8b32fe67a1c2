"""The fixtures of a perf test: `cluster`, `train`, `baseline`."""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_dtfperf.plugin.judge import Baseline
    from pytest_dtfperf.plugin.state import PerfSession
    from pytest_dtfperf.plugin.train import Train


@pytest.fixture(scope="session")
def cluster(pytestconfig: pytest.Config) -> "PerfSession":
    """The cluster that tests train on: `.name`, `.backend`, `.devices`, `.hosts`, `.settings(model)`.

    Nothing is allocated until somebody trains or asks for the hosts; it is given back when the session ends.
    """
    from pytest_dtfperf.plugin.hooks import state

    return state(pytestconfig)


@pytest.fixture
def train(request: pytest.FixtureRequest, cluster: "PerfSession") -> "Train":
    """Trains and measures: `train(model="inception3", gpus=2, num_ps=1, variable_update="parameter_server")`.

    Takes every field of `Spec`; what is not said is decided by the command line, the cluster and the model, in this order.
    With `command=["python", "train.py", ...]` it runs another's program instead: docs/command.md.
    Returns the recorded measurement. A spec that another test of this session has measured is not trained again.
    """
    from pytest_dtfperf.plugin.hooks import marker_of
    from pytest_dtfperf.plugin.train import Train

    return Train(cluster, request.node, marker_of(request.node))


@pytest.fixture
def baseline(request: pytest.FixtureRequest, cluster: "PerfSession") -> "Baseline":
    """Judges what was measured: `.check(...)`, `.check_published(...)`, `.check_efficiency(...)`, `.check_overhead(...)`, ...

    A verdict that fails the test fails it in the verdict's own words.
    """
    from pytest_dtfperf.plugin.hooks import marker_of
    from pytest_dtfperf.plugin.judge import Baseline
    from pytest_dtfperf.plugin.rehearsal import Unjudged

    kind = Unjudged if cluster.rehearsal else Baseline
    return kind(cluster, request.node, marker_of(request.node))
