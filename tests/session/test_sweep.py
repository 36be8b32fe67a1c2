"""Sweeps over numbers of parameter servers, with invented runs."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_dtfperf.clusters import named
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.datamodel.measurement import Run
from pytest_dtfperf.errors import TimeBudgetSpent
from pytest_dtfperf.limits.needs import Layout
from pytest_dtfperf.session.context import SessionContext, TimeBudget
from pytest_dtfperf.session.settings import Settings
from pytest_dtfperf.session.sweep import Sweep
from pytest_dtfperf.spec import Spec
from tests.baselines.examples import run_of
from tests.records.host_states import BUSY

FASTEST = 3


@dataclass
class OneHost:
    """A session on a single host without earlier measurements; a `disturbed` run has a tenth of its rate."""

    config: ClusterConfig
    results: Path
    disturbed: Counter[int]  # how many runs still will be, by servers
    settings: Settings = field(default_factory=Settings)
    runs: list[int] = field(default_factory=list)  # servers of each

    cluster = SimpleNamespace(system="cpu-x-8c")
    time_budget: TimeBudget | None = None

    @property
    def allocations(self) -> Any:
        launcher = SimpleNamespace(hosts=["n1"], layout=self.layout)
        return SimpleNamespace(get_launcher=lambda: launcher)

    @staticmethod
    def layout(spec: Spec) -> Layout:
        tasks = [*(f"ps:{i}" for i in range(spec.num_ps)), *(f"worker:{i}" for i in range(spec.gpus))]
        return Layout(dict.fromkeys(tasks, "n1"))

    @contextmanager
    def measuring(self, spec: Spec, test: str) -> Iterator[None]:
        yield

    def run(self, spec: Spec, test: str, *, number: int, total: int) -> Run:
        self.runs.append(spec.num_ps)
        rate = 1000.0 - abs(spec.num_ps - FASTEST)
        if not self.disturbed[spec.num_ps]:
            return run_of(rate)
        self.disturbed[spec.num_ps] -= 1
        return replace(run_of(rate / 10), disturbances=[BUSY])


@pytest.fixture
def config(tmp_path: Path) -> ClusterConfig:
    file = tmp_path / "clusters.toml"
    file.write_text('[local]\nbackend = "local"\ndevices_per_host = 8\ndevice = "cpu"\n')
    return named.choose("local", file, [])[1]


@pytest.mark.parametrize("times", [0, 1])
def test_disturbed_short_run_is_repeated(config: ClusterConfig, tmp_path: Path, times: int) -> None:
    """A disturbed short run is repeated, and its number of servers stays in the sweep."""
    session = OneHost(config, tmp_path, Counter({FASTEST: times}))
    spec = Spec(model="trivial", batch_size=10, gpus=8, num_ps=1, steps=10)
    sweep = Sweep(cast("SessionContext", session), "test", spec)
    assert [left.num_ps for left in sweep.carry_out(finalists=1)] == [FASTEST]
    assert sweep.found.tried[f"{FASTEST} servers, 10 steps"] == 1000
    assert session.runs.count(FASTEST) == session.runs.count(1) + times


def test_short_run_is_repeated_once(config: ClusterConfig, tmp_path: Path) -> None:
    """If all runs are disturbed, each number of servers has two runs, and the faster one counts."""
    session = OneHost(config, tmp_path, Counter(dict.fromkeys(range(1, 9), 100)))
    sweep = Sweep(cast("SessionContext", session), "test", Spec(model="trivial", batch_size=10, gpus=8, num_ps=1, steps=10))
    assert [left.num_ps for left in sweep.carry_out(finalists=1)] == [FASTEST]
    assert set(Counter(session.runs).values()) == {2}


@dataclass
class Timed(OneHost):
    """A session of 100 s on a host on which each run takes 40 s."""

    def __post_init__(self) -> None:
        self.now_s = 0.0
        self.time_budget = TimeBudget(100.0, lambda: 1, lambda: self.now_s)

    def run(self, spec: Spec, test: str, *, number: int, total: int) -> Run:
        self.now_s += 40.0
        return replace(super().run(spec, test, number=number, total=total), wall_s=40.0)


def test_sweep_ends_with_the_time_budget(config: ClusterConfig, tmp_path: Path) -> None:
    """No short run begins without time for one like the last, and the next session continues with the results so far."""
    spec = Spec(model="trivial", batch_size=10, gpus=8, num_ps=1, steps=10)
    timed, untimed = Timed(config, tmp_path, Counter()), OneHost(config, tmp_path, Counter())
    with pytest.raises(TimeBudgetSpent, match="left out, for --time-budget=1min40s has no time for it"):
        Sweep(cast("SessionContext", timed), "test", spec).carry_out(finalists=1)
    assert len(timed.runs) == 2
    assert [left.num_ps for left in Sweep(cast("SessionContext", untimed), "test", spec).carry_out(finalists=1)] == [FASTEST]
    assert not set(timed.runs) & set(untimed.runs)
