"""The agreement to the costs of instances."""

from typing import Any

import pytest

from pytest_dtfperf.clusters.ec2.costs import CostEstimate, Price, confirm_cost
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.errors import AllocationError

ESTIMATE = CostEstimate("AWS account 1, eu-west-1", "g5.xlarge", 2, 4.0, Price(1.006, "AWS price list", "2026-01-31"))
WORDS = str(ESTIMATE)


class Person:
    """A user with one answer, who remembers the questions."""

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
def test_costs_within_the_limit_are_accepted(limit: float) -> None:
    """Costs up to max_usd are accepted without a question."""
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
def test_costs_above_the_limit_are_refused(limit: float, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs above max_usd are refused without a question, with the numbers and the possible changes."""
    monkeypatch.setenv("DTFPERF_EC2_YES", "1")

    with pytest.raises(AllocationError) as error:
        confirm_cost(ESTIMATE, _config(max_usd=limit), Person(True))

    assert str(error.value) == f"{WORDS}. That is more than max_usd = {limit:g} of cluster 'g5': {how}."


def test_proposed_changes_are_accepted() -> None:
    """Each change that the message proposes makes the costs acceptable."""
    for hours, count, limit in ((3.9, 2, 8.04), (4.0, 1, 8.04), (1.9, 2, 4.0), (4.0, 2, 8.05)):
        changed = CostEstimate(ESTIMATE.where, ESTIMATE.instance_type, count, hours, ESTIMATE.price)
        confirm_cost(changed, _config(max_usd=limit), Person(False))


def test_user_is_asked_with_the_costs() -> None:
    """The user is asked with the whole costs, if there is no max_usd."""
    person = Person(True)

    confirm_cost(ESTIMATE, _config(), person)

    assert person.asked == [f"dtfperf: {WORDS}. Launch?"]


def test_no_is_a_refusal() -> None:
    """The answer no refuses the launch."""
    with pytest.raises(AllocationError, match="cluster 'g5' was not launched: the answer was no"):
        confirm_cost(ESTIMATE, _config(), Person(False))


def test_missing_terminal_is_a_refusal() -> None:
    """A launch without a terminal is refused with the two ways to agree."""
    with pytest.raises(AllocationError) as error:
        confirm_cost(ESTIMATE, _config(), Person(None))

    assert str(error.value) == (
        f"{WORDS}. No user has agreed to that, and there is no terminal to ask at. "
        "Set how much cluster 'g5' may cost with max_usd in clusters.toml, or set DTFPERF_EC2_YES=1."
    )


def test_variable_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    """DTFPERF_EC2_YES=1 agrees without a terminal; any other value does not."""
    monkeypatch.setenv("DTFPERF_EC2_YES", "1")
    confirm_cost(ESTIMATE, _config(), Person(None))

    monkeypatch.setenv("DTFPERF_EC2_YES", "0")
    with pytest.raises(AllocationError, match="No user has agreed"):
        confirm_cost(ESTIMATE, _config(), Person(None))
