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
from tests.explain.probed import CORE, FULL, link
from tests.forks import PROCESSES

SYSTEM = "cpu-amd-epyc-9b45-2c"


@pytest.fixture
def store(tmp_path: Path) -> BaselineStore:
    return BaselineStore(tmp_path / "baselines")


def file_of(store: BaselineStore) -> Path:
    return store.folder / f"{SYSTEM}.json"


def test_an_empty_place_has_no_baselines(store: BaselineStore) -> None:
    """Without folder or file nothing is found, and nothing is made by looking."""
    assert store.find(SYSTEM, spec_of()) is None
    assert store.best_num_ps(SYSTEM, spec_of()) is None
    assert store.systems() == []
    assert not store.folder.exists()


def test_what_is_stored_is_found(store: BaselineStore) -> None:
    """An entry comes back whole, by its spec, also in another process's store."""
    entry = entry_of([100.0, 101.5, 99.25])
    [change] = store.update(SYSTEM, [entry])
    assert (change.old, change.new) == (None, entry)
    assert store.find(SYSTEM, spec_of()) == entry
    assert BaselineStore(store.folder).find(SYSTEM, spec_of(steps=7, seed=1)) == entry
    assert store.find(SYSTEM, spec_of(gpus=4)) is None
    assert store.find("cpu-other-2c", spec_of()) is None
    assert store.systems() == [SYSTEM]


def test_what_hosts_can_do_is_stored_beside_the_rate(store: BaselineStore) -> None:
    """A measurement's probes come back with its baseline, rounded; storing that again changes nothing. They may be missing."""
    per_s = FULL.hosts["a"].readings[CORE].per_s
    measured = replace(measurement_of([100.0, 101.0]), probes=FULL)
    entry = Entry.of(measured, provenance_of())
    store.update(SYSTEM, [entry, entry_of([100.0, 101.0], gpus=4)])
    written = file_of(store).read_bytes()
    stored = BaselineStore(store.folder).find(SYSTEM, spec_of())
    assert stored == entry
    assert (stored.probes or Probes()).hosts["a"].readings[CORE].per_s == pytest.approx(per_s)
    assert [each.probes for each in store.entries(SYSTEM) if each.key == spec_of(gpus=4).key] == [None]
    store.update(SYSTEM, [stored])
    assert file_of(store).read_bytes() == written


def test_of_many_hosts_as_many_are_kept_as_tell_what_is_usual(store: BaselineStore) -> None:
    """A baseline of 128 hosts keeps what 32 of them could do, and of each fan as many streams: its file stays readable."""
    names = [f"node{i:03}" for i in range(128)]
    fans = {name: link(1e9, streams=dict.fromkeys(names, 1e7)) for host in names for name in (f"*>{host}", f"{host}>*")}
    many = Probes(hosts=dict.fromkeys(names, FULL.hosts["a"]), links=fans)
    stored = Entry.of(replace(measurement_of([100.0, 101.0]), probes=many), provenance_of())
    store.update(SYSTEM, [stored])
    found = stored.probes or Probes()
    assert list(found.hosts) == names[:32]
    assert (len(found.links), len(found.links["*>node000"].streams)) == (64, 32)
    assert file_of(store).stat().st_size < 150_000


def test_only_what_is_given_is_touched(store: BaselineStore) -> None:
    """Updating one spec leaves every other byte of the file as it was."""
    store.update(SYSTEM, [entry_of([100.0, 101.0], gpus=gpus) for gpus in (1, 2, 4)])
    before = json.loads(file_of(store).read_text())
    [change] = store.update(SYSTEM, [entry_of([120.0, 121.0], gpus=2, date="2026-02-01T00:00:00Z")])
    after = json.loads(file_of(store).read_text())
    assert (change.old and change.old.images_per_sec, change.new.images_per_sec) == (100.5, 120.5)
    changed = [key for key in after["entries"] if after["entries"][key] != before["entries"][key]]
    assert changed == [spec_of(gpus=2).key]
    assert after.keys() == before.keys()


def test_rewriting_without_change_is_byte_identical(store: BaselineStore) -> None:
    """Measuring the very same again leaves no diff, and neither does the order in which entries were stored."""
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


def test_updating_keeps_references(tmp_path: Path) -> None:
    """Measured entries can be added to a file of published references, which stay as they were."""
    path = tmp_path / "piz-daint.json"
    path.write_bytes((published_folder() / "piz-daint.json").read_bytes())
    BaselineStore(tmp_path).update("piz-daint", [entry_of([100.0, 101.0])])
    assert [row.images_per_sec_notebook for row in references(tmp_path)] == [
        row.images_per_sec_notebook for row in references() if row.system == "piz-daint"
    ]
    assert BaselineStore(tmp_path).find("piz-daint", spec_of()) is not None


def test_other_hardware_of_the_same_name_has_its_own_entry(store: BaselineStore) -> None:
    """Accepting what was INCOMPARABLE adds an entry; each hardware finds its own, an unknown one the latest."""
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


def test_the_baseline_of_the_same_hardware_is_named(store: BaselineStore) -> None:
    """Where no stored graph is that of the measurement, the entry of its hardware is found, not a later one of another."""
    graphs = ["a" * 12, "b" * 12]
    here = entry_of([100.0, 101.0], hardware=HARDWARE, program=graphs[0], date="2026-01-01T00:00:00Z")
    there = entry_of([150.0, 151.0], hardware=HARDWARE | {"memory_gib": 512}, program=graphs[0], date="2026-02-01T00:00:00Z")
    store.update(SYSTEM, [here, there])
    assert store.find_for(measurement_of([1.0], hardware=HARDWARE, program=graphs[1])) == here


def test_a_baseline_of_another_placement_is_found_where_there_is_no_other(store: BaselineStore) -> None:
    """The latest that differs in nothing else is found to be told of; once there is one of the same placement, that."""
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


def test_best_number_of_parameter_servers(store: BaselineStore) -> None:
    """The fastest num_ps of the same training is known; others' rates and other trainings do not count."""
    store.update(SYSTEM, [entry_of([rate, rate], num_ps=num_ps) for num_ps, rate in {1: 90.0, 2: 120.0, 4: 100.0}.items()])
    store.update(SYSTEM, [entry_of([999.0, 999.0], num_ps=8, batch_size=64), entry_of([900.0, 900.0], num_ps=3, gpus=12)])
    assert store.best_num_ps(SYSTEM, spec_of(num_ps=7)) == 2
    assert store.best_num_ps(SYSTEM, spec_of(batch_size=64)) == 8
    assert store.best_num_ps(SYSTEM, spec_of(batch_size=16)) is None
    store.update(SYSTEM, [entry_of([120.0, 120.0], num_ps=12)])
    assert store.best_num_ps(SYSTEM, spec_of()) == 2, "of two that are equally fast, the fewer"


def test_the_best_number_of_servers_is_of_the_same_placement(store: BaselineStore) -> None:
    """What was measured with another placement does not count, but one server has everything by any."""
    store.update(SYSTEM, [entry_of([rate, rate], num_ps=num_ps) for num_ps, rate in {1: 90.0, 2: 120.0}.items()])
    split = {"variable_placement": "split"}
    assert store.best_num_ps(SYSTEM, spec_of(num_ps=1, **split)) == 1
    store.update(SYSTEM, [entry_of([95.0, 95.0], num_ps=4, **split)])
    assert store.best_num_ps(SYSTEM, spec_of(num_ps=1, **split)) == 4
    assert store.best_num_ps(SYSTEM, spec_of(num_ps=1)) == 2


def test_a_file_changed_by_somebody_else_is_read_again(store: BaselineStore) -> None:
    """A store that has read a file notices that another process has replaced it."""
    store.update(SYSTEM, [entry_of([100.0, 100.0])])
    assert store.find(SYSTEM, spec_of()) is not None
    BaselineStore(store.folder).update(SYSTEM, [entry_of([200.0, 200.0])])
    found = store.find(SYSTEM, spec_of())
    assert found is not None
    assert found.images_per_sec == 200


def test_broken_file_is_refused_and_kept(store: BaselineStore) -> None:
    """An update never overwrites a file that it cannot read."""
    store.folder.mkdir()
    file_of(store).write_text("{broken")
    with pytest.raises(BaselineFileError, match=re.escape(str(file_of(store)))):
        store.update(SYSTEM, [entry_of([1.0, 1.0])])
    with pytest.raises(BaselineFileError):
        store.check()
    assert file_of(store).read_text() == "{broken"


def test_what_could_not_be_read_again_is_not_written(store: BaselineStore) -> None:
    """An entry that breaks the schema is refused before it replaces anything."""
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


def test_parallel_sessions_merge(store: BaselineStore) -> None:
    """Processes that update one file at once lose nothing of each other's."""
    writers = [PROCESSES.Process(target=add_entries, args=(store.folder, 1 + 10 * i, 10)) for i in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert len(json.loads(file_of(store).read_text())["entries"]) == 30


def update_for_ever(folder: Path, ready: Any) -> None:
    store = BaselineStore(folder)
    entries = [entry_of([float(gpus), float(gpus)], gpus=gpus) for gpus in range(1, 40)]
    while True:
        store.update(SYSTEM, entries)
        ready.set()


def test_a_killed_writer_leaves_a_whole_file_and_no_lock(store: BaselineStore) -> None:
    """Wherever SIGKILL hits a writer: readers meanwhile saw whole files, the file is whole, and the next writer gets in."""
    for _ in range(2):
        ready = PROCESSES.Event()
        writer = PROCESSES.Process(target=update_for_ever, args=(store.folder, ready))
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


def test_a_lock_that_is_never_freed_is_named(store: BaselineStore) -> None:
    """Who holds the folder for too long is reported, with the lock's path, and nothing hangs."""
    hasty = BaselineStore(store.folder, lock_timeout_s=0.0)
    store.folder.mkdir()
    with filelock.FileLock(store.folder / ".lock"), pytest.raises(BaselineFileError, match=r"\.lock: another process has held"):
        hasty.update(SYSTEM, [entry_of([1.0, 1.0])])


def test_threads_of_one_process_merge_too(store: BaselineStore) -> None:
    """The lock holds between stores of one process."""
    threads = [threading.Thread(target=add_entries, args=(store.folder, 1 + 5 * i, 5)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(json.loads(file_of(store).read_text())["entries"]) == 15


def test_a_verdict_is_no_part_of_a_baseline(store: BaselineStore) -> None:
    """A baseline keeps what was measured; how it compared with its forerunner is history's."""
    store.update(SYSTEM, [entry_of([1.0, 1.0])])
    text = file_of(store).read_text()
    assert not any(f'"{verdict}"' in text for verdict in Verdict)


def test_thresholds_of_a_system(store: BaselineStore) -> None:
    """A system's file says its margin, and the least efficiency of a model on exactly so many devices."""
    rows = [
        {"model": "inception3", "gpus": gpus, "at_least": least, "source": "measured by us"}
        for gpus, least in [(8, 0.9), (64, 0.7)]
    ]
    store.folder.mkdir()
    data = {"schema": 1, "system": SYSTEM, "thresholds": {"margin": 0.03, "efficiency": rows}}
    file_of(store).write_text(json.dumps(data))
    assert store.margin(SYSTEM) == 0.03
    asked = [("inception3", 8), ("inception3", 64), ("inception3", 16), ("resnet50", 8)]
    assert [store.least_efficiency(SYSTEM, model, gpus) for model, gpus in asked] == [0.9, 0.7, None, None]
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
def test_thresholds_of_published_systems_are_known_everywhere(
    store: BaselineStore, system: str, gpus: int, least: float
) -> None:
    """What comes with the package is known to a folder without that file; a file of one's own replaces it."""
    assert store.least_efficiency(system, "inception3", gpus) == least
    assert system in store.systems_with_thresholds()
    store.update(system, [entry_of([100.0, 101.0])])
    assert store.least_efficiency(system, "inception3", gpus) == least, "one that says nothing of thresholds does not"
    own = {"schema": 1, "system": system, "thresholds": {"margin": 0.1}}
    (store.folder / f"{system}.json").write_text(json.dumps(own))
    assert (store.least_efficiency(system, "inception3", gpus), store.margin(system)) == (None, 0.1)


def test_published_thresholds_follow_from_the_published_rates() -> None:
    """Every threshold of a published system is its efficiency on synthetic images less two points, rounded down."""
    found = 0
    for reference in references():
        if reference.system in {"piz-daint", "cscs-ec2-p2.xlarge", "cscs-ec2-p2.8xlarge"} and reference.data == "synthetic":
            if reference.gpus == 1:
                continue
            assert reference.efficiency is not None
            least = BaselineStore(published_folder()).least_efficiency(reference.system, reference.model, reference.gpus)
            assert least == math.floor(100 * (reference.efficiency - 0.02)) / 100
            found += 1
    assert found == 3 * 7


def test_an_unknown_system_has_no_thresholds(store: BaselineStore) -> None:
    """Of a system without a file nothing is demanded."""
    assert (store.margin("cpu-x"), store.least_efficiency("cpu-x", "inception3", 8)) == (None, None)
    assert "cpu-x" not in store.systems_with_thresholds()


def test_a_file_in_place_of_the_folder_is_refused(store: BaselineStore) -> None:
    """--baselines that names a file is one clear line, for whoever reads and for whoever writes."""
    store.folder.write_text("")
    with pytest.raises(BaselineFileError, match="is no folder; baselines are kept in one"):
        store.check()
    with pytest.raises(BaselineFileError, match=r"cpu-amd-epyc-9b45-2c\.json: cannot be read: Not a directory"):
        store.find(SYSTEM, spec_of())
    with pytest.raises(BaselineFileError, match="baselines cannot be written"):
        store.update(SYSTEM, [entry_of([1.0, 1.0])])
    assert store.folder.read_text() == ""


def test_a_full_disk_leaves_what_stood(store: BaselineStore) -> None:
    """Where a file cannot be written, that is said, and the old one is whole. A limit of 100 bytes is a small disk."""
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


def test_parallel_sessions_replace_only_their_own(store: BaselineStore) -> None:
    """Processes that replace entries of one file over and over leave each other's as last written, and all else."""
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


def test_a_link_within_the_project_is_followed(tmp_path: Path) -> None:
    """The file that a link leads to is replaced, and the link stays one; with the last entry both go."""
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


def test_a_link_out_of_the_project_is_not_written_through(tmp_path: Path) -> None:
    """It is read, and refused before anything trains that is to be accepted: the message says how to go on."""
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
