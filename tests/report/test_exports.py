"""CSV files of a session: measurements and scaling tables."""

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.records.record import with_efficiencies
from pytest_dtfperf.records.session import SessionFolder
from pytest_dtfperf.report import session_exports
from pytest_dtfperf.report.session_exports import EXPORTS, SessionResults
from pytest_dtfperf.spec import Spec
from tests.records.samples import disturbed_but_one, record, spec

RECORDS = with_efficiencies(
    [
        record(spec(), 9.0, 10.0, 11.0, name="one"),
        record(spec(gpus=2, num_ps=1), 15.0, 16.0, name="slower"),
        record(spec(variable_update="replicated"), 9.0, name="one replicated"),
        record(spec(gpus=2, variable_update="replicated"), 17.1, name="faster"),
        record(spec(gpus=4, num_ps=2), 99.0, name="tainted", verdict=Verdict.TAINTED, reason="another user, and his"),
        record(spec(model="mnist", batch_size=64, gpus=2, num_ps=1), 1800.0, name="unlike"),
    ]
)


@pytest.fixture
def folder(tmp_path: Path) -> SessionFolder:
    return SessionFolder.create(tmp_path, cluster="local", command=[], versions={})


def test_scaling_table_has_the_fastest_configurations(folder: SessionFolder) -> None:
    """A row is the fastest valid configuration of its device count, with its efficiency."""
    assert session_exports.write_csv_files(folder, SessionResults(RECORDS)) == []
    assert {path.name for path in folder.path.glob("*.csv")} == {"measurements.csv", "inception3_b8.csv", "mnist_b64.csv"}
    assert (folder.path / "inception3_b8.csv").read_text().splitlines() == [
        "gpus,images_per_sec,ideal,efficiency,num_ps,variable_update,data,runs,spread,flops_per_sec,share_of_peak,spec",
        "1,10,10,1,0,parameter_server,synthetic,3,0.1,3.42793e+11,,inception3 b8 gpus=1 num_ps=0 parameter_server",
        "2,17.1,18,0.95,0,replicated,synthetic,1,,5.86176e+11,,inception3 b8 gpus=2 num_ps=0 replicated",
    ]


def test_scaling_table_without_an_anchor_has_no_ideal(folder: SessionFolder) -> None:
    """Without a 1-device rate, ideal and efficiency are empty."""
    session_exports.write_csv_files(folder, SessionResults(RECORDS))
    (row,) = (folder.path / "mnist_b64.csv").read_text().splitlines()[1:]
    assert row == "2,1800,,,1,parameter_server,synthetic,1,,1.49946e+11,,mnist b64 gpus=2 num_ps=1 parameter_server"


def test_scaling_table_has_the_latest_measurement(folder: SessionFolder) -> None:
    """A spec that was measured twice has one row with the last numbers."""
    session_exports.write_csv_files(folder, SessionResults([record(spec(), 9.0), record(spec(), 8.0)]))
    assert (folder.path / "inception3_b8.csv").read_text().splitlines()[1].startswith("1,8,8,1,")


def test_disturbed_runs_are_not_counted(folder: SessionFolder) -> None:
    """Both tables count only undisturbed runs, and a single one has no spread."""
    session_exports.write_csv_files(folder, SessionResults([disturbed_but_one(record(spec(), 10.0, 5.0, 4.9))]))
    for name in ("measurements.csv", "inception3_b8.csv"):
        with (folder.path / name).open(newline="") as file:
            (row,) = csv.DictReader(file)
        assert (row["runs"], row["images_per_sec"], row["spread"]) == ("1", "10", "")


def test_session_without_measurements_has_no_csv_file(folder: SessionFolder) -> None:
    """Without a measurement there is no file and no remark."""
    assert session_exports.write_csv_files(folder, SessionResults([])) == []


def test_every_measurement_has_a_row(folder: SessionFolder) -> None:
    """measurements.csv has all measurements in their order, and the documented columns."""
    session_exports.write_csv_files(folder, SessionResults(RECORDS))
    with (folder.path / "measurements.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == [each.id for each in RECORDS]
    tainted = rows[4]
    assert (tainted["verdict"], tainted["tainted"], tainted["reason"]) == ("TAINTED", "true", "another user, and his")
    assert (tainted["efficiency"], tainted["anchor"]) == ("", "")
    assert (rows[1]["efficiency"], rows[1]["anchor"], rows[1]["images_per_sec"]) == ("0.775", "one", "15.5")
    documented = (Path(__file__).parents[2] / "docs" / "numbers.md").read_text()
    cells = re.findall(r"^\| (`.*?) \|", documented.partition("## measurements.csv")[2].partition("\n## ")[0], re.MULTILINE)
    assert {name for cell in cells for name in re.findall(r"`(\w+)`", cell)} == set(session_exports.COLUMNS)


WITHOUT_LIBRARIES = """
import sys
from pathlib import Path

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in ("pandas", "matplotlib"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from pytest_dtfperf.report.session_exports import SessionResults, write_csv_files, write_figures
from pytest_dtfperf.records.session import SessionFolder
from tests.records.samples import record, spec

folder = SessionFolder.create(Path(sys.argv[1]), cluster="local", command=[], versions={})
records = [record(spec(gpus=n, num_ps=1), 9.0, name=f"r{n}") for n in (1, 2)]
results = SessionResults(records)
print(*write_csv_files(folder, results), *write_figures(folder, results), sep="\\n")
"""


def test_text_like_a_formula_is_marked(folder: SessionFolder) -> None:
    """Texts that a spreadsheet would take for formulas are marked, and numbers are not."""
    linked = record(spec(), 9.0, name="one", reason="=HYPERLINK(1)")
    session_exports.write_csv_files(folder, SessionResults([linked, record(spec(gpus=2, num_ps=1), 8.0, reason="-1 %")]))
    with (folder.path / "measurements.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["reason"] for row in rows] == ["'=HYPERLINK(1)", "'-1 %"]
    assert rows[0]["images_per_sec"] == "9"
    session_exports.write_csv_files(
        folder, SessionResults([record(spec(model="-1+1", command=("train",), rate_pattern="(x)", rate_of="mean"), 9.0)])
    )
    (table,) = folder.path.glob("-1+1_b*.csv")
    assert table.read_text().splitlines()[1].split(",")[-1].startswith("'-1+1")


def test_missing_extra_is_reported(tmp_path: Path) -> None:
    """Without pandas and matplotlib, one line each shows how to install them; measurements.csv is written."""
    done = subprocess.run([sys.executable, "-c", WITHOUT_LIBRARIES, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "No scaling tables: No module named 'pandas'. Install it: pip install 'pytest-dtfperf[report]'",
        "No figures: No module named 'matplotlib'. Install it: pip install 'pytest-dtfperf[report]'",
    ]


def test_docs_have_every_export() -> None:
    """docs/numbers.md lists the exports with their files."""
    documented = (Path(__file__).parents[2] / "docs" / "numbers.md").read_text()
    for name, export in EXPORTS.items():
        assert f"| {name} | {', '.join(f'`{file}`' for file in export.files)} |" in documented


@pytest.mark.parametrize("model", ["x" * 300, "\u00e4" * 150, "a.b-" * 80], ids=["letters", "umlauts", "signs"])
def test_long_names_of_programs_are_shortened(folder: SessionFolder, model: str) -> None:
    """Tables of a program with a long name have the beginning of the name and a distinct digest."""
    programs = [record(make_external_spec(f"{model}{end}"), 9.0, name=end) for end in ("a", "b")]
    session_exports.write_csv_files(folder, SessionResults(programs))
    names = [path.name for path in folder.path.glob("*_b1.csv")]
    assert len(names) == 2
    assert all(name.startswith(model[:50]) and len(os.fsencode(name)) < 200 for name in names)
    assert folder.write_failure is None


def make_external_spec(model: str) -> Spec:
    """Return the spec of an external program."""
    return Spec(model=model, batch_size=1, command=("train.py",), variable_update="independent", num_ps=0)


def test_escape_sequences_are_escaped(folder: SessionFolder) -> None:
    """An escape sequence in the name of a test is escaped in the table."""
    session_exports.write_csv_files(folder, SessionResults([record(spec(), 9.0, test="test_\x1b[2J\u202e\x9b[x]")]))
    text = (folder.path / "measurements.csv").read_text()
    assert "\\x1b[2J\\u202e\\x9b[x]" in text
    assert all(line.isprintable() for line in text.split("\n"))
