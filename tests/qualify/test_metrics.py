"""The metrics of qualifications and isolations, read by the parsers of Prometheus and of OpenMetrics."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_prometheus

from pytest_dtfperf.datamodel.qualification import CapacityResult, HostResult, HostVerdict, PairResult, Qualification
from pytest_dtfperf.qualify.isolation import IsolationCost, IsolationResult
from pytest_dtfperf.qualify.metrics import format_isolation_metrics, format_qualification_metrics
from pytest_dtfperf.qualify.search import Conclusion, Outcome, SlowSet, SlowSetKind

ENDED_S = 1_800_000_000.0
STRANGE = 'n"1\\\n'


def make_host(verdict: HostVerdict, loss: float | None) -> HostResult:
    return HostResult(verdict=verdict, kind="cpu", capacities={"memory": CapacityResult(verdict=verdict, loss=loss)})


QUALIFICATION = Qualification(
    cluster="daint",
    hosts={
        "n1": make_host(HostVerdict.FIT, 0.01),
        "n2": make_host(HostVerdict.SLOW, 0.12),
        STRANGE: make_host(HostVerdict.NOT_JUDGED, None),
    },
    pairs=[
        PairResult(hosts=["n1", "n2"], name="link", per_s=1e9, expected_per_s=4e9),
        PairResult(hosts=["n2", "n1"], name="link", per_s=1e9, expected_per_s=4e9, verdict=HostVerdict.NOT_JUDGED),
    ],
    false_alarms=0.02,
    seconds=190.0,
)
ISOLATION = IsolationResult(
    id="20260131T021503Z-9f3c1a",
    cluster="daint",
    label="inception3 b64 gpus=8",
    hosts=["n1", "n2", "n3", "n4"],
    group_size=2,
    images_per_sec=100.0,
    late={},
    lost={},
    cost=IsolationCost(runs=[4, 8], rounds=[2, 4], seconds=[60.0, 120.0]),
    seconds=75.5,
    conclusion=Conclusion(
        outcome=Outcome.FOUND,
        reason="confirmed",
        findings=[
            SlowSet(kind=SlowSetKind.HOST, hosts=["n2"], slowdown=0.2, runs=3),
            SlowSet(kind=SlowSetKind.LINK, hosts=["n3", "n4"], slowdown=0.4, runs=2),
        ],
        fit=["n1"],
        unknown=["n3", "n4"],
        runs=11,
        rounds=5,
        pairs=0.5,
        spread=None,
    ),
    exclude=["n2"],
    failures=[],
)


def read_metrics(content: bytes) -> dict[str, list[tuple[Mapping[str, str], float]]]:
    """Return the samples of each family, which both parsers must read identically."""

    def list_samples(families: Iterable[Metric]) -> dict[str, list[tuple[Mapping[str, str], float]]]:
        return {family.name: [(each.labels, each.value) for each in family.samples] for family in families}

    found = list_samples(parse_prometheus(content.decode()))
    assert list_samples(parse_openmetrics(f"{content.decode()}# EOF\n")) == found
    return found


def test_metrics_of_a_qualification_are_its_values() -> None:
    """Verdicts and losses of hosts and confirmed slow links are samples, and a name with quotes is one label."""
    found = read_metrics(format_qualification_metrics(QUALIFICATION, ENDED_S))
    counts = {labels["verdict"]: value for labels, value in found["dtfperf_qualification_hosts"]}
    assert counts == {"FIT": 1, "SLOW": 1, "NOT_JUDGED": 1}
    verdicts = {labels["host"]: labels["verdict"] for labels, value in found["dtfperf_qualification_host_verdict"] if value}
    assert sorted(verdicts.values()) == ["FIT", "NOT_JUDGED", "SLOW"]
    assert (verdicts["n1"], verdicts["n2"]) == ("FIT", "SLOW")
    losses = {(labels["host"], labels["capacity"]): value for labels, value in found["dtfperf_qualification_loss_ratio"]}
    assert losses == {("n1", "memory"): 0.01, ("n2", "memory"): 0.12}
    ((link, loss),) = found["dtfperf_qualification_slow_link_loss_ratio"]
    assert (link["source"], link["target"], loss) == ("n1", "n2", 0.75)
    assert found["dtfperf_qualification_duration_seconds"] == [({"cluster": "daint"}, 190.0)]
    assert found["dtfperf_qualification_ended_timestamp_seconds"] == [({"cluster": "daint"}, ENDED_S)]


def test_metrics_of_an_isolation_are_its_values() -> None:
    """The outcome, the findings and the numbers of hosts are samples, and a host of a finding is counted once."""
    found = read_metrics(format_isolation_metrics(ISOLATION, ENDED_S))
    assert [labels["outcome"] for labels, value in found["dtfperf_isolation_outcome"] if value] == ["found"]
    assert {labels["state"]: value for labels, value in found["dtfperf_isolation_hosts"]} == {"fit": 1, "slow": 3, "unknown": 0}
    slow = {(labels["kind"], labels["hosts"]): value for labels, value in found["dtfperf_isolation_slowdown_ratio"]}
    assert slow == {("host", "n2"): 0.2, ("link", "n3,n4"): 0.4}
    assert found["dtfperf_isolation_trainings"][0][1] == 11


@pytest.mark.parametrize("page", ["qualify", "isolate"])
def test_documentation_names_all_metrics(page: str) -> None:
    """The page of the command names each metric that the command writes, and no other one."""
    made = {"qualify": format_qualification_metrics(QUALIFICATION), "isolate": format_isolation_metrics(ISOLATION)}[page]
    text = (Path(__file__).parents[2] / "docs" / f"{page}.md").read_text()
    assert set(re.findall(r"`(dtfperf_[a-z_]+)", text)) == set(read_metrics(made))
