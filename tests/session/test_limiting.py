"""The probes from which a measurement's limit is computed."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from pytest_dtfperf.baselines.entry import Entry
from pytest_dtfperf.datamodel.measurement import Measurement
from pytest_dtfperf.datamodel.probes import Probes
from pytest_dtfperf.session.post_analysis import compute_limit
from tests.baselines.examples import HARDWARE, SOFTWARE, entry_of, measurement_of
from tests.explain.probed import G, make_probes, make_reading


def measure_on_two_cores(hardware: Mapping[str, Any] = HARDWARE, **changes: Any) -> Measurement:
    """Return a measurement of one task on a known host."""
    found = measurement_of([100.0], hardware=dict(hardware), num_ps=0, variable_update="replicated", **changes)
    return replace(found, runs=[replace(found.runs[0], task_hosts={"worker:0": "host0"}, task_threads={"worker:0": 2})])


def make_entry_with_probes(per_s: float, hardware: Mapping[str, Any] = HARDWARE) -> Entry:
    entry = entry_of([100.0, 101.0], hardware=dict(hardware), num_ps=0, variable_update="replicated")
    probes = make_probes(host0={"core.matmul": make_reading(per_s), "cores.matmul": make_reading(2 * per_s)})
    return replace(entry, probes=probes)


def test_limit_uses_probes_of_the_baseline() -> None:
    """Without probes of the session, the limit is computed from those of the baseline."""
    slow, fast = (compute_limit(measure_on_two_cores(), make_entry_with_probes(per_s), Probes()) for per_s in (G, 4 * G))
    assert slow
    assert fast
    assert fast.images_per_sec == pytest.approx(4 * (slow.images_per_sec or 0))


FASTER_LINK = {**HARDWARE, "interconnect": "Ethernet 100 Gb/s"}
OTHERS = {
    "another link": (measure_on_two_cores(FASTER_LINK), {**HARDWARE, "interconnect": "Ethernet 10 Gb/s"}),
    "another machine of a cloud": (measure_on_two_cores({**HARDWARE, "cloud": {"type": "c5.large"}}), HARDWARE),
    "another TensorFlow": (measure_on_two_cores(software={**SOFTWARE, "tensorflow": "3.0.0"}), HARDWARE),
}


def test_limit_depends_on_devices_of_workers() -> None:
    """Two devices on one host have half the limit of one device on each of two hosts."""
    one = measure_on_two_cores()
    even, uneven = (
        replace(one, runs=[replace(one.runs[0], task_hosts=hosts, task_threads=dict.fromkeys(hosts, 1), task_devices=devices)])
        for hosts in [{"worker:0": "host0", "worker:1": "host1"}]
        for devices in ({"worker:0": 1, "worker:1": 1}, {"worker:0": 2})
    )
    limits = [compute_limit(each, make_entry_with_probes(G), Probes()) for each in (even, uneven)]
    assert limits[0]
    assert limits[1]
    assert limits[0].images_per_sec == pytest.approx(2 * (limits[1].images_per_sec or 0))


@pytest.mark.parametrize("case", OTHERS)
def test_limit_ignores_probes_of_other_hosts(case: str) -> None:
    """Probes of a baseline of other hosts are not used."""
    now, hardware = OTHERS[case]
    found = compute_limit(now, make_entry_with_probes(G, hardware), Probes())
    assert found
    assert found.images_per_sec is None
    assert not found.bounds
    assert found.unknown["cores"] == "host0 was not probed"
