"""What hosts have told in a probe, and what is made of it."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from pytest_dtfperf.datamodel.host_state import HostState
from pytest_dtfperf.datamodel.probes import Probes, Reading
from pytest_dtfperf.launch.link_rounds import plan_fans
from pytest_dtfperf.launch.placement import HostView
from pytest_dtfperf.launch.probing import PARTS, Answers
from pytest_dtfperf.messages.received import MessageError
from tests.hostile.agent import STATE
from tests.launch.test_fans import tasks

HOSTS = [HostView(name, name, (0, 1), gpus=("0",)) for name in ("a", "b", "c")]
MEASURED = Reading(per_s=4e10, spread=0.02, repeats=5, how={"threads": 1}, cpu_share=0.98)


def answers(workers: Sequence[int] = (0, 1, 2)) -> Answers:
    """A parameter server on a, workers on all."""
    return Answers(HOSTS, plan_fans(tasks([0], workers)))


def reading(host: int = 0, name: str = "core.matmul", **more: Any) -> Mapping[str, Any]:
    return {"kind": "reading", "host": host, "name": name, "reading": MEASURED, **more}


def stream(number: int, source: int, target: int, *rates: float, error: str | None = None) -> Mapping[str, Any]:
    parts = [{"bytes": round(rate * 0.1), "counted_s": 0.1} for rate in rates]
    return {"kind": "stream", "host": source, "round": number, "to": target, "parts": parts, "error": error}


def facts(host: int = 0, **state: Any) -> Mapping[str, Any]:
    limits = {"cores": 2}
    return {
        "kind": "facts",
        "host": host,
        "limits": limits,
        "clock_hz": 2e9,
        "most_clock_hz": None,
        "state": HostState.from_json({**STATE, **state}),
    }


def told(*events: Mapping[str, Any]) -> Probes:
    found = answers()
    for event in events:
        found.receive(event)
    return found.collect_probes(4.0)


def test_readings() -> None:
    """What a host has measured stands under its name, what it could not with the reason; of the silent there is nothing."""
    found = told(reading(1), reading(1, "memory", reading=None, error="too little of it"), facts(1))
    assert found.hosts.keys() == {"b"}
    host = found.hosts["b"]
    assert host.readings["core.matmul"] == MEASURED
    assert (host.unknown, host.limits, host.clock_hz) == ({"memory": "too little of it"}, {"cores": 2}, 2e9)
    assert found.unknown.keys() == {"*>a", "a>*"}


def test_others_work() -> None:
    """What other processes did on the cores meanwhile is told in cores; under a quota it takes nothing away."""
    cpu = {"busy_s": 1.5, "own_s": 0.9, "controller_s": 0.1, "steal_s": 0.0}
    assert told(reading(), facts(window_s=1.0, cpu=cpu)).hosts["a"].others_cores == pytest.approx(0.5)
    assert told(reading(), facts(window_s=1.0, cpu=cpu, quota=True)).hosts["a"].others_cores is None


def test_fans_add_up() -> None:
    """A fan's rate is the sum of its streams, part by part, of which the median counts; each stream's own rate is beside it."""
    found = told(stream(0, 1, 0, 100e6, 100e6, 100e6, 60e6), stream(0, 2, 0, 300e6, 300e6, 300e6, 300e6))
    link = found.links["*>a"]
    assert [link.per_s, link.spread, link.repeats] == pytest.approx([400e6, 0.05, PARTS])
    assert link.how == {"streams": 2, "seconds": 0.4}
    assert link.streams == {"b": pytest.approx(100e6), "c": pytest.approx(300e6)}


def test_reading_has_the_number_of_connections() -> None:
    """Two workers of one host have two connections, so that the fan has three streams of two hosts."""
    found = answers([0, 1, 1, 2])
    found.receive(stream(0, 1, 0, *[2e8] * PARTS))
    found.receive(stream(0, 2, 0, *[1e8] * PARTS))
    link = found.collect_probes(4.0).links["*>a"]
    assert link.how == {"streams": 3, "seconds": 0.4}
    assert link.streams.keys() == {"b", "c"}


def test_a_fan_without_one_of_its_streams_is_another_measurement() -> None:
    """Where one stream failed, the fan is unknown: what the others had says nothing of all together."""
    found = told(stream(0, 1, 0, *[1e8] * PARTS), stream(0, 2, 0, error="refused"), stream(1, 0, 1, *[0.0] * PARTS))
    assert found.links == {}
    assert found.unknown == {"*>a": "c>a: refused", "a>*": "a>c: it was not measured"}
    nothing = told(stream(1, 0, 1, *[0.0] * PARTS), stream(1, 0, 2, *[0.0] * PARTS))
    assert nothing.unknown["a>*"] == "nothing went through for 0.4 s"


def test_a_lost_host_keeps_what_it_has_told() -> None:
    """A host that ends in the middle is unknown from then on, with the reason, and what it had measured stays."""
    found = answers()
    found.receive(reading(1))
    found.lose(1, "no answer within 10 s")
    probes = found.collect_probes(1.0)
    assert probes.hosts["b"].readings.keys() == {"core.matmul"}
    assert probes.unknown["b"] == "no answer within 10 s"
    assert probes.unknown["*>a"] == "b>a: no answer within 10 s"


LIES: Mapping[str, list[Mapping[str, Any]]] = {
    "of a GPU that it has not": [reading(name="gpu.1.matmul")],
    "of what nobody measures": [reading(name="friendliness")],
    "of a link as its own": [reading(name="link")],
    "twice": [reading(), reading()],
    "twice what limits it": [facts(), facts()],
    "of a round that is none": [stream(7, 0, 1, *[1e8] * PARTS)],
    "of another's stream": [stream(0, 0, 1, *[1e8] * PARTS)],
    "of a stream twice": [stream(1, 0, 1, *[1e8] * PARTS)] * 2,
    "of too few parts": [stream(1, 0, 1, 1e8)],
}


@pytest.mark.parametrize("lie", LIES)
def test_what_nobody_has_asked_is_refused(lie: str) -> None:
    """A host that tells of something else, or twice, is refused; with it goes all it told, and each stream to and from it."""
    found = answers()
    found.receive(stream(0, 1, 0, *[1e8] * PARTS))
    found.receive(reading(1))
    *before, last = LIES[lie]
    for event in before:
        found.receive(event)
    with pytest.raises(MessageError) as refused:
        found.receive(last)
    found.lose(0, f"disconnected because it {refused.value}", lied=True)
    probes = found.collect_probes(1.0)
    assert probes.hosts.keys() == {"b"}
    assert probes.links == {}
    assert probes.unknown["a"].startswith("disconnected because it reported")
