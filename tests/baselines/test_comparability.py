"""Parts of a fingerprint that must match, that are noted, and that are ignored."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from pytest_dtfperf.baselines.comparability import describe_notes, list_forbidden_differences, list_host_differences
from pytest_dtfperf.datamodel.fingerprint import Fingerprint, HostLoad

HOST = {"cpu": "AMD EPYC", "cpu_kind": "family 25, model 1", "cores": 4, "memory_gib": 64, "gpus": []}
STORED: Mapping[str, Mapping[str, Any]] = {
    "hardware": {**HOST, "interconnect": "InfiniBand 100 Gb/s"},
    "software": {"tensorflow": "2.20.0", "cuda": "12.5.82", "kernel": "6.1", "driver": "535.104", "python": "3.11.2"},
    "program": {
        "graph": "0123456789ab",
        "operations": {"Conv2D": 94, "MatMul": 2, "Relu": 94},
        "settings": {"ps": {"inter_op_parallelism_threads": "2"}, "worker": {"inter_op_parallelism_threads": "2"}},
    },
    "state": {"load": 0.1, "governor": "performance"},
}
THEN = Fingerprint.from_json(STORED)


def change_parts(**parts: Mapping[str, Any]) -> Fingerprint:
    return Fingerprint.from_json({name: {**part, **parts.get(name, {})} for name, part in STORED.items()})


CHANGES: dict[str, tuple[Fingerprint, list[str], list[str]]] = {
    "nothing": (change_parts(), [], []),
    "cores": (change_parts(hardware={"cores": 2}), ["cores: 4 before, 2 after"], []),
    "a slower link": (
        change_parts(hardware={"interconnect": "Ethernet 10 Gb/s"}),
        ["interconnect: InfiniBand 100 Gb/s before, Ethernet 10 Gb/s after"],
        [],
    ),
    "a link that is not known any more": (
        change_parts(hardware={"interconnect": None}),
        [],
        ["interconnect InfiniBand 100 Gb/s -> unknown"],
    ),
    "another kind of CPU under the same name": (
        change_parts(hardware={"cpu_kind": "family 26, model 2"}),
        ["kind of CPU: family 25, model 1 before, family 26, model 2 after"],
        [],
    ),
    "a kind of CPU that is not known any more": (
        change_parts(hardware={"cpu_kind": None}),
        [],
        ["kind of CPU family 25, model 1 -> unknown"],
    ),
    "a little less memory": (change_parts(hardware={"memory_gib": 62}), [], ["memory 64 GiB -> 62 GiB"]),
    "much less memory": (change_parts(hardware={"memory_gib": 32}), ["memory: 64 GiB before, 32 GiB after"], []),
    "a minor version": (change_parts(software={"tensorflow": "2.21.0"}), [], ["tensorflow 2.20.0 -> 2.21.0"]),
    "a major version": (
        change_parts(software={"tensorflow": "3.0.0"}),
        ["tensorflow: 2.x before, 3.x after"],
        ["tensorflow 2.20.0 -> 3.0.0"],
    ),
    "hosts with two major versions": (
        change_parts(software={"tensorflow": "1.15.5 | 2.20.0"}),
        ["tensorflow: 2.x before, 1.x | 2.x after"],
        ["tensorflow 2.20.0 -> 1.15.5 | 2.20.0"],
    ),
    "hosts with two minor versions": (
        change_parts(software={"tensorflow": "2.19.1 | 2.20.0"}),
        [],
        ["tensorflow 2.20.0 -> 2.19.1 | 2.20.0"],
    ),
    "CUDA's major version": (
        change_parts(software={"cuda": "13.0.1"}),
        ["cuda: 12.x before, 13.x after"],
        ["cuda 12.5.82 -> 13.0.1"],
    ),
    "a TensorFlow that is not known": (change_parts(software={"tensorflow": None}), [], ["tensorflow 2.20.0 -> none"]),
    "a kernel and a driver": (
        change_parts(software={"kernel": "7.0", "driver": "580.1"}),
        [],
        ["driver 535.104 -> 580.1", "kernel 6.1 -> 7.0"],
    ),
    "other kernels": (
        change_parts(program={"graph": "ba9876543210", "operations": {"Conv2D": 58, "MatMul": 38, "Relu": 94}}),
        ["training graph: 36 Conv2D less, 36 MatMul more"],
        [],
    ),
    "another optimizer": (
        change_parts(program={"graph": "ba9876543210", "operations": {f"Op{i}": i for i in range(2, 9)}}),
        ["training graph: 94 Conv2D less, 94 Relu less, 8 Op8 more, 7 Op7 more, 6 Op6 more, 5 Op5 more, and 4 kinds more"],
        [],
    ),
    "another stride": (
        change_parts(program={"graph": "ba9876543210"}),
        ["training graph: the same operations, with other attributes or connections"],
        [],
    ),
    "fewer threads": (
        change_parts(program={"settings": {"ps": {"inter_op_parallelism_threads": "2"}, "worker": {"TF_XLA_FLAGS": "--x"}}}),
        [
            "TF_XLA_FLAGS of worker tasks: unset before, --x after",
            "inter_op_parallelism_threads of worker tasks: 2 before, unset after",
        ],
        [],
    ),
}


@pytest.mark.parametrize("now, refused, shown", CHANGES.values(), ids=CHANGES)
def test_change_is_refused_noted_or_ignored(now: Fingerprint, refused: list[str], shown: list[str]) -> None:
    """A changed part forbids the comparison, is noted or is ignored; a message has both values."""
    assert list_forbidden_differences(THEN, now) == refused
    assert describe_notes(THEN, now) == shown


@pytest.mark.parametrize("part", ["program", "state"])
def test_missing_part_forbids_nothing(part: str) -> None:
    """A fingerprint without a program or state is comparable; a missing program is noted."""
    then = Fingerprint.from_json({name: value for name, value in STORED.items() if name != part})
    assert list_forbidden_differences(then, THEN) == list_forbidden_differences(THEN, then) == []
    assert describe_notes(then, THEN) == (["training program unknown -> graph 0123456789ab"] if part == "program" else [])


def test_other_hosts_ignores_the_graph() -> None:
    """Trainings with different graphs have the same hosts; different cores are other hosts."""
    many = change_parts(program={"graph": "ba9876543210"})
    assert list_host_differences(THEN, many) == []
    assert list_host_differences(THEN, change_parts(hardware={"cores": 2})) == ["cores: 4 before, 2 after"]


WORDS = some.none() | some.text(alphabet="ab |/1.", max_size=6)
GPU = some.fixed_dictionaries({"name": some.sampled_from(["P100", "K80"]), "memory_gib": some.none() | some.integers(0, 99)})
HARDWARE = some.fixed_dictionaries(
    {},
    optional={
        "cpu": WORDS,
        "cpu_kind": WORDS,
        "cores": some.none() | some.integers(1, 9),
        "cpu_devices": some.none() | some.integers(1, 9),
        "memory_gib": some.none() | some.integers(0, 99),
        "interconnect": WORDS,
        "gpus": some.lists(GPU, max_size=3),
        "cloud": some.dictionaries(some.sampled_from(["zone", "type"]), WORDS),
    },
)
SOFTWARE = some.dictionaries(some.sampled_from(["tensorflow", "cuda", "python", "kernel", "driver"]), WORDS)
HASH = some.sampled_from(["0123456789ab", "ba9876543210"])
PROGRAM = some.fixed_dictionaries(
    {},
    optional={
        "graph": HASH,
        "operations": some.dictionaries(some.sampled_from(["Conv2D", "MatMul"]), some.integers(1, 9)),
        "settings": some.dictionaries(
            some.sampled_from(["ps", "worker"]), some.dictionaries(some.text(max_size=2), some.text())
        ),
    },
)
STATE = some.builds(HostLoad, load=some.none() | some.floats(0, 99), governor=WORDS)
JSON = some.fixed_dictionaries({}, optional={"hardware": HARDWARE, "software": SOFTWARE, "program": PROGRAM})
FINGERPRINT = JSON.map(Fingerprint.from_json)
few = settings(max_examples=30, deadline=None, derandomize=True)


@few
@given(FINGERPRINT, FINGERPRINT, STATE, STATE)
def test_state_of_hosts_is_ignored(then: Fingerprint, now: Fingerprint, one: HostLoad, other: HostLoad) -> None:
    """The state of the hosts does not affect the comparison."""
    assert list_forbidden_differences(replace(then, state=one), replace(now, state=other)) == list_forbidden_differences(
        then, now
    )
    assert describe_notes(replace(then, state=one), replace(now, state=other)) == describe_notes(then, now)


@few
@given(JSON, JSON)
def test_order_of_keys_is_ignored(then: dict[str, Any], now: dict[str, Any]) -> None:
    """The order of keys does not affect the comparison."""
    one, other = Fingerprint.from_json(then), Fingerprint.from_json(now)
    reversed_one, reversed_other = Fingerprint.from_json(_reverse_keys(then)), Fingerprint.from_json(_reverse_keys(now))
    assert list_forbidden_differences(reversed_one, reversed_other) == list_forbidden_differences(one, other)
    assert describe_notes(reversed_one, reversed_other) == describe_notes(one, other)


@few
@given(FINGERPRINT)
def test_identical_fingerprints_have_no_differences(fingerprint: Fingerprint) -> None:
    """A fingerprint has no differences from itself."""
    assert list_forbidden_differences(fingerprint, fingerprint) == describe_notes(fingerprint, fingerprint) == []


@few
@given(FINGERPRINT, FINGERPRINT)
def test_comparability_is_symmetric(then: Fingerprint, now: Fingerprint) -> None:
    """Two fingerprints are comparable or not in either order."""
    assert bool(list_forbidden_differences(then, now)) == bool(list_forbidden_differences(now, then))


def _reverse_keys(fingerprint: Any) -> Any:
    if not isinstance(fingerprint, dict):
        return fingerprint
    return {key: _reverse_keys(value) for key, value in reversed(fingerprint.items())}


@few
@given(FINGERPRINT)
def test_fingerprint_survives_json(fingerprint: Fingerprint) -> None:
    """A fingerprint is read as it was written: zeros stay zeros, and unknown values stay unknown."""
    assert Fingerprint.from_json(fingerprint.to_json()) == fingerprint
