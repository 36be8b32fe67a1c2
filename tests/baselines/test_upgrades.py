import json
from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.baselines.files import canonical, published_folder, read_baseline_file
from pytest_dtfperf.baselines.store import BaselineStore
from pytest_dtfperf.baselines.upgrades import SCHEMA, UPGRADES, upgraded
from pytest_dtfperf.errors import BaselineFileError
from tests.baselines.examples import entry_of, measurement_of

SYSTEM = "cpu-amd-epyc-9b45-2c"


def of_version_1() -> dict[str, Any]:
    """A file as the first version wrote it."""
    entry = entry_of([100.0, 101.0]).to_json()
    del entry["fingerprint"]["program"]
    return {"schema": 1, "system": SYSTEM, "entries": {entry_of([1.0]).key: [entry]}}


def test_a_file_of_version_1_is_read_and_found(tmp_path: Path) -> None:
    """What was accepted before programs were noted is compared with today's measurements, whatever program made them."""
    (tmp_path / f"{SYSTEM}.json").write_text(canonical(of_version_1()))
    store = BaselineStore(tmp_path)
    found = store.find_for(measurement_of([99.0], program="0123456789ab"))
    assert found is not None
    assert (found.samples, found.fingerprint["program"], found.noise) == ([100.0, 101.0], {}, None)
    assert found.foreign_to(measurement_of([99.0], program="0123456789ab").fingerprint, 1) == []


def test_reading_changes_no_file_and_updating_upgrades_it(tmp_path: Path) -> None:
    """An old file stays as it is until something is accepted; then it is one of today's, with all that it had."""
    path = tmp_path / f"{SYSTEM}.json"
    path.write_text(canonical(of_version_1()))
    before = path.read_bytes()
    store = BaselineStore(tmp_path)
    store.check()
    assert path.read_bytes() == before
    store.update(SYSTEM, [entry_of([50.0, 51.0], gpus=4)])
    after = json.loads(path.read_text())
    assert after["schema"] == SCHEMA
    assert sorted(len(found) for found in after["entries"].values()) == [1, 1]


def test_every_older_version_has_its_row() -> None:
    """From each version there was, a file gets to the newest, one version after the other."""
    assert list(UPGRADES) == list(range(1, SCHEMA))


@pytest.mark.parametrize("schema", [SCHEMA + 1, 10**30])
def test_a_newer_version_is_named(schema: int) -> None:
    """A file of the future is refused for that, not for what this version does not know in it."""
    with pytest.raises(BaselineFileError, match=rf"x\.json: written by a newer version .*its schema is {schema}, this one"):
        upgraded({"schema": schema, "oracle": 1}, "x.json")


DAMAGED: dict[str, Any] = {
    "no object": [1],
    "a version in words": {"schema": "one"},
    "a version that is none": {"schema": True},
    "entries that are none": {"schema": 1, "entries": 5},
    "a case that is none": {"schema": 1, "entries": {"k": 5}},
    "an entry that is none": {"schema": 1, "entries": {"k": [5]}},
    "a fingerprint that is none": {"schema": 1, "entries": {"k": [{"fingerprint": 5}]}},
}


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED)
def test_damaged_files_are_left_to_the_schema(data: Any) -> None:
    """What has not the form of an old file is passed on as it is, for the schema to complain of."""
    is_of_version_1 = isinstance(data, dict) and data["schema"] is not True and data["schema"] == 1
    assert upgraded(data, "x.json") == ({**data, "schema": SCHEMA} if is_of_version_1 else data)


def test_shipped_files_are_of_the_newest_version() -> None:
    """What comes with the package needs no upgrade."""
    for path in published_folder().glob("*.json"):
        assert json.loads(path.read_text(encoding="utf-8"))["schema"] == SCHEMA, path.name
        read_baseline_file(path)
