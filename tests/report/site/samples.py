"""Histories of nights of several systems, written as sessions write them, without a training."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.datamodel.fingerprint import Hardware
from pytest_dtfperf.history.database import Database
from pytest_dtfperf.history.enter import enter_all
from pytest_dtfperf.history.watching import HistoryData, load_history
from pytest_dtfperf.history.where import Address, parse_address
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.records.session import SessionFolder
from pytest_dtfperf.records.stored import encode_record
from pytest_dtfperf.spec import Spec
from tests.records.samples import make_comparison, measurement, record

BEGAN = datetime(2026, 1, 1, 2, 15, tzinfo=UTC)
SYSTEMS: Sequence[Mapping[str, Any]] = (
    {"cpu": "AMD EPYC 9B45", "cores": 2},
    {"cpu": "Intel Xeon Platinum 8259CL", "cores": 48, "gpus": [{"name": "Tesla V100-SXM2-16GB", "memory_gib": 15}] * 8},
    {"cpu": "Neoverse-V2", "cores": 72, "gpus": [{"name": "NVIDIA GH200 480GB", "memory_gib": 95}]},
)
MODELS = ("inception3", "resnet50", "alexnet", "vgg16", "mnist", "googlenet")


@dataclass(frozen=True)
class Trained:
    """One training on one system."""

    system: int
    spec: Spec
    rate: float
    steps: Mapping[int, float]  # night -> factor from then on


def make_trainings(systems: int, each: int) -> list[Trained]:
    """Return `each` trainings on every system; the first loses 3 % in night 20, one of the second gains 4 % in night 26."""
    found = []
    for system in range(systems):
        for number in range(each):
            model, gpus = MODELS[number % len(MODELS)], 2 ** (number // len(MODELS) % 4)
            spec = Spec(model=model, batch_size=8, gpus=gpus, num_ps=number // 24)
            steps = {20: 0.97} if system == 0 else {26: 1.04} if (system, number) == (1, 0) else {}
            found.append(Trained(system, spec, 25.0 * gpus * (1 + number % 7) * (1 + 20 * system), steps))
    return found


def write_night(root: Path, night: int, trained: Sequence[Trained], *, runs: int = 2, seed: int = 1) -> SessionFolder:
    """Write one session of these trainings of one system."""
    random = np.random.default_rng([seed, night, trained[0].system])
    started = BEGAN + timedelta(days=night, hours=trained[0].system)
    kernel, commit = ("6.2.0-31", "b0b" * 13) if night >= 20 else ("6.1.0-18", "a11ce" * 8)
    software = {"tensorflow": "2.21.0", "kernel": kernel}
    folder = SessionFolder.create(
        root, cluster=f"cluster{trained[0].system}", command=["pytest", "perf_tests", "--gpus=1,2"],
        versions={"python": "3.11.9", **software}, session_id=f"{started:%Y%m%dT%H%M%SZ}-{night:05x}{trained[0].system:x}",
        started=started,
    )  # fmt: skip
    records = [_record(number, each, night, runs, software, random) for number, each in enumerate(trained)]
    (folder.path / "measurements.jsonl").write_bytes(b"".join(map(encode_record, records)))
    folder.finish(exit_code=0, wall_s=600.0 + night, verdicts={"PASSED": len(records)}, commit=commit)
    return folder


def _record(number: int, trained: Trained, night: int, runs: int, software: Mapping[str, str], random: Any) -> Record:
    rate = trained.rate * np.prod([factor for begin, factor in trained.steps.items() if night >= begin])
    night_factor = np.exp(random.normal(0, 0.004))
    rates = [float(rate * night_factor * np.exp(random.normal(0, 0.006))) for _ in range(runs)]
    found = measurement(trained.spec, rates)
    fingerprint = replace(found.fingerprint, hardware=Hardware.from_json(SYSTEMS[trained.system]), software=software)
    middle = float(np.median(rates))
    change = middle / trained.rate - 1
    baseline = make_comparison(trained.rate, change, low=change - 0.02, high=change + 0.02, noise=0.006)
    verdict = Verdict.PASSED if night >= 5 else Verdict.NO_BASELINE
    plain = record(
        trained.spec, *rates, name=f"{number:012x}", test=f"perf_tests/test_all.py::test_throughput[{number}]",
        baseline=baseline if night >= 5 else None, verdict=verdict, reason="made up",
    )  # fmt: skip
    return replace(plain, measurement=replace(plain.measurement, fingerprint=fingerprint))


def write_nights(root: Path, nights: int, *, systems: int = 3, each: int = 4) -> list[SessionFolder]:
    found = []
    for night in range(nights):
        for system in range(systems):
            mine = [trained for trained in make_trainings(systems, each) if trained.system == system]
            found.append(write_night(root, night, mine))
    return found


def get_address(folder: Path) -> Address:
    found = parse_address(None, folder)
    assert found
    return found


def enter_history(folders: Sequence[SessionFolder], where: Path) -> HistoryData:
    """Enter the folders into a history of its own, and search for changes."""
    refused = enter_all(folders, get_address(where)).refused
    assert not refused, refused
    return load_history(Database.open(get_address(where)))
