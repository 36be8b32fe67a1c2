"""What hosts and links can do less than before, of two accounts of them."""

import json
from collections.abc import Mapping

import pytest

from pytest_dtfperf.datamodel.probes import HostProbe, Probes
from pytest_dtfperf.explain.host_pressure import find_host_pressures
from pytest_dtfperf.explain.measurement_profile import MeasurementProfile
from pytest_dtfperf.explain.probes import ChangedLimit, describe_reading, find_limits, find_slower, merge_probes, unit_of
from tests.explain.probed import CORE, FULL, G, link, of_hosts, reading

# before, now, what is slower: (location, name, loss)
CASES: Mapping[str, tuple[Probes, Probes, list[tuple[str, str, float]]]] = {
    "nothing known": (Probes(), Probes(), []),
    "nothing known before": (Probes(), of_hosts(a={CORE: reading(40 * G)}), []),
    "as before": (of_hosts(a={CORE: reading(40 * G)}), of_hosts(a={CORE: reading(40 * G)}), []),
    "faster": (of_hosts(a={CORE: reading(40 * G)}), of_hosts(a={CORE: reading(80 * G)}), []),
    "less than what sessions differ by": (of_hosts(a={CORE: reading(40 * G)}), of_hosts(a={CORE: reading(39 * G)}), []),
    "a tenth less": (of_hosts(a={CORE: reading(40 * G)}), of_hosts(a={CORE: reading(36 * G)}), [("a", CORE, 0.1)]),
    "a tenth less, of what scatters by more": (
        of_hosts(a={CORE: reading(40 * G, 0.02)}),
        of_hosts(a={CORE: reading(36 * G, 0.09)}),
        [],
    ),
    "one of two hosts": (
        of_hosts(a={CORE: reading(40 * G)}, b={CORE: reading(40 * G)}),
        of_hosts(a={CORE: reading(40 * G)}, b={CORE: reading(20 * G)}),
        [("b", CORE, 0.5)],
    ),
    "another number of cores": (
        of_hosts(a={"cores.matmul": reading(80 * G, threads=2)}),
        of_hosts(a={"cores.matmul": reading(40 * G, threads=1)}),
        [],
    ),
    "another size": (of_hosts(a={"memory": reading(9 * G, bytes=1)}), of_hosts(a={"memory": reading(3 * G, bytes=2)}), []),
    "another host of the same kind": (
        of_hosts(a={CORE: reading(40 * G)}, b={CORE: reading(41 * G)}),
        of_hosts(c={CORE: reading(30 * G)}),
        [("c", CORE, 1 - 30 / 40.5)],
    ),
    "another host, where hosts differ by as much": (
        of_hosts(a={CORE: reading(28 * G)}, b={CORE: reading(52 * G)}),
        of_hosts(c={CORE: reading(30 * G)}),
        [],
    ),
    "the largest loss first": (
        of_hosts(a={CORE: reading(40 * G), "memory": reading(10 * G)}),
        of_hosts(a={CORE: reading(30 * G), "memory": reading(2 * G)}),
        [("a", "memory", 0.8), ("a", CORE, 0.25)],
    ),
    "a link": (Probes(links={"a>b": link(1 * G)}), Probes(links={"a>b": link(0.5 * G)}), [("a>b", "link", 0.5)]),
    "a link, by little": (Probes(links={"a>b": link(1 * G)}), Probes(links={"a>b": link(0.93 * G)}), []),
    "the other direction": (Probes(links={"a>b": link(1 * G)}), Probes(links={"b>a": link(0.5 * G)}), [("b>a", "link", 0.5)]),
    "fan-in is not held against fan-out": (Probes(links={"a>*": link(1 * G)}), Probes(links={"*>a": link(0.5 * G)}), []),
    "fan-in of another host": (
        Probes(links={"*>a": link(1 * G, streams_at_once=2)}),
        Probes(links={"*>c": link(0.5 * G, streams_at_once=2)}),
        [("*>c", "link", 0.5)],
    ),
    "fan-in of fewer": (
        Probes(links={"*>a": link(1 * G, streams_at_once=3)}),
        Probes(links={"*>a": link(0.5 * G, streams_at_once=1)}),
        [],
    ),
    "one of several, whose part others have taken": (
        Probes(links={"*>a": link(1 * G, streams={"b": 0.5 * G, "c": 0.5 * G})}),
        Probes(links={"*>a": link(1 * G, streams={"b": 0.95 * G, "c": 0.05 * G})}),
        [("c>a", "link", 0.9)],
    ),
    "one of several, which was measured alone, too": (
        Probes(links={"*>a": link(1 * G, streams={"b": 0.5 * G, "c": 0.5 * G}), "c>a": link(1 * G)}),
        Probes(links={"*>a": link(1 * G, streams={"b": 0.95 * G, "c": 0.05 * G}), "c>a": link(0.05 * G)}),
        [("c>a", "link", 0.95)],
    ),
    "a fan of one": (
        Probes(links={"*>a": link(1 * G, streams={"b": 1 * G})}),
        Probes(links={"*>a": link(0.1 * G, streams={"b": 0.1 * G})}),
        [("*>a", "link", 0.9)],
    ),
    "parts that are shared differently": (
        Probes(links={"a>*": link(1 * G, streams={"b": 0.5 * G, "c": 0.5 * G})}),
        Probes(links={"a>*": link(1 * G, streams={"b": 0.7 * G, "c": 0.3 * G})}),
        [],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_differences(case: str) -> None:
    """What is slower, where, and by how much; like is compared with like alone."""
    before, now, expected = CASES[case]
    found = [(each.location, each.name, pytest.approx(each.loss)) for each in find_slower(before, now)]
    assert found == [tuple(each) for each in expected]


def test_a_part_of_a_fan_is_held_against_its_own_part() -> None:
    """Of several streams one has lost nine tenths of what it had, and is not said to be slower than all were together."""
    before = Probes(links={"*>a": link(1 * G, streams={"b": 0.5 * G, "c": 0.5 * G})})
    now = Probes(links={"*>a": link(1 * G, streams={"b": 0.95 * G, "c": 0.05 * G})})
    (found,) = find_host_pressures(MeasurementProfile(probes=before), MeasurementProfile(probes=now))
    assert (found.hosts, found.kind) == (["c", "a"], "link")
    assert found.words == "c>a: the link 90 % slower than its part of *>a was, when probed"


def test_threshold_is_what_the_repeats_scatter_by() -> None:
    """A loss is told with what chance could explain: both spreads, and never less than two sessions differ by."""
    before, now = of_hosts(a={CORE: reading(40 * G, 0.04)}), of_hosts(a={CORE: reading(30 * G, 0.07)})
    steady = of_hosts(a={CORE: reading(40 * G, 0.0)})
    assert find_slower(before, now)[0].threshold == pytest.approx(0.11)
    assert find_slower(steady, of_hosts(a={CORE: reading(30 * G, 0.0)}))[0].threshold == pytest.approx(0.05)


def test_limits() -> None:
    """Limits that are new or tighter are told, those that have gone or are wider are not."""
    before = Probes(hosts={"a": HostProbe(limits={"cpu_quota_cores": 4.0, "open_files": 1024, "governor": "performance"})})
    now = Probes(
        hosts={
            "a": HostProbe(limits={"cpu_quota_cores": 2.0, "open_files": 4096, "governor": "powersave", "processes": 50}),
            "b": HostProbe(limits={"cpu_quota_cores": 1.0}),
        }
    )
    assert find_limits(before, now) == [
        ChangedLimit("a", "cpu_quota_cores", 4.0, 2.0),
        ChangedLimit("a", "governor", "performance", "powersave"),
        ChangedLimit("a", "processes", None, 50),
    ]


@pytest.mark.parametrize(
    ("then", "now", "told"),
    [
        ({}, {"priority": 5}, []),
        ({}, {"priority": -5}, [ChangedLimit("a", "priority", 0, -5)]),
        ({"priority": 5}, {}, [ChangedLimit("a", "priority", 5, 0)]),
    ],
    ids=["raised", "lowered", "usual again"],
)
def test_usual_priority_is_no_limit(then: dict[str, float], now: dict[str, float], told: list[ChangedLimit]) -> None:
    """A priority that is not told is the usual one: a higher one takes nothing from a training."""
    before, after = (Probes(hosts={"a": HostProbe(limits={"cores": 2, **each})}) for each in (then, now))
    assert find_limits(before, after) == told


def test_a_limit_in_a_baselines_six_digits_is_the_same() -> None:
    """A quota of 12.34567 cores is 12.3457 in a baseline, and has not become less."""
    before, now = (Probes(hosts={"a": HostProbe(limits={"cpu_quota_cores": cores})}) for cores in (12.3457, 12.34567))
    assert find_limits(before, now) == []


def test_limits_that_were_not_told_are_not_unlimited() -> None:
    """A host that was lost before it told what limits it had them all the same; a later probe of it that was cut loses none."""
    told = Probes(hosts={"a": HostProbe(limits={"cores": 4, "cpu_quota_cores": 2.0}, most_clock_hz=3e9)})
    lost = Probes(hosts={"a": HostProbe(readings={CORE: reading(40 * G)})})
    assert find_limits(lost, told) == []
    assert merge_probes(told, lost).hosts["a"] == HostProbe(
        readings={CORE: reading(40 * G)}, limits={"cores": 4, "cpu_quota_cores": 2.0}, most_clock_hz=3e9
    )


@pytest.mark.parametrize(
    "name, words, unit",
    [
        ("core.matmul", "matrix products on one core", "FLOP/s"),
        ("cores.convolution", "convolutions on all cores", "FLOP/s"),
        ("gpu.3.matmul", "matrix products on GPU 3", "FLOP/s"),
        ("memory", "copying in memory", "bytes/s"),
        ("input", "reading and decoding of the input", "images/s"),
        ("of a later version", "of a later version", ""),
    ],
)
def test_words(name: str, words: str, unit: str) -> None:
    """Every reading has words for people, and a unit."""
    assert (describe_reading(name), unit_of(name)) == (words, unit)


def test_as_json_and_back() -> None:
    """An account is the same after it was written down and read."""
    assert Probes.from_json(json.loads(json.dumps(FULL.to_json()))) == FULL
