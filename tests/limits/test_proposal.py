"""Tests of proposed numbers of parameter servers, against a report that tried all of them."""

from collections.abc import Sequence
from itertools import pairwise

import pytest

from pytest_dtfperf.baselines.references import Reference, references
from pytest_dtfperf.datamodel.probes import HostProbe, Probes
from pytest_dtfperf.limits.limit import (
    MOST_TRIED,
    WITHIN,
    Links,
    choose_counts,
    estimate_compute_s,
    list_server_counts,
    predict_rates,
    predict_step,
    propose_count,
)
from pytest_dtfperf.limits.needs import Layout
from pytest_dtfperf.spec import Spec
from tests.explain.probed import make_link
from tests.limits.test_needs import make_spec

ARIES = 2.5e9  # bytes/s of a node of Piz Daint, to which the rates of the report fit best
ONE_DEVICE = 138.23  # images/sec of it, by the report's table 1


def spread_over_hosts(workers: int, servers: int) -> Layout:
    """Place a worker on each host, and the servers beside them in turn, as in the report of 2017."""
    tasks = {f"ps:{number}": f"n{number % workers}" for number in range(servers)}
    return Layout({**tasks, **{f"worker:{number}": f"n{number}" for number in range(workers)}})


def make_links(hosts: int, per_s: float) -> Links:
    names = [f"n{number}" for number in range(hosts)]
    found = {link_name: make_link(per_s) for name in names for link_name in (f"*>{name}", f"{name}>*")}
    return Links(Probes(hosts={name: HostProbe() for name in names}, links=found))


def list_rows() -> Sequence[Reference]:
    """Return the rows of the report's tables for Piz Daint: for each number of nodes the best count and mode."""
    rows = [row for row in references() if row.system == "piz-daint" and row.model == "inception3" and row.gpus > 1]
    assert len(rows) == 14
    return rows


def predict_row(row: Reference, tried: Sequence[int], per_s: float = ARIES) -> dict[int, float]:
    spec = Spec(model="inception3", batch_size=64, gpus=row.gpus, num_ps=1, variable_update=row.variable_update or "")
    layouts = {count: spread_over_hosts(row.gpus, count) for count in tried}
    return predict_rates(spec, layouts, make_links(row.gpus, per_s), 64 / ONE_DEVICE)


@pytest.mark.parametrize("row", list_rows(), ids=lambda row: f"{row.data}-{row.gpus}")
def test_fastest_count_of_a_report_is_predicted(row: Reference) -> None:
    """The fastest count of a report and the proposed one are predicted to be within 5 % of the best, and few counts are
    tried."""
    rates = predict_row(row, range(1, row.gpus + 1))
    best = max(rates.values())
    assert rates[row.num_ps or 0] >= 0.95 * best
    considered = predict_row(row, list_server_counts(row.gpus))
    assert considered[propose_count(considered)] >= 0.95 * best
    assert len(choose_counts(considered)) <= MOST_TRIED


def test_predicted_rates_are_within_a_fifth() -> None:
    """Predicted rates of synthetic data are within a fifth of the report's, and rates without links are up to 90 % off."""
    synthetic = [row for row in list_rows() if row.data == "synthetic"]
    errors = [predict_row(row, [row.num_ps or 0])[row.num_ps or 0] / row.images_per_sec - 1 for row in synthetic]
    assert max(map(abs, errors)) < 0.2
    without = [row.gpus * ONE_DEVICE / row.images_per_sec - 1 for row in synthetic]
    assert max(without) > 0.9


def test_slow_network_makes_the_reported_count_poor() -> None:
    """With 0.4 of the bandwidth, the report's count on 16 nodes is predicted to have less than 0.6 of the best rate."""
    (row,) = (row for row in list_rows() if row.gpus == 16 and row.data == "synthetic")
    rates = predict_row(row, range(1, 17), per_s=0.4 * ARIES)
    assert rates[row.num_ps or 0] < 0.6 * max(rates.values())


@pytest.mark.parametrize("most", [1, 2, 8, 9, 16, 128])
def test_listed_counts_grow_by_a_quarter(most: int) -> None:
    """The listed counts are all up to eight, then each at most a quarter more, up to the largest."""
    found = list_server_counts(most)
    assert (found[0], found[-1]) == (1, most)
    assert all(one < other <= max(one + 1, 1.25 * one + 1) for one, other in pairwise(found))
    assert found[: min(8, most)] == list(range(1, min(8, most) + 1))


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({}, max(1.0, 4.0) + max(2.0, 4.0)),
        ({"variable_update": "distributed_replicated"}, 3.0 + (4.0 - 2.0) + 4.0),
        ({"cross_replica_sync": False}, 8.0),
        ({"staged_vars": True}, 8.0),
    ],
    ids=["in turn", "replicated", "asynchronous", "staged"],
)
def test_step_combines_computing_and_links(changes: dict[str, object], expected: float) -> None:
    """A step of three seconds of computing and four of the busiest link in each direction has the length of its mode."""
    spec, layout = make_spec(**changes), Layout({"ps:0": "a", "worker:0": "b", "worker:1": "c"})
    sent = 2 * 4 * 61_000_000
    probes = Probes(links={"*>a": make_link(sent / 4), "a>*": make_link(sent / 4)}, hosts={"a": HostProbe()})
    assert predict_step(spec, layout, Links(probes), 3.0) == pytest.approx(expected, rel=0.03)


def test_computing_follows_from_a_measured_step() -> None:
    """Computing that is estimated from a measured step predicts this step, and is the least time that does."""
    spec, layout = make_spec(), spread_over_hosts(2, 1)
    links = make_links(2, 1e9)
    for seconds in (0.1, 0.5, 3.0):
        measured = predict_step(spec, layout, links, seconds)
        found = estimate_compute_s(spec, layout, links, measured)
        assert predict_step(spec, layout, links, found) == pytest.approx(measured)
        assert found <= seconds * (1 + 1e-9)
    assert estimate_compute_s(spec, layout, make_links(2, 1e30), 2.0) == pytest.approx(2.0)


def test_chosen_counts_exclude_slow_ones() -> None:
    """Of equal counts four distant ones are tried, and none that is predicted to be much slower."""
    assert choose_counts(dict.fromkeys(range(1, 9), 100.0)) == [1, 3, 5, 8]
    assert choose_counts({1: 100.0}) == [1]
    assert choose_counts({1: 50.0, 2: 99.5, 3: 100.0, 4: 95.0, 5: 80.0}) == [2, 3, 4]
    slow = {1: 100 * (1 - WITHIN) - 0.1, 2: 100.0}
    assert choose_counts(slow) == [2]
