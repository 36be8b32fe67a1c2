"""Tests of what became slower between two probes of hosts and links."""

import json
from collections.abc import Mapping

import pytest

from pytest_dtfperf.datamodel.probes import HostProbe, Probes
from pytest_dtfperf.explain.host_pressure import find_host_pressures
from pytest_dtfperf.explain.measurement_profile import MeasurementProfile
from pytest_dtfperf.explain.probes import ChangedLimit, describe_reading, find_limits, find_slower, merge_probes, unit_of
from tests.explain.probed import CORE, FULL, G, make_link, make_probes, make_reading

# before, after, what is slower: (location, name, loss)
CASES: Mapping[str, tuple[Probes, Probes, list[tuple[str, str, float]]]] = {
    "nothing known": (Probes(), Probes(), []),
    "nothing known before": (Probes(), make_probes(a={CORE: make_reading(40 * G)}), []),
    "as before": (make_probes(a={CORE: make_reading(40 * G)}), make_probes(a={CORE: make_reading(40 * G)}), []),
    "faster": (make_probes(a={CORE: make_reading(40 * G)}), make_probes(a={CORE: make_reading(80 * G)}), []),
    "less than what sessions differ by": (
        make_probes(a={CORE: make_reading(40 * G)}),
        make_probes(a={CORE: make_reading(39 * G)}),
        [],
    ),
    "a tenth less": (
        make_probes(a={CORE: make_reading(40 * G)}),
        make_probes(a={CORE: make_reading(36 * G)}),
        [("a", CORE, 0.1)],
    ),
    "a tenth less, of what scatters by more": (
        make_probes(a={CORE: make_reading(40 * G, 0.02)}),
        make_probes(a={CORE: make_reading(36 * G, 0.09)}),
        [],
    ),
    "one of two hosts": (
        make_probes(a={CORE: make_reading(40 * G)}, b={CORE: make_reading(40 * G)}),
        make_probes(a={CORE: make_reading(40 * G)}, b={CORE: make_reading(20 * G)}),
        [("b", CORE, 0.5)],
    ),
    "another number of cores": (
        make_probes(a={"cores.matmul": make_reading(80 * G, threads=2)}),
        make_probes(a={"cores.matmul": make_reading(40 * G, threads=1)}),
        [],
    ),
    "another size": (
        make_probes(a={"memory": make_reading(9 * G, bytes=1)}),
        make_probes(a={"memory": make_reading(3 * G, bytes=2)}),
        [],
    ),
    "another host of the same kind": (
        make_probes(a={CORE: make_reading(40 * G)}, b={CORE: make_reading(41 * G)}),
        make_probes(c={CORE: make_reading(30 * G)}),
        [("c", CORE, 1 - 30 / 40.5)],
    ),
    "another host, where hosts differ by as much": (
        make_probes(a={CORE: make_reading(28 * G)}, b={CORE: make_reading(52 * G)}),
        make_probes(c={CORE: make_reading(30 * G)}),
        [],
    ),
    "the largest loss first": (
        make_probes(a={CORE: make_reading(40 * G), "memory": make_reading(10 * G)}),
        make_probes(a={CORE: make_reading(30 * G), "memory": make_reading(2 * G)}),
        [("a", "memory", 0.8), ("a", CORE, 0.25)],
    ),
    "a link": (Probes(links={"a>b": make_link(1 * G)}), Probes(links={"a>b": make_link(0.5 * G)}), [("a>b", "link", 0.5)]),
    "a link, by little": (Probes(links={"a>b": make_link(1 * G)}), Probes(links={"a>b": make_link(0.93 * G)}), []),
    "the other direction": (
        Probes(links={"a>b": make_link(1 * G)}),
        Probes(links={"b>a": make_link(0.5 * G)}),
        [("b>a", "link", 0.5)],
    ),
    "fan-in is not held against fan-out": (
        Probes(links={"a>*": make_link(1 * G)}),
        Probes(links={"*>a": make_link(0.5 * G)}),
        [],
    ),
    "fan-in of another host": (
        Probes(links={"*>a": make_link(1 * G, streams_at_once=2)}),
        Probes(links={"*>c": make_link(0.5 * G, streams_at_once=2)}),
        [("*>c", "link", 0.5)],
    ),
    "fan-in of fewer": (
        Probes(links={"*>a": make_link(1 * G, streams_at_once=3)}),
        Probes(links={"*>a": make_link(0.5 * G, streams_at_once=1)}),
        [],
    ),
    "one of several, whose part others have taken": (
        Probes(links={"*>a": make_link(1 * G, streams={"b": 0.5 * G, "c": 0.5 * G})}),
        Probes(links={"*>a": make_link(1 * G, streams={"b": 0.95 * G, "c": 0.05 * G})}),
        [("c>a", "link", 0.9)],
    ),
    "one of several, which was measured alone, too": (
        Probes(links={"*>a": make_link(1 * G, streams={"b": 0.5 * G, "c": 0.5 * G}), "c>a": make_link(1 * G)}),
        Probes(links={"*>a": make_link(1 * G, streams={"b": 0.95 * G, "c": 0.05 * G}), "c>a": make_link(0.05 * G)}),
        [("c>a", "link", 0.95)],
    ),
    "a fan of one": (
        Probes(links={"*>a": make_link(1 * G, streams={"b": 1 * G})}),
        Probes(links={"*>a": make_link(0.1 * G, streams={"b": 0.1 * G})}),
        [("*>a", "link", 0.9)],
    ),
    "parts that are shared differently": (
        Probes(links={"a>*": make_link(1 * G, streams={"b": 0.5 * G, "c": 0.5 * G})}),
        Probes(links={"a>*": make_link(1 * G, streams={"b": 0.7 * G, "c": 0.3 * G})}),
        [],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_slower_readings_are_found(case: str) -> None:
    """Slower readings are found with location, name and loss, and only equal measurements are compared."""
    before, after, expected = CASES[case]
    found = [(each.location, each.name, pytest.approx(each.loss)) for each in find_slower(before, after)]
    assert found == [tuple(each) for each in expected]


def test_stream_is_compared_with_its_own_part() -> None:
    """One of several streams is compared with its own earlier rate, not with the rate of all together."""
    before = Probes(links={"*>a": make_link(1 * G, streams={"b": 0.5 * G, "c": 0.5 * G})})
    after = Probes(links={"*>a": make_link(1 * G, streams={"b": 0.95 * G, "c": 0.05 * G})})
    (found,) = find_host_pressures(MeasurementProfile(probes=before), MeasurementProfile(probes=after))
    assert (found.hosts, found.kind) == (["c", "a"], "link")
    assert found.words == "c>a: the link 90 % slower than its part of *>a was, when probed"


def test_threshold_adds_up_the_spreads() -> None:
    """The threshold of a loss is the sum of both spreads, and at least 5 %."""
    before, after = make_probes(a={CORE: make_reading(40 * G, 0.04)}), make_probes(a={CORE: make_reading(30 * G, 0.07)})
    steady = make_probes(a={CORE: make_reading(40 * G, 0.0)})
    assert find_slower(before, after)[0].threshold == pytest.approx(0.11)
    assert find_slower(steady, make_probes(a={CORE: make_reading(30 * G, 0.0)}))[0].threshold == pytest.approx(0.05)


def test_new_and_tighter_limits_are_found() -> None:
    """New and tighter limits are found, and wider ones are not."""
    before = Probes(hosts={"a": HostProbe(limits={"cpu_quota_cores": 4.0, "open_files": 1024, "governor": "performance"})})
    after = Probes(
        hosts={
            "a": HostProbe(limits={"cpu_quota_cores": 2.0, "open_files": 4096, "governor": "powersave", "processes": 50}),
            "b": HostProbe(limits={"cpu_quota_cores": 1.0}),
        }
    )
    assert find_limits(before, after) == [
        ChangedLimit("a", "cpu_quota_cores", 4.0, 2.0),
        ChangedLimit("a", "governor", "performance", "powersave"),
        ChangedLimit("a", "processes", None, 50),
    ]


@pytest.mark.parametrize(
    ("limits_before", "limits_after", "expected"),
    [
        ({}, {"priority": 5}, []),
        ({}, {"priority": -5}, [ChangedLimit("a", "priority", 0, -5)]),
        ({"priority": 5}, {}, [ChangedLimit("a", "priority", 5, 0)]),
    ],
    ids=["raised", "lowered", "usual again"],
)
def test_default_priority_is_zero(
    limits_before: dict[str, float], limits_after: dict[str, float], expected: list[ChangedLimit]
) -> None:
    """A missing priority is the usual one, and only a lower priority than before is a limit."""
    before, after = (Probes(hosts={"a": HostProbe(limits={"cores": 2, **each})}) for each in (limits_before, limits_after))
    assert find_limits(before, after) == expected


def test_rounded_limit_is_unchanged() -> None:
    """A limit that a baseline rounded to six digits is no change."""
    before, after = (Probes(hosts={"a": HostProbe(limits={"cpu_quota_cores": cores})}) for cores in (12.3457, 12.34567))
    assert find_limits(before, after) == []


def test_unknown_limits_are_not_unlimited() -> None:
    """Limits of a host that was lost before it reported any are no change, and a merge keeps those of an earlier probe."""
    probes = Probes(hosts={"a": HostProbe(limits={"cores": 4, "cpu_quota_cores": 2.0}, most_clock_hz=3e9)})
    lost = Probes(hosts={"a": HostProbe(readings={CORE: make_reading(40 * G)})})
    assert find_limits(lost, probes) == []
    assert merge_probes(probes, lost).hosts["a"] == HostProbe(
        readings={CORE: make_reading(40 * G)}, limits={"cores": 4, "cpu_quota_cores": 2.0}, most_clock_hz=3e9
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
def test_reading_has_description_and_unit(name: str, words: str, unit: str) -> None:
    """Every reading, also an unknown one, has a description and a unit."""
    assert (describe_reading(name), unit_of(name)) == (words, unit)


def test_probes_survive_json() -> None:
    """Probes that were written as JSON and read are the same."""
    assert Probes.from_json(json.loads(json.dumps(FULL.to_json()))) == FULL
