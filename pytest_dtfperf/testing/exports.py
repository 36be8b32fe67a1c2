"""Check that an export fulfils the contract: a test module derives from `ExportContract` and names the export.

    class TestRates(ExportContract):
        \"\"\"rates is an export as all others are.\"\"\"

        export = "rates"

It gets a session of two artificial measurements, and one of none.
"""

import re
from pathlib import Path
from typing import ClassVar

import pytest

from pytest_dtfperf.datamodel.fingerprint import Fingerprint, Hardware
from pytest_dtfperf.datamodel.measurement import Measurement, Run
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.records.session import SessionFolder
from pytest_dtfperf.report import session_exports
from pytest_dtfperf.report.session_exports import EXPORTS, SessionResults
from pytest_dtfperf.spec import Spec


def make_measurement(spec: Spec, images_per_sec: float) -> Measurement:
    """Return a measurement of one run, as of two tasks on this machine."""
    step_s = spec.batch_size * spec.gpus / images_per_sec
    run = Run(
        images_per_sec=images_per_sec,
        elapsed_s=2 * step_s,
        step_s={"worker:0": [step_s, step_s]},
        loss=[7.0, 6.5],
        startup_s={"build": 1.5},
        bytes_sent=1000,
        bytes_received=2000,
        peak_rss_bytes={"worker:0": 3000},
        cpu_s={"worker:0": 1.9},
        wall_s=5.0,
    )
    fingerprint = Fingerprint(hardware=Hardware(cpu="any"))
    return Measurement(spec=spec, runs=[run], hosts=["localhost"], fingerprint=fingerprint)


class ExportContract:
    """The tests of an export. Derive from it, and set `export`."""

    export: ClassVar[str]

    @pytest.fixture
    def folder(self, tmp_path: Path) -> SessionFolder:
        return SessionFolder.create(tmp_path, cluster="local", command=["pytest"], versions={})

    @pytest.fixture
    def records(self, folder: SessionFolder) -> list[Record]:
        """Return two measurements; the second is named like a spreadsheet's formula with non-ASCII letters."""
        for name, gpus, rate in (("test_one", 1, 9.5), ('=test_\u00fc, "two"', 2, 17.0)):
            folder.add(name, make_measurement(Spec(model="lenet", batch_size=8, gpus=gpus), rate))
        return list(folder.measurements())

    def list_written(self, folder: SessionFolder) -> set[str]:
        """Return all files but the session's own."""
        files = {str(path.relative_to(folder.path)) for path in folder.path.rglob("*") if path.is_file()}
        return {name for name in files if name not in ("session.json", "measurements.jsonl") and not name.startswith(".")}

    def test_its_name_is_free(self) -> None:
        """No row of pytest-dtfperf has its name, so that the name selects this one."""
        assert self.export in EXPORTS
        assert self.export not in EXPORTS.data

    def test_it_writes_the_files_of_its_row(self, folder: SessionFolder, records: list[Record]) -> None:
        """The export writes files of the row's names and no others, below the session's folder; its messages are lines."""
        remarks = session_exports.write_export(self.export, folder, SessionResults(records))
        patterns = ["[^/]+".join(map(re.escape, re.split("<[^>]+>", name))) for name in EXPORTS[self.export].files]
        assert self.list_written(folder)
        assert not [name for name in self.list_written(folder) if not any(re.fullmatch(pattern, name) for pattern in patterns)]
        assert [path.name for path in folder.path.parent.iterdir()] == [folder.path.name]
        assert not [line for line in remarks if "\n" in line]

    def test_it_writes_the_same_again(self, folder: SessionFolder, records: list[Record]) -> None:
        """A second call adds no file and raises no error."""
        session_exports.write_export(self.export, folder, SessionResults(records))
        first = self.list_written(folder)
        session_exports.write_export(self.export, folder, SessionResults(records))
        assert self.list_written(folder) == first

    def test_session_without_measurements_is_no_error(self, folder: SessionFolder) -> None:
        """A session without measurements is no error."""
        session_exports.write_export(self.export, folder, SessionResults([]))
