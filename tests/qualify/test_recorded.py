"""Tests that a single host is judged by its own earlier sessions, and by recorded hosts of the same hardware."""

import math
from random import Random

import pytest

from pytest_dtfperf.datamodel.qualification import CapacityResult, HostVerdict
from pytest_dtfperf.history.series import Series
from pytest_dtfperf.qualify.peers import QualifyPolicy
from pytest_dtfperf.qualify.recorded import judge_by_records, needs_readings
from tests import campaign

HOSTS = 500 if campaign.WHOLE else 100
FIT, SLOW, NOT_JUDGED = HostVerdict.FIT, HostVerdict.SLOW, HostVerdict.NOT_JUDGED
KIND, CONDITIONS = "cpu-x", "threads=1"


def make_series(
    host: str, rates: list[float], verdict: HostVerdict | None = None, kind: str = KIND, conditions: str = CONDITIONS
) -> Series:
    points = [{"mean_log": math.log(per_s), "verdict": verdict, "conditions": conditions} for per_s in rates]
    return Series(f"{host}: memory", kind, "key", 1, points, host=host, capacity="memory")


def judge_host(per_s: float, *recorded: Series, readings: int = 3, spread: float = 0.001) -> CapacityResult:
    """Return the result of a host with readings that differ by this fraction."""
    measured = [per_s * (1 + spread * (at % 3 - 1)) for at in range(readings)]
    found = judge_by_records({"memory": measured}, {"n1"}, KIND, {"memory": CONDITIONS}, recorded, QualifyPolicy())
    return found["memory"]


def draw_rates(center: float, count: int, seed: int = 1, spread: float = 0.004) -> list[float]:
    random = Random(seed)
    return [center * (1 + random.gauss(0, spread)) for _ in range(count)]


OWN = make_series("n1", draw_rates(100.0, 12))
PEERS = [make_series(f"n{at}", draw_rates(100.0, 3, at)) for at in range(2, 12)]


@pytest.mark.parametrize(
    ("per_s", "recorded", "verdict"),
    [
        (100.0, [OWN], FIT),
        (88.0, [OWN], SLOW),
        (100.0, PEERS, FIT),
        (88.0, PEERS, SLOW),
        (88.0, [make_series("n1", draw_rates(88.0, 12)), *PEERS], SLOW),
        (96.5, [make_series("n1", draw_rates(100.0, 12, spread=0.02))], NOT_JUDGED),
        (120.0, [OWN, *PEERS], FIT),
        (100.0, [], NOT_JUDGED),
        (88.0, [make_series("n1", draw_rates(100.0, 4))], NOT_JUDGED),
        (88.0, PEERS[:4], NOT_JUDGED),
        (88.0, [make_series("n1", draw_rates(100.0, 12), kind="cpu-y")], NOT_JUDGED),
        (88.0, [make_series("n1", draw_rates(100.0, 12), conditions="threads=2")], NOT_JUDGED),
        (88.0, [make_series("n1", draw_rates(100.0, 12), SLOW)], NOT_JUDGED),
    ],
)
def test_recorded_host_is_judged_by_each_reference(per_s: float, recorded: list[Series], verdict: HostVerdict) -> None:
    """Its own sessions and its peers each make it slow. Few, noisy, slow and incomparable ones decide nothing."""
    assert judge_host(per_s, *recorded).verdict is verdict


def test_recorded_loss_has_the_reference_as_reason() -> None:
    """The reason names the loss, and with how many sessions or hosts it is compared."""
    assert judge_host(88.0, OWN).reason.endswith("% slower than in its own 12 sessions before")
    assert judge_host(88.0, *PEERS).reason.endswith("% slower than the recorded 10 hosts of its hardware")


@pytest.mark.parametrize(("readings", "verdict"), [(3, NOT_JUDGED), (6, FIT)])
def test_recorded_host_is_fit_after_further_readings(readings: int, verdict: HostVerdict) -> None:
    """Readings that differ by 2 % do not decide after three of them, and do after further ones."""
    assert judge_host(100.0, OWN, readings=readings, spread=0.02).verdict is verdict


@pytest.mark.campaign
def test_recorded_slow_host_is_rarely_fit_beside_steady_sessions() -> None:
    """Of hosts that are 5 % slower, with readings that vary by 2 % and steadier sessions before, at most 5 % are fit."""
    fit = 0
    for seed in range(HOSTS):
        random = Random(seed)
        rates = [95 * math.exp(random.gauss(0, 0.02)) for _ in range(27)]
        recorded = make_series("n1", [100 * math.exp(random.gauss(0, 0.006)) for _ in range(10)])
        fit += is_fit_at_any_analysis(rates, recorded)
    assert fit <= 0.05 * HOSTS


def is_fit_at_any_analysis(rates: list[float], recorded: Series) -> bool:
    policy, rounds = QualifyPolicy(), 0
    while True:
        rounds += 1
        found = judge_by_records({"memory": rates[:rounds]}, {"n1"}, KIND, {"memory": CONDITIONS}, [recorded], policy)
        if not needs_readings(rounds, found, policy):
            return found["memory"].verdict is FIT


@pytest.mark.parametrize(
    ("rounds", "verdict", "needs"),
    [
        (2, FIT, True),
        (3, FIT, False),
        (3, NOT_JUDGED, True),
        (3, SLOW, True),
        (5, FIT, True),
        (6, FIT, False),
        (27, SLOW, True),
        (99, SLOW, False),
    ],
)
def test_recorded_host_is_read_until_it_is_fit(rounds: int, verdict: HostVerdict, needs: bool) -> None:
    """A host is measured further until it is fit after one of the analyses, or until all rounds are made."""
    results = {"memory": CapacityResult(verdict=verdict), "cores.matmul": CapacityResult(verdict=FIT)}
    assert needs_readings(rounds, results, QualifyPolicy()) is needs


def test_recorded_host_with_one_reading_is_not_judged() -> None:
    """A single undisturbed reading decides nothing."""
    assert judge_host(50.0, OWN, readings=1).verdict is NOT_JUDGED


@pytest.mark.campaign
def test_recorded_hosts_of_equal_speed_are_rarely_slow() -> None:
    """Of equal hosts with six sessions each and a scatter of 2 %, at most 2 % are called slow."""
    slow = 0
    for seed in range(HOSTS):
        random = Random(seed)
        rates = [100 * math.exp(random.gauss(0, 0.02)) for _ in range(7)]
        slow += judge_host(rates[0], make_series("n1", rates[1:])).verdict is SLOW
    assert slow <= 0.02 * HOSTS
