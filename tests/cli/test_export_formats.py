"""Exports of measurements, each read by the program that it is for, or checked against its published schema."""

import csv
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pandas as pd
import pyarrow.parquet as pq
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as parse_text_format

import pytest_dtfperf
from pytest_dtfperf.baselines.references import references
from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.cli import main
from pytest_dtfperf.cli.history_data import EXPORT_FORMATS
from pytest_dtfperf.errors import DtfPerfError
from pytest_dtfperf.history.enter import enter_all
from pytest_dtfperf.history.where import Address, parse_address
from pytest_dtfperf.records.session import SessionFolder
from pytest_dtfperf.report.dataframe import COLUMNS, PUBLISHED_COLUMNS
from tests.history.sessions import folder_of
from tests.records.samples import measurement, spec

DOCUMENTED = (Path(__file__).parents[2] / "docs" / "exports.md").read_text()
RATES = {1: [100.0, 101.0, 99.0], 2: [190.0, 180.0], 4: [300.0]}
BMF: Mapping[str, Any] = {  # https://bencher.dev/bmf.json
    "type": "object",
    "patternProperties": {
        ".+": {
            "type": "object",
            "patternProperties": {
                ".+": {
                    "type": "object",
                    "properties": {name: {"type": "number"} for name in ("value", "lower_value", "upper_value")},
                    "required": ["value"],
                }
            },
        }
    },
}
CUSTOM: Mapping[str, Any] = {  # interface BenchmarkResult of github-action-benchmark's src/extract.ts, and nothing else
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "value": {"type": "number"},
            **{name: {"type": "string"} for name in ("name", "unit", "range", "extra")},
        },
        "required": ["name", "unit", "value"],
        "additionalProperties": False,
    },
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return two nights; the second has a TAINTED, a slowed-down and a formula-like measurement."""
    root = tmp_path_factory.mktemp("results")
    folder_of(root, 0, {1: [90.0]}, software={"tensorflow": "2.20.0"})
    folder = folder_of(root, 1, RATES, software={"tensorflow": "2.21.0"}, commit="b0b5")
    disturbed = folder.add("t.py::test_busy", measurement(spec(gpus=8), [500.0]))
    folder.judge(disturbed.id, verdict=Verdict.TAINTED, reason="busy")
    folder.add("=t.py::test_slow", measurement(spec(gpus=16), [600.0], injected_slowdowns={"worker:0": 0.3}))
    enter_all([SessionFolder.open(path) for path in sorted(root.glob("2*"))], get_address(root))
    return root


def get_address(root: Path) -> Address:
    found = parse_address(None, root)
    assert found
    return found


def get_latest(results: Path) -> Path:
    return max(results.glob("2*"))


def export(results: Path, form: str, *more: str) -> bytes:
    """Return what `history export` writes into a file."""
    out = results / f"out-{form}"
    assert main(["history", "export", f"--format={form}", f"--out={out}", *more, str(results)]) == 0
    return out.read_bytes()


def test_load_has_a_row_for_each_run(results: Path) -> None:
    """A folder, a session and a history are loaded alike, except for the columns that a history lacks."""
    frame = pytest_dtfperf.load(results)
    assert list(frame.columns) == list(COLUMNS)
    assert len(frame) == 1 + 6 + 2
    assert frame["images_per_sec"].tolist() == [90.0, 100.0, 101.0, 99.0, 190.0, 180.0, 300.0, 500.0, 600.0]
    assert frame["started"].dt.tz is not None
    assert frame.loc[frame["valid"] & frame["comparable"], "gpus"].tolist() == [1, 1, 1, 1, 2, 2, 4]
    assert frame["slowed_down"].tolist() == [False] * 8 + [True]
    assert len(pytest_dtfperf.load(str(get_latest(results)))) == 8

    of_history = pytest_dtfperf.load(f"sqlite:///{results / 'history.sqlite'}")
    known = [name for name, column in COLUMNS.items() if column.in_history]
    pd.testing.assert_frame_equal(of_history[known], frame[known])
    assert of_history[[name for name in COLUMNS if name not in known]].isna().all(axis=None)


def test_columns_are_documented_with_their_units() -> None:
    """docs/exports.md has a row for each column, in order, with its kind, unit and meaning."""
    rows = [
        f"| `{name}` | {column.kind} | {column.unit} | {column.meaning}{'' if column.in_history else ' (not in a history)'} |"
        for name, column in COLUMNS.items()
    ]
    assert "\n".join(rows) in DOCUMENTED


def test_published_rates_are_a_frame() -> None:
    """All published rates are loaded as one frame, and docs/exports.md has a row for each column."""
    frame = pytest_dtfperf.published()
    assert frame["images_per_sec"].tolist() == [row.images_per_sec for row in references()]
    daint = frame[(frame.system == "piz-daint") & (frame.gpus == 64) & (frame.data == "synthetic")]
    assert daint[["num_ps", "nodes", "images_per_sec"]].to_numpy().tolist() == [[40, 64, 7118.31]]
    assert daint["efficiency"].item() == pytest.approx(0.8046, abs=5e-5)
    assert frame["num_ps"].isna().sum() == sum(row.num_ps is None for row in references()) > 0
    rows = [f"| `{name}` | {c.kind} | {c.unit} | {c.meaning} |" for name, c in PUBLISHED_COLUMNS.items()]
    assert "\n".join(rows) in DOCUMENTED
    assert list(frame.columns) == list(PUBLISHED_COLUMNS)


def test_formats_are_documented() -> None:
    """docs/exports.md has a row for each format."""
    rows = [f"| `{name}` | {form.scope} | {form.read_by} |" for name, form in EXPORT_FORMATS.items()]
    assert "\n".join(rows) in DOCUMENTED


@pytest.mark.parametrize(
    ("source", "why"),
    [("nowhere", "'nowhere' is not there"), (".", "is no session folder"), ("mysql://a/b", "a history is kept in a file")],
)
def test_invalid_source_is_refused(source: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source that cannot be loaded is refused with the reason."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DtfPerfError, match=why):
        pytest_dtfperf.load(source)


def test_import_of_the_package_imports_no_other_module() -> None:
    """`import pytest_dtfperf` imports no pandas and no other module of the package; an unknown name is an AttributeError."""
    program = (
        "import sys, pytest_dtfperf; print([m for m in sys.modules if m.startswith(('pandas', 'numpy', 'pytest_dtfperf.'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    with pytest.raises(AttributeError, match="no attribute 'loads'"):
        _ = pytest_dtfperf.loads


def test_csv_is_read_by_pandas(results: Path, tmp_path: Path) -> None:
    """The CSV file has the same values with all digits, and a text like a formula is marked as text."""
    path = tmp_path / "runs.csv"
    path.write_bytes(export(results, "csv"))
    frame, expected = pd.read_csv(path), pytest_dtfperf.load(results)
    assert list(frame.columns) == list(COLUMNS)
    for name, column in COLUMNS.items():
        if column.kind in ("whole", "number"):
            assert frame[name].astype("float64").equals(expected[name].astype("float64")), name
    with path.open(newline="") as file:
        assert [row["test"] for row in csv.DictReader(file)][-1] == "'=t.py::test_slow"


def test_parquet_is_read_by_pandas(results: Path, tmp_path: Path) -> None:
    """The Parquet file has the frame that `load` returns, and a column has its unit and meaning."""
    path = tmp_path / "runs.parquet"
    path.write_bytes(export(results, "parquet"))
    frame, expected = pd.read_parquet(path), pytest_dtfperf.load(results)
    for name in COLUMNS:
        assert [None if pd.isna(value) else value for value in frame[name]] == [
            None if pd.isna(value) else value for value in expected[name]
        ], name
    metadata = pq.read_schema(path).field("bytes_sent").metadata
    assert metadata == {b"unit": b"bytes", b"meaning": COLUMNS["bytes_sent"].meaning.encode()}


def test_parquet_without_pyarrow(results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without pyarrow, the error shows how to install it."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert main(["history", "export", "--format=parquet", "--out=never", str(results)]) == 2
    assert "Install it: pip install 'pytest-dtfperf[parquet]'" in capsys.readouterr().err


def test_pytest_benchmark_reads_the_export(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`pytest-benchmark compare` reads two nights with rates in images/sec, and the left out measurements are reported."""
    for night, session in enumerate(("2026-01-01", "2026-01-02"), start=1):
        (tmp_path / f"000{night}_night.json").write_bytes(export(results, "pytest-benchmark", f"--session={session}"))
    command = [str(Path(sys.executable).parent / "pytest-benchmark"), "compare", "--csv=all.csv", "--group-by=fullname"]
    files = sorted(str(path) for path in tmp_path.glob("000*.json"))
    done = subprocess.run([*command, *files], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with (tmp_path / "all.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 1 + len(RATES)
    both = [float(row["ops"]) for row in rows if "gpus=1 " in row["name"]]
    assert sorted(both) == pytest.approx([90.0, 3 / (1 / 100 + 1 / 101 + 1 / 99)])
    assert "2 measurements" in capsys.readouterr().err  # what is not believed is left out, and said


def test_github_action_and_bencher_have_the_published_schema(results: Path) -> None:
    """Both exports pass the published schemas, and have the medians of valid measurements once."""
    entries = json.loads(export(results, "github-action"))
    jsonschema.validate(entries, CUSTOM)
    benchmarks = json.loads(export(results, "bencher"))
    jsonschema.validate(benchmarks, BMF)
    medians = {1: 100.0, 2: 185.0, 4: 300.0}
    assert [entry["value"] for entry in entries] == list(medians.values())
    assert [entry["name"] for entry in entries] == list(benchmarks)
    assert [entry.get("range") for entry in entries] == ["± 1.0 %", "± 2.7 %", None]  # a single run has none
    throughputs = [measures["throughput"] for measures in benchmarks.values()]
    assert throughputs == [
        {"value": medians[n], "lower_value": min(rates), "upper_value": max(rates)} for n, rates in RATES.items()
    ]


def test_openmetrics_is_parsed(results: Path) -> None:
    """Prometheus' parser reads the export: each rate with its labels, and units in names."""
    families = {family.name: family for family in text_string_to_metric_families(export(results, "openmetrics").decode())}
    rates = families["dtfperf_rate_images_per_second"]
    assert rates.unit == "images_per_second"
    assert {(sample.labels["gpus"], sample.value) for sample in rates.samples} == {("1", 100.0), ("2", 185.0), ("4", 300.0)}
    assert families["dtfperf_session"].samples[0].labels["commit"] == "b0b5"
    assert {name for name, family in families.items() if family.type == "gauge"} <= {
        *(f"dtfperf_{name}" for name in ("tests", "session_started_timestamp_seconds")),
        *(f"dtfperf_{name}" for name in ("rate_images_per_second", "spread_ratio", "runs", "efficiency_ratio")),
    }


CODE_QUALITY: Mapping[str, Any] = {  # https://docs.gitlab.com/ci/testing/code_quality/#code-quality-report-format
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            **{name: {"type": "string", "minLength": 1} for name in ("description", "check_name", "fingerprint")},
            "severity": {"enum": ["info", "minor", "major", "critical", "blocker"]},
            "location": {
                "type": "object",
                "properties": {
                    "path": {"type": "string", "pattern": r"^[^./][^\n]*$"},
                    "lines": {"type": "object", "properties": {"begin": {"type": "integer"}}, "required": ["begin"]},
                },
                "required": ["path", "lines"],
            },
        },
        "required": ["description", "check_name", "fingerprint", "severity", "location"],
    },
}


def make_judged_session(root: Path, verdict: Verdict, test: str = "perf/test_a.py::test_b[1]") -> None:
    folder = SessionFolder.create(root, cluster="c", command=[], versions={})
    record = folder.add(test, measurement(spec(), [9.0, 9.1]))
    folder.judge(record.id, verdict=verdict, reason="-8 %, 100:1,\nmargin")


def test_failed_measurements_are_annotations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Annotations of GitHub and GitLab have the reason at the line of the test; the fingerprint is the same in each session."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "perf").mkdir()
    (tmp_path / "perf" / "test_a.py").write_text("import os\n\n\ndef test_b(n):\n    pass\n")
    for name in ("one", "two"):
        make_judged_session(tmp_path / name, Verdict.REGRESSED)
    assert export(tmp_path / "one", "github-annotations").decode() == (
        f"::error file=perf/test_a.py,line=4,title=REGRESSED%3A {spec().label}::-8 %25, 100:1,%0Amargin\n"
    )
    reports = [json.loads(export(tmp_path / name, "gitlab-code-quality")) for name in ("one", "two")]
    for report in reports:
        jsonschema.validate(report, CODE_QUALITY)
    assert reports[0] == reports[1]
    assert reports[0][0]["location"] == {"path": "perf/test_a.py", "lines": {"begin": 4}}
    assert reports[0][0]["description"].startswith(f"REGRESSED: {spec().label}: -8 %")


def test_passed_measurements_are_no_annotations(tmp_path: Path) -> None:
    """A session without failures is an empty text for GitHub, and an empty list for GitLab."""
    make_judged_session(tmp_path, Verdict.PASSED)
    assert export(tmp_path, "github-annotations") == b""
    assert json.loads(export(tmp_path, "gitlab-code-quality")) == []


def test_test_without_a_file_is_annotated_at_its_first_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the test's file does not exist, the annotation is at line 1."""
    monkeypatch.chdir(tmp_path)
    make_judged_session(tmp_path, Verdict.REGRESSED, "gone/test_x.py::TestA::test_y")
    assert export(tmp_path, "github-annotations").startswith(b"::error file=gone/test_x.py,line=1,title=REGRESSED%3A ")


def test_prometheus_text_is_parsed(results: Path) -> None:
    """The parser of the older text format reads the same samples, with the types and comments of this format."""
    text = export(results, "prometheus").decode()
    expected = text_string_to_metric_families(export(results, "openmetrics").decode())
    samples = {(each.name, tuple(each.labels.items()), each.value) for family in expected for each in family.samples}
    families = list(parse_text_format(text))
    assert {(each.name, tuple(each.labels.items()), each.value) for family in families for each in family.samples} == samples
    assert {family.type for family in families} == {"gauge"}
    assert all(re.match("# (HELP|TYPE) |[a-z_]+{", line) for line in text.splitlines())


def test_openmetrics_escapes_labels(tmp_path: Path) -> None:
    """Quotes, backslashes and newlines of a cluster's name are escaped."""
    name = 'a "b"\\\n{c}'
    folder = SessionFolder.create(tmp_path, cluster=name, command=[], versions={})
    folder.add("t.py::test", replace(measurement(spec(), [1.0]), hosts=["a"]))
    families = list(text_string_to_metric_families(export(tmp_path, "openmetrics").decode()))
    assert {sample.labels["cluster"] for family in families for sample in family.samples} == {name}


@pytest.mark.parametrize("form", EXPORT_FORMATS)
def test_exports_have_no_escape_sequences(tmp_path: Path, form: str) -> None:
    """Escape sequences in names of clusters, hosts and tests are not in any exported text."""
    folder = SessionFolder.create(tmp_path, cluster="a\x1b[2Jb\x9bc", command=[], versions={})
    folder.add("t.py::test[\x1b]0;x\x07]", replace(measurement(spec(), [1.0]), hosts=["h\x1b[31m"]))
    content = export(tmp_path, form)
    assert form == "parquet" or not {0x1B, 0x07} & {*content}
    assert form == "parquet" or "\x9b" not in content.decode()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--out=x"], "--out goes with --format"),
        (["perf_results"], "DIR goes with --format"),
        (["--format=csv", "--json", "."], "exclude each other"),
        (["--format=bencher", "--session=nobody", "RESULTS"], "no session in the history is 'nobody'"),
        (["--format=csv", "--out=/proc/none/x", "RESULTS"], "cannot be written"),
    ],
)
def test_wrong_arguments_of_exports_are_exit_code_2(
    arguments: list[str], why: str, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wrong arguments are exit code 2 with the reason."""
    assert main(["history", "export", *(word.replace("RESULTS", str(results)) for word in arguments)]) == 2
    assert why in capsys.readouterr().err


def test_export_of_a_history_equals_that_of_its_folders(results: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    """An export of a history on stdout has the same bytes as that of its folders."""
    assert main(["history", "export", "--format=bencher", f"--history={results / 'history.sqlite'}"]) == 0
    assert capsysbinary.readouterr().out == export(results, "bencher")


def test_copied_session_counts_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A copied session counts once in frames, exports and figures, and a line names the copy."""
    first, copied = folder_of(tmp_path, 0, {1: [90.0]}), folder_of(tmp_path, 1, {1: [100.0, 101.0]})
    copy = tmp_path / "20250101T000000Z-c0c0c0"
    shutil.copytree(copied.path, copy)
    words = f"{copy} is left out: it is a copy of session {copied.id}, as {copied.path} has it"
    with pytest.warns(UserWarning, match=re.escape(words)):
        frame = pytest_dtfperf.load(tmp_path)
    assert (frame["session"].tolist(), frame["images_per_sec"].tolist()) == (
        [first.id, copied.id, copied.id],
        [90.0, 100.0, 101.0],
    )
    assert len(list(csv.DictReader(export(tmp_path, "csv").decode().splitlines()))) == 3
    assert capsys.readouterr().err.splitlines()[0] == f"dtfperf: {words}"
    assert main(["figures", str(tmp_path), f"--out={tmp_path / 'figures'}"]) == 0
    assert capsys.readouterr().err.splitlines()[0] == f"dtfperf: {words}"


def test_out_does_not_replace_a_device(results: Path) -> None:
    """`--out` writes to a device and does not replace it."""
    assert main(["history", "export", "--format=csv", "--out=/dev/null", str(results)]) == 0
    assert Path("/dev/null").is_char_device()
