"""The CSV files: tfperftest's table with its ideal line."""

import subprocess
import sys
from pathlib import Path

import pytest

from pytest_dtfperf.report import exports
from pytest_dtfperf.report.session import SessionFolder
from tests.report.records import record, spec

RECORDS = [
    record(spec(), 9.0, 10.0, 11.0),
    record(spec(gpus=2, num_ps=1), 15.0, 16.0),
    record(spec(gpus=2, variable_update="replicated"), 18.0),
    record(spec(gpus=4, num_ps=2), 99.0, verdict="TAINTED"),
    record(spec(model="mnist", batch_size=64, gpus=2, num_ps=1), 1800.0),
]


@pytest.fixture
def folder(tmp_path: Path) -> SessionFolder:
    return SessionFolder.create(tmp_path, cluster="local", command=[], versions={})


def test_the_fastest_configuration_of_each_device_count(folder: SessionFolder) -> None:
    """A row is the fastest valid configuration of its device count; ideal and efficiency rest on the 1-device rate."""
    assert exports.write(folder, RECORDS) == ["Written: inception3_b8.csv, mnist_b64.csv"]
    assert (folder.path / "inception3_b8.csv").read_text().splitlines() == [
        "gpus,images_per_sec,ideal,efficiency,num_ps,variable_update,data,runs,spread,flops_per_sec,share_of_peak,spec",
        "1,10,10,1,0,parameter_server,synthetic,3,0.1,3.42793e+11,,inception3 b8 gpus=1 num_ps=0 parameter_server",
        "2,18,20,0.9,0,replicated,synthetic,1,0,6.17028e+11,,inception3 b8 gpus=2 num_ps=0 replicated",
    ]


def test_no_ideal_without_a_one_device_rate(folder: SessionFolder) -> None:
    """What was not measured is left empty, never guessed."""
    exports.write(folder, RECORDS)
    (row,) = (folder.path / "mnist_b64.csv").read_text().splitlines()[1:]
    assert row == "2,1800,,,1,parameter_server,synthetic,1,0,1.49946e+11,,mnist b64 gpus=2 num_ps=1 parameter_server"


def test_the_latest_measurement_of_a_spec_counts(folder: SessionFolder) -> None:
    """A spec that was measured twice stands in the table once, with its last numbers."""
    exports.write(folder, [record(spec(), 9.0), record(spec(), 8.0)])
    assert (folder.path / "inception3_b8.csv").read_text().splitlines()[1].startswith("1,8,8,1,")


def test_nothing_measured_nothing_written(folder: SessionFolder) -> None:
    """No measurement, no file, and nothing to say about it."""
    assert exports.write(folder, []) == []


WITHOUT_LIBRARIES = """
import sys
from pathlib import Path

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in ("pandas", "matplotlib"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from pytest_dtfperf.report import exports, plots
from pytest_dtfperf.report.session import SessionFolder
from tests.report.records import record, spec

folder = SessionFolder.create(Path(sys.argv[1]), cluster="local", command=[], versions={})
print(*exports.write(folder, [record(spec(), 9.0)]), *plots.write(folder, [record(spec(), 9.0)]), sep="\\n")
"""


def test_without_the_report_extra(tmp_path: Path) -> None:
    """Where pandas and matplotlib are not installed, one line each says so and how to get them; nothing fails."""
    done = subprocess.run([sys.executable, "-c", WITHOUT_LIBRARIES, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "No CSV files: No module named 'pandas'. pip install 'pytest-dtfperf[report]' brings what is missing.",
        "No figures: No module named 'matplotlib'. pip install 'pytest-dtfperf[report]' brings what is missing.",
    ]
