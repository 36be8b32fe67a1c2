"""Who has agreed to what instances cost."""

from typing import Any

import pytest

from pytest_dtfperf.clusters.ec2.costs import CostEstimate, Price, confirm_cost
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.errors import AllocationError

ESTIMATE = CostEstimate("AWS account 1, eu-west-1", "g5.xlarge", 2, 4.0, Price(1.006, "AWS price list", "2026-01-31"))
WORDS = str(ESTIMATE)


class Person:
    """Gives one answer, and remembers what it was asked."""

    def __init__(self, answer: bool | None) -> None:
        self.answer = answer
        self.asked: list[str] = []

    def __call__(self, question: str) -> bool | None:
        self.asked.append(question)
        return self.answer


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DTFPERF_EC2_YES", raising=False)


def _config(**backend_keys: Any) -> ClusterConfig:
    return ClusterConfig(name="g5", backend="ec2", backend_keys=backend_keys)


@pytest.mark.parametrize("limit", [8.048, 8.05, 100])
def test_a_limit_that_is_enough(limit: float) -> None:
    """Up to max_usd the file has agreed, and nobody is asked."""
    person = Person(None)

    confirm_cost(ESTIMATE, _config(max_usd=limit), person)

    assert person.asked == []


@pytest.mark.parametrize(
    "limit, how",
    [
        (8.04, "lower max_hours to 3.9 or --gpus so that 1 will do, or raise max_usd to 8.05"),
        (4.0, "lower max_hours to 1.9, or raise max_usd to 8.05"),
        (0.1, "raise max_usd to 8.05"),
    ],
)
def test_a_limit_that_is_not(limit: float, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above max_usd nobody is asked and no variable helps; the message has the numbers, and what to change to which."""
    monkeypatch.setenv("DTFPERF_EC2_YES", "1")

    with pytest.raises(AllocationError) as error:
        confirm_cost(ESTIMATE, _config(max_usd=limit), Person(True))

    assert str(error.value) == f"{WORDS}. That is more than max_usd = {limit:g} of cluster 'g5': {how}."


def test_what_is_proposed_is_accepted() -> None:
    """Whoever does what the message says does not meet it again."""
    for hours, count, limit in ((3.9, 2, 8.04), (4.0, 1, 8.04), (1.9, 2, 4.0), (4.0, 2, 8.05)):
        changed = CostEstimate(ESTIMATE.where, ESTIMATE.instance_type, count, hours, ESTIMATE.price)
        confirm_cost(changed, _config(max_usd=limit), Person(False))


def test_yes() -> None:
    """Without max_usd somebody is asked, with the whole sum before their eyes."""
    person = Person(True)

    confirm_cost(ESTIMATE, _config(), person)

    assert person.asked == [f"dtfperf: {WORDS}. Launch?"]


def test_no() -> None:
    """No is no."""
    with pytest.raises(AllocationError, match="cluster 'g5' was not launched: the answer was no"):
        confirm_cost(ESTIMATE, _config(), Person(False))


def test_nobody_to_ask() -> None:
    """Without a terminal nothing is launched, and the message says the two ways to agree."""
    with pytest.raises(AllocationError) as error:
        confirm_cost(ESTIMATE, _config(), Person(None))

    assert str(error.value) == (
        f"{WORDS}. No user has agreed to that, and there is no terminal to ask at. "
        "Set how much cluster 'g5' may cost with max_usd in clusters.toml, or set DTFPERF_EC2_YES=1."
    )


def test_the_variable_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    """DTFPERF_EC2_YES=1 agrees where nobody sits; any other value does not."""
    monkeypatch.setenv("DTFPERF_EC2_YES", "1")
    confirm_cost(ESTIMATE, _config(), Person(None))

    monkeypatch.setenv("DTFPERF_EC2_YES", "0")
    with pytest.raises(AllocationError, match="No user has agreed"):
        confirm_cost(ESTIMATE, _config(), Person(None))
