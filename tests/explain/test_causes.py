"""Tests of the causes of a longer step, from evidence made by hand and from traces."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_dtfperf.baselines.entry import keep_probes
from pytest_dtfperf.datamodel.explanation import Cause, CauseKind, Explanation
from pytest_dtfperf.datamodel.host_state import Disturbance
from pytest_dtfperf.datamodel.probes import HostProbe, Link, Probes, Reading
from pytest_dtfperf.datamodel.step_times import MAX_LINKS
from pytest_dtfperf.datamodel.step_times import LinkTraffic as Traced
from pytest_dtfperf.explain.causes import explain
from pytest_dtfperf.explain.host_pressure import find_host_pressures
from pytest_dtfperf.explain.measurement_profile import (
    CandidateCause,
    CandidateKind,
    ComparedTimes,
    MeasurementProfile,
    Times,
)
from pytest_dtfperf.explain.merge_causes import ExplainCase
from pytest_dtfperf.explain.reasons import find_probed_location
from pytest_dtfperf.explain.step_breakdown import compute_step_breakdown
from tests.explain.made import load_linked_traces
from tests.explain.made import load_real_traces as traced
from tests.explain.sides import (
    FLOOR_MS,
    USUAL,
    explain_change,
    find_top_cause,
    make_side,
    make_timestamped_side,
    slow_all,
    slow_one,
)
from tests.explain.test_worker_timings import compute_reported_timings, compute_timings_without_waits, make_reported_steps
from tests.records.host_states import BUSY, make_state

HOSTS = {"worker:0": "a", "worker:1": "b", "worker:2": "c", "ps:0": "d", "ps:1": "e"}
PAIR = {("ps:0", "worker:1"): 65.0, ("worker:1", "ps:0"): 65.0}
TWO = ({"apply": 3.0}, {"apply": 3.0})


def make_probes(**hosts: HostProbe) -> dict[str, Any]:
    return {"probes": Probes(hosts=hosts)}


def make_reading(per_s: float) -> Reading:
    return Reading(per_s=per_s, spread=0.01, repeats=3)


def make_starved_reading(per_s: float) -> Reading:
    """Make a reading of a core that other processes had for nine tenths of the time."""
    return Reading(per_s=per_s, spread=0.01, repeats=3, cpu_share=0.1)


def make_states(host: str, **cpu: float) -> dict[str, Any]:
    """Make a host's counts of ten seconds on its one core."""
    return {"states": {host: make_state(cpus="0", cores=1, cpu={"busy_s": 5.0, "own_s": 5.0, **cpu})}}


def make_heat(host: str) -> Disturbance:
    """Make the disturbance of a host with a core's clock lowered for 40 % of the run."""
    message = "a core's clock was lowered for heat for 40 % of the run"
    return Disturbance(message=message, kind=CauseKind.CLOCK, host=host)


def make_waiting_states(**waited_s: float) -> dict[str, Any]:
    """Make counts of ten seconds on hosts on which threads of the run waited so many seconds for a core."""
    return {host: make_states(host, waited_s=seconds)["states"][host] for host, seconds in waited_s.items()}


def make_probes_with_fan_in(per_s: float, **hosts: HostProbe) -> dict[str, Any]:
    """Make probes of hosts, and of the link from all hosts to b."""
    return {"probes": Probes(hosts=hosts, links={"*>b": Link(per_s=per_s, spread=0.01, repeats=3, how={})})}


def make_links(**per_s: float) -> dict[str, Any]:
    """Make links between the hosts a, b and c, both ways, of 9 GB/s, except for the given ones: ab=4e9 is a>b."""
    names = [(one, other) for one in "abc" for other in "abc" if one != other]
    links = {f"{one}>{other}": Link(per_s=per_s.get(one + other, 9e9), spread=0.01, repeats=3, how={}) for one, other in names}
    return {"probes": Probes(links=links)}


REDUCED = ({**slow_all(reduce=20)[0], "send": 0.0, "receive": 0.0},) * 3
LATER = ({**slow_all(reduce=70)[0], "send": 0.0, "receive": 0.0},) * 3


ONE_EACH: Mapping[str, tuple[MeasurementProfile, MeasurementProfile, str, str | None]] = {
    "one worker's arithmetic": (make_side(), make_side(*slow_one(backward=40), cpu_ms=[90, 130]), "compute", "worker:1"),
    "everybody's arithmetic": (make_side(), make_side(*slow_all(backward=40), cpu_ms=[130, 130]), "compute", None),
    "one of four computes": (
        make_side({}, {}, {}, {}),
        make_side(*slow_one(2, 4, forward=30), cpu_ms=[90, 90, 120, 90]),
        "compute",
        "worker:2",
    ),
    "no core for one": (make_side(), make_side(*slow_one(forward=30, backward=60), cpu_ms=[90, 92]), "others", "worker:1"),
    "no cores for all": (make_side(), make_side(*slow_all(forward=30, backward=60), cpu_ms=[92, 92]), "others", None),
    "one sleeps": (make_side(), make_side(*slow_one(python=50)), "straggler", "worker:1"),
    "all sleep": (make_side(), make_side(*slow_all(python=50)), "host", None),
    "one waits for input": (make_side(), make_side(*slow_one(input=40)), "input", "worker:1"),
    "two of three wait for input": (make_side({}, {}, {}), make_side({}, *slow_all(2, input=40)), "input", None),
    "all wait for input": (make_side(), make_side(*slow_all(input=40)), "input", None),
    "one pair's link": (
        make_side({}, {}, servers=TWO),
        make_side(*slow_one(receive=50, send=50), servers=TWO, busy_ms=PAIR),
        "link",
        "worker:1<>ps:0",
    ),
    "one pair, one way": (
        make_side({}, {}, servers=TWO),
        make_side(*slow_one(receive=50), servers=TWO, busy_ms={("ps:0", "worker:1"): 65.0}),
        "link",
        "ps:0>worker:1",
    ),
    "a worker's link": (
        make_side({}, {}, servers=TWO),
        make_side(
            *slow_one(receive=50, send=50),
            servers=TWO,
            busy_ms={**PAIR, ("ps:1", "worker:1"): 60.0, ("worker:1", "ps:1"): 70.0},
        ),
        "link",
        "worker:1",
    ),
    "a server's link": (
        make_side({}, {}, servers=TWO),
        make_side(
            *slow_all(receive=50),
            servers=TWO,
            busy_ms={("ps:1", "worker:0"): 65.0, ("ps:1", "worker:1"): 65.0},
        ),
        "link",
        "ps:1",
    ),
    "the whole network": (
        make_side({}, {}, servers=TWO),
        make_side(
            *slow_all(receive=50), servers=TWO, busy_ms={(f"ps:{p}", f"worker:{w}"): 65.0 for p in (0, 1) for w in (0, 1)}
        ),
        "link",
        None,
    ),
    "a server without a core": (
        make_side({}, {}, servers=TWO),
        make_side(
            *slow_all(receive=20, send=15, host=12),
            servers=[{"apply": 3.0}, {"apply": 14.0}],
            busy_ms={(a, b): 40.0 for w in ("worker:0", "worker:1") for a, b in ((w, "ps:1"), ("ps:1", w))},
        ),
        "server",
        "ps:1",
    ),
    "updates take longer": (make_side(), make_side(*slow_all(apply=40), servers=[{"apply": 80.0}]), "server", "ps:0"),
    "updates of a lone worker take longer on both servers": (
        make_side({}, servers=TWO),
        make_side(*slow_all(1, apply=40), servers=[{"apply": 43.0}] * 2),
        "server",
        None,
    ),
    "waiting in turn": (make_side(), make_side(floor_ms=FLOOR_MS + 40), "waiting", None),
    "an all-reduce": (
        make_side(slow_all(reduce=20)[0], {"reduce": 25.0}, floor_ms=28),
        make_side({"reduce": 70.0}, {"reduce": 75.0}, floor_ms=78),
        "link",
        None,
    ),
    "another graph": (
        make_side(),
        make_side(*slow_all(forward=40), cpu_ms=[130, 130], more={"program_changes": ["training graph: 36 Conv2D less"]}),
        "program",
        None,
    ),
    "other versions": (
        make_side(),
        make_side(*slow_all(forward=40), cpu_ms=[130, 130], more={"software_changes": ["tensorflow 2.20.0 -> 2.21.0"]}),
        "software",
        None,
    ),
    "heat": (
        make_side(),
        make_side(
            *slow_one(forward=15, backward=30),
            cpu_ms=[90, 135],
            more={"disturbances": [make_heat("b")]},
        ),
        "clock",
        "worker:1",
    ),
    "a lower clock, as probed": (
        make_side(more=make_probes(b=HostProbe(clock_hz=1.4e9))),
        make_side(*slow_one(forward=15, backward=30), cpu_ms=[90, 135], more=make_probes(b=HostProbe(clock_hz=1.2e9))),
        "clock",
        "worker:1",
    ),
    "a neighbour in memory": (
        make_side(more=make_probes(b=HostProbe(readings={"memory": make_reading(9e9)}))),
        make_side(
            *slow_one(backward=45), cpu_ms=[90, 135], more=make_probes(b=HostProbe(readings={"memory": make_reading(4e9)}))
        ),
        "memory",
        "worker:1",
    ),
    "a lower clock, which slows copying, too": (
        make_side(more=make_probes(b=HostProbe(readings={"memory": make_reading(9e9), "core.matmul": make_reading(9e9)}))),
        make_side(
            *slow_one(backward=45),
            cpu_ms=[90, 135],
            more=make_probes(b=HostProbe(readings={"memory": make_reading(6e9), "core.matmul": make_reading(6e9)})),
        ),
        "compute",
        "worker:1",
    ),
    "larger pictures, decoded on the cores that compute": (
        make_side(more=make_probes(b=HostProbe(readings={"input": make_reading(700), "core.matmul": make_reading(9e9)}))),
        make_side(
            *slow_one(forward=20, backward=40, input=8),
            cpu_ms=[90, 210],
            more=make_probes(b=HostProbe(readings={"input": make_reading(60), "core.matmul": make_reading(9e9)})),
        ),
        "input",
        "worker:1",
    ),
    "larger pictures, which one of two workers waits for longer": (
        make_side(
            more=make_probes(
                a=HostProbe(readings={"input": make_reading(700)}), b=HostProbe(readings={"input": make_reading(700)})
            )
        ),
        make_side(
            {"input": 40.0},
            {"input": 70.0},
            more=make_probes(
                a=HostProbe(readings={"input": make_reading(90)}), b=HostProbe(readings={"input": make_reading(90)})
            ),
        ),
        "input",
        None,
    ),
    "larger pictures, for which one waits and another has fewer cores": (
        make_side(
            more=make_probes(
                a=HostProbe(readings={"input": make_reading(700)}), b=HostProbe(readings={"input": make_reading(700)})
            )
        ),
        make_side(
            {"input": 60.0},
            {"backward": 120.0},
            cpu_ms=[20, 160],
            more=make_probes(
                a=HostProbe(readings={"input": make_reading(90)}), b=HostProbe(readings={"input": make_reading(90)})
            ),
        ),
        "input",
        None,
    ),
    "all wait for input, one of them longer": (make_side(), make_side({"input": 40.0}, {"input": 70.0}), "input", None),
    "a lower clock, which slows decoding, too": (
        make_side(more=make_probes(b=HostProbe(readings={"input": make_reading(700), "core.matmul": make_reading(9e9)}))),
        make_side(
            *slow_one(forward=15, backward=30),
            cpu_ms=[90, 140],
            more=make_probes(b=HostProbe(readings={"input": make_reading(460), "core.matmul": make_reading(6e9)})),
        ),
        "compute",
        "worker:1",
    ),
    "decoding is slower, and is not what the CPU does more of": (
        make_side(more=make_probes(b=HostProbe(readings={"input": make_reading(700)}))),
        make_side(
            *slow_one(backward=40), cpu_ms=[90, 100], more=make_probes(b=HostProbe(readings={"input": make_reading(300)}))
        ),
        "others",
        "worker:1",
    ),
    "a worker under a quota sends more slowly, too": (
        make_side(),
        make_side(
            *slow_one(forward=20, backward=40, receive=30, send=30),
            cpu_ms=[90, 92],
            busy_ms=PAIR,
            more=make_states("b", limited_s=4.0),
        ),
        "others",
        "worker:1",
    ),
    "a worker whose threads wait for a core": (
        make_side(more=make_states("b", waited_s=3.0)),
        make_side(
            *slow_one(forward=30, backward=60, receive=30, send=30),
            cpu_ms=[90, 110],
            busy_ms=PAIR,
            more=make_states("b", waited_s=15.0),
        ),
        "others",
        "worker:1",
    ),
    "a worker whose threads wait for a core, on a machine where all wait a little": (
        make_side(more={"states": make_waiting_states(a=3.0, b=3.0, d=3.0)}),
        make_side(
            {},
            {"forward": 60.0, "backward": 120.0, "receive": 45.0, "send": 45.0},
            cpu_ms=[90, 92],
            busy_ms=PAIR,
            more={"states": make_waiting_states(a=9.0, b=250.0, d=8.0)},
        ),
        "others",
        "worker:1",
    ),
    "a server's link, for which one of three workers waits less surely": (
        make_side({}, {}, {}, servers=TWO),
        make_side(
            *slow_all(2, receive=30, send=20),
            {"receive": 17.0},
            servers=TWO,
            busy_ms={(a, b): 40.0 for w in range(3) for a, b in ((f"worker:{w}", "ps:1"), ("ps:1", f"worker:{w}"))},
        ),
        "link",
        "ps:1",
    ),
    "a server that stands still at times, of a lone worker": (
        make_side({}),
        make_side(
            *slow_all(1, receive=30, send=20),
            servers=[{"apply": 34.0}],
            busy_ms={("ps:0", "worker:0"): 45.0, ("worker:0", "ps:0"): 35.0},
        ),
        "server",
        "ps:0",
    ),
    "the link of a server and a lone worker": (
        make_side({}),
        make_side(*slow_all(1, receive=30, send=20), busy_ms={("ps:0", "worker:0"): 45.0, ("worker:0", "ps:0"): 35.0}),
        "link",
        "worker:0<>ps:0",
    ),
    "a server under a quota": (
        make_side({}, {}, servers=TWO),
        make_side(
            *slow_all(receive=20, send=15),
            servers=TWO,
            busy_ms={(a, b): 40.0 for w in ("worker:0", "worker:1") for a, b in ((w, "ps:1"), ("ps:1", w))},
            more=make_states("e", limited_s=4.0),
        ),
        "server",
        "ps:1",
    ),
    "a server under a quota, for which workers wait within their steps": (
        make_side(servers=TWO),
        make_side(*slow_all(host=30), servers=TWO, more=make_states("e", limited_s=4.0)),
        "server",
        "ps:1",
    ),
    "a server under a quota, for which one worker waits within its step": (
        make_side(servers=TWO),
        make_side(*slow_one(host=30), servers=TWO, more=make_states("e", limited_s=4.0)),
        "server",
        "ps:1",
    ),
    "a server's host that has counted waiting while its cores stood idle": (
        make_side({}, {}, more=make_states("d", waited_s=3.0, busy_s=2.0)),
        make_side(
            *slow_one(receive=50), busy_ms={("ps:0", "worker:1"): 65.0}, more=make_states("d", waited_s=30.0, busy_s=2.0)
        ),
        "link",
        "ps:0>worker:1",
    ),
    "a worker without a core, whose link was slow to a probe that had none": (
        make_side(
            {}, {}, servers=TWO, more=make_probes_with_fan_in(9e8, b=HostProbe(readings={"core.matmul": make_reading(2e9)}))
        ),
        make_side(
            *slow_one(forward=30, backward=60, receive=30, send=30),
            servers=TWO,
            cpu_ms=[90, 92],
            busy_ms=PAIR,
            more=make_probes_with_fan_in(3e8, b=HostProbe(readings={"core.matmul": make_starved_reading(2e8)})),
        ),
        "others",
        "worker:1",
    ),
    "a server under a quota, for which workers wait": (
        make_side({}, {}, servers=TWO),
        make_side({}, {}, servers=TWO, floor_ms=FLOOR_MS + 40, more=make_states("e", limited_s=4.0)),
        "server",
        "ps:1",
    ),
    "a link into one of three, of an all-reduce": (
        make_side(*REDUCED, servers=(), more=make_links()),
        make_side(*LATER, servers=(), more=make_links(ab=4e9, cb=4e9)),
        "link",
        "worker:1",
    ),
    "a link between two, of an all-reduce": (
        make_side(*REDUCED, servers=(), more=make_links()),
        make_side(*LATER, servers=(), more=make_links(ab=4e9)),
        "link",
        "worker:0>worker:1",
    ),
}


@pytest.mark.parametrize(("baseline", "current", "kind", "location"), ONE_EACH.values(), ids=ONE_EACH)
def test_single_change_has_one_cause(
    baseline: MeasurementProfile, current: MeasurementProfile, kind: str, location: str | None
) -> None:
    """A single change has one cause, with its kind, its location, evidence and nearly all seconds of the change."""
    baseline, current = replace(baseline, hosts=HOSTS), replace(current, hosts=HOSTS)
    found = explain_change(baseline, current)
    assert [(each.kind, each.location) for each in found.causes] == [(kind, location)]
    assert found.causes[0].seconds == pytest.approx(found.change_s, rel=0.1)
    assert all(found.causes[0].evidence)
    assert kind in list(CauseKind)
    assert Explanation.from_json(found.to_json()) == found


def test_cause_of_all_workers_of_a_host_is_the_host() -> None:
    """A cause is at the host if both workers of this host compute more slowly and those of another host do not."""
    hosts = {f"worker:{number}": "ab"[number // 2] for number in range(4)}
    workers = [*slow_one(0, 2), *slow_all(backward=40)]
    workers[0] = {}
    baseline, current = (
        make_side({}, {}, {}, {}, more={"hosts": hosts}),
        make_side(*workers, cpu_ms=[90, 90, 130, 130], more={"hosts": hosts}),
    )
    assert (find_top_cause(baseline, current).kind, find_top_cause(baseline, current).location) == ("compute", "b")


@pytest.mark.parametrize(
    ("baseline", "current", "command"),
    [
        (make_side({}, {}, {}), make_side(*slow_one(1, 3, backward=40)), "dtfperf doctor --cluster=daint --hosts=b,a"),
        (make_side(), make_side(*slow_one(backward=40)), "dtfperf doctor --cluster=daint"),
        (make_side({}, {}, {}), make_side(*slow_all(3, backward=40)), "dtfperf doctor --cluster=daint"),
    ],
    ids=["a host, and one to compare with", "of two", "all"],
)
def test_next_command_checks_hosts_of_the_cause(
    baseline: MeasurementProfile, current: MeasurementProfile, command: str
) -> None:
    """The next command names the hosts of a cause and one other host, or no hosts if that would be all of them."""
    assert current.step_breakdown
    hosts = {"ps:0": "a", "worker:0": "a", "worker:1": "b", "worker:2": "c"}
    hosts = {task: host for task, host in hosts.items() if task in current.step_breakdown.tasks}
    baseline, current = (replace(each, hosts=hosts, cluster="--cluster=daint") for each in (baseline, current))
    assert find_top_cause(baseline, current).next == command


def test_links_left_out_of_the_breakdown_belong_to_the_slow_server() -> None:
    """If a breakdown has only the busiest links of many workers, these show a slow server, with the seconds of all workers."""
    many: list[dict[str, float]] = [{}] * 6
    busy_ms = {("ps:1", f"worker:{worker}"): 65.0 for worker in range(6)}
    baseline, current = (
        make_side(*many, servers=TWO),
        make_side(*slow_all(6, receive=50), servers=TWO, busy_ms=busy_ms),
    )
    assert current.step_breakdown
    few = [link for link in current.step_breakdown.links if link.destination in ("worker:0", "worker:1")]
    (cause,) = explain_change(baseline, replace(current, step_breakdown=replace(current.step_breakdown, links=few))).causes
    assert (cause.kind, cause.location) == ("link", "ps:1")
    assert 1e3 * cause.seconds == pytest.approx(50, abs=3)


def test_link_left_out_of_the_baseline_was_not_idle() -> None:
    """A link that the baseline left out has not become slower if it is as busy as the links that the baseline has."""
    slow = {("ps:0", "worker:1"): 65.0}
    baseline, current = make_side(*[{}] * 20, servers=TWO), make_side(*slow_one(1, 20, receive=50), servers=TWO, busy_ms=slow)
    assert baseline.step_breakdown
    assert current.step_breakdown
    links_before, links_after = baseline.step_breakdown.links, current.step_breakdown.links
    few_before = [link for link in links_before if "worker:1" not in (link.source, link.destination)][:MAX_LINKS]
    few_after = sorted(links_after, key=lambda link: "worker:1" not in (link.source, link.destination))[:MAX_LINKS]
    baseline, current = (
        replace(each, step_breakdown=replace(each.step_breakdown, links=links))
        for each, links in ((baseline, few_before), (current, few_after))
        if each.step_breakdown
    )
    (cause,) = explain_change(baseline, current).causes
    assert (cause.kind, cause.location) == ("link", "ps:0>worker:1")
    assert 1e3 * cause.seconds == pytest.approx(50, abs=3)


def test_worker_without_own_session_is_explained() -> None:
    """If one session computes on all workers, slower arithmetic of a worker without a step of its own is found."""

    def remove_cpu_time(evidence: MeasurementProfile) -> MeasurementProfile:
        assert evidence.step_breakdown
        tasks = {**evidence.step_breakdown.tasks, "worker:1": replace(evidence.step_breakdown.tasks["worker:1"], cpu_s=None)}
        return replace(evidence, step_breakdown=replace(evidence.step_breakdown, tasks=tasks))

    baseline, current = remove_cpu_time(make_side(servers=())), remove_cpu_time(make_side(*slow_one(backward=40), servers=()))
    assert (find_top_cause(baseline, current).kind, find_top_cause(baseline, current).location) == ("compute", "worker:1")


def test_worker_with_cores_is_not_cpu_starved() -> None:
    """A worker without a core is the top cause beside a worker that computes 10 ms longer with 10 ms less CPU time."""
    baseline = make_side()
    current = make_side({"backward": 70.0}, {"forward": 70.0, "backward": 150.0}, cpu_ms=[80, 92])
    found = find_top_cause(*(replace(each, hosts=HOSTS) for each in (baseline, current)))
    assert (found.kind, found.location) == ("others", "worker:1")


def test_stopped_server_is_found_by_its_own_operations() -> None:
    """If a server's own operations take five times as long and a probe of its host had no core, longer sends of one worker and
    waits of all workers belong to the server, and to no link."""
    baseline = make_side({}, {}, {}, servers=TWO, more=make_probes(d=HostProbe(readings={"core.matmul": make_reading(2e9)})))
    current = make_side(
        {"host": 30.0}, {"host": 30.0, "send": 65.0}, {"host": 30.0}, servers=({"apply": 15.0}, {"apply": 3.0}),
        busy_ms={("worker:1", "ps:0"): 65.0},
        more=make_probes(d=HostProbe(readings={"core.matmul": make_starved_reading(8e8)})),
    )  # fmt: skip
    found = find_top_cause(*(replace(each, hosts=HOSTS) for each in (baseline, current)))
    assert (found.kind, found.location) == ("server", "ps:0")
    assert found.share > 0.9


def test_exchange_with_starved_worker_of_one_session_is_its_cause() -> None:
    """If one session computes on all workers, the late transfers of a worker without a core belong to its cause, also those of
    kinds that scatter too much to be significant."""

    def scatter_sends(evidence: MeasurementProfile) -> MeasurementProfile:
        assert evidence.step_breakdown
        tasks = {**evidence.step_breakdown.tasks, "worker:1": replace(evidence.step_breakdown.tasks["worker:1"], cpu_s=None)}
        links = [
            Traced(source, to, 12e6, (evidence.step_breakdown.tasks["worker:1"].parts["receive"]), {})
            for source, to in (("worker:0", "worker:1"), ("worker:1", "worker:0"))
        ]
        errors = {**evidence.step_breakdown.error_s, "send": 0.02, "receive": 0.001}
        return replace(evidence, step_breakdown=replace(evidence.step_breakdown, tasks=tasks, links=links, error_s=errors))

    baseline = scatter_sends(make_side(servers=()))
    current = scatter_sends(
        make_side(
            {"receive": 95.0, "send": 30.0}, {"forward": 50.0, "backward": 100.0, "send": 45.0}, cpu_ms=[90, 92], servers=()
        )
    )
    cause = find_top_cause(baseline, replace(current, states=make_states("worker:1", limited_s=4.0)["states"]))
    assert (cause.kind, cause.location) == ("others", "worker:1")
    assert cause.share > 0.9


def test_cause_is_not_longer_than_the_change() -> None:
    """A cause with 374 ms in traced steps has the 121 ms by which the measured steps became longer."""
    current = make_side(*slow_one(receive=187, send=187), busy_ms={("ps:0", "worker:1"): 202.0, ("worker:1", "ps:0"): 202.0})
    baseline = make_side()
    current = replace(current, step_s=[each + 0.121 for each in baseline.step_s])
    (cause,) = explain_change(baseline, current).causes
    assert cause.kind == "link"
    assert 1e3 * cause.seconds == pytest.approx(121, abs=2)


def test_shorter_transfers_of_a_late_worker_reduce_its_cause() -> None:
    """The shorter transfers of a worker that sleeps reduce the seconds of its cause, and shorter arithmetic reduces them
    less."""
    busy = {"receive": 65.0, "send": 65.0}
    for shorter, seconds in (({"receive": 15.0, "send": 15.0}, 50), ({**busy, "backward": 10.0, "forward": 0.0}, 110)):
        baseline = make_side(busy, busy)
        current = make_side(busy, {**busy, "python": 151.0, **shorter})
        (cause,) = explain_change(baseline, current).causes
        assert (cause.kind, cause.location) == ("straggler", "worker:1")
        assert 1e3 * cause.seconds == pytest.approx(seconds, abs=12)


def test_sleep_on_a_busy_machine_is_a_straggler() -> None:
    """A sleep of 500 ms on a machine with CPU-starved workers is a cause of its own, beside the 50 ms of the other
    processes."""
    busy = {"forward": 45.0, "backward": 95.0}
    more = make_states("a", waited_s=15.0) | {"hosts": HOSTS}
    current = make_side(busy, {**busy, "python": 501.0}, cpu_ms=[92, 92], more=more)
    found: dict[str, Cause] = {
        each.kind: each
        for each in explain_change(make_side(more=make_states("a", waited_s=3.0) | {"hosts": HOSTS}), current).causes
    }
    assert found["straggler"].location == "worker:1"
    assert 1e3 * found["straggler"].seconds == pytest.approx(500, abs=10)
    assert 1e3 * found["others"].seconds == pytest.approx(50, abs=10)


def test_waiting_threads_of_another_program_are_no_cause() -> None:
    """If another program is trained, longer waits of its threads for cores are no cause beside the program."""
    more = {**make_states("b", waited_s=15.0), "program_changes": ["training graph: 36 Conv2D less"], "hosts": HOSTS}
    baseline = make_side(more={**make_states("b", waited_s=3.0), "hosts": HOSTS})
    found = explain_change(baseline, make_side(*slow_all(forward=40), cpu_ms=[130, 130], more=more))
    assert [each.kind for each in found.causes] == ["program"]


def test_server_under_a_quota_has_the_whole_exchange() -> None:
    """The whole exchange with a server under a quota is one cause, also kinds that scatter too much to be significant."""
    baseline, current = (
        make_side({}, {}),
        make_side(*slow_all(host=30, send=12, receive=9), floor_ms=FLOOR_MS + 10, more=make_states("d", limited_s=4.0)),
    )
    assert current.step_breakdown
    scattered = {**current.step_breakdown.error_s, "send": 0.02, "receive": 0.02}
    baseline, current = (
        replace(baseline, hosts=HOSTS),
        replace(current, hosts=HOSTS, step_breakdown=replace(current.step_breakdown, error_s=scattered)),
    )
    (found,) = explain_change(baseline, current).causes
    assert (found.kind, found.location) == ("server", "ps:0")
    assert 1e3 * found.seconds == pytest.approx(61, abs=2)
    assert found.words.startswith("ps:0 (d) answers late: workers wait ")


def test_shorter_wait_after_the_last_worker_is_no_evidence() -> None:
    """A server's cause has no evidence of the wait after the last worker's own work if this wait became shorter."""
    current = make_side(*slow_all(receive=40, host=20), floor_ms=FLOOR_MS - 3, more=make_states("d", limited_s=4.0))
    found = find_top_cause(replace(make_side({}, {}), hosts=HOSTS), replace(current, hosts=HOSTS))
    assert found.kind == "server"
    assert not [words for words in found.evidence if "once they have done" in words]


@pytest.mark.parametrize(
    ("probed", "location"),
    [
        ({}, "worker:1<>ps:0"),
        ({"be": 1e9}, "worker:1"),
        ({"da": 1e9}, "ps:0"),
        ({"be": 1e9, "da": 1e9}, "worker:1<>ps:0"),
        ({"bd": 1e9, "db": 1e9}, "worker:1<>ps:0"),
        ({"b*": 1e9, "*b": 1e9}, "worker:1"),
        ({"b*": 1e9, "*b": 1e9, "a*": 1e9}, "worker:1<>ps:0"),
    ],
    ids=["not probed", "the worker's other link", "the server's other link", "both", "this one alone",
         "all of the worker's together", "all of another worker's, too"],
)  # fmt: skip
def test_links_without_bytes_are_located_by_probes(probed: dict[str, float], location: str) -> None:
    """If one worker and one server exchange nearly all bytes, probes of their other links decide the location of the cause."""
    baseline = _move_bytes_to_one_pair("ps:0", "worker:1", make_side({}, {}, servers=TWO))
    current = _move_bytes_to_one_pair("ps:0", "worker:1", make_side(*slow_one(receive=50, send=50), servers=TWO, busy_ms=PAIR))
    found = find_top_cause(
        *(replace(each, hosts=HOSTS, probes=_make_network(**rates)) for each, rates in ((baseline, {}), (current, probed)))
    )
    assert (found.kind, found.location) == ("link", location)
    assert 1e3 * found.seconds == pytest.approx(100, abs=5)


FEW = {"host": 0.5, "receive": 0.5, "send": 0.5}  # milliseconds, beside which arithmetic and its scatter are nearly all


@pytest.mark.parametrize(
    ("slower_ms", "floor_ms", "kinds"),
    [(270.0, 22.0, ["compute"]), (270.0, 60.0, ["compute", "waiting"]), (60.0, 16.0, ["compute", "waiting"])],
    ids=["in proportion", "beyond proportion", "as much as another reason"],
)
def test_waiting_for_scatter_belongs_to_much_slower_arithmetic(slower_ms: float, floor_ms: float, kinds: list[str]) -> None:
    """If one worker computes for four times as long, all wait four times as long for its longest steps: this is one cause."""
    usual, slow = FEW, {**FEW, "forward": 30 + slower_ms / 3, "backward": 60 + slower_ms * 2 / 3}
    found = explain_change(
        make_side(usual, usual), make_side(usual, slow, floor_ms=floor_ms, cpu_ms=[90, 90 + slower_ms])
    ).causes
    assert [(str(each.kind), each.location) for each in found] == [
        (kind, "worker:1" if kind == "compute" else None) for kind in kinds
    ]


@pytest.mark.parametrize(
    ("hosts", "probed", "location"),
    [
        ({"worker:2": "e"}, {"e*": 1e9, "*e": 1e9}, "e"),
        ({"worker:2": "e"}, {"ea": 1e9, "eb": 1e9}, "e"),
        ({"worker:2": "e"}, {"ea": 1e9}, "ps:1"),
        ({"worker:2": "e"}, {}, "ps:1"),
        ({"worker:2": "e"}, {"e*": 1e9, "a*": 1e9}, "ps:1"),
        ({}, {"e*": 1e9, "*e": 1e9}, "ps:1"),
    ],
    ids=["all links together", "several links", "one link", "not probed", "another host's, too", "no other task"],
)
def test_slow_link_of_a_host_with_a_server_names_the_host(
    hosts: dict[str, str], probed: dict[str, float], location: str
) -> None:
    """If all slow links of a breakdown are those of one server, but probes found its host's link slow, other tasks share it."""
    busy_ms = {ends: 65.0 for w in ("worker:0", "worker:1") for ends in ((w, "ps:1"), ("ps:1", w))}
    sides = (make_side({}, {}, servers=TWO), make_side(*slow_all(receive=50, send=50), servers=TWO, busy_ms=busy_ms))
    networks = (_make_network(), _make_network(**probed))
    found = find_top_cause(
        *(replace(each, hosts={**HOSTS, **hosts}, probes=network) for each, network in zip(sides, networks, strict=True))
    )
    assert (found.kind, found.location) == ("link", location)


def _move_bytes_to_one_pair(one: str, other: str, found: MeasurementProfile) -> MeasurementProfile:
    assert found.step_breakdown
    links = [
        each if {each.source, each.destination} == {one, other} else replace(each, size_bytes=1e3, busy_s=1e-6)
        for each in found.step_breakdown.links
    ]
    return replace(found, step_breakdown=replace(found.step_breakdown, links=links))


def _make_network(**per_s: float) -> Probes:
    """Make links between the hosts of two workers and two servers, of 9 GB/s, except for the given ones: be=1e9 is b>e."""
    pairs = [each for one, other in product("abde", "abde*") if one != other for each in ((one, other), (other, one))]
    return Probes(links={f"{a}>{b}": Link(per_s=per_s.get(a + b, 9e9), spread=0.01, repeats=3, how={}) for a, b in pairs})


THREE = ({"apply": 3.0},) * 3
ON_TWO_HOSTS = {"worker:0": "a", "worker:1": "b", "ps:0": "d", "ps:1": "d", "ps:2": "e"}
FROM_ONE_HOST = {(f"ps:{p}", f"worker:{w}"): 40.0 for p in (0, 1) for w in (0, 1)}


def test_servers_of_one_host_are_located_at_the_host() -> None:
    """If two of three parameter servers share a host under a quota, the cause is at this host."""
    current = make_side(*slow_all(receive=50), servers=THREE, busy_ms=FROM_ONE_HOST, more=make_states("d", limited_s=4.0))
    baseline, current = (replace(each, hosts=ON_TWO_HOSTS) for each in (make_side(servers=THREE), current))
    found = find_top_cause(baseline, current)
    assert (found.kind, found.location) == ("server", "d")
    assert found.words.startswith("each parameter server of d answers late: sends to the workers")


@pytest.mark.parametrize(
    ("beside", "does"),
    [({}, "d sends to the workers for "), ({"worker:2": "d"}, "d exchanges with other hosts for ")],
    ids=["servers alone", "a worker, too"],
)
def test_link_of_a_server_host_is_described_from_its_side(beside: dict[str, str], does: str) -> None:
    """In the message of a slow link a host of servers alone sends, and a host with a worker, too, exchanges."""
    baseline, current = make_side(servers=THREE), make_side(*slow_all(receive=50), servers=THREE, busy_ms=FROM_ONE_HOST)
    baseline, current = (replace(each, hosts={**ON_TWO_HOSTS, **beside}) for each in (baseline, current))
    found = find_top_cause(baseline, current)
    assert (found.kind, found.location) == ("link", "d")
    assert found.words.startswith(does)


def test_evidence_of_many_workers_counts_those_not_named() -> None:
    """Evidence from five workers names three of them and counts the other two."""
    receive = [{"receive": 15.0 + each} for each in (50.0, 50.0, 50.0, 50.0, 60.0)]
    found = find_top_cause(make_side(*[{}] * 5), make_side(*receive, busy_ms={("ps:0", f"worker:{w}"): 65.0 for w in range(5)}))
    assert (
        "worker:0, worker:1, worker:2 and 2 more: 82.0 ms of a step go to transfers, 30.0 ms in the baseline" in found.evidence
    )


@pytest.mark.parametrize(
    ("limits", "kind", "words"),
    [
        ({"clock_hz": 1_200_000_000}, "clock", "; a limit of b: clock hz 1200000000, none in the baseline"),
        ({"governor": "powersave"}, "clock", "; a limit of b: governor powersave, performance in the baseline"),
        ({"memory_bytes": 1 << 30}, "memory", "; a limit of b: memory bytes 1073741824, none in the baseline"),
        ({"cpu_quota_cores": 0.5}, "compute", "; a limit of b: cpu quota cores 0.5, none in the baseline"),
        ({"open_files": 1024}, "compute", ""),
        ({"locked_memory_bytes": 65536}, "compute", ""),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_limit_supports_the_kind_that_it_slows_down(limits: dict[str, Any], kind: str, words: str) -> None:
    """A new limit of clock, memory or CPU is in the message of slower arithmetic, and a limit of open files or locked memory is
    not."""
    usual: dict[str, Any] = {"cores": 1, "governor": "performance"}
    baseline = make_side(more=make_probes(b=HostProbe(limits=usual)))
    current = make_side(*slow_one(backward=40), cpu_ms=[90, 130], more=make_probes(b=HostProbe(limits=usual | limits)))
    found = find_top_cause(*(replace(each, hosts=HOSTS) for each in (baseline, current)))
    assert (found.kind, found.location) == (kind, "worker:1")
    assert found.words == f"worker:1 (b) computes 44 % slower than its baseline{words}; all wait for it"


def test_host_code_that_grows_more_than_arithmetic_is_a_cause_of_its_own() -> None:
    """A worker with 50 ms more outside of its operations and 6 ms more within them has a cause of each, with these seconds."""
    found = explain_change(make_side({}), make_side({"backward": USUAL["backward"] + 6, "host": USUAL.get("host", 0.0) + 50}))
    assert [(each.kind, round(each.seconds * 1e3)) for each in found.causes] == [("host", 50), ("compute", 6)]


@pytest.mark.parametrize(("hosts", "kind", "sure"), [("b", "compute", "medium"), ("ab", "clock", "high")], ids=["one", "both"])
def test_heat_of_one_host_is_no_cause_of_all(hosts: str, kind: str, sure: str) -> None:
    """Slower arithmetic of all workers is explained by heat if both of their hosts were hot, and not if one was."""
    disturbances = [make_heat(host) for host in hosts]
    current = make_side(*slow_all(backward=40), cpu_ms=[130, 130], more={"disturbances": disturbances, "hosts": HOSTS})
    found = find_top_cause(make_side(more={"hosts": HOSTS}), current)
    assert (found.kind, found.location, found.confidence) == (kind, None, sure)


def test_message_counts_slow_workers_of_all() -> None:
    """The message of four slow workers on four hosts counts four of five workers."""
    hosts = {f"worker:{number}": f"n{number}" for number in range(5)}
    current = make_side(*slow_all(4, backward=40), {}, cpu_ms=[130] * 4 + [90], more={"hosts": hosts})
    found = find_top_cause(make_side(*[{}] * 5, more={"hosts": hosts}), current)
    assert (found.kind, found.location) == ("compute", None)
    assert found.words.startswith("each of 4 of the 5 workers computes 44 % slower than the baseline")


def test_server_with_slow_updates_has_no_evidence_of_transfers() -> None:
    """A server with longer updates has no evidence of the transfers of another server's slow link."""
    slow = [{"apply": 42.0}, {"apply": 42.0, "receive": 75.0}]
    current = make_side(*slow, servers=[{"apply": 43.0}, {"apply": 3.0}], busy_ms={("ps:1", "worker:1"): 75.0})
    found: dict[str, Cause] = {each.kind: each for each in explain_change(make_side(servers=TWO), current).causes}
    assert (found["link"].location, found["server"].location) == ("ps:1>worker:1", "ps:0")
    assert found["server"].words.startswith("ps:0 takes longer to update: 40.0 ms more")
    assert found["server"].evidence[0] == "worker:0, worker:1: 42.0 ms of a step go to updates, 2.00 ms in the baseline"
    assert not any("transfers" in each for each in found["server"].evidence)


def test_host_without_counted_cores_is_explained() -> None:
    """A cause is found although the counts of its host have no core of the run, as in some containers."""
    more = {"states": {"b": make_state(cpus="", cores=0, cpu={"own_s": 5.0, "limited_s": 4.0})}, "hosts": HOSTS}
    found = explain_change(make_side(), make_side(*slow_one(python=50), more=more))
    assert [(each.kind, each.location) for each in found.causes] == [("straggler", "worker:1")]


def make_quota(cores: float | None) -> dict[str, Any]:
    """Make the probe of host b, which has two cores and this quota."""
    limits = {"cores": 2.0, **({} if cores is None else {"cpu_quota_cores": cores})}
    return make_probes(b=HostProbe(limits=limits))


@pytest.mark.parametrize(
    "baseline, current, words",
    [
        (make_quota(1.0), make_quota(1.0), None),
        (make_quota(1.0), {}, None),
        (make_quota(1.0), make_quota(2.0), None),
        (make_quota(1.0), make_quota(0.5), ", for how long in the baseline is not known"),
        (make_quota(None), make_quota(1.0), ""),
        (make_quota(None), {}, ""),
        (make_probes(a=HostProbe(limits={"cpu_quota_cores": 1.0})), {}, ", for how long in the baseline is not known"),
        ({}, {}, ", for how long in the baseline is not known"),
    ],
    ids=[
        "the same",
        "the same as far as is known",
        "larger",
        "smaller",
        "new",
        "none in the baseline",
        "another host's",
        "not known",
    ],
)
def test_quota_that_the_baseline_had_is_no_pressure(
    baseline: dict[str, Any], current: dict[str, Any], words: str | None
) -> None:
    """A quota that also the baseline's probes show is no pressure. If the baseline may have had one,
    the message calls its cost unknown."""
    found = find_host_pressures(make_side(more=baseline), make_side(more={**make_states("b", limited_s=4.0), **current}))
    expected = [] if words is None else [f"a quota kept it from its cores for 40 % of the run{words}"]
    assert [each.words for each in found if each.is_cpu_starved] == expected


def test_quota_is_compared_with_counts_of_the_baseline() -> None:
    """If both sides have counts, a quota is a pressure only if it took more of the run than in the baseline."""
    baseline = make_side(more={**make_states("b", limited_s=1.0), **make_quota(1.0)})
    more, same = (make_side(more={**make_states("b", limited_s=s), **make_quota(1.0)}) for s in (4.0, 1.3))
    found = find_host_pressures(baseline, more)
    assert [each.words for each in found] == ["a quota kept it from its cores for 40 % of the run"]
    assert not find_host_pressures(baseline, same)


def test_two_causes_share_the_change() -> None:
    """A slow link and slower arithmetic of one worker are two causes, each with its seconds."""
    current = make_side(*slow_one(receive=60, backward=40), cpu_ms=[90, 130], busy_ms={("ps:0", "worker:1"): 75.0})
    found: dict[str, Cause] = {each.kind: each for each in explain_change(make_side(), current).causes}
    assert {kind: round(1e3 * each.seconds) for kind, each in found.items()} == {
        "link": pytest.approx(60, abs=3),
        "compute": pytest.approx(40, abs=3),
    }


def test_two_late_workers_share_the_change() -> None:
    """Two workers that are late for different reasons share the change, between their added and their removed seconds."""
    workers = [{"python": USUAL["python"] + 50}, {"input": 60.0}]
    found = explain_change(make_side(), make_side(*workers))
    assert 1e3 * found.change_s == pytest.approx(60, abs=1)
    seconds = {each.kind: 1e3 * each.seconds for each in found.causes}
    assert seconds == {"input": pytest.approx(35, abs=3), "straggler": pytest.approx(25, abs=3)}
    assert (
        "added to the faster step, it costs 60.0 ms; removed from the slower one, it saves 10.0 ms" in found.causes[0].evidence
    )


def test_injected_sleep_has_high_confidence() -> None:
    """An injected sleep is a cause with its task, its seconds and high confidence."""
    found = find_top_cause(make_side(), make_side(*slow_one(python=50), more={"sleeps": {"worker:1": 0.05}}))
    assert (found.kind, found.location, found.confidence) == ("straggler", "worker:1", "high")
    assert "worker:1 sleeps for 51.0 ms" in found.words


@pytest.mark.parametrize("before_s, after_s", [(0.05, 0.05), (0.0, 0.0)], ids=["as long as before", "for no time"])
def test_unchanged_injected_sleep_is_not_the_cause(before_s: float, after_s: float) -> None:
    """A worker with an unchanged injected sleep and more CPU time is busy in Python, with medium confidence."""
    baseline = make_side(*slow_one(python=1000 * before_s), more={"sleeps": {"worker:1": before_s}})
    current = make_side(*slow_one(python=1000 * after_s + 40), cpu_ms=[90, 130], more={"sleeps": {"worker:1": after_s}})
    found = find_top_cause(baseline, current)
    assert (found.kind, found.location, found.confidence) == ("straggler", "worker:1", "medium")
    assert "worker:1 is busy in Python for " in found.words


def test_unknown_cpu_time_leaves_busy_or_asleep_open() -> None:
    """Without CPU times the message gives the time before a step is requested, and not whether the worker was busy or
    asleep."""
    baseline, current = (
        make_timestamped_side({}, {}, step_ms=136),
        make_timestamped_side({"finish_s": 60.0}, {"python_s": 41.0}, step_ms=176),
    )
    assert baseline.worker_timings
    unknown = {name: replace(score, cpu_s=None) for name, score in baseline.worker_timings.workers.items()}
    baseline = replace(baseline, worker_timings=replace(baseline.worker_timings, workers=unknown))
    assert (
        find_top_cause(baseline, current).words
        == "worker:1 takes 41.0 ms before it asks for a step, 1.00 ms in the baseline; all wait for it"
    )
    peers = find_top_cause(MeasurementProfile(step_s=make_side().step_s), make_side(*slow_one(python=50)))
    assert peers.words.startswith("worker:1 takes 51.0 ms before it asks for a step, 1.00 ms the others")


def test_timestamps_alone_find_the_worker() -> None:
    """Step timestamps without a traced step show which worker spends more time in Python or computing."""
    baseline = make_timestamped_side({}, {}, step_ms=136)
    for name, kind in (("python_s", "straggler"), ("compute_s", "compute")):
        usual = {"python_s": 1.0, "compute_s": 95.0}[name]
        current = make_timestamped_side({"finish_s": 60.0}, {name: usual + 40.0, "cpu_s": 130.0}, step_ms=176)
        assert (find_top_cause(baseline, current).kind, find_top_cause(baseline, current).location) == (kind, "worker:1")
        assert 1e3 * find_top_cause(baseline, current).seconds == pytest.approx(40, abs=4)


@pytest.mark.parametrize(
    ("slow", "location"),
    [((2, 3), "node02"), ((2, 3, 4, 5), "ps:0")],
    ids=["workers of one host", "workers of all other hosts"],
)
def test_timestamps_alone_find_the_host_with_a_slow_link(slow: Sequence[int], location: str) -> None:
    """Without traces, longer waits for values are at the host of the waiting workers, or at the server if workers of several
    hosts wait."""
    hosts = {"ps:0": "node01", **{f"worker:{number}": f"node{number // 2 + 1:02}" for number in range(6)}}
    baseline = replace(make_timestamped_side(*[{}] * 6, step_ms=136), hosts=hosts)
    workers = [{"receive_s": 60.0} if number in slow else {"finish_s": 60.0} for number in range(6)]
    cause = find_top_cause(baseline, replace(make_timestamped_side(*workers, step_ms=176), hosts=hosts))
    assert cause.location == location
    assert 1e3 * cause.seconds == pytest.approx(40, abs=4)


def test_timestamps_give_seconds_and_traces_the_kind() -> None:
    """If traced steps took twice as long as measured ones, the trace gives the kind of a cause and the timestamps its
    seconds."""
    baseline = replace(make_side(), worker_timings=make_timestamped_side({}, {}, step_ms=140).worker_timings)
    slow = {"receive": 30.0, "forward": 60.0, "backward": 120.0, "host": 18.0}
    bad = make_side({**slow, "python": 41.0}, slow, cpu_ms=[95.0, 95.0])
    current = replace(
        bad,
        worker_timings=make_timestamped_side({"python_s": 41.0}, {"finish_s": 60.0}, step_ms=180).worker_timings,
        step_s=[0.179, 0.18, 0.181],
    )
    (cause,) = explain_change(baseline, current).causes
    assert (cause.kind, cause.location) == ("straggler", "worker:0")
    assert 1e3 * cause.seconds == pytest.approx(40, abs=4)


@pytest.mark.parametrize(
    "slow, kind", [({"compute_s": 245.0, "cpu_s": 240.0}, "compute"), ({}, "link")], ids=["computes", "sends"]
)
def test_slow_worker_of_a_coordinator_costs_its_part(slow: dict[str, float], kind: str) -> None:
    """If one of two workers of a coordinator takes twice as long, a step is longer by a third. Time
    without a timestamp is the sending of gradients, and no message has a wait of others."""
    baseline = set_step_counts(make_timestamped_side({}, {}, step_ms=150), 100, 100)
    current = set_step_counts(make_timestamped_side({}, slow, step_ms=200), 100, 50)
    (cause,) = explain_change(baseline, current).causes
    assert (cause.kind, cause.location) == (kind, "worker:1")
    assert 1e3 * cause.seconds == pytest.approx(50, abs=1)
    assert "wait for it" not in cause.words


def test_slowest_batch_of_a_coordinator_is_no_wait() -> None:
    """A slow worker of a coordinator in traced batches has one cause, its arithmetic, and no cause is a wait for it."""
    baseline = make_batches(slow_all(), [90, 90], 0.132)
    current = make_batches(slow_one(forward=60, backward=72), [90, 222], 0.176)
    (cause,) = explain_change(baseline, current).causes
    assert (cause.kind, cause.location) == ("compute", "worker:1")
    assert 1e3 * cause.seconds == pytest.approx(44, abs=1)


def make_batches(workers: list[dict[str, float]], cpu_ms: list[float], step_s: float) -> MeasurementProfile:
    """Make a side of workers that get their next batch from a coordinator at once."""
    made = make_side(*workers, cpu_ms=cpu_ms, floor_ms=0.0)
    assert made.step_breakdown
    tasks = {
        name: replace(task, parts={kind: seconds for kind, seconds in task.parts.items() if kind != "wait"})
        for name, task in made.step_breakdown.tasks.items()
    }
    return replace(made, step_breakdown=replace(made.step_breakdown, tasks=tasks), coordinated=True, step_s=[step_s] * 3)


def set_step_counts(profile: MeasurementProfile, *steps: int) -> MeasurementProfile:
    """Return the side with these numbers of steps of its workers under a coordinator."""
    assert profile.worker_timings
    workers = {
        name: replace(score, steps=count)
        for (name, score), count in zip(profile.worker_timings.workers.items(), steps, strict=True)
    }
    return replace(profile, coordinated=True, worker_timings=replace(profile.worker_timings, workers=workers))


@pytest.mark.parametrize(
    "baseline",
    [MeasurementProfile(step_s=make_side().step_s), make_timestamped_side({}, {}, step_ms=140)],
    ids=["nothing", "timestamps"],
)
def test_slow_link_without_links_of_the_baseline_is_found(baseline: MeasurementProfile) -> None:
    """A worker with longer transfers is found by the current links alone if the baseline has no links."""
    scores = make_timestamped_side({"finish_s": 70.0}, {"receive_s": 120.0}, step_ms=240).worker_timings
    current = replace(make_side(*slow_one(receive=50, send=50), servers=TWO, busy_ms=PAIR), worker_timings=scores)
    found = find_top_cause(baseline, current)
    assert (found.kind, found.location) == ("link", "worker:1")
    assert 1e3 * found.seconds == pytest.approx(100, abs=10)


def test_all_reduce_unknown_in_the_baseline_is_no_slow_link() -> None:
    """If the baseline has timestamps alone, a longer all-reduce is not called a slow link, but waiting, with low confidence."""
    baseline, current = (
        make_timestamped_side({}, {}, step_ms=140),
        make_timestamped_side({"finish_s": 60.0}, {"finish_s": 60.0}, step_ms=180),
    )
    traced = replace(current, step_breakdown=make_side({"reduce": 55.0}, {"reduce": 56.0}, servers=()).step_breakdown)
    found = find_top_cause(baseline, traced)
    assert (found.kind, found.confidence) == ("waiting", "low")


def test_late_worker_without_a_traced_baseline_has_low_confidence() -> None:
    """If the baseline was never traced, a worker later than the others is found with low confidence, and there is a note."""
    baseline = MeasurementProfile(step_s=make_side().step_s)
    found = explain_change(baseline, make_side(*slow_one(python=50)))
    assert [(each.kind, each.location, each.confidence) for each in found.causes] == [("straggler", "worker:1", "low")]
    assert any("the baseline was taken apart" in note for note in found.notes)


GUESSED: Mapping[str, tuple[dict[str, Any], str | None]] = {
    "program": ({"program_changes": ["training graph: 1 MatMul more"]}, "program"),
    "software": ({"software_changes": ["tensorflow 2.20.0 -> 2.21.0"]}, "software"),
    "hardware": ({"hardware_changes": ["cores: 4 before, 2 after"]}, "hardware"),
    "straggler": ({"sleeps": {"worker:1": 0.02}}, "straggler"),
    "others": ({"disturbances": [replace(BUSY, host="a")]}, "others"),
    "two": ({"program_changes": ["x"], "software_changes": ["y 1 -> 2"]}, None),
    "nothing": ({}, None),
}


@pytest.mark.parametrize(("known", "kind"), GUESSED.values(), ids=GUESSED)
def test_rates_alone_give_a_cause_to_a_single_difference(known: dict[str, Any], kind: str | None) -> None:
    """Without a step breakdown a single difference is a cause with low confidence, and of two differences neither is."""
    found = explain_change(MeasurementProfile(step_s=[0.1, 0.1]), MeasurementProfile(step_s=[0.15, 0.15], **known))
    assert [(each.kind, each.confidence) for each in found.causes] == ([(kind, "low")] if kind else [])
    assert found.explained_s + found.unexplained_s == pytest.approx(0.05)
    assert found.explained_s == pytest.approx(0.02 if kind == "straggler" else 0.05 if kind else 0)


def test_injected_sleep_below_the_noise_is_no_cause() -> None:
    """An injected sleep of half a millisecond is no cause of a step that is 50 ms longer."""
    found = explain_change(
        MeasurementProfile(step_s=[0.1, 0.1]), MeasurementProfile(step_s=[0.15, 0.15], sleeps={"worker:1": 0.0005})
    )
    assert found.causes == []
    assert found.unexplained_s == pytest.approx(0.05)


def test_slow_link_of_a_real_training_is_found() -> None:
    """The link of a real training that was limited to 500 Mbit/s is its only cause, with nearly all seconds of the change."""
    well, slow = (
        MeasurementProfile(step_breakdown=compute_step_breakdown(load_linked_traces(how))) for how in ("well", "slow")
    )
    well, slow = (replace(each, step_s=[each.step_breakdown.wall_s] * 3) for each in (well, slow) if each.step_breakdown)
    found = explain_change(well, slow)
    assert [(each.kind, each.location) for each in found.causes] == [("link", "worker:1<>ps:0")]
    assert found.causes[0].seconds == pytest.approx(found.change_s, rel=0.1)


@pytest.mark.parametrize("mode", ["parameter_server", "distributed_replicated", "replicated", "distributed_all_reduce"])
def test_unchanged_training_has_no_cause(mode: str) -> None:
    """A measurement compared with itself has no cause."""
    breakdown = compute_step_breakdown(traced(mode))
    baseline = MeasurementProfile(step_breakdown=breakdown, step_s=[breakdown.wall_s] * 3)
    assert explain_change(baseline, baseline).causes == []


milliseconds: st.SearchStrategy[dict[str, float]] = st.builds(dict, **{kind: st.floats(0.0, 200.0) for kind in USUAL})
sides = st.lists(milliseconds, min_size=1, max_size=4).map(lambda workers: make_side(*workers))


@given(sides, sides, st.booleans())
def test_seconds_of_causes_add_up(baseline: MeasurementProfile, current: MeasurementProfile, coordinated: bool) -> None:
    """Causes and unexplained seconds add up to the step's change, the largest first, and no cause is below the noise."""
    found = explain_change(replace(baseline, coordinated=coordinated), replace(current, coordinated=coordinated))
    assert found.explained_s + found.unexplained_s == pytest.approx(found.change_s, abs=1e-9)
    assert all(each.seconds >= found.noise_s > 0 for each in found.causes)
    assert [each.seconds for each in found.causes] == sorted((each.seconds for each in found.causes), reverse=True)


@given(st.lists(milliseconds, min_size=3, max_size=3), st.permutations([0, 1, 2]))
def test_names_of_workers_do_not_change_causes(workers: list[dict[str, float]], order: list[int]) -> None:
    """Workers in another order have the same causes with the same seconds, under their other names."""
    baseline = make_side({}, {}, {})
    straight, mixed = (
        explain_change(baseline, make_side(*workers)),
        explain_change(baseline, make_side(*(workers[number] for number in order))),
    )
    names = {f"worker:{number}": f"worker:{order.index(number)}" for number in range(3)}

    def rename_location(location: str | None) -> str | None:
        ends = (location or "").replace("<>", ">").split(">")
        return " ".join(sorted(names.get(end, end) for end in ends))

    expected = sorted((each.kind, rename_location(each.location), round(each.seconds, 9)) for each in straight.causes)
    found = sorted(
        (each.kind, " ".join(sorted((each.location or "").replace("<>", ">").split(">"))), round(each.seconds, 9))
        for each in mixed.causes
    )
    assert found == expected


def test_unknown_step_time_is_not_explained() -> None:
    """There is no explanation if one of the sides has no seconds of a step."""
    assert explain(MeasurementProfile(), make_side()) is None
    assert explain(make_side(), MeasurementProfile()) is None


def make_own_program(extra_s: Sequence[float], within_s: float = 0.1, **more: Any) -> MeasurementProfile:
    """Make a side of a program with workers that report steps, and spend so much longer between them.

    Its rate is that of the chief's steps.
    """
    random = np.random.default_rng(3)
    between = 0.01 + 0.001 * random.random((len(extra_s), 60)) + np.array(extra_s)[:, None]
    scores = compute_reported_timings(*make_reported_steps(between, np.full((len(extra_s), 60), within_s)))
    chief_s = within_s + max(extra_s) - extra_s[0]
    return MeasurementProfile(
        step_s=[0.998 * chief_s, chief_s, 1.002 * chief_s], worker_timings=scores, hosts=HOSTS, is_own_program=True, **more
    )


@pytest.mark.parametrize(
    ("baseline", "when", "confidence"),
    [
        (make_own_program([0, 0]), r", 0\.\d+ ms in the baseline", "medium"),
        (replace(make_own_program([0, 0]), worker_timings=None), "", "low"),
        (make_own_program([0, 0], name="the anchor", when="in the anchor"), r", 0\.\d+ ms in the anchor", "medium"),
    ],
    ids=["as it was", "not known", "the anchor"],
)
def test_a_late_worker_of_an_own_program_is_named(baseline: MeasurementProfile, when: str, confidence: str) -> None:
    """The worker for which the others wait in each reported step is the cause, with the seconds that this costs."""
    found = explain_change(baseline, make_own_program([0, 0.05]))
    (cause,) = found.causes
    assert (cause.kind, cause.location, cause.confidence) == ("straggler", "worker:1", confidence)
    assert cause.seconds == pytest.approx(0.05, abs=0.002)
    assert re.fullmatch(
        rf"worker:1 \(b\) is (49|50)\.\d ms later in its steps than the others{when}; all wait for it", cause.words
    )
    assert re.match(r"worker:1 \(b\) was last in 100 % of steps, by (49|50)\.\d ms: python", cause.evidence[0])
    assert abs(found.unexplained_s) < found.noise_s


def test_longest_reported_step_names_its_worker() -> None:
    """If reported steps begin at once, the worker with the longest own steps is the cause."""
    baseline, current = (
        MeasurementProfile(
            step_s=[step_s] * 3,
            worker_timings=compute_timings_without_waits(late_s, 0.0, 0.0),
            hosts=HOSTS,
            is_own_program=True,
        )
        for step_s, late_s in ((0.101, 0.0), (0.151, 0.05))
    )
    (cause,) = explain_change(baseline, current).causes
    assert (cause.kind, cause.location) == ("straggler", "worker:0")
    assert cause.seconds == pytest.approx(0.05, abs=0.003)


def test_two_late_workers_of_an_own_program_share_the_change() -> None:
    """Two workers that are late at once share the seconds of the change, the later one first."""
    found = explain_change(make_own_program([0] * 5), make_own_program([0, 0.05, 0, 0.03, 0]))
    assert [cause.location for cause in found.causes] == ["worker:1", "worker:3"]
    assert sum(cause.seconds for cause in found.causes) == pytest.approx(0.05, abs=0.003)


def test_worker_as_late_as_in_the_baseline_is_no_cause() -> None:
    """A worker that has not become later is no cause, and versions that differ are."""
    current = make_own_program([0, 0.05], within_s=0.2, software_changes=["tensorflow 2.20 -> 2.21"])
    assert [cause.kind for cause in explain_change(make_own_program([0, 0.05]), current).causes] == ["software"]


def test_versions_that_differ_beside_a_late_worker_are_noted() -> None:
    """Beside a late worker, versions that differ are a note and no cause."""
    found = explain_change(make_own_program([0, 0]), make_own_program([0, 0.05], software_changes=["tensorflow 2.20 -> 2.21"]))
    assert [cause.kind for cause in found.causes] == ["straggler"]
    assert found.notes == ["known to differ, and not distinguished: versions differ: tensorflow 2.20 -> 2.21"]


def test_worker_late_within_reported_steps_is_not_named() -> None:
    """If all reported steps became equally long, no worker is a cause, and the note gives the reason."""
    found = explain_change(make_own_program([0, 0]), make_own_program([0, 0], within_s=0.15))
    assert found.causes == []
    (note,) = found.notes
    assert note == "no worker has become late; which is slower within its steps is not known, for the others wait within theirs"


def test_own_program_without_steps_is_advised_to_report_them() -> None:
    """The notes on a program without reported steps advise to report them."""
    printed = [MeasurementProfile(step_s=[step_s] * 3, is_own_program=True) for step_s in (0.1, 0.15)]
    assert explain_change(*printed).notes == [
        f"no step of {side} was taken apart: a program can report its steps with pytest_dtfperf.steps"
        for side in ("the baseline", "this training")
    ]


def test_slow_host_of_a_ring_is_found_against_a_baseline_of_many_hosts() -> None:
    """Of a ring of 40 hosts, of which a baseline has not all links, the host is found that has all slow links."""
    hosts = [f"h{number:02}" for number in range(40)]
    ring = [way for here, there in zip(hosts, [*hosts[1:], hosts[0]], strict=True) for way in ((here, there), (there, here))]
    links = {f"{source}>{target}": Link(per_s=1e9, spread=0.01, repeats=4) for source, target in ring}
    slow = {name: replace(link, per_s=1e8) if "h39" in name else link for name, link in links.items()}
    baseline, current = (MeasurementProfile(probes=probes) for probes in (keep_probes(Probes(links=links)), Probes(links=slow)))
    assert baseline.probes
    assert len(baseline.probes.links) < len(ring)
    nothing = Times({}, 1.0)
    case = ExplainCase(baseline, current, ComparedTimes(nothing, nothing, "traces"), CandidateCause(CandidateKind.FLOOR, {}))
    assert find_probed_location(case) == "h39"
