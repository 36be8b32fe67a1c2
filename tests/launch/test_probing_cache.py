"""Tests of readings of an earlier session: used while they are valid, and measured again otherwise."""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_dtfperf.clusters import answer_cache
from pytest_dtfperf.clusters.placement import HostView
from pytest_dtfperf.datamodel.probes import HostProbe, Probes
from pytest_dtfperf.explain.probes import select_missing_probes
from pytest_dtfperf.launch.probing import MAX_AGE_S, load_probes, store_probes
from tests.explain.probed import G, make_link, make_reading
from tests.launch.stage import CONFIG

HOST = HostView("n1", "10.0.0.1", (0, 1), boot="b1")
OTHER = HostView("n2", "10.0.0.2", (0, 1), boot="b2")
PROBE = HostProbe(readings={"core.matmul": make_reading(G), "input": make_reading(100.0)}, others_cores=0.0)
LINKS = {"*>n1": make_link(1e8)}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_next_session_has_stored_hosts_and_links() -> None:
    """Stored hosts and links are loaded, without the rate of the input, which belongs to one data set."""
    store_probes(CONFIG, [HOST, OTHER], Probes(hosts={"n1": PROBE, "n2": PROBE}, links=LINKS))
    found = load_probes(CONFIG, [HOST, OTHER])
    assert found.hosts["n1"].readings == {"core.matmul": make_reading(G)}
    assert found.hosts.keys() == {"n1", "n2"}
    assert found.links == LINKS


@pytest.mark.parametrize(
    "host",
    [
        replace(HOST, boot="b9"),
        replace(HOST, cpus=(0,)),
        replace(HOST, gpus=("0",)),
        replace(HOST, name="n3"),
        replace(HOST, boot=""),
    ],
    ids=["restarted", "fewer cores", "a GPU more", "another host", "no boot id"],
)
def test_changed_host_is_unknown(host: HostView) -> None:
    """After a restart, or with other cores or GPUs, a host has no stored readings."""
    store_probes(CONFIG, [HOST], Probes(hosts={"n1": PROBE}, links=LINKS))
    assert load_probes(CONFIG, [host]).hosts == {}


def test_other_python_has_no_stored_readings() -> None:
    """Another Python has no stored readings."""
    store_probes(CONFIG, [HOST], Probes(hosts={"n1": PROBE}))
    assert load_probes(replace(CONFIG, python="/opt/other/bin/python"), [HOST]).hosts == {}


@pytest.mark.parametrize(
    "probe",
    [replace(PROBE, others_cores=0.5), replace(PROBE, unknown={"memory": "no room"})],
    ids=["other processes", "incomplete"],
)
def test_disturbed_readings_are_not_stored(probe: HostProbe) -> None:
    """Readings beside other processes, and incomplete ones, are not stored."""
    store_probes(CONFIG, [HOST], Probes(hosts={"n1": probe}, links=LINKS))
    assert load_probes(CONFIG, [HOST]) == Probes()


def test_each_link_has_its_own_age(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later measurement of another link does not change the age of a stored one."""
    now = time.time()
    store_probes(CONFIG, [HOST, OTHER], Probes(links={"*>n1": make_link(1e8)}))
    monkeypatch.setattr(time, "time", lambda: now + MAX_AGE_S / 2)
    store_probes(CONFIG, [HOST, OTHER], Probes(links={"*>n2": make_link(2e8)}))
    assert load_probes(CONFIG, [HOST, OTHER]).links.keys() == {"*>n1", "*>n2"}
    monkeypatch.setattr(time, "time", lambda: now + MAX_AGE_S + 60)
    assert load_probes(CONFIG, [HOST, OTHER]).links == {"*>n2": make_link(2e8)}


def test_link_with_a_time_in_the_future_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reading of a link from before the clock was set back is unknown, as its age is."""
    kept = {"*>n1": {"at": time.time() + MAX_AGE_S, "link": make_link(1e8).to_json()}}
    monkeypatch.setattr(answer_cache, "load", lambda *_, **__: kept)
    assert load_probes(CONFIG, [HOST, OTHER]).links == {}


def test_only_new_readings_are_stored() -> None:
    """Readings that were known before a probe are not stored again."""
    known = Probes(hosts={"n1": PROBE}, links=LINKS)
    found = Probes(hosts={"n1": PROBE, "n2": PROBE}, links={**LINKS, "*>n2": make_link(2e8)})
    assert select_missing_probes(found, known) == Probes(hosts={"n2": PROBE}, links={"*>n2": make_link(2e8)})


def test_link_that_was_measured_again_is_stored() -> None:
    """A link with another reading than the known one is stored."""
    found = Probes(links={name: make_link(3e8) for name in LINKS})
    assert select_missing_probes(found, Probes(links=LINKS)) == found


def test_old_or_invalid_readings_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Old readings, and readings of another format, are unknown."""
    store_probes(CONFIG, [HOST], Probes(hosts={"n1": PROBE}))
    monkeypatch.setattr(time, "time", lambda: 4e9)
    assert load_probes(CONFIG, [HOST]) == Probes()
    monkeypatch.undo()
    monkeypatch.setattr(answer_cache, "load", lambda *_, **__: {"n1": 5})
    assert load_probes(CONFIG, [HOST]) == Probes()
