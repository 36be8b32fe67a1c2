"""Tests of probes that are made of the messages of hosts."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from pytest_dtfperf.clusters.placement import HostView
from pytest_dtfperf.datamodel.host_state import HostState
from pytest_dtfperf.datamodel.probes import Probes, Reading
from pytest_dtfperf.launch.link_rounds import plan_fans
from pytest_dtfperf.launch.probing import PARTS, Answers
from pytest_dtfperf.messages import MessageError
from pytest_dtfperf.messages.agent import FactsMessage, ForwardedMessage, ReadingMessage, StreamEntry, StreamMessage
from tests.hostile.agent import STATE
from tests.launch.test_fans import make_tasks

HOSTS = [HostView(name, name, (0, 1), gpus=("0",)) for name in ("a", "b", "c")]
MEASURED = Reading(per_s=4e10, spread=0.02, repeats=5, how={"threads": 1}, cpu_share=0.98)


def make_answers(workers: Sequence[int] = (0, 1, 2)) -> Answers:
    """Make the answers for a server on a and workers on all hosts."""
    return Answers(HOSTS, plan_fans(make_tasks([0], workers)))


def make_reading(
    host: int = 0, name: str = "core.matmul", reading: Reading | None = MEASURED, error: str | None = None
) -> ReadingMessage:
    return ReadingMessage(host=host, run="r", task=f"probe:{host}", name=name, reading=reading, error=error)


def make_stream(number: int, source: int, target: int, *rates: float, error: str | None = None) -> StreamMessage:
    parts = [StreamEntry(bytes=round(rate * 0.1), counted_s=0.1) for rate in rates]
    return StreamMessage(host=source, run="r", task=f"probe:{source}", round=number, to=target, parts=parts, error=error)


def make_facts(host: int = 0, **state: Any) -> FactsMessage:
    return FactsMessage(
        host=host,
        run="r",
        task=f"probe:{host}",
        limits={"cores": 2},
        clock_hz=2e9,
        most_clock_hz=None,
        state=HostState.from_json({**STATE, **state}),
    )


def make_probes(*events: ForwardedMessage) -> Probes:
    found = make_answers()
    for event in events:
        found.receive(event)
    return found.collect_probes(4.0)


def test_probe_has_readings_and_reasons() -> None:
    """A host has its readings, reasons for missing ones, and limits, and a host without messages is missing."""
    found = make_probes(make_reading(1), make_reading(1, "memory", reading=None, error="too little of it"), make_facts(1))
    assert found.hosts.keys() == {"b"}
    host = found.hosts["b"]
    assert host.readings["core.matmul"] == MEASURED
    assert (host.unknown, host.limits, host.clock_hz) == ({"memory": "too little of it"}, {"cores": 2}, 2e9)
    assert found.unknown.keys() == {"*>a", "a>*"}


def test_time_of_other_processes_is_in_cores() -> None:
    """The CPU time of other processes during a probe is a number of cores, and unknown under a quota."""
    cpu = {"busy_s": 1.5, "own_s": 0.9, "controller_s": 0.1, "steal_s": 0.0}
    assert make_probes(make_reading(), make_facts(window_s=1.0, cpu=cpu)).hosts["a"].others_cores == pytest.approx(0.5)
    assert make_probes(make_reading(), make_facts(window_s=1.0, cpu=cpu, quota=True)).hosts["a"].others_cores is None


def test_rate_of_a_fan_is_the_sum_of_its_streams() -> None:
    """A fan has the median of the sums of its streams' parts, and each stream its own rate."""
    found = make_probes(make_stream(0, 1, 0, 100e6, 100e6, 100e6, 60e6), make_stream(0, 2, 0, 300e6, 300e6, 300e6, 300e6))
    link = found.links["*>a"]
    assert [link.per_s, link.spread, link.repeats] == pytest.approx([400e6, 0.05, PARTS])
    assert link.how == {"streams": 2, "seconds": 0.4}
    assert link.streams == {"b": pytest.approx(100e6), "c": pytest.approx(300e6)}


def test_reading_has_the_number_of_connections() -> None:
    """Two workers on one host have two connections, so that the fan has three streams of two hosts."""
    found = make_answers([0, 1, 1, 2])
    found.receive(make_stream(0, 1, 0, *[2e8] * PARTS))
    found.receive(make_stream(0, 2, 0, *[1e8] * PARTS))
    link = found.collect_probes(4.0).links["*>a"]
    assert link.how == {"streams": 3, "seconds": 0.4}
    assert link.streams.keys() == {"b", "c"}


def test_fan_without_one_stream_is_unknown() -> None:
    """A fan with a failed or missing stream, or without any bytes, is unknown with the reason."""
    found = make_probes(
        make_stream(0, 1, 0, *[1e8] * PARTS), make_stream(0, 2, 0, error="refused"), make_stream(1, 0, 1, *[0.0] * PARTS)
    )
    assert found.links == {}
    assert found.unknown == {"*>a": "c>a: refused", "a>*": "a>c: it was not measured"}
    nothing = make_probes(make_stream(1, 0, 1, *[0.0] * PARTS), make_stream(1, 0, 2, *[0.0] * PARTS))
    assert nothing.unknown["a>*"] == "nothing went through for 0.4 s"


def test_lost_host_keeps_its_readings() -> None:
    """A host that is lost during a probe keeps its readings, and it and its links have the reason."""
    found = make_answers()
    found.receive(make_reading(1))
    found.lose(1, "no answer within 10 s")
    probes = found.collect_probes(1.0)
    assert probes.hosts["b"].readings.keys() == {"core.matmul"}
    assert probes.unknown["b"] == "no answer within 10 s"
    assert probes.unknown["*>a"] == "b>a: no answer within 10 s"


LIES: Mapping[str, list[ForwardedMessage]] = {
    "of a GPU that it has not": [make_reading(name="gpu.1.matmul")],
    "of an unknown capacity": [make_reading(name="friendliness")],
    "of a link as its own": [make_reading(name="link")],
    "twice": [make_reading(), make_reading()],
    "twice what limits it": [make_facts(), make_facts()],
    "of a round that is none": [make_stream(7, 0, 1, *[1e8] * PARTS)],
    "of another's stream": [make_stream(0, 0, 1, *[1e8] * PARTS)],
    "of a stream twice": [make_stream(1, 0, 1, *[1e8] * PARTS)] * 2,
    "of too few parts": [make_stream(1, 0, 1, 1e8)],
}


@pytest.mark.parametrize("lie", LIES)
def test_unrequested_message_is_refused(lie: str) -> None:
    """A message that was not requested, or sent twice, is refused. The host then loses its readings and all of its streams."""
    found = make_answers()
    found.receive(make_stream(0, 1, 0, *[1e8] * PARTS))
    found.receive(make_reading(1))
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
