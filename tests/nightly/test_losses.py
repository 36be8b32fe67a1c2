"""Losses of a night without a baseline."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.nightly.summary import MIN_LOSS, find_losses
from tests.history.sessions import HARDWARE, folder_of
from tests.records.samples import make_comparison


def test_loss_is_against_the_last_comparable_night(tmp_path: Path) -> None:
    """Nights on other hardware, INVALID and damaged ones are ignored, and the one before them is compared."""
    nights = [
        folder_of(tmp_path, 0, {1: [100.0, 101.0]}),
        folder_of(tmp_path, 1, {1: [50.0, 50.5]}, hardware={**HARDWARE, "cores": 4}),
        folder_of(tmp_path, 2, {1: [49.0, 50.5]}, verdict=Verdict.INVALID),
        folder_of(tmp_path, 3, {1: [48.0, 50.5]}),
    ]
    (nights[3].path / "measurements.jsonl").write_text("{}\n")
    (found,) = find_losses(folder_of(tmp_path, 4, {1: [42.0, 42.4]}, software={"kernel": "6.2"}), nights)
    assert found.session == nights[0].id
    assert found.found.change == pytest.approx(-0.58, abs=0.002)
    assert found.found.high is not None
    assert found.found.high < -MIN_LOSS
    assert str(found).startswith("inception3 b8 gpus=1 num_ps=0 parameter_server: -58.0 % (")
    assert str(found).endswith(f" against 100.5 images/sec of {nights[0].id}; also changed: kernel none -> 6.2")


def test_noise_is_no_loss(tmp_path: Path) -> None:
    """20 nights of 4 trainings with noise of 1 % of runs and 2 % of nights have no loss, and neither has a single run."""
    random = np.random.default_rng(1)
    folders = []
    for night in range(20):
        rates = {
            gpus: [float(100 * gpus * shared * np.exp(random.normal(0, 0.01))) for _ in range(3)]
            for gpus, shared in zip((1, 2, 4, 8), np.exp(random.normal(0, 0.02, 4)), strict=True)
        }
        folders.append(folder_of(tmp_path, night, rates))
    assert [find_losses(folder, folders[:number]) for number, folder in enumerate(folders)] == [[]] * 20
    assert find_losses(folder_of(tmp_path, 20, {1: [42.0]}), [folder_of(tmp_path, 19, {1: [100.0]})]) == []


def test_measurement_with_a_baseline_has_no_loss(tmp_path: Path) -> None:
    """A measurement that was compared with a baseline has no loss."""
    then, now = folder_of(tmp_path, 0, {1: [100.0, 101.0]}), folder_of(tmp_path, 1, {1: [42.0, 42.4]})
    assert len(find_losses(now, [then])) == 1
    (record,) = now.measurements()
    now.add_judgement(record.id, make_comparison(42.0, 0.005, reason="as accepted"))
    assert find_losses(now, [then]) == []


def test_loss_with_another_version_is_found(tmp_path: Path) -> None:
    """The first night of another framework and graph is compared with the last one before it, and the changes are named."""
    old: Mapping[str, Any] = {
        "software": {"tensorflow": "2.20.0"},
        "program": {"graph": "aaaaaaaaaaaa", "operations": {"Conv2D": 9}, "settings": {}},
    }
    new: Mapping[str, Any] = {
        "software": {"tensorflow": "3.0.0"},
        "program": {"graph": "bbbbbbbbbbbb", "operations": {"Conv2D": 5}, "settings": {}},
    }
    nights = [folder_of(tmp_path, night, {1: [100.0, 101.0, 99.0]}, **old) for night in range(3)]
    nights.append(folder_of(tmp_path, 3, {1: [70.0, 70.5]}, hardware={**HARDWARE, "cores": 4}, **old))
    now = folder_of(tmp_path, 4, {1: [80.0, 80.5, 79.5]}, verdict=Verdict.INCOMPARABLE, **new)
    (found,) = find_losses(now, nights)
    assert found.session == nights[2].id
    assert f"of {nights[2].id}, since tensorflow 2.20.0 -> 3.0.0 and training graph: 4 Conv2D less" in str(found)
    assert str(found).count("tensorflow") == 1
    assert (
        find_losses(folder_of(tmp_path, 5, {1: [80.0, 80.5, 79.5]}, verdict=Verdict.INCOMPARABLE, **new), [*nights, now]) == []
    )
    assert find_losses(folder_of(tmp_path, 6, {1: [99.0, 100.5, 99.5]}, **new), nights) == []


def test_night_of_the_same_version_is_preferred(tmp_path: Path) -> None:
    """A night is compared with an earlier one of the same version, not with a later one of another version."""
    old, new = {"tensorflow": "2.20.0"}, {"tensorflow": "3.0.0"}
    nights = [folder_of(tmp_path, 0, {1: [80.0, 80.5]}, software=old), folder_of(tmp_path, 1, {1: [100.0, 99.5]}, software=new)]
    assert find_losses(folder_of(tmp_path, 2, {1: [80.0, 80.5]}, software=old), nights) == []
