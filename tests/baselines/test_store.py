import json
import multiprocessing
import os
import re
import signal
import threading
from pathlib import Path
from typing import Any

import filelock
import pytest

from pytest_dtfperf.baselines.canonical import write_atomically
from pytest_dtfperf.baselines.file import published_folder
from pytest_dtfperf.baselines.references import references
from pytest_dtfperf.baselines.store import BaselineStore
from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.errors import BaselineFileError
from tests.baselines.examples import HARDWARE, entry_of, measurement_of, spec_of

SYSTEM = "cpu-amd-epyc-9b45-2c"
SPAWN = multiprocessing.get_context("spawn")  # as separate as xdist workers are


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
    assert store.find(SYSTEM, spec_of(), HARDWARE | {"memory_gib": 512}) == new


def test_best_number_of_parameter_servers(store: BaselineStore) -> None:
    """The fastest num_ps of the same training is known; others' rates and other trainings do not count."""
    store.update(SYSTEM, [entry_of([rate, rate], num_ps=num_ps) for num_ps, rate in {1: 90.0, 2: 120.0, 4: 100.0}.items()])
    store.update(SYSTEM, [entry_of([999.0, 999.0], num_ps=8, batch_size=64), entry_of([900.0, 900.0], num_ps=3, gpus=12)])
    assert store.best_num_ps(SYSTEM, spec_of(num_ps=7)) == 2
    assert store.best_num_ps(SYSTEM, spec_of(batch_size=64)) == 8
    assert store.best_num_ps(SYSTEM, spec_of(batch_size=16)) is None
    store.update(SYSTEM, [entry_of([120.0, 120.0], num_ps=12)])
    assert store.best_num_ps(SYSTEM, spec_of()) == 2, "of two that are equally fast, the fewer"


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
    with pytest.raises(BaselineFileError, match="unknown key 'flux_capacitors'"):
        store.update(SYSTEM, [entry_of([2.0, 2.0], hardware=HARDWARE | {"flux_capacitors": 1})])
    assert file_of(store).read_bytes() == before


def add_entries(folder: Path, first: int, count: int) -> None:
    store = BaselineStore(folder)
    for gpus in range(first, first + count):
        store.update(SYSTEM, [entry_of([float(gpus), float(gpus)], gpus=gpus)])


def test_parallel_sessions_merge(store: BaselineStore) -> None:
    """Processes that update one file at once lose nothing of each other's."""
    writers = [SPAWN.Process(target=add_entries, args=(store.folder, 1 + 10 * i, 10)) for i in range(3)]
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
        ready = SPAWN.Event()
        writer = SPAWN.Process(target=update_for_ever, args=(store.folder, ready))
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


def test_replacing_keeps_what_stood_when_writing_fails(tmp_path: Path) -> None:
    """A file that cannot be written whole, here for want of an encoding, leaves the old one in place."""
    path = tmp_path / "x.json"
    write_atomically(path, "old\n")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "new \udc80\n")
    assert path.read_text() == "old\n"


def test_a_verdict_is_no_part_of_a_baseline(store: BaselineStore) -> None:
    """A baseline keeps what was measured; how it compared with its forerunner is history's."""
    store.update(SYSTEM, [entry_of([1.0, 1.0])])
    text = file_of(store).read_text()
    assert not any(f'"{verdict}"' in text for verdict in Verdict)
