import json
import math
import os
import re
import resource
import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import filelock
import pytest

from pytest_dtfperf.baselines.entry import Entry
from pytest_dtfperf.baselines.files import published_folder
from pytest_dtfperf.baselines.references import references
from pytest_dtfperf.baselines.store import BaselineStore
from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.datamodel.fingerprint import Fingerprint, Hardware
from pytest_dtfperf.datamodel.probes import Probes
from pytest_dtfperf.errors import BaselineFileError
from tests.baselines.examples import HARDWARE, entry_of, measurement_of, provenance_of, spec_of
from tests.explain.probed import CORE, FULL, make_link
from tests.forks import PROCESSES

SYSTEM = "cpu-amd-epyc-9b45-2c"


@pytest.fixture
def store(tmp_path: Path) -> BaselineStore:
    return BaselineStore(tmp_path / "baselines")


def file_of(store: BaselineStore) -> Path:
    return store.folder / f"{SYSTEM}.json"


def test_missing_folder_has_no_baselines(store: BaselineStore) -> None:
    """Without a folder nothing is found, and no folder is made."""
    assert store.find(SYSTEM, spec_of()) is None
    assert store.best_num_ps(SYSTEM, spec_of()) is None
    assert store.systems() == []
    assert not store.folder.exists()


def test_stored_entry_is_found(store: BaselineStore) -> None:
    """An entry is found by its spec and system, also by another store."""
    entry = entry_of([100.0, 101.5, 99.25])
    [change] = store.update(SYSTEM, [entry])
    assert (change.old, change.new) == (None, entry)
    assert store.find(SYSTEM, spec_of()) == entry
    assert BaselineStore(store.folder).find(SYSTEM, spec_of(steps=7, seed=1)) == entry
    assert store.find(SYSTEM, spec_of(gpus=4)) is None
    assert store.find("cpu-other-2c", spec_of()) is None
    assert store.systems() == [SYSTEM]


def test_probes_are_stored_with_the_entry(store: BaselineStore) -> None:
    """Probes are stored with their entry, rounded, and stay the same when stored again; they are optional."""
    per_s = FULL.hosts["a"].readings[CORE].per_s
    measured = replace(measurement_of([100.0, 101.0]), probes=FULL)
    entry = Entry.from_measurement(measured, provenance_of())
    store.update(SYSTEM, [entry, entry_of([100.0, 101.0], gpus=4)])
    written = file_of(store).read_bytes()
    stored = BaselineStore(store.folder).find(SYSTEM, spec_of())
    assert stored == entry
    assert (stored.probes or Probes()).hosts["a"].readings[CORE].per_s == pytest.approx(per_s)
    assert [each.probes for each in store.entries(SYSTEM) if each.key == spec_of(gpus=4).key] == [None]
    store.update(SYSTEM, [stored])
    assert file_of(store).read_bytes() == written


def test_probes_of_many_hosts_are_limited(store: BaselineStore) -> None:
    """An entry of 128 hosts has the probes of 32 hosts, and 32 streams of each of their links."""
    names = [f"node{i:03}" for i in range(128)]
    fans = {name: make_link(1e9, streams=dict.fromkeys(names, 1e7)) for host in names for name in (f"*>{host}", f"{host}>*")}
    many = Probes(hosts=dict.fromkeys(names, FULL.hosts["a"]), links=fans)
    stored = Entry.from_measurement(replace(measurement_of([100.0, 101.0]), probes=many), provenance_of())
    store.update(SYSTEM, [stored])
    found = stored.probes or Probes()
    assert list(found.hosts) == names[:32]
    assert (len(found.links), len(found.links["*>node000"].streams)) == (64, 32)
    assert file_of(store).stat().st_size < 150_000


def test_update_changes_only_the_given_entry(store: BaselineStore) -> None:
    """An update of one spec changes no other entry of the file."""
    store.update(SYSTEM, [entry_of([100.0, 101.0], gpus=gpus) for gpus in (1, 2, 4)])
    before = json.loads(file_of(store).read_text())
    [change] = store.update(SYSTEM, [entry_of([120.0, 121.0], gpus=2, date="2026-02-01T00:00:00Z")])
    after = json.loads(file_of(store).read_text())
    assert (change.old and change.old.images_per_sec, change.new.images_per_sec) == (100.5, 120.5)
    changed = [key for key in after["entries"] if after["entries"][key] != before["entries"][key]]
    assert changed == [spec_of(gpus=2).key]
    assert after.keys() == before.keys()


def test_unchanged_entries_leave_the_file_unchanged(store: BaselineStore) -> None:
    """The same entries in any order leave the file byte for byte the same."""
    entries = [entry_of([100.123456789, 1e6 / 3], gpus=gpus) for gpus in (4, 1, 2)]
    store.update(SYSTEM, entries)
    written = file_of(store).read_bytes()
    store.update(SYSTEM, [])
    store.update(SYSTEM, entries[::-1])
    stored = store.find(SYSTEM, spec_of(gpus=4))
    assert stored is not None
    store.update(SYSTEM, [stored])
    assert file_of(store).read_bytes() == written
    assert stored.samples == [100.123, 333333.0]


def test_update_keeps_references(tmp_path: Path) -> None:
    """Measured entries can be added to a file of published references, which stay as they were."""
    path = tmp_path / "piz-daint.json"
    path.write_bytes((published_folder() / "piz-daint.json").read_bytes())
    BaselineStore(tmp_path).update("piz-daint", [entry_of([100.0, 101.0])])
    assert [row.images_per_sec_notebook for row in references(tmp_path)] == [
        row.images_per_sec_notebook for row in references() if row.system == "piz-daint"
    ]
    assert BaselineStore(tmp_path).find("piz-daint", spec_of()) is not None


def test_each_hardware_has_its_own_entry(store: BaselineStore) -> None:
    """Hardware with the same system name has separate entries; unknown hardware finds the latest."""
    small, large = HARDWARE, HARDWARE | {"memory_gib": 64}
    old = entry_of([100.0, 101.0], hardware=small, date="2026-01-01T00:00:00Z")
    new = entry_of([150.0, 151.0], hardware=large, date="2026-02-01T00:00:00Z")
    spread = entry_of([70.0, 71.0], hardware=small, hosts=2, date="2025-01-01T00:00:00Z")
    changes = store.update(SYSTEM, [old, new, spread])
    assert [change.old for change in changes] == [None, None, None]
    assert store.find_for(measurement_of([1.0], hardware=small)) == old
    assert store.find_for(measurement_of([1.0], hardware=large)) == new
    assert store.find_for(measurement_of([1.0], hardware=small, hosts=2)) == spread
    assert store.find(SYSTEM, spec_of(), Fingerprint.from_json({"hardware": HARDWARE | {"memory_gib": 512}})) == new


def test_entry_of_the_same_hardware_is_preferred(store: BaselineStore) -> None:
    """If no stored graph is that of the measurement, the entry of its hardware is found, not a later one."""
    graphs = ["a" * 12, "b" * 12]
    here = entry_of([100.0, 101.0], hardware=HARDWARE, program=graphs[0], date="2026-01-01T00:00:00Z")
    there = entry_of([150.0, 151.0], hardware=HARDWARE | {"memory_gib": 512}, program=graphs[0], date="2026-02-01T00:00:00Z")
    store.update(SYSTEM, [here, there])
    assert store.find_for(measurement_of([1.0], hardware=HARDWARE, program=graphs[1])) == here


def test_entry_of_another_placement_is_a_fallback(store: BaselineStore) -> None:
    """The latest entry of another variable placement is found only if none has the same placement."""
    older = entry_of([90.0, 91.0], num_ps=2, variable_placement="round_robin", date="2026-01-01T00:00:00Z")
    greedy = entry_of([100.0, 101.0], num_ps=2, date="2026-02-01T00:00:00Z")
    store.update(SYSTEM, [older, greedy])
    now = measurement_of([1.0], num_ps=2, variable_placement="split")
    assert store.find_for(now) == greedy
    assert store.find(SYSTEM, now.spec) is None
    assert store.find_for(measurement_of([1.0], variable_placement="split", num_ps=3)) is None
    split = entry_of([120.0, 121.0], num_ps=2, variable_placement="split", date="2026-01-15T00:00:00Z")
    store.update(SYSTEM, [split])
    assert store.find_for(now) == split


def test_best_num_ps_is_that_of_the_fastest_entry(store: BaselineStore) -> None:
    """The best num_ps is that of the fastest entry of the same training; the smaller one of equals."""
    store.update(SYSTEM, [entry_of([rate, rate], num_ps=num_ps) for num_ps, rate in {1: 90.0, 2: 120.0, 4: 100.0}.items()])
    store.update(SYSTEM, [entry_of([999.0, 999.0], num_ps=8, batch_size=64), entry_of([900.0, 900.0], num_ps=3, gpus=12)])
    assert store.best_num_ps(SYSTEM, spec_of(num_ps=7)) == 2
    assert store.best_num_ps(SYSTEM, spec_of(batch_size=64)) == 8
    assert store.best_num_ps(SYSTEM, spec_of(batch_size=16)) is None
    store.update(SYSTEM, [entry_of([120.0, 120.0], num_ps=12)])
    assert store.best_num_ps(SYSTEM, spec_of()) == 2, "of two that are equally fast, the fewer"


def test_best_num_ps_is_of_the_same_placement(store: BaselineStore) -> None:
    """Entries of another variable placement do not count for the best num_ps, except with one server."""
    store.update(SYSTEM, [entry_of([rate, rate], num_ps=num_ps) for num_ps, rate in {1: 90.0, 2: 120.0}.items()])
    split = {"variable_placement": "split"}
    assert store.best_num_ps(SYSTEM, spec_of(num_ps=1, **split)) == 1
    store.update(SYSTEM, [entry_of([95.0, 95.0], num_ps=4, **split)])
    assert store.best_num_ps(SYSTEM, spec_of(num_ps=1, **split)) == 4
    assert store.best_num_ps(SYSTEM, spec_of(num_ps=1)) == 2


def test_file_changed_by_another_process_is_read_again(store: BaselineStore) -> None:
    """A store that has read a file finds what another store has written since."""
    store.update(SYSTEM, [entry_of([100.0, 100.0])])
    assert store.find(SYSTEM, spec_of()) is not None
    BaselineStore(store.folder).update(SYSTEM, [entry_of([200.0, 200.0])])
    found = store.find(SYSTEM, spec_of())
    assert found is not None
    assert found.images_per_sec == 200


def test_broken_file_is_not_overwritten(store: BaselineStore) -> None:
    """An update refuses a file that it cannot read, and does not change it."""
    store.folder.mkdir()
    file_of(store).write_text("{broken")
    with pytest.raises(BaselineFileError, match=re.escape(str(file_of(store)))):
        store.update(SYSTEM, [entry_of([1.0, 1.0])])
    with pytest.raises(BaselineFileError):
        store.check()
    assert file_of(store).read_text() == "{broken"


def test_invalid_entry_is_not_written(store: BaselineStore) -> None:
    """An entry that breaks the schema is refused, and the file is unchanged."""
    store.update(SYSTEM, [entry_of([1.0, 1.0])])
    before = file_of(store).read_bytes()
    impossible = replace(entry_of([2.0, 2.0]), fingerprint=Fingerprint(hardware=Hardware(cores=-1)).select_compared())
    with pytest.raises(BaselineFileError, match=r"hardware\.cores: -1 breaks minimum 1"):
        store.update(SYSTEM, [impossible])
    assert file_of(store).read_bytes() == before


def add_entries(folder: Path, first: int, count: int) -> None:
    store = BaselineStore(folder)
    for gpus in range(first, first + count):
        store.update(SYSTEM, [entry_of([float(gpus), float(gpus)], gpus=gpus)])


def test_parallel_updates_are_merged(store: BaselineStore) -> None:
    """Processes that update one file at once keep each other's entries."""
    writers = [PROCESSES.Process(target=add_entries, args=(store.folder, 1 + 10 * i, 10)) for i in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert len(json.loads(file_of(store).read_text())["entries"]) == 30


def update_repeatedly(folder: Path, ready: Any) -> None:
    store = BaselineStore(folder)
    entries = [entry_of([float(gpus), float(gpus)], gpus=gpus) for gpus in range(1, 40)]
    while True:
        store.update(SYSTEM, entries)
        ready.set()


def test_killed_writer_leaves_a_valid_file_and_no_lock(store: BaselineStore) -> None:
    """While a process writes and after SIGKILL, the file is valid; the next update succeeds."""
    for _ in range(2):
        ready = PROCESSES.Event()
        writer = PROCESSES.Process(target=update_repeatedly, args=(store.folder, ready))
        writer.start()
        assert ready.wait(60)
        for _ in range(20):
            BaselineStore(store.folder).check()
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
        writer.join(60)
        BaselineStore(store.folder).check()
        store.update(SYSTEM, [entry_of([5.0, 5.0], gpus=50)])
        assert len(json.loads(file_of(store).read_text())["entries"]) == 40
    assert sorted(path.name for path in store.folder.iterdir() if not path.name.startswith(".")) == [f"{SYSTEM}.json"]


def test_held_lock_is_an_error_with_its_path(store: BaselineStore) -> None:
    """A lock that is held for too long is an error with its path."""
    hasty = BaselineStore(store.folder, lock_timeout_s=0.0)
    store.folder.mkdir()
    with filelock.FileLock(store.folder / ".lock"), pytest.raises(BaselineFileError, match=r"\.lock: another process has held"):
        hasty.update(SYSTEM, [entry_of([1.0, 1.0])])


def test_updates_of_threads_are_merged(store: BaselineStore) -> None:
    """Threads that update one file at once keep each other's entries."""
    threads = [threading.Thread(target=add_entries, args=(store.folder, 1 + 5 * i, 5)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(json.loads(file_of(store).read_text())["entries"]) == 15


def test_baseline_has_no_verdict(store: BaselineStore) -> None:
    """A stored baseline has no verdict."""
    store.update(SYSTEM, [entry_of([1.0, 1.0])])
    text = file_of(store).read_text()
    assert not any(f'"{verdict}"' in text for verdict in Verdict)


def test_thresholds_of_a_system(store: BaselineStore) -> None:
    """A system's file has its margin and the least efficiency of a model for exactly one number of devices."""
    rows = [
        {"model": "inception3", "gpus": gpus, "at_least": least, "source": "measured by us"}
        for gpus, least in [(8, 0.9), (64, 0.7)]
    ]
    store.folder.mkdir()
    data = {"schema": 1, "system": SYSTEM, "thresholds": {"margin": 0.03, "efficiency": rows}}
    file_of(store).write_text(json.dumps(data))
    assert store.margin(SYSTEM) == 0.03
    asked = [("inception3", 8), ("inception3", 64), ("inception3", 16), ("resnet50", 8)]
    assert [store.get_least_efficiency(SYSTEM, model, gpus) for model, gpus in asked] == [0.9, 0.7, None, None]
    store.update(SYSTEM, [entry_of([100.0, 101.0])])
    assert store.margin(SYSTEM) == 0.03, "accepting a measurement leaves the thresholds"


# What the report's systems reached, less two points.
REPORTED = [
    ("piz-daint", 8, 0.90),
    ("piz-daint", 64, 0.78),
    ("cscs-ec2-p2.8xlarge", 64, 0.86),
    ("cscs-ec2-p2.xlarge", 128, 0.25),
]


@pytest.mark.parametrize("system, gpus, least", REPORTED)
def test_published_thresholds_are_the_default(store: BaselineStore, system: str, gpus: int, least: float) -> None:
    """The shipped thresholds apply unless a file of the user has thresholds of its own."""
    assert store.get_least_efficiency(system, "inception3", gpus) == least
    assert system in store.systems_with_thresholds()
    store.update(system, [entry_of([100.0, 101.0])])
    assert store.get_least_efficiency(system, "inception3", gpus) == least, "a file without thresholds keeps the default"
    own = {"schema": 1, "system": system, "thresholds": {"margin": 0.1}}
    (store.folder / f"{system}.json").write_text(json.dumps(own))
    assert (store.get_least_efficiency(system, "inception3", gpus), store.margin(system)) == (None, 0.1)


def test_published_thresholds_follow_from_the_published_rates() -> None:
    """Each shipped threshold is the published efficiency on synthetic images less two points, rounded down."""
    found = 0
    for reference in references():
        if reference.system in {"piz-daint", "cscs-ec2-p2.xlarge", "cscs-ec2-p2.8xlarge"} and reference.data == "synthetic":
            if reference.gpus == 1:
                continue
            assert reference.efficiency is not None
            least = BaselineStore(published_folder()).get_least_efficiency(reference.system, reference.model, reference.gpus)
            assert least == math.floor(100 * (reference.efficiency - 0.02)) / 100
            found += 1
    assert found == 3 * 7


def test_unknown_system_has_no_thresholds(store: BaselineStore) -> None:
    """A system without a file has no thresholds."""
    assert (store.margin("cpu-x"), store.get_least_efficiency("cpu-x", "inception3", 8)) == (None, None)
    assert "cpu-x" not in store.systems_with_thresholds()


def test_file_instead_of_a_folder_is_refused(store: BaselineStore) -> None:
    """A file instead of the folder of baselines is refused by readers and writers, and not changed."""
    store.folder.write_text("")
    with pytest.raises(BaselineFileError, match="is no folder; baselines are kept in one"):
        store.check()
    with pytest.raises(BaselineFileError, match=r"cpu-amd-epyc-9b45-2c\.json: cannot be read: Not a directory"):
        store.find(SYSTEM, spec_of())
    with pytest.raises(BaselineFileError, match="baselines cannot be written"):
        store.update(SYSTEM, [entry_of([1.0, 1.0])])
    assert store.folder.read_text() == ""


def test_full_disk_keeps_the_old_file(store: BaselineStore) -> None:
    """A file that cannot be written is an error, and the old file is unchanged."""
    store.update(SYSTEM, [entry_of([1.0, 1.0])])
    before = file_of(store).read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(BaselineFileError, match=r"baselines cannot be written: .*File too large"):
            store.update(SYSTEM, [entry_of([2.0, 2.0])])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert file_of(store).read_bytes() == before


def replace_entry(folder: Path, gpus: int, times: int) -> None:
    store = BaselineStore(folder)
    for number in range(times):
        store.update(SYSTEM, [entry_of([100.0 + number, 100.0 + number], gpus=gpus)])


def test_parallel_updates_replace_only_their_entries(store: BaselineStore) -> None:
    """Processes that replace entries of one file keep the entries of the others and its title."""
    store.folder.mkdir()
    file_of(store).write_text(json.dumps({"schema": 1, "system": SYSTEM, "title": "ours"}))
    writers = [PROCESSES.Process(target=replace_entry, args=(store.folder, gpus, 15)) for gpus in (1, 2, 4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert {entry.images_per_sec for entry in store.entries(SYSTEM)} == {114.0}
    assert len(store.entries(SYSTEM)) == 3
    assert json.loads(file_of(store).read_text())["title"] == "ours"


def test_link_within_the_project_is_followed(tmp_path: Path) -> None:
    """The target of a link within the project is updated; without entries, link and target are removed."""
    store = BaselineStore(tmp_path / "baselines")
    store.update("cpu-a", [entry_of([100.0, 101.0])])
    link, kept = tmp_path / "baselines" / "cpu-a.json", tmp_path / "kept" / "cpu-a.json"
    kept.parent.mkdir()
    link.rename(kept)
    link.symlink_to("../kept/cpu-a.json")
    store.check_writable()
    store.update("cpu-a", [entry_of([50.0, 51.0])])
    assert link.is_symlink()
    assert BaselineStore(kept.parent).entries("cpu-a") == store.entries("cpu-a")
    assert [entry.samples for entry in store.entries("cpu-a")] == [[50.0, 51.0]]
    store.remove("cpu-a", store.entries("cpu-a"))
    assert not link.is_symlink()
    assert not kept.exists()


def test_link_out_of_the_project_is_not_written(tmp_path: Path) -> None:
    """A link out of the project is read and not written, with an error that has the option to use."""
    elsewhere = BaselineStore(tmp_path / "elsewhere")
    elsewhere.update("cpu-a", [entry_of([100.0, 101.0])])
    store = BaselineStore(tmp_path / "project" / "baselines")
    store.folder.mkdir(parents=True)
    (store.folder / "cpu-a.json").symlink_to(elsewhere.folder / "cpu-a.json")
    before = (elsewhere.folder / "cpu-a.json").read_bytes()
    store.check()
    for write in (store.check_writable, lambda: store.update("cpu-a", [entry_of([50.0, 51.0])])):
        with pytest.raises(BaselineFileError, match=rf"is a link to .*outside of .*--baselines={elsewhere.folder}$"):
            write()
    assert (elsewhere.folder / "cpu-a.json").read_bytes() == before
    assert (store.folder / "cpu-a.json").is_symlink()
