"""Whose probes a measurement's limit rests on."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from pytest_dtfperf.baselines.entry import Entry
from pytest_dtfperf.datamodel.measurement import Measurement
from pytest_dtfperf.datamodel.probes import Probes
from pytest_dtfperf.session.post_analysis import compute_limit
from tests.baselines.examples import HARDWARE, SOFTWARE, entry_of, measurement_of
from tests.explain.probed import G, of_hosts, reading


def on_two_cores(hardware: Mapping[str, Any] = HARDWARE, **changes: Any) -> Measurement:
    """Of one task, which knows where it was."""
    found = measurement_of([100.0], hardware=dict(hardware), num_ps=0, variable_update="replicated", **changes)
    return replace(found, runs=[replace(found.runs[0], task_hosts={"worker:0": "host0"}, task_threads={"worker:0": 2})])


def with_probes(per_s: float, hardware: Mapping[str, Any] = HARDWARE) -> Entry:
    entry = entry_of([100.0, 101.0], hardware=dict(hardware), num_ps=0, variable_update="replicated")
    probes = of_hosts(host0={"core.matmul": reading(per_s), "cores.matmul": reading(2 * per_s)})
    return replace(entry, probes=probes)


def test_what_was_probed_with_its_baseline_counts() -> None:
    """A session that has probed nothing takes what its hosts could do when the baseline was accepted."""
    slow, fast = (compute_limit(on_two_cores(), with_probes(per_s), Probes()) for per_s in (G, 4 * G))
    assert slow
    assert fast
    assert fast.images_per_sec == pytest.approx(4 * (slow.images_per_sec or 0))


FASTER_LINK = {**HARDWARE, "interconnect": "Ethernet 100 Gb/s"}
OTHERS = {
    "another link": (on_two_cores(FASTER_LINK), {**HARDWARE, "interconnect": "Ethernet 10 Gb/s"}),
    "another machine of a cloud": (on_two_cores({**HARDWARE, "cloud": {"type": "c5.large"}}), HARDWARE),
    "another TensorFlow": (on_two_cores(software={**SOFTWARE, "tensorflow": "3.0.0"}), HARDWARE),
}


def test_devices_are_those_that_workers_had() -> None:
    """Two devices of one worker have twice the arithmetic of one each, on the cores of that worker alone."""
    one = on_two_cores()
    even, uneven = (
        replace(one, runs=[replace(one.runs[0], task_hosts=hosts, task_threads=dict.fromkeys(hosts, 1), task_devices=devices)])
        for hosts in [{"worker:0": "host0", "worker:1": "host1"}]
        for devices in ({"worker:0": 1, "worker:1": 1}, {"worker:0": 2})
    )
    limits = [compute_limit(each, with_probes(G), Probes()) for each in (even, uneven)]
    assert limits[0]
    assert limits[1]
    assert limits[0].images_per_sec == pytest.approx(2 * (limits[1].images_per_sec or 0))


@pytest.mark.parametrize("case", OTHERS)
def test_what_other_hosts_could_do_does_not(case: str) -> None:
    """A baseline of other hosts, with which the verdict is INCOMPARABLE, says nothing of what these allow."""
    now, hardware = OTHERS[case]
    found = compute_limit(now, with_probes(G, hardware), Probes())
    assert found
    assert found.images_per_sec is None
    assert not found.bounds
    assert found.unknown["cores"] == "host0 was not probed"
