"""Causes of a longer step: from evidence made by hand, case by case, and of traces."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_dtfperf.datamodel.explanation import Cause, CauseKind, Explanation
from pytest_dtfperf.datamodel.host_state import Disturbance
from pytest_dtfperf.datamodel.probes import HostProbe, Link, Probes, Reading
from pytest_dtfperf.datamodel.step_times import MAX_LINKS
from pytest_dtfperf.datamodel.step_times import LinkTraffic as Traced
from pytest_dtfperf.explain.causes import explain
from pytest_dtfperf.explain.host_pressure import find_host_pressures
from pytest_dtfperf.explain.measurement_profile import MeasurementProfile
from pytest_dtfperf.explain.step_breakdown import compute_step_breakdown
from tests.explain.made import linked
from tests.explain.made import real as traced
from tests.explain.sides import FLOOR_MS, USUAL, alike, side, slower, timestamped, told, top
from tests.explain.test_worker_timings import ending_apart, reported, reported_steps
from tests.records.host_states import BUSY, make_state

HOSTS = {"worker:0": "a", "worker:1": "b", "worker:2": "c", "ps:0": "d", "ps:1": "e"}
PAIR = {("ps:0", "worker:1"): 65.0, ("worker:1", "ps:0"): 65.0}
TWO = ({"apply": 3.0}, {"apply": 3.0})


def probed(**hosts: HostProbe) -> dict[str, Any]:
    return {"probes": Probes(hosts=hosts)}


def reading(per_s: float) -> Reading:
    return Reading(per_s=per_s, spread=0.01, repeats=3)


def starved_reading(per_s: float) -> Reading:
    """Of a core that others had for nine tenths of the time."""
    return Reading(per_s=per_s, spread=0.01, repeats=3, cpu_share=0.1)


def counted(host: str, **cpu: float) -> dict[str, Any]:
    """What a host says of ten seconds on its one core."""
    return {"states": {host: make_state(cpus="0", cores=1, cpu={"busy_s": 5.0, "own_s": 5.0, **cpu})}}


def hot(host: str) -> Disturbance:
    """The clock of a core of this host was lowered for 40 % of the run."""
    message = "a core's clock was lowered for heat for 40 % of the run"
    return Disturbance(message=message, kind=CauseKind.CLOCK, host=host)


def waiting(**waited_s: float) -> dict[str, Any]:
    """What hosts say of ten seconds on their cores, in which threads of the run were ready for so long and had none."""
    return {host: counted(host, waited_s=seconds)["states"][host] for host, seconds in waited_s.items()}


def beside_a_link(per_s: float, **hosts: HostProbe) -> dict[str, Any]:
    """Hosts, and the link from all to b."""
    return {"probes": Probes(hosts=hosts, links={"*>b": Link(per_s=per_s, spread=0.01, repeats=3, how={})})}


def linked_hosts(**per_s: float) -> dict[str, Any]:
    """Links of the hosts a, b, c, both ways, of 9 GB/s but for those that are named: ab=4e9 is a>b."""
    names = [(one, other) for one in "abc" for other in "abc" if one != other]
    links = {f"{one}>{other}": Link(per_s=per_s.get(one + other, 9e9), spread=0.01, repeats=3, how={}) for one, other in names}
    return {"probes": Probes(links=links)}


REDUCED = ({**alike(reduce=20)[0], "send": 0.0, "receive": 0.0},) * 3
LATER = ({**alike(reduce=70)[0], "send": 0.0, "receive": 0.0},) * 3


ONE_EACH: Mapping[str, tuple[MeasurementProfile, MeasurementProfile, str, str | None]] = {
    "one worker's arithmetic": (side(), side(*slower(backward=40), cpu_ms=[90, 130]), "compute", "worker:1"),
    "everybody's arithmetic": (side(), side(*alike(backward=40), cpu_ms=[130, 130]), "compute", None),
    "one of four computes": (
        side({}, {}, {}, {}),
        side(*slower(2, 4, forward=30), cpu_ms=[90, 90, 120, 90]),
        "compute",
        "worker:2",
    ),
    "no core for one": (side(), side(*slower(forward=30, backward=60), cpu_ms=[90, 92]), "others", "worker:1"),
    "no cores for all": (side(), side(*alike(forward=30, backward=60), cpu_ms=[92, 92]), "others", None),
    "one sleeps": (side(), side(*slower(python=50)), "straggler", "worker:1"),
    "all sleep": (side(), side(*alike(python=50)), "host", None),
    "one waits for input": (side(), side(*slower(input=40)), "input", "worker:1"),
    "two of three wait for input": (side({}, {}, {}), side({}, *alike(2, input=40)), "input", None),
    "all wait for input": (side(), side(*alike(input=40)), "input", None),
    "one pair's link": (
        side({}, {}, servers=TWO),
        side(*slower(receive=50, send=50), servers=TWO, busy_ms=PAIR),
        "link",
        "worker:1<>ps:0",
    ),
    "one pair, one way": (
        side({}, {}, servers=TWO),
        side(*slower(receive=50), servers=TWO, busy_ms={("ps:0", "worker:1"): 65.0}),
        "link",
        "ps:0>worker:1",
    ),
    "a worker's link": (
        side({}, {}, servers=TWO),
        side(
            *slower(receive=50, send=50), servers=TWO, busy_ms={**PAIR, ("ps:1", "worker:1"): 60.0, ("worker:1", "ps:1"): 70.0}
        ),
        "link",
        "worker:1",
    ),
    "a server's link": (
        side({}, {}, servers=TWO),
        side(
            *alike(receive=50),
            servers=TWO,
            busy_ms={("ps:1", "worker:0"): 65.0, ("ps:1", "worker:1"): 65.0},
        ),
        "link",
        "ps:1",
    ),
    "the whole network": (
        side({}, {}, servers=TWO),
        side(*alike(receive=50), servers=TWO, busy_ms={(f"ps:{p}", f"worker:{w}"): 65.0 for p in (0, 1) for w in (0, 1)}),
        "link",
        None,
    ),
    "a server without a core": (
        side({}, {}, servers=TWO),
        side(
            *alike(receive=20, send=15, host=12),
            servers=[{"apply": 3.0}, {"apply": 14.0}],
            busy_ms={(a, b): 40.0 for w in ("worker:0", "worker:1") for a, b in ((w, "ps:1"), ("ps:1", w))},
        ),
        "server",
        "ps:1",
    ),
    "updates take longer": (side(), side(*alike(apply=40), servers=[{"apply": 80.0}]), "server", "ps:0"),
    "updates of a lone worker take longer on both servers": (
        side({}, servers=TWO),
        side(*alike(1, apply=40), servers=[{"apply": 43.0}] * 2),
        "server",
        None,
    ),
    "waiting in turn": (side(), side(floor_ms=FLOOR_MS + 40), "waiting", None),
    "an all-reduce": (
        side(alike(reduce=20)[0], {"reduce": 25.0}, floor_ms=28),
        side({"reduce": 70.0}, {"reduce": 75.0}, floor_ms=78),
        "link",
        None,
    ),
    "another graph": (
        side(),
        side(*alike(forward=40), cpu_ms=[130, 130], more={"program_changes": ["training graph: 36 Conv2D less"]}),
        "program",
        None,
    ),
    "other versions": (
        side(),
        side(*alike(forward=40), cpu_ms=[130, 130], more={"software_changes": ["tensorflow 2.20.0 -> 2.21.0"]}),
        "software",
        None,
    ),
    "heat": (
        side(),
        side(
            *slower(forward=15, backward=30),
            cpu_ms=[90, 135],
            more={"disturbances": [hot("b")]},
        ),
        "clock",
        "worker:1",
    ),
    "a lower clock, as probed": (
        side(more=probed(b=HostProbe(clock_hz=1.4e9))),
        side(*slower(forward=15, backward=30), cpu_ms=[90, 135], more=probed(b=HostProbe(clock_hz=1.2e9))),
        "clock",
        "worker:1",
    ),
    "a neighbour in memory": (
        side(more=probed(b=HostProbe(readings={"memory": reading(9e9)}))),
        side(*slower(backward=45), cpu_ms=[90, 135], more=probed(b=HostProbe(readings={"memory": reading(4e9)}))),
        "memory",
        "worker:1",
    ),
    "a lower clock, which slows copying, too": (
        side(more=probed(b=HostProbe(readings={"memory": reading(9e9), "core.matmul": reading(9e9)}))),
        side(
            *slower(backward=45),
            cpu_ms=[90, 135],
            more=probed(b=HostProbe(readings={"memory": reading(6e9), "core.matmul": reading(6e9)})),
        ),
        "compute",
        "worker:1",
    ),
    "larger pictures, decoded on the cores that compute": (
        side(more=probed(b=HostProbe(readings={"input": reading(700), "core.matmul": reading(9e9)}))),
        side(
            *slower(forward=20, backward=40, input=8),
            cpu_ms=[90, 210],
            more=probed(b=HostProbe(readings={"input": reading(60), "core.matmul": reading(9e9)})),
        ),
        "input",
        "worker:1",
    ),
    "larger pictures, which one of two workers waits for longer": (
        side(more=probed(a=HostProbe(readings={"input": reading(700)}), b=HostProbe(readings={"input": reading(700)}))),
        side(
            {"input": 40.0},
            {"input": 70.0},
            more=probed(a=HostProbe(readings={"input": reading(90)}), b=HostProbe(readings={"input": reading(90)})),
        ),
        "input",
        None,
    ),
    "larger pictures, for which one waits and another has fewer cores": (
        side(more=probed(a=HostProbe(readings={"input": reading(700)}), b=HostProbe(readings={"input": reading(700)}))),
        side(
            {"input": 60.0},
            {"backward": 120.0},
            cpu_ms=[20, 160],
            more=probed(a=HostProbe(readings={"input": reading(90)}), b=HostProbe(readings={"input": reading(90)})),
        ),
        "input",
        None,
    ),
    "all wait for input, one of them longer": (side(), side({"input": 40.0}, {"input": 70.0}), "input", None),
    "a lower clock, which slows decoding, too": (
        side(more=probed(b=HostProbe(readings={"input": reading(700), "core.matmul": reading(9e9)}))),
        side(
            *slower(forward=15, backward=30),
            cpu_ms=[90, 140],
            more=probed(b=HostProbe(readings={"input": reading(460), "core.matmul": reading(6e9)})),
        ),
        "compute",
        "worker:1",
    ),
    "decoding is slower, and is not what the CPU does more of": (
        side(more=probed(b=HostProbe(readings={"input": reading(700)}))),
        side(*slower(backward=40), cpu_ms=[90, 100], more=probed(b=HostProbe(readings={"input": reading(300)}))),
        "others",
        "worker:1",
    ),
    "a worker under a quota sends more slowly, too": (
        side(),
        side(
            *slower(forward=20, backward=40, receive=30, send=30),
            cpu_ms=[90, 92],
            busy_ms=PAIR,
            more=counted("b", limited_s=4.0),
        ),
        "others",
        "worker:1",
    ),
    "a worker whose threads wait for a core": (
        side(more=counted("b", waited_s=3.0)),
        side(
            *slower(forward=30, backward=60, receive=30, send=30),
            cpu_ms=[90, 110],
            busy_ms=PAIR,
            more=counted("b", waited_s=15.0),
        ),
        "others",
        "worker:1",
    ),
    "a worker whose threads wait for a core, on a machine where all wait a little": (
        side(more={"states": waiting(a=3.0, b=3.0, d=3.0)}),
        side(
            {},
            {"forward": 60.0, "backward": 120.0, "receive": 45.0, "send": 45.0},
            cpu_ms=[90, 92],
            busy_ms=PAIR,
            more={"states": waiting(a=9.0, b=250.0, d=8.0)},
        ),
        "others",
        "worker:1",
    ),
    "a server's link, for which one of three workers waits less surely": (
        side({}, {}, {}, servers=TWO),
        side(
            *alike(2, receive=30, send=20),
            {"receive": 17.0},
            servers=TWO,
            busy_ms={(a, b): 40.0 for w in range(3) for a, b in ((f"worker:{w}", "ps:1"), ("ps:1", f"worker:{w}"))},
        ),
        "link",
        "ps:1",
    ),
    "a server that stands still at times, of a lone worker": (
        side({}),
        side(
            *alike(1, receive=30, send=20),
            servers=[{"apply": 34.0}],
            busy_ms={("ps:0", "worker:0"): 45.0, ("worker:0", "ps:0"): 35.0},
        ),
        "server",
        "ps:0",
    ),
    "the link of a server and a lone worker": (
        side({}),
        side(*alike(1, receive=30, send=20), busy_ms={("ps:0", "worker:0"): 45.0, ("worker:0", "ps:0"): 35.0}),
        "link",
        "worker:0<>ps:0",
    ),
    "a server under a quota": (
        side({}, {}, servers=TWO),
        side(
            *alike(receive=20, send=15),
            servers=TWO,
            busy_ms={(a, b): 40.0 for w in ("worker:0", "worker:1") for a, b in ((w, "ps:1"), ("ps:1", w))},
            more=counted("e", limited_s=4.0),
        ),
        "server",
        "ps:1",
    ),
    "a server under a quota, for which workers wait within their steps": (
        side(servers=TWO),
        side(*alike(host=30), servers=TWO, more=counted("e", limited_s=4.0)),
        "server",
        "ps:1",
    ),
    "a server under a quota, for which one worker waits within its step": (
        side(servers=TWO),
        side(*slower(host=30), servers=TWO, more=counted("e", limited_s=4.0)),
        "server",
        "ps:1",
    ),
    "a server's host that has counted waiting while its cores stood idle": (
        side({}, {}, more=counted("d", waited_s=3.0, busy_s=2.0)),
        side(*slower(receive=50), busy_ms={("ps:0", "worker:1"): 65.0}, more=counted("d", waited_s=30.0, busy_s=2.0)),
        "link",
        "ps:0>worker:1",
    ),
    "a worker without a core, whose link was slow to a probe that had none": (
        side({}, {}, servers=TWO, more=beside_a_link(9e8, b=HostProbe(readings={"core.matmul": reading(2e9)}))),
        side(
            *slower(forward=30, backward=60, receive=30, send=30),
            servers=TWO,
            cpu_ms=[90, 92],
            busy_ms=PAIR,
            more=beside_a_link(3e8, b=HostProbe(readings={"core.matmul": starved_reading(2e8)})),
        ),
        "others",
        "worker:1",
    ),
    "a server under a quota, for which workers wait": (
        side({}, {}, servers=TWO),
        side({}, {}, servers=TWO, floor_ms=FLOOR_MS + 40, more=counted("e", limited_s=4.0)),
        "server",
        "ps:1",
    ),
    "a link into one of three, of an all-reduce": (
        side(*REDUCED, servers=(), more=linked_hosts()),
        side(*LATER, servers=(), more=linked_hosts(ab=4e9, cb=4e9)),
        "link",
        "worker:1",
    ),
    "a link between two, of an all-reduce": (
        side(*REDUCED, servers=(), more=linked_hosts()),
        side(*LATER, servers=(), more=linked_hosts(ab=4e9)),
        "link",
        "worker:0>worker:1",
    ),
}


@pytest.mark.parametrize(("then", "now", "kind", "location"), ONE_EACH.values(), ids=ONE_EACH)
def test_one_cause_is_found(then: MeasurementProfile, now: MeasurementProfile, kind: str, location: str | None) -> None:
    """What has changed is named with its place, has nearly all seconds of the change, and is the only cause."""
    then, now = replace(then, hosts=HOSTS), replace(now, hosts=HOSTS)
    found = told(then, now)
    assert [(each.kind, each.location) for each in found.causes] == [(kind, location)]
    assert found.causes[0].seconds == pytest.approx(found.change_s, rel=0.1)
    assert all(found.causes[0].evidence)
    assert kind in list(CauseKind)
    assert Explanation.from_json(found.to_json()) == found


def test_all_workers_of_a_host_are_the_host() -> None:
    """Where both workers of one host compute more slowly and those of another do not, it is the host."""
    hosts = {f"worker:{number}": "ab"[number // 2] for number in range(4)}
    workers = [*slower(0, 2), *alike(backward=40)]
    workers[0] = {}
    then, now = side({}, {}, {}, {}, more={"hosts": hosts}), side(*workers, cpu_ms=[90, 90, 130, 130], more={"hosts": hosts})
    assert (top(then, now).kind, top(then, now).location) == ("compute", "b")


@pytest.mark.parametrize(
    ("then", "now", "command"),
    [
        (side({}, {}, {}), side(*slower(1, 3, backward=40)), "dtfperf doctor --cluster=daint --hosts=b,a"),
        (side(), side(*slower(backward=40)), "dtfperf doctor --cluster=daint"),
        (side({}, {}, {}), side(*alike(3, backward=40)), "dtfperf doctor --cluster=daint"),
    ],
    ids=["a host, and one to compare with", "of two", "all"],
)
def test_the_doctor_is_sent_where_the_cause_is(then: MeasurementProfile, now: MeasurementProfile, command: str) -> None:
    """The next command names the hosts of a cause, one beside it to compare with, and none where that would be all."""
    assert now.step_breakdown
    hosts = {"ps:0": "a", "worker:0": "a", "worker:1": "b", "worker:2": "c"}
    hosts = {task: host for task, host in hosts.items() if task in now.step_breakdown.tasks}
    then, now = (replace(each, hosts=hosts, cluster="--cluster=daint") for each in (then, now))
    assert top(then, now).next == command


def test_links_that_a_breakdown_has_no_room_for() -> None:
    """With many workers a breakdown has only the busiest links: they show a slow server, which has all workers' seconds."""
    many: list[dict[str, float]] = [{}] * 6
    busy_ms = {("ps:1", f"worker:{worker}"): 65.0 for worker in range(6)}
    then, now = (
        side(*many, servers=TWO),
        side(*alike(6, receive=50), servers=TWO, busy_ms=busy_ms),
    )
    assert now.step_breakdown
    few = [link for link in now.step_breakdown.links if link.destination in ("worker:0", "worker:1")]
    (cause,) = told(then, replace(now, step_breakdown=replace(now.step_breakdown, links=few))).causes
    assert (cause.kind, cause.location) == ("link", "ps:1")
    assert 1e3 * cause.seconds == pytest.approx(50, abs=3)


def test_a_link_that_a_baseline_has_no_room_for_was_not_idle() -> None:
    """Of many links a baseline has the busiest: another one that is as busy now as they were then has not become slower."""
    slow = {("ps:0", "worker:1"): 65.0}
    then, now = side(*[{}] * 20, servers=TWO), side(*slower(1, 20, receive=50), servers=TWO, busy_ms=slow)
    assert then.step_breakdown
    assert now.step_breakdown
    of_then = [link for link in then.step_breakdown.links if "worker:1" not in (link.source, link.destination)][:MAX_LINKS]
    of_now = sorted(now.step_breakdown.links, key=lambda link: "worker:1" not in (link.source, link.destination))[:MAX_LINKS]
    then, now = (
        replace(each, step_breakdown=replace(each.step_breakdown, links=links))
        for each, links in ((then, of_then), (now, of_now))
        if each.step_breakdown
    )
    (cause,) = told(then, now).causes
    assert (cause.kind, cause.location) == ("link", "ps:0>worker:1")
    assert 1e3 * cause.seconds == pytest.approx(50, abs=3)


def test_the_worker_that_lends_its_devices_is_looked_at_too() -> None:
    """Where one session computes on all workers only the chief has a step of its own: the others' work is told all the same."""

    def lent(evidence: MeasurementProfile) -> MeasurementProfile:
        assert evidence.step_breakdown
        tasks = {**evidence.step_breakdown.tasks, "worker:1": replace(evidence.step_breakdown.tasks["worker:1"], cpu_s=None)}
        return replace(evidence, step_breakdown=replace(evidence.step_breakdown, tasks=tasks))

    then, now = lent(side(servers=())), lent(side(*slower(backward=40), servers=()))
    assert (top(then, now).kind, top(then, now).location) == ("compute", "worker:1")


def test_who_computes_a_little_longer_has_its_cores() -> None:
    """Beside a worker without a core, one that needs as much less of the CPU's time as its arithmetic has become longer."""
    then = side()
    now = side({"backward": 70.0}, {"forward": 70.0, "backward": 150.0}, cpu_ms=[80, 92])
    found = top(*(replace(each, hosts=HOSTS) for each in (then, now)))
    assert (found.kind, found.location) == ("others", "worker:1")


def test_a_server_that_stands_still_is_told_by_what_it_does_itself() -> None:
    """Its own operations take five times as long, and a probe of its host had no core: what one worker sends for longer, and
    all wait for within their steps, is of the server, and no link.
    """
    then = side({}, {}, {}, servers=TWO, more=probed(d=HostProbe(readings={"core.matmul": reading(2e9)})))
    now = side(
        {"host": 30.0}, {"host": 30.0, "send": 65.0}, {"host": 30.0}, servers=({"apply": 15.0}, {"apply": 3.0}),
        busy_ms={("worker:1", "ps:0"): 65.0}, more=probed(d=HostProbe(readings={"core.matmul": starved_reading(8e8)})),
    )  # fmt: skip
    found = top(*(replace(each, hosts=HOSTS) for each in (then, now)))
    assert (found.kind, found.location) == ("server", "ps:0")
    assert found.share > 0.9


def test_all_that_is_exchanged_with_a_starved_worker_of_one_session_is_of_it() -> None:
    """Where one session computes on all workers, each waits for what a worker without a core sends late: also the kinds that
    scatter so much that none of them has changed for sure.
    """

    def lent(evidence: MeasurementProfile) -> MeasurementProfile:
        assert evidence.step_breakdown
        tasks = {**evidence.step_breakdown.tasks, "worker:1": replace(evidence.step_breakdown.tasks["worker:1"], cpu_s=None)}
        links = [
            Traced(source, to, 12e6, (evidence.step_breakdown.tasks["worker:1"].parts["receive"]), {})
            for source, to in (("worker:0", "worker:1"), ("worker:1", "worker:0"))
        ]
        errors = {**evidence.step_breakdown.error_s, "send": 0.02, "receive": 0.001}
        return replace(evidence, step_breakdown=replace(evidence.step_breakdown, tasks=tasks, links=links, error_s=errors))

    then = lent(side(servers=()))
    now = lent(
        side({"receive": 95.0, "send": 30.0}, {"forward": 50.0, "backward": 100.0, "send": 45.0}, cpu_ms=[90, 92], servers=())
    )
    cause = top(then, replace(now, states=counted("worker:1", limited_s=4.0)["states"]))
    assert (cause.kind, cause.location) == ("others", "worker:1")
    assert cause.share > 0.9


def test_no_cause_has_more_than_the_step_became_longer_by() -> None:
    """Traced steps of another moment say 374 ms of a pair; the measured ones became 121 ms longer, and no more is said."""
    now = side(*slower(receive=187, send=187), busy_ms={("ps:0", "worker:1"): 202.0, ("worker:1", "ps:0"): 202.0})
    then = side()
    now = replace(now, step_s=[each + 0.121 for each in then.step_s])
    (cause,) = told(then, now).causes
    assert cause.kind == "link"
    assert 1e3 * cause.seconds == pytest.approx(121, abs=2)


def test_who_comes_later_meets_links_that_are_free() -> None:
    """A worker that sleeps 150 ms, and whose transfers then take 100 ms less since no other's are under way, has made the step
    50 ms longer: no more would be gained without it. Arithmetic that became shorter meanwhile is another matter.
    """
    busy = {"receive": 65.0, "send": 65.0}
    for shorter, seconds in (({"receive": 15.0, "send": 15.0}, 50), ({**busy, "backward": 10.0, "forward": 0.0}, 110)):
        then = side(busy, busy)
        now = side(busy, {**busy, "python": 151.0, **shorter})
        (cause,) = told(then, now).causes
        assert (cause.kind, cause.location) == ("straggler", "worker:1")
        assert 1e3 * cause.seconds == pytest.approx(seconds, abs=12)


def test_who_sleeps_on_a_busy_machine_sleeps() -> None:
    """Cores that others have make all of a worker's work longer by some part; half a second of nothing is not of that kind."""
    busy = {"forward": 45.0, "backward": 95.0}
    now = side(busy, {**busy, "python": 501.0}, cpu_ms=[92, 92], more=counted("a", waited_s=15.0) | {"hosts": HOSTS})
    found: dict[str, Cause] = {
        each.kind: each for each in told(side(more=counted("a", waited_s=3.0) | {"hosts": HOSTS}), now).causes
    }
    assert found["straggler"].location == "worker:1"
    assert 1e3 * found["straggler"].seconds == pytest.approx(500, abs=10)
    assert 1e3 * found["others"].seconds == pytest.approx(50, abs=10)


def test_another_program_may_wait_for_cores_as_it_likes() -> None:
    """How long threads wait for each other is the program's own: of another one it speaks for nobody else's work."""
    more = {**counted("b", waited_s=15.0), "program_changes": ["training graph: 36 Conv2D less"], "hosts": HOSTS}
    then = side(more={**counted("b", waited_s=3.0), "hosts": HOSTS})
    found = told(then, side(*alike(forward=40), cpu_ms=[130, 130], more=more))
    assert [each.kind for each in found.causes] == ["program"]


def test_a_server_without_a_core_has_all_that_is_exchanged() -> None:
    """What workers and a server under a quota do for each other is one cause as a whole, also the kinds that scatter so much
    that none of them has changed for sure."""
    then, now = (
        side({}, {}),
        side(*alike(host=30, send=12, receive=9), floor_ms=FLOOR_MS + 10, more=counted("d", limited_s=4.0)),
    )
    assert now.step_breakdown
    scattered = {**now.step_breakdown.error_s, "send": 0.02, "receive": 0.02}
    then, now = (
        replace(then, hosts=HOSTS),
        replace(now, hosts=HOSTS, step_breakdown=replace(now.step_breakdown, error_s=scattered)),
    )
    (found,) = told(then, now).causes
    assert (found.kind, found.location) == ("server", "ps:0")
    assert 1e3 * found.seconds == pytest.approx(61, abs=2)
    assert found.words.startswith("ps:0 (d) answers late: workers wait ")


def test_nobody_waits_less_than_nothing_longer() -> None:
    """A server's cause whose rest after the last worker's own work has become shorter says nothing of that."""
    now = side(*alike(receive=40, host=20), floor_ms=FLOOR_MS - 3, more=counted("d", limited_s=4.0))
    found = top(replace(side({}, {}), hosts=HOSTS), replace(now, hosts=HOSTS))
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
def test_links_without_bytes_are_told_by_their_probes(probed: dict[str, float], location: str) -> None:
    """With nearly all bytes between one worker and one server, only a probe knows whose other links are slow as well."""
    then = _all_bytes_between("ps:0", "worker:1", side({}, {}, servers=TWO))
    now = _all_bytes_between("ps:0", "worker:1", side(*slower(receive=50, send=50), servers=TWO, busy_ms=PAIR))
    found = top(*(replace(each, hosts=HOSTS, probes=_network(**rates)) for each, rates in ((then, {}), (now, probed))))
    assert (found.kind, found.location) == ("link", location)
    assert 1e3 * found.seconds == pytest.approx(100, abs=5)


def _all_bytes_between(one: str, other: str, found: MeasurementProfile) -> MeasurementProfile:
    assert found.step_breakdown
    links = [
        each if {each.source, each.destination} == {one, other} else replace(each, size_bytes=1e3, busy_s=1e-6)
        for each in found.step_breakdown.links
    ]
    return replace(found, step_breakdown=replace(found.step_breakdown, links=links))


def _network(**per_s: float) -> Probes:
    """Links of the hosts of two workers with those of two servers, of 9 GB/s but for those that are named: be=1e9 is b>e."""
    pairs = [(one, other) for w in "ab" for p in "de*" for one, other in ((w, p), (p, w))]
    return Probes(links={f"{a}>{b}": Link(per_s=per_s.get(a + b, 9e9), spread=0.01, repeats=3, how={}) for a, b in pairs})


THREE = ({"apply": 3.0},) * 3
ON_TWO_HOSTS = {"worker:0": "a", "worker:1": "b", "ps:0": "d", "ps:1": "d", "ps:2": "e"}
FROM_ONE_HOST = {(f"ps:{p}", f"worker:{w}"): 40.0 for p in (0, 1) for w in (0, 1)}


def test_servers_of_one_host_are_not_all() -> None:
    """Where two of three parameter servers share a host that a quota keeps from its cores, these two are told of."""
    now = side(*alike(receive=50), servers=THREE, busy_ms=FROM_ONE_HOST, more=counted("d", limited_s=4.0))
    then, now = (replace(each, hosts=ON_TWO_HOSTS) for each in (side(servers=THREE), now))
    found = top(then, now)
    assert (found.kind, found.location) == ("server", "d")
    assert found.words.startswith("each parameter server of d answers late: sends to the workers")


@pytest.mark.parametrize(
    ("beside", "does"),
    [({}, "d sends to the workers for "), ({"worker:2": "d"}, "d exchanges with other hosts for ")],
    ids=["servers alone", "a worker, too"],
)
def test_a_hosts_link_is_told_from_its_own_side(beside: dict[str, str], does: str) -> None:
    """What workers receive, the host of parameter servers sends; of one with workers as well it is not known who does."""
    then, now = side(servers=THREE), side(*alike(receive=50), servers=THREE, busy_ms=FROM_ONE_HOST)
    then, now = (replace(each, hosts={**ON_TWO_HOSTS, **beside}) for each in (then, now))
    found = top(then, now)
    assert (found.kind, found.location) == ("link", "d")
    assert found.words.startswith(does)


def test_a_mean_of_many_workers_is_not_said_of_three() -> None:
    """Evidence names three workers, and says how many more its mean is of."""
    receive = [{"receive": 15.0 + each} for each in (50.0, 50.0, 50.0, 50.0, 60.0)]
    found = top(side(*[{}] * 5), side(*receive, busy_ms={("ps:0", f"worker:{w}"): 65.0 for w in range(5)}))
    assert "worker:0, worker:1, worker:2 and 2 more: 82.0 ms of a step go to transfers, 30.0 ms then" in found.evidence


@pytest.mark.parametrize(
    ("limits", "kind", "words"),
    [
        ({"clock_hz": 1_200_000_000}, "clock", "; a limit of b: clock hz 1200000000, none then"),
        ({"governor": "powersave"}, "clock", "; a limit of b: governor powersave, performance then"),
        ({"memory_bytes": 1 << 30}, "memory", "; a limit of b: memory bytes 1073741824, none then"),
        ({"cpu_quota_cores": 0.5}, "compute", "; a limit of b: cpu quota cores 0.5, none then"),
        ({"open_files": 1024}, "compute", ""),
        ({"locked_memory_bytes": 65536}, "compute", ""),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_limits_speak_for_what_they_slow_down(limits: dict[str, Any], kind: str, words: str) -> None:
    """A lower clock is a clock, by whatever setting; how many files may be open says nothing of arithmetic."""
    usual: dict[str, Any] = {"cores": 1, "governor": "performance"}
    then = side(more=probed(b=HostProbe(limits=usual)))
    now = side(*slower(backward=40), cpu_ms=[90, 130], more=probed(b=HostProbe(limits=usual | limits)))
    found = top(*(replace(each, hosts=HOSTS) for each in (then, now)))
    assert (found.kind, found.location) == (kind, "worker:1")
    assert found.words == f"worker:1 (b) computes 44 % slower than its baseline{words}; all wait for it"


def test_host_code_that_grows_more_than_arithmetic_is_a_cause_of_its_own() -> None:
    """A worker that sleeps 50 ms outside of its operations, and computes 6 ms longer, is not slow by its arithmetic."""
    found = told(side({}), side({"backward": USUAL["backward"] + 6, "host": USUAL.get("host", 0.0) + 50}))
    assert [(each.kind, round(each.seconds * 1e3)) for each in found.causes] == [("host", 50), ("compute", 6)]


@pytest.mark.parametrize(("hosts", "kind", "sure"), [("b", "compute", "medium"), ("ab", "clock", "high")], ids=["one", "both"])
def test_heat_of_one_host_slows_no_other(hosts: str, kind: str, sure: str) -> None:
    """Where all workers compute more slowly, it is not for what one of their hosts alone was under."""
    disturbances = [hot(host) for host in hosts]
    now = side(*alike(backward=40), cpu_ms=[130, 130], more={"disturbances": disturbances, "hosts": HOSTS})
    found = top(side(more={"hosts": HOSTS}), now)
    assert (found.kind, found.location, found.confidence) == (kind, None, sure)


def test_four_of_five_workers_are_not_every_one() -> None:
    """Of more than three hosts that are slow, each for itself, it is said how many they are, and that it is not all."""
    hosts = {f"worker:{number}": f"n{number}" for number in range(5)}
    now = side(*alike(4, backward=40), {}, cpu_ms=[130] * 4 + [90], more={"hosts": hosts})
    found = top(side(*[{}] * 5, more={"hosts": hosts}), now)
    assert (found.kind, found.location) == ("compute", None)
    assert found.words.startswith("each of 4 of the 5 workers computes 44 % slower than the baseline")


def test_what_a_server_is_told_of_is_its_own() -> None:
    """A server that takes longer to update does not answer late because another one's link is slow as well."""
    slow = [{"apply": 42.0}, {"apply": 42.0, "receive": 75.0}]
    now = side(*slow, servers=[{"apply": 43.0}, {"apply": 3.0}], busy_ms={("ps:1", "worker:1"): 75.0})
    found: dict[str, Cause] = {each.kind: each for each in told(side(servers=TWO), now).causes}
    assert (found["link"].location, found["server"].location) == ("ps:1>worker:1", "ps:0")
    assert found["server"].words.startswith("ps:0 takes longer to update: 40.0 ms more")
    assert found["server"].evidence[0] == "worker:0, worker:1: 42.0 ms of a step go to updates, 2.00 ms then"
    assert not any("transfers" in each for each in found["server"].evidence)


def test_a_host_whose_cores_are_not_counted_costs_no_explanation() -> None:
    """In some containers the kernel numbers cores otherwise than it lends them, and none of a host's is found in its counts."""
    more = {"states": {"b": make_state(cpus="", cores=0, cpu={"own_s": 5.0, "limited_s": 4.0})}, "hosts": HOSTS}
    found = told(side(), side(*slower(python=50), more=more))
    assert [(each.kind, each.location) for each in found.causes] == [("straggler", "worker:1")]


def quota(cores: float | None) -> dict[str, Any]:
    """What a probe tells of b: it has two cores, and may use so many of them."""
    limits = {"cores": 2.0, **({} if cores is None else {"cpu_quota_cores": cores})}
    return probed(b=HostProbe(limits=limits))


@pytest.mark.parametrize(
    "then, now, words",
    [
        (quota(1.0), quota(1.0), None),
        (quota(1.0), {}, None),
        (quota(1.0), quota(2.0), None),
        (quota(1.0), quota(0.5), ", for how long then is not known"),
        (quota(None), quota(1.0), ""),
        (quota(None), {}, ""),
        (probed(a=HostProbe(limits={"cpu_quota_cores": 1.0})), {}, ", for how long then is not known"),
        ({}, {}, ", for how long then is not known"),
    ],
    ids=["the same", "the same as far as is known", "larger", "smaller", "new", "none then", "another host's", "not known"],
)
def test_a_quota_of_then_is_no_news(then: dict[str, Any], now: dict[str, Any], words: str | None) -> None:
    """A baseline keeps no counts of its hosts. Where its probes tell of a quota as small, nothing speaks for that host; where
    they do not, it is said that nobody knows what a quota cost it then."""
    found = find_host_pressures(side(more=then), side(more={**counted("b", limited_s=4.0), **now}))
    expected = [] if words is None else [f"a quota kept it from its cores for 40 % of the run{words}"]
    assert [each.words for each in found if each.is_cpu_starved] == expected


def test_a_quota_that_was_counted_then_is_held_against_that() -> None:
    """Where both have counted, only what it costs more than then speaks for the host, whatever probes say of limits."""
    then = side(more={**counted("b", limited_s=1.0), **quota(1.0)})
    more, same = (side(more={**counted("b", limited_s=s), **quota(1.0)}) for s in (4.0, 1.3))
    assert [each.words for each in find_host_pressures(then, more)] == ["a quota kept it from its cores for 40 % of the run"]
    assert not find_host_pressures(then, same)


def test_several_causes_share_the_change() -> None:
    """One worker on a slow link and a core of its own that all share: both are told, with their seconds."""
    now = side(*slower(receive=60, backward=40), cpu_ms=[90, 130], busy_ms={("ps:0", "worker:1"): 75.0})
    found: dict[str, Cause] = {each.kind: each for each in told(side(), now).causes}
    assert {kind: round(1e3 * each.seconds) for kind, each in found.items()} == {
        "link": pytest.approx(60, abs=3),
        "compute": pytest.approx(40, abs=3),
    }


def test_only_the_last_worker_counts() -> None:
    """Of two workers that are late for different reasons each has part of the change: added and removed bound it."""
    workers = [{"python": USUAL["python"] + 50}, {"input": 60.0}]
    found = told(side(), side(*workers))
    assert 1e3 * found.change_s == pytest.approx(60, abs=1)
    seconds = {each.kind: 1e3 * each.seconds for each in found.causes}
    assert seconds == {"input": pytest.approx(35, abs=3), "straggler": pytest.approx(25, abs=3)}
    assert (
        "added to the faster step, it costs 60.0 ms; removed from the slower one, it saves 10.0 ms" in found.causes[0].evidence
    )


def test_injected_sleep_is_sure() -> None:
    """A sleep that was injected is told with its task, and is sure."""
    found = top(side(), side(*slower(python=50), more={"sleeps": {"worker:1": 0.05}}))
    assert (found.kind, found.location, found.confidence) == ("straggler", "worker:1", "high")
    assert "worker:1 sleeps for 51.0 ms" in found.words


@pytest.mark.parametrize("then_s, now_s", [(0.05, 0.05), (0.0, 0.0)], ids=["it slept as long then", "for no time"])
def test_who_was_told_to_sleep_no_longer_does_something_else(then_s: float, now_s: float) -> None:
    """An injected sleep that is no longer than it was is not what takes longer."""
    then = side(*slower(python=1000 * then_s), more={"sleeps": {"worker:1": then_s}})
    now = side(*slower(python=1000 * now_s + 40), cpu_ms=[90, 130], more={"sleeps": {"worker:1": now_s}})
    found = top(then, now)
    assert (found.kind, found.location, found.confidence) == ("straggler", "worker:1", "medium")
    assert "worker:1 is busy in Python for " in found.words


def test_what_nobody_knows_of_the_cpu_is_not_said() -> None:
    """Whether a worker is busy or asleep before it asks for its step tells its CPU's time; without that it is not said."""
    then, now = timestamped({}, {}, step_ms=136), timestamped({"finish_s": 60.0}, {"python_s": 41.0}, step_ms=176)
    assert then.worker_timings
    unknown = {name: replace(score, cpu_s=None) for name, score in then.worker_timings.workers.items()}
    then = replace(then, worker_timings=replace(then.worker_timings, workers=unknown))
    assert top(then, now).words == "worker:1 takes 41.0 ms before it asks for a step, 1.00 ms then; all wait for it"
    peers = top(MeasurementProfile(step_s=side().step_s), side(*slower(python=50)))
    assert peers.words.startswith("worker:1 takes 51.0 ms before it asks for a step, 1.00 ms the others")


def test_stamps_alone_find_the_worker() -> None:
    """Without any traced step, what every step timestamps tells whose arithmetic, transfers or Python take longer."""
    then = timestamped({}, {}, step_ms=136)
    for name, kind in (("python_s", "straggler"), ("compute_s", "compute")):
        usual = {"python_s": 1.0, "compute_s": 95.0}[name]
        now = timestamped({"finish_s": 60.0}, {name: usual + 40.0, "cpu_s": 130.0}, step_ms=176)
        assert (top(then, now).kind, top(then, now).location) == (kind, "worker:1")
        assert 1e3 * top(then, now).seconds == pytest.approx(40, abs=4)


@pytest.mark.parametrize(
    ("slow", "location"),
    [((2, 3), "node02"), ((2, 3, 4, 5), "ps:0")],
    ids=["workers of one host", "workers of all other hosts"],
)
def test_stamps_alone_find_the_host_with_a_slow_link(slow: Sequence[int], location: str) -> None:
    """Without traces, workers that wait longer for values name their host if workers of others do not, else the server."""
    hosts = {"ps:0": "node01", **{f"worker:{number}": f"node{number // 2 + 1:02}" for number in range(6)}}
    then = replace(timestamped(*[{}] * 6, step_ms=136), hosts=hosts)
    workers = [{"receive_s": 60.0} if number in slow else {"finish_s": 60.0} for number in range(6)]
    cause = top(then, replace(timestamped(*workers, step_ms=176), hosts=hosts))
    assert cause.location == location
    assert 1e3 * cause.seconds == pytest.approx(40, abs=4)


def test_stamps_tell_how_long_and_traces_what() -> None:
    """Traced steps that met a bad moment, twice as slow as the measured ones: timestamps tell how long it really took."""
    then = replace(side(), worker_timings=timestamped({}, {}, step_ms=140).worker_timings)
    slow = {"receive": 30.0, "forward": 60.0, "backward": 120.0, "host": 18.0}
    bad = side({**slow, "python": 41.0}, slow, cpu_ms=[95.0, 95.0])
    now = replace(
        bad,
        worker_timings=timestamped({"python_s": 41.0}, {"finish_s": 60.0}, step_ms=180).worker_timings,
        step_s=[0.179, 0.18, 0.181],
    )
    (cause,) = told(then, now).causes
    assert (cause.kind, cause.location) == ("straggler", "worker:0")
    assert 1e3 * cause.seconds == pytest.approx(40, abs=4)


@pytest.mark.parametrize(
    "slow, kind", [({"compute_s": 245.0, "cpu_s": 240.0}, "compute"), ({}, "link")], ids=["computes", "sends"]
)
def test_a_coordinator_gives_slow_workers_fewer_steps(slow: dict[str, float], kind: str) -> None:
    """Of two workers with a coordinator one takes twice as long, and does half as many steps: a step of both is longer by a
    third. What no timestamp tells of its steps is the sending of gradients; nobody waits for it.
    """
    then = given_out(timestamped({}, {}, step_ms=150), 100, 100)
    now = given_out(timestamped({}, slow, step_ms=200), 100, 50)
    (cause,) = told(then, now).causes
    assert (cause.kind, cause.location) == (kind, "worker:1")
    assert 1e3 * cause.seconds == pytest.approx(50, abs=1)
    assert "wait for it" not in cause.words


def test_nobody_waits_for_the_slowest_batch_of_a_coordinator() -> None:
    """The same of traced batches, with a breakdown as long as the slowest worker's: no worker waits for that one, and no
    cause is such a wait.
    """
    then = batches(alike(), [90, 90], 0.132)
    now = batches(slower(forward=60, backward=72), [90, 222], 0.176)
    (cause,) = told(then, now).causes
    assert (cause.kind, cause.location) == ("compute", "worker:1")
    assert 1e3 * cause.seconds == pytest.approx(44, abs=1)


def batches(workers: list[dict[str, float]], cpu_ms: list[float], step_s: float) -> MeasurementProfile:
    """Of workers that a coordinator gives their next batch at once."""
    made = side(*workers, cpu_ms=cpu_ms, floor_ms=0.0)
    assert made.step_breakdown
    tasks = {
        name: replace(task, parts={kind: seconds for kind, seconds in task.parts.items() if kind != "wait"})
        for name, task in made.step_breakdown.tasks.items()
    }
    return replace(made, step_breakdown=replace(made.step_breakdown, tasks=tasks), coordinated=True, step_s=[step_s] * 3)


def given_out(of: MeasurementProfile, *steps: int) -> MeasurementProfile:
    """With so many steps of each worker."""
    assert of.worker_timings
    workers = {
        name: replace(score, steps=count) for (name, score), count in zip(of.worker_timings.workers.items(), steps, strict=True)
    }
    return replace(of, coordinated=True, worker_timings=replace(of.worker_timings, workers=workers))


@pytest.mark.parametrize(
    "then", [MeasurementProfile(step_s=side().step_s), timestamped({}, {}, step_ms=140)], ids=["nothing", "timestamps"]
)
def test_a_slow_link_where_no_link_is_known_of_the_baseline(then: MeasurementProfile) -> None:
    """A worker whose transfers take longer is found by its links of now alone."""
    scores = timestamped({"finish_s": 70.0}, {"receive_s": 120.0}, step_ms=240).worker_timings
    now = replace(side(*slower(receive=50, send=50), servers=TWO, busy_ms=PAIR), worker_timings=scores)
    found = top(then, now)
    assert (found.kind, found.location) == ("link", "worker:1")
    assert 1e3 * found.seconds == pytest.approx(100, abs=10)


def test_what_was_exchanged_then_is_not_nothing_where_nobody_knows() -> None:
    """A baseline with timestamps alone does not show how long its all-reduces took: a later one is no slower link."""
    then, now = timestamped({}, {}, step_ms=140), timestamped({"finish_s": 60.0}, {"finish_s": 60.0}, step_ms=180)
    traced_now = replace(now, step_breakdown=side({"reduce": 55.0}, {"reduce": 56.0}, servers=()).step_breakdown)
    found = top(then, traced_now)
    assert (found.kind, found.confidence) == ("waiting", "low")


def test_peers_where_the_baseline_tells_nothing() -> None:
    """A baseline that was never traced: one worker that is later than the others is found, and it is said to be unsure."""
    then = MeasurementProfile(step_s=side().step_s)
    found = told(then, side(*slower(python=50)))
    assert [(each.kind, each.location, each.confidence) for each in found.causes] == [("straggler", "worker:1", "low")]
    assert any("the baseline was taken apart" in note for note in found.notes)


GUESSED: Mapping[str, tuple[dict[str, Any], str | None]] = {
    "program": ({"program_changes": ["training graph: 1 MatMul more"]}, "program"),
    "software": ({"software_changes": ["tensorflow 2.20.0 -> 2.21.0"]}, "software"),
    "hardware": ({"hardware_changes": ["cores: 4 then, 2 now"]}, "hardware"),
    "straggler": ({"sleeps": {"worker:1": 0.02}}, "straggler"),
    "others": ({"disturbances": [replace(BUSY, host="a")]}, "others"),
    "two": ({"program_changes": ["x"], "software_changes": ["y 1 -> 2"]}, None),
    "nothing": ({}, None),
}


@pytest.mark.parametrize(("known", "kind"), GUESSED.values(), ids=GUESSED)
def test_what_rates_alone_can_tell(known: dict[str, Any], kind: str | None) -> None:
    """Without any step taken apart, a single difference may be the cause, with low confidence; of two, neither is claimed."""
    found = told(MeasurementProfile(step_s=[0.1, 0.1]), MeasurementProfile(step_s=[0.15, 0.15], **known))
    assert [(each.kind, each.confidence) for each in found.causes] == ([(kind, "low")] if kind else [])
    assert found.explained_s + found.unexplained_s == pytest.approx(0.05)
    assert found.explained_s == pytest.approx(0.02 if kind == "straggler" else 0.05 if kind else 0)


def test_a_difference_below_the_noise_is_no_cause() -> None:
    """A worker that was told to sleep for a millisecond does not make a step longer by fifty, nor is it a cause of one."""
    found = told(MeasurementProfile(step_s=[0.1, 0.1]), MeasurementProfile(step_s=[0.15, 0.15], sleeps={"worker:1": 0.0005}))
    assert found.causes == []
    assert found.unexplained_s == pytest.approx(0.05)


def test_slow_link_of_a_real_training_is_found() -> None:
    """Where one worker's link was held to 500 Mbit/s, that link, both ways, is nearly all of the change."""
    well, slow = (MeasurementProfile(step_breakdown=compute_step_breakdown(linked(how))) for how in ("well", "slow"))
    well, slow = (replace(each, step_s=[each.step_breakdown.wall_s] * 3) for each in (well, slow) if each.step_breakdown)
    found = told(well, slow)
    assert [(each.kind, each.location) for each in found.causes] == [("link", "worker:1<>ps:0")]
    assert found.causes[0].seconds == pytest.approx(found.change_s, rel=0.1)


@pytest.mark.parametrize("mode", ["parameter_server", "distributed_replicated", "replicated", "distributed_all_reduce"])
def test_where_nothing_changed_nothing_is_claimed(mode: str) -> None:
    """Two measurements of the same have no cause, in whatever order."""
    breakdown = compute_step_breakdown(traced(mode))
    then = MeasurementProfile(step_breakdown=breakdown, step_s=[breakdown.wall_s] * 3)
    assert told(then, then).causes == []


milliseconds: st.SearchStrategy[dict[str, float]] = st.builds(dict, **{kind: st.floats(0.0, 200.0) for kind in USUAL})
sides = st.lists(milliseconds, min_size=1, max_size=4).map(lambda workers: side(*workers))


@given(sides, sides, st.booleans())
@settings(deadline=None, max_examples=60)
def test_seconds_add_up(then: MeasurementProfile, now: MeasurementProfile, coordinated: bool) -> None:
    """Whatever changed how: causes and what is not explained are the step's change, and no cause is below the noise."""
    found = told(replace(then, coordinated=coordinated), replace(now, coordinated=coordinated))
    assert found.explained_s + found.unexplained_s == pytest.approx(found.change_s, abs=1e-9)
    assert all(each.seconds >= found.noise_s > 0 for each in found.causes)
    assert [each.seconds for each in found.causes] == sorted((each.seconds for each in found.causes), reverse=True)


@given(st.lists(milliseconds, min_size=3, max_size=3), st.permutations([0, 1, 2]))
@settings(deadline=None, max_examples=40)
def test_names_change_nothing(workers: list[dict[str, float]], order: list[int]) -> None:
    """Equal workers in another order have the same causes with the same seconds, under their other names."""
    then = side({}, {}, {})
    straight, mixed = told(then, side(*workers)), told(then, side(*(workers[number] for number in order)))
    names = {f"worker:{number}": f"worker:{order.index(number)}" for number in range(3)}

    def renamed(location: str | None) -> str | None:
        ends = (location or "").replace("<>", ">").split(">")
        return " ".join(sorted(names.get(end, end) for end in ends))

    expected = sorted((each.kind, renamed(each.location), round(each.seconds, 9)) for each in straight.causes)
    found = sorted(
        (each.kind, " ".join(sorted((each.location or "").replace("<>", ">").split(">"))), round(each.seconds, 9))
        for each in mixed.causes
    )
    assert found == expected


def test_what_no_side_knows() -> None:
    """Without a step's seconds there is nothing to explain."""
    assert explain(MeasurementProfile(), side()) is None
    assert explain(side(), MeasurementProfile()) is None


def own_program(extra_s: Sequence[float], within_s: float = 0.1, **more: Any) -> MeasurementProfile:
    """A program whose workers each take so much longer between their steps, as they have reported them.

    Its rate is that of the chief's steps.
    """
    random = np.random.default_rng(3)
    between = 0.01 + 0.001 * random.random((len(extra_s), 60)) + np.array(extra_s)[:, None]
    scores = reported(*reported_steps(between, np.full((len(extra_s), 60), within_s)))
    chief_s = within_s + max(extra_s) - extra_s[0]
    return MeasurementProfile(
        step_s=[0.998 * chief_s, chief_s, 1.002 * chief_s], worker_timings=scores, hosts=HOSTS, is_own_program=True, **more
    )


@pytest.mark.parametrize(
    ("then", "when", "confidence"),
    [
        (own_program([0, 0]), r", 0\.\d+ ms then", "medium"),
        (replace(own_program([0, 0]), worker_timings=None), "", "low"),
        (own_program([0, 0], name="the anchor", when="in the anchor"), r", 0\.\d+ ms in the anchor", "medium"),
    ],
    ids=["as it was", "not known", "the anchor"],
)
def test_a_late_worker_of_an_own_program_is_named(then: MeasurementProfile, when: str, confidence: str) -> None:
    """The worker for which the others wait in each of their reported steps is named, with the seconds that this costs."""
    found = told(then, own_program([0, 0.05]))
    (cause,) = found.causes
    assert (cause.kind, cause.location, cause.confidence) == ("straggler", "worker:1", confidence)
    assert cause.seconds == pytest.approx(0.05, abs=0.002)
    assert re.fullmatch(
        rf"worker:1 \(b\) is (49|50)\.\d ms later in its steps than the others{when}; all wait for it", cause.words
    )
    assert re.match(r"worker:1 \(b\) was last in 100 % of steps, by (49|50)\.\d ms: python", cause.evidence[0])
    assert abs(found.unexplained_s) < found.noise_s


def test_the_longest_of_steps_that_begin_at_once_is_named() -> None:
    """A program that exchanges between its steps: of the worker that is slower within them, its own step time tells it."""
    then, now = (
        MeasurementProfile(step_s=[step_s] * 3, worker_timings=ending_apart(late_s, 0.0, 0.0), hosts=HOSTS, is_own_program=True)
        for step_s, late_s in ((0.101, 0.0), (0.151, 0.05))
    )
    (cause,) = told(then, now).causes
    assert (cause.kind, cause.location) == ("straggler", "worker:0")
    assert cause.seconds == pytest.approx(0.05, abs=0.003)


def test_two_late_workers_cost_no_more_than_the_step() -> None:
    """Of two that are late at once each has its part of what the step became longer by, and the later one more."""
    found = told(own_program([0] * 5), own_program([0, 0.05, 0, 0.03, 0]))
    assert [cause.location for cause in found.causes] == ["worker:1", "worker:3"]
    assert sum(cause.seconds for cause in found.causes) == pytest.approx(0.05, abs=0.003)


def test_a_worker_that_was_as_late_is_no_cause() -> None:
    """What has not become later has made no step longer, and something else that differs may have."""
    now = own_program([0, 0.05], within_s=0.2, software_changes=["tensorflow 2.20 -> 2.21"])
    assert [cause.kind for cause in told(own_program([0, 0.05]), now).causes] == ["software"]


def test_what_differs_beside_a_late_worker_is_noted() -> None:
    """A late worker is a cause, and versions that differ are not told apart from what it leaves unexplained."""
    found = told(own_program([0, 0]), own_program([0, 0.05], software_changes=["tensorflow 2.20 -> 2.21"]))
    assert [cause.kind for cause in found.causes] == ["straggler"]
    assert found.notes == ["known to differ, and not told apart: versions differ: tensorflow 2.20 -> 2.21"]


def test_who_is_late_within_its_steps_is_not_known() -> None:
    """Where the others wait within theirs, all steps are as long: nobody is named, and that is said."""
    found = told(own_program([0, 0]), own_program([0, 0], within_s=0.15))
    assert found.causes == []
    (note,) = found.notes
    assert note == "no worker has become late; which is slower within its steps is not known, for the others wait within theirs"


def test_an_own_program_is_not_traced() -> None:
    """Where an own program reports no steps, the advice is to have it report them, for nothing else of it can be known."""
    printed = [MeasurementProfile(step_s=[step_s] * 3, is_own_program=True) for step_s in (0.1, 0.15)]
    assert told(*printed).notes == [
        f"no step of {side} was taken apart: a program can report its steps with pytest_dtfperf.steps"
        for side in ("the baseline", "this training")
    ]
