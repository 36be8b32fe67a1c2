"""What an experiment makes of runs, whoever makes them."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_dtfperf.baselines.store import BaselineStore
from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.errors import InvalidMeasurement
from pytest_dtfperf.measurement import Run
from pytest_dtfperf.records.session import SessionFolder
from pytest_dtfperf.session.bench import Bench
from pytest_dtfperf.session.experiment import Experiment
from pytest_dtfperf.session.settings import Settings
from pytest_dtfperf.spec import Spec
from tests.baselines.examples import HARDWARE, SOFTWARE, run_of, spec_of


@dataclass
class Changing:
    """A bench whose hosts are taken back between two runs, and others lent: each run is on the next of them."""

    folder: SessionFolder
    store: BaselineStore
    rates: Iterator[tuple[float, Mapping[str, Any]]]  # of each run, and what its hosts are
    settings: Settings = field(default_factory=Settings)
    injected_slowdowns: Mapping[str, float] = field(default_factory=dict)
    tests: int = 1
    hardware: Mapping[str, Any] = field(default_factory=dict)
    config: Any = field(default_factory=lambda: SimpleNamespace(name="daint"))

    @property
    def cluster(self) -> Any:
        return SimpleNamespace(settings=lambda model: {}, fingerprint_of=self.fingerprint_of)

    def fingerprint_of(self, run: Run) -> Mapping[str, Any]:
        return {"hardware": self.hardware, "software": SOFTWARE, "program": {}}

    def thresholds(self, fingerprint: Mapping[str, Any]) -> Sequence[str]:
        return []

    @contextmanager
    def measuring(self, spec: Spec, test: str) -> Iterator[None]:
        yield

    def run(self, spec: Spec, test: str, *, number: int, of: int, explain: bool) -> Run:
        rate, self.hardware = next(self.rates)
        return run_of(rate)


def measured_on(tmp_path: Path, *rates: tuple[float, Mapping[str, Any]]) -> Any:
    folder = SessionFolder.create(tmp_path / "perf_results", cluster="daint", command=["pytest"], versions={})
    bench = Changing(folder, BaselineStore(tmp_path / "baselines"), iter(rates))
    (measured,) = Experiment(cast("Bench", bench), "test").measure([spec_of()])
    return measured


def test_runs_on_other_hardware_do_not_count(tmp_path: Path) -> None:
    """Where a cluster takes hosts back between two runs and lends others of another kind, a rate is of these alone."""
    other = {**HARDWARE, "cores": 64}
    measured = measured_on(tmp_path, (100.0, HARDWARE), (800.0, other), (802.0, other), (0.0, other))
    assert measured.measurement.rates == [800.0, 802.0]
    assert measured.measurement.fingerprint["hardware"]["cores"] == 64
    assert measured.measurement.runs[0].disturbances == ["it was on other hosts than the runs after it (cores: 2 then, 64 now)"]
    assert not measured.measurement.disturbances


def test_runs_on_other_hosts_of_the_same_kind_count(tmp_path: Path) -> None:
    """One machine is as good as another of its kind, though it tells a GiB less of its memory."""
    measured = measured_on(tmp_path, (100.0, HARDWARE), (101.0, {**HARDWARE, "memory_gib": 7}), (0.0, HARDWARE))
    assert measured.measurement.rates == [100.0, 101.0]


def test_what_has_become_invalid_is_built_upon_no_more(tmp_path: Path) -> None:
    """A check against an anchor that has become INVALID decides nothing and makes no run; one of the measurement that has
    become so fails as the run did that has found it."""
    folder = SessionFolder.create(tmp_path / "perf_results", cluster="daint", command=["pytest"], versions={})
    rates = [(50.0, HARDWARE), (98.0, HARDWARE), (98.1, HARDWARE), (50.1, HARDWARE)]
    bench = Changing(folder, BaselineStore(tmp_path / "baselines"), iter(rates))
    experiment = Experiment(cast("Bench", bench), "test")
    one, many = experiment.measure([spec_of(gpus=1), spec_of()])
    assert experiment.check_efficiency(many, anchor=one, at_least=0.7).judgement.verdict == "PASSED"
    folder.judge(one.id, verdict=Verdict.INVALID, reason="a step took no time")
    judged = experiment.check_efficiency(many, anchor=one, at_least=0.95)
    assert judged.judgement.verdict == judged.check.verdict == "INCONCLUSIVE"
    assert judged.judgement.reason == judged.check.reason
    assert judged.judgement.reason.startswith("efficiency is not known: ")
    assert [check.verdict for check in judged.record.checks] == ["INCONCLUSIVE", "INCONCLUSIVE"]
    with pytest.raises(InvalidMeasurement, match="is INVALID: a step took no time"):
        experiment.check(one)
