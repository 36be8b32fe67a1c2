"""Tests of docs/adding.md: each example is added to a copy of the package, and works."""

import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.plugin.conftest import PerfTests, perf_tests_in

REPOSITORY = Path(__file__).parents[1]
EXAMPLES = (REPOSITORY / "docs" / "adding.md").read_text()
ROWS_ONLY = ("A cause", "A field of a run")
FILES = {"A field of a run": 4}  # the most that one change touches beside docs/, where it is more than three
BLOCK = re.compile(r"```python\n# (\S+?)(?:, above (\S+))?\n(.*?)```", re.DOTALL)


def add(what: str, site: Path) -> None:
    """Write the files and rows of a section of docs/adding.md into a copy of the package."""
    section = EXAMPLES.partition(f"\n## {what}\n")[2].partition("\n## ")[0]
    blocks = BLOCK.findall(section)
    is_row = [bool(above) for _, above, _ in blocks]
    assert is_row in ([True], [False, True]) or (what in ROWS_ONLY and all(is_row)), "at most one file and one row"
    assert len({name for name, _, _ in blocks}) <= FILES.get(what, 3)
    for name, above, code in blocks:
        path = site / name
        if above:
            lines = path.read_text().splitlines(keepends=True)
            (at,) = (number for number, line in enumerate(lines) if re.match(rf" *{re.escape(above)}[ :=]", line))
            while lines[at - 1].lstrip().startswith("#"):  # a comment on the row below
                at -= 1
            code = "".join([*lines[:at], code, *lines[at:]])
        else:
            assert not path.exists()
        path.write_text(code)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with a copy of the package in it, as the wheel has it, and compiled as here: only what is added is compiled."""
    folder = tmp_path / "site"
    shutil.copytree(REPOSITORY / "pytest_dtfperf", folder / "pytest_dtfperf")
    shutil.copytree(REPOSITORY / "baselines", folder / "pytest_dtfperf" / "baselines" / "published")
    return folder


@pytest.fixture
def perf(tmp_path: Path, site: Path) -> PerfTests:
    """Return perf tests with a training that takes no time, run with that copy."""
    tests = perf_tests_in(tmp_path)
    tests.cold = True  # what is forked has the package of this repository
    tests.environment["PYTHONPATH"] = os.pathsep.join([str(site), str(REPOSITORY)])
    return tests


JUDGED = """
import sys
from pathlib import Path

from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.report import markdown, terminal
from pytest_dtfperf.report.session_exports import format_measurements_csv
from pytest_dtfperf.records.session import SessionFolder
from tests.records.samples import measurement, spec

OUTDATED = Verdict("OUTDATED")
folder = SessionFolder.create(Path(sys.argv[1]), cluster="local", command=["pytest"], versions={})
for first, then in ((Verdict.INCONCLUSIVE, OUTDATED), (OUTDATED, Verdict.PASSED), (OUTDATED, Verdict.REGRESSED)):
    record = folder.add("test_x.py::test_y", measurement(spec(), [9.8, 9.9]))
    folder.judge(record.id, verdict=first, reason=f"because {first}")
    folder.judge(record.id, verdict=then, reason=f"because {then}")
folder.finish(exit_code=0, wall_s=1.0)
read = SessionFolder.open(folder.path)  # which holds its files against the schemas
print({str(verdict): count for verdict, count in read.session.verdicts.items()})
print(terminal.format_summary(read.measurements(), width=200, colour=True))
print(markdown.format_markdown_summary(read))
print(format_measurements_csv(read.measurements(), read.session))
print(f"| {OUTDATED} | {OUTDATED.row.when} |", OUTDATED.fails(strict=True), OUTDATED.may_become_baseline)
"""

CAME_TO = """
def test_old(record_property):
    record_property("dtfperf_verdict", "OUTDATED")
"""


def test_added_verdict_is_reported_everywhere(site: Path, perf: PerfTests) -> None:
    """One row is enough for severity, colour, files, tables, notes, Markdown, CSV, JUnit and pytest's summary."""
    add("A verdict", site)
    output = perf.run_python("-c", JUDGED, str(perf.folder)).out
    assert "{'OUTDATED': 2, 'REGRESSED': 1}" in output  # graver than INCONCLUSIVE and PASSED, and no REGRESSED is lost to it
    assert output.count("\x1b[35mOUTDATED") == 3  # magenta: once with its reason, and in the table
    assert "OUTDATED\x1b[0m (2 measurements): because OUTDATED" in output
    assert "**1 REGRESSED**, 2 OUTDATED" in output  # Markdown's counts, the gravest first
    assert "### OUTDATED: inception3" in output
    assert re.search(r",OUTDATED,false,false,1,because OUTDATED,", output)
    assert "| OUTDATED | its baseline is older than a year | True True" in output
    perf.write(CAME_TO)
    ended = perf.run("-v", "--junitxml=junit.xml")
    ended.line("test_old", "PASSED (OUTDATED)")
    ended.line("1 undecided in")
    (found,) = ET.parse(perf.folder / "junit.xml").iterfind(".//property")
    assert (found.get("name"), found.get("value")) == ("dtfperf_verdict", "OUTDATED")


EXPLAINED = """
import sys
from pathlib import Path

from pytest_dtfperf.cli import main
from pytest_dtfperf.explain.causes import explain
from pytest_dtfperf.explain.experiments import plan_experiments
from pytest_dtfperf.records.session import SessionFolder
from pytest_dtfperf.session.post_analysis import list_candidate_causes
from tests.explain.sides import make_side, slow_one
from tests.records.samples import measurement, spec

where = {"cluster": "--cluster=lab", "hosts": {"worker:0": "a", "worker:1": "b", "ps:0": "c"}}
found = explain(make_side(*slow_one(copy=5.0)), make_side(*slow_one(copy=40.0), more=where))
print([each.trial.name for each in plan_experiments(list_candidate_causes(found), {}, spare_hosts=1, most=4)])
folder = SessionFolder.create(Path(sys.argv[1]), cluster="lab", command=["pytest"], versions={})
folder.explain(folder.add("test_x.py::test_y", measurement(spec(), [9.8, 9.9])).id, explanation=found)
folder.finish(exit_code=0, wall_s=1.0)
main(["explain", str(folder.path)])
"""


def test_added_cause_is_found_and_shown(site: Path, perf: PerfTests) -> None:
    """A cause with its rows is found in the steps of two sides, has an experiment, is stored, and is shown with a command."""
    add("A cause", site)
    experiments, _, shown = perf.run_python("-c", EXPLAINED, str(perf.folder / "results")).out.partition("\n")
    assert experiments == "['another host']"
    assert "copy at worker:1: +35.0 ms, 100 % of the change; confidence medium" in shown
    assert "worker:1 (b) copies for 40.0 ms of a step, 5.00 ms in the baseline; all wait for it" in shown
    assert "next: dtfperf doctor --cluster=lab --hosts=b,c" in shown


# Reads each of these files of clusters, and prints why it is refused.
READ_CLUSTERS = """
import sys
from pathlib import Path

from pytest_dtfperf.clusters import named
from pytest_dtfperf.errors import DtfPerfError

for path in sys.argv[1:]:
    try:
        named.load(Path(path))
    except DtfPerfError as error:
        print(error)
"""


def test_added_backend_and_export_are_used(site: Path, perf: PerfTests) -> None:
    """Perf tests run on hosts of the backend, its keys are validated, and an error proposes its name for a similar one.

    The file of the export is written when this session ends, and the summary lists it.
    """
    add("A backend", site)
    add("An export", site)
    clusters = perf.folder / "perf" / "clusters.toml"
    own = clusters.read_text().partition("[local.training]")[0].partition("\n[local]\n")[2]
    clusters.write_text(
        f"{clusters.read_text()}\n[mine]\n{own}".replace('[mine]\nbackend = "local"', '[mine]\nbackend = "desk"')
    )
    ended = perf.run("--cluster=mine", "--gpus=1")
    assert ended.code == 0, ended.out + ended.err
    ended.line("dtfperf: cluster mine (desk, ")
    ended.line("1 undecided in")
    ended.line("Listed: rates.txt")
    (written,) = (perf.folder / "perf_results").glob("*/rates.txt")
    assert re.fullmatch(r"\d+(\.\d+)? trivial b32 gpus=1 num_ps=1 parameter_server\n", written.read_text())
    text = clusters.read_text()
    (perf.folder / "misspelt.toml").write_text(text.replace('"desk"', '"dekc"'))
    (perf.folder / "none.toml").write_text(f"{text}desks = 0\n")
    refused = perf.run_python("-c", READ_CLUSTERS, "misspelt.toml", "none.toml")
    refused.line("unknown backend 'dekc'. Did you mean 'desk'?")
    refused.line("desks must be a whole number of at least 1")


TRAINED = """
def test_throughput(train, baseline):
    baseline.check(train(model="linear", gpus=1, variable_update="damped", repeats=1, steps=3, warmup_steps=1, batch_size=4))
"""


# Opens the session, which validates its files with the schemas.
READ = """
import sys
from pathlib import Path

from pytest_dtfperf.records.session import SessionFolder
from pytest_dtfperf.report.dataframe import make_run_rows
from pytest_dtfperf.report.sources import StoredSession

folder = SessionFolder.open(Path(sys.argv[1]))
records = folder.measurements()
print(records[0].measurement.runs[0].threads)
print(make_run_rows([StoredSession(folder.session, records, [])])[0]["threads"])
"""


def test_added_model_mode_and_field_are_measured(site: Path, perf: PerfTests) -> None:
    """TensorFlow trains the network in the mode, and the field is measured, stored by its schema and exported."""
    add("A model", site)
    add("A mode", site)
    add("A field of a run", site)
    clusters = perf.folder / "perf" / "clusters.toml"
    clusters.write_text(clusters.read_text().replace('entry = "tests.plugin.toy_training:run"\n', ""))
    perf.write(TRAINED)
    ended = perf.run("-v")
    assert ended.code == 0, ended.out + ended.err
    ended.line("linear b4 gpus=1 num_ps=0 damped", "NO_BASELINE")
    (folder,) = (perf.folder / "perf_results").glob("2*")
    stored, exported = perf.run_python("-c", READ, str(folder)).out.splitlines()
    assert re.fullmatch(r"{'worker:0': [1-9]\d*}", stored)
    assert exported == stored.partition(": ")[2].rstrip("}")


def test_examples_import_the_copy(site: Path, perf: PerfTests) -> None:
    """The tests above import the copy, not the package of this repository."""
    found = subprocess.run(
        [sys.executable, "-c", "import pytest_dtfperf; print(pytest_dtfperf.__file__)"],
        env=perf.environ(),
        cwd=perf.folder,
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(found.stdout.strip()).is_relative_to(site)
