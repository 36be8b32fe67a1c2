"""Tests of hints on measurements far below what their hosts allow: with injected causes, and with healthy trainings."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from pytest_dtfperf.datamodel.explanation import Bound, CauseKind, Explanation, Limit
from pytest_dtfperf.datamodel.fingerprint import Fingerprint
from pytest_dtfperf.datamodel.host_state import Disturbance
from pytest_dtfperf.limits.hints import TYPICAL, find_hint, find_typical_share
from pytest_dtfperf.records.record import Record
from tests.records.host_states import make_state
from tests.records.samples import record, spec

LIMIT = Limit(images_per_sec=100.0, bounds=[Bound(resource="cores", host="n1", step_s=0.1, needs="68.6 GFLOP at 686 GFLOP/s")])
LINK = Bound(resource="link", host="n2", step_s=0.4, needs="95.3 MB sent at 11.9 MB/s")


def make_record(
    share: float,
    *,
    limit: Limit = LIMIT,
    busy_cores: float = 3.9,
    threads: Mapping[str, int] = {"worker:0": 2, "worker:1": 2},
    disturbances: Sequence[str] = (),
    hardware: Mapping[str, Any] = {"cpu": "EPYC", "gpus": []},
    **changes: Any,
) -> Record:
    """Return a measurement that reached `share` of its limit, on one host with tasks that kept so many cores busy."""
    found = record(spec(**{"gpus": 2, "num_ps": 1, **changes}), share * (limit.images_per_sec or 0), limit=limit)
    runs = [
        replace(
            run,
            task_hosts=dict.fromkeys([*threads, "ps:0"], "n1"),
            task_threads=dict(threads),
            state={"n1": make_state(cpu={"own_s": busy_cores * 2.0}, window_s=2.0)},
            disturbances=[Disturbance(message=each) for each in disturbances],
        )
        for run in found.measurement.runs
    ]
    return replace(
        found, measurement=replace(found.measurement, runs=runs, fingerprint=Fingerprint.from_json({"hardware": hardware}))
    )


CAUSES = {
    "one thread": (
        make_record(0.2, busy_cores=2.0, num_intra_threads=1),
        "such a training elsewhere 46 to 47.0 %; likely: the tasks kept 2.0 of 4 cores busy (num_intra_threads=1)",
    ),
    "idle cores without a reason": (
        make_record(0.2, busy_cores=2.0),
        "the tasks kept 2.0 of 4 cores busy (num_intra_threads and num_inter_threads set how many they use)",
    ),
    "a program that takes the memory": (
        make_record(0.1, disturbances=["memory pressure: stalled for 31 % of the run"]),
        "likely: memory pressure: stalled for 31 % of the run",
    ),
    "the data format of GPUs on cores": (
        make_record(0.2, data_format="NCHW"),
        "likely: data_format=NCHW, where cores compute NHWC faster",
    ),
    "a slow link": (
        make_record(0.95, limit=Limit(images_per_sec=25.0, bounds=[LINK, LIMIT.bounds[0]])),
        "the link of n2 sets the limit (95.3 MB sent at 11.9 MB/s); its cores allow 4.0 times as much",
    ),
    "one thread that costs a quarter": (
        make_record(0.28, busy_cores=2.7, model="resnet50", num_inter_threads=1),
        "likely: the tasks kept 2.7 of 4 cores busy (num_inter_threads=1)",
    ),
    "nothing that was recorded": (make_record(0.2), "; --explain=always shows where the time of a step goes"),
}


@pytest.mark.parametrize("case", CAUSES)
def test_hint_names_injected_cause(case: str) -> None:
    """The hint of a measurement far below its limit names the likely cause that its runs recorded."""
    slow, expected = CAUSES[case]
    assert expected in (find_hint(slow) or "")


def test_hint_names_a_disturbance_once() -> None:
    """Runs that the same kind of disturbance of a host affected, each with its own numbers, are one cause in a hint."""
    slow = make_record(0.2)
    disturbances = [Disturbance(message=f"others used {cores} cores", kind=CauseKind.OTHERS, host="vm") for cores in (2, 3)]
    runs = [replace(slow.measurement.runs[0], disturbances=[each]) for each in disturbances]
    hint = find_hint(replace(slow, measurement=replace(slow.measurement, runs=runs))) or ""
    assert "likely: host vm: others used 2 cores" in hint
    assert "3 cores" not in hint


HEALTHY = {
    "inception3 with servers": make_record(0.46),
    "a little lower": make_record(0.30),
    "its lowest": make_record(0.277),
    "replicated": make_record(0.54, num_ps=0, variable_update="replicated"),
    "mnist": make_record(0.41, model="mnist"),
    "alexnet": make_record(0.226, model="alexnet", batch_size=8),
    "resnet50": make_record(0.38, model="resnet50"),
    "a model without typical shares": make_record(0.05, model="lenet"),
    "a link as fast as it needs to be": make_record(
        0.9, limit=Limit(images_per_sec=80.0, bounds=[replace(LINK, step_s=0.12), LIMIT.bounds[0]])
    ),
    "GPUs": make_record(
        0.3,
        limit=replace(LIMIT, bounds=[replace(LIMIT.bounds[0], resource="gpus")]),
        hardware={"gpus": [{"name": "Tesla P100-PCIE-16GB"}]},
        data_format="NCHW",
    ),
    "explained against its baseline": replace(make_record(0.1), explanation=Explanation([], 0.1, 0.1, 0.0, 0.01)),
    "slowed down on purpose": replace(
        make_record(0.1), measurement=replace(make_record(0.1).measurement, injected_slowdowns={"worker:0": 0.2})
    ),
    "cores that others used": make_record(0.2, model="lenet", busy_cores=2.0, disturbances=["others used 2 of 4 cores"]),
    "no limit": replace(make_record(0.1), limit=None),
    "a limit that nothing is known of": replace(make_record(0.1), limit=Limit(unknown={"cores": "not probed"})),
}


@pytest.mark.parametrize("case", HEALTHY)
def test_healthy_training_has_no_hint(case: str) -> None:
    """A measurement that is as near its limit as others of its kind, or that has none, gets no hint."""
    assert find_hint(HEALTHY[case]) is None


def test_typical_shares_are_plausible_and_unique() -> None:
    """Each kind of training has one typical range with a source, above zero and at most 1.5, and links have another one than
    cores."""
    keys = [(each.model, mode, each.resource) for each in TYPICAL for mode in each.modes]
    assert len(keys) == len(set(keys))
    assert all(0 < each.low <= each.high <= 1.5 and each.source for each in TYPICAL)
    assert find_typical_share(make_record(0.1), "link") != find_typical_share(make_record(0.1), "cores")
