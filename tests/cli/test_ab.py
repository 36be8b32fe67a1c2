"""`dtfperf ab`: software stacks compared by runs in turn on the same hosts. The measured times are invented and exact."""

import csv
import io
import json
import re
import shutil
import signal
import sys
import venv
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from pytest_dtfperf.baselines.json_schema import json_schema
from pytest_dtfperf.compare.record import ComparisonRecord
from pytest_dtfperf.errors import SessionFileError
from pytest_dtfperf.records.session import SessionFolder
from pytest_dtfperf.report.comparisons import load_comparisons
from pytest_dtfperf.report.markdown import format_markdown_summary
from pytest_dtfperf.report.page.build import load_page_input
from pytest_dtfperf.report.session_exports import SessionResults
from pytest_dtfperf.testing.backends import wait_until
from tests.cli.table import read, read_refusal
from tests.clusters.slurm.conftest import new_site, shared_site, site
from tests.clusters.slurm.site import Site
from tests.clusters.ssh.conftest import lab, shared_lab
from tests.clusters.ssh.lab import Lab
from tests.plugin.conftest import ENDS_S, REPOSITORY, Ended, PerfTests, perf_tests_in
from tests.plugin.test_simulated import write as write_simulated
from tests.plugin.test_slurm import Mini
from tests.plugin.test_ssh import Laboratory
from tests.plugin.test_verdicts import session

__all__ = ["lab", "new_site", "shared_lab", "shared_site", "site"]

ONE_TASK = ("trivial", "variable_update=replicated")
SLOW = "new: environment=TOY_STEP_S=0.02"
CLUSTERS_FILE = "--clusters-file=perf/clusters.toml"


@pytest.fixture
def perf(tmp_path: Path) -> PerfTests:
    return perf_tests_in(tmp_path)


def run_ab(perf: PerfTests, *arguments: str, **environment: str) -> Ended:
    """Run `dtfperf ab` on the toys' cluster with 0.01 s for a step of ten images, and with one seed."""
    return run_command(perf, "ab", "--seed=1", *arguments, **environment)


def run_command(perf: PerfTests, *arguments: str, **environment: str) -> Ended:
    return perf.run_python("-m", "pytest_dtfperf.cli", *arguments, CLUSTERS_FILE, **environment)


@pytest.fixture(scope="module")
def slower(tmp_path_factory: pytest.TempPathFactory) -> tuple[PerfTests, Ended]:
    """Compare a stack with one that takes twice the time for a step, on two devices."""
    perf = perf_tests_in(tmp_path_factory.mktemp("slower"))
    return perf, run_ab(perf, "old:", SLOW, "trivial", "gpus=2")


@pytest.fixture(scope="module")
def same(tmp_path_factory: pytest.TempPathFactory) -> tuple[PerfTests, Ended]:
    """Compare a stack with itself."""
    perf = perf_tests_in(tmp_path_factory.mktemp("same"))
    return perf, run_ab(perf, "--same", "trivial", "--max-blocks=6")


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> tuple[PerfTests, Ended]:
    """Compare one parameter server with two, on simulated hosts."""
    perf = perf_tests_in(tmp_path_factory.mktemp("simulated"))
    write_simulated(perf)
    return perf, run_ab(perf, "one:", "two: num_ps=2", "inception3", "gpus=8", "num_ps=1", "steps=10", "--cluster=sim")


def read_comparisons(perf: PerfTests) -> list[dict[str, Any]]:
    """Return the lines of comparisons.jsonl of the latest session."""
    folder = max((perf.folder / "perf_results").iterdir())
    return [json.loads(line) for line in (folder / "comparisons.jsonl").read_text().splitlines()]


def test_slower_stack_is_found(slower: tuple[PerfTests, Ended]) -> None:
    """A variable that doubles a step gives SLOWER with its ratio, from runs of both stacks in turn."""
    perf, ended = slower
    assert ended.code == 1, ended.err
    ended.line("A/B on local", "1 host", "seed 1")
    ended.line('old -> new: environment: as usual -> ["TOY_STEP_S=0.02"]')
    ended.line("trivial b10 gpus=2 num_ps=1", "old 2000", "new 1000", "SLOWER")
    ended.line("trivial b10 gpus=2 num_ps=1 parameter_server (new), run 1 of 40")
    assert session(perf)["exit_code"] == 1
    (found,) = read_comparisons(perf)
    assert found["verdict"] == "SLOWER"
    assert found["estimate"]["ratio"] == pytest.approx(0.5, rel=0.01)
    assert {block["order"] for block in found["blocks"]} == {"ABBA", "BAAB"}
    for block in found["blocks"]:
        rates = {"A": 2000, "B": 1000}
        assert [run["images_per_sec"] for run in block["runs"]] == pytest.approx(
            [rates[side] for side in block["order"]], rel=0.05
        )


def test_variant_can_change_a_field(perf: PerfTests) -> None:
    """A variant's field is in its spec, and equal rates are EQUIVALENT."""
    ended = run_ab(perf, "one:", "two: num_intra_threads=1", "trivial", "--json")
    assert ended.code == 0, ended.err
    (found,) = read("ab", ended.out)
    assert found["verdict"] == "EQUIVALENT"
    assert [found[side]["spec"]["num_intra_threads"] for side in ("reference", "variant")] == [None, 1]


def test_change_of_the_graph_is_reported(perf: PerfTests) -> None:
    """Another graph is a change, in the record and beside the verdict."""
    ended = run_ab(perf, "one:", "two: xla=true", "trivial")
    assert ended.code == 0, ended.err
    (found,) = read_comparisons(perf)
    assert any(each.startswith("training graph: ") for each in found["changes"])
    ended.line("changed: training graph: ")


def test_each_variant_is_compared_with_the_first(perf: PerfTests) -> None:
    """Each training has a comparison of each further variant with the first."""
    (perf.folder / "ab.toml").write_text(
        '[old]\n[slow]\nenvironment = ["TOY_STEP_S=0.02"]\n[fast]\nenvironment = ["TOY_STEP_S=0.005"]\n'
    )
    ended = run_ab(perf, "--variants=ab.toml", *ONE_TASK, *ONE_TASK, "gpus=2")
    assert ended.code == 1, ended.err
    found = [(each["spec"]["gpus"], each["variant"]["name"], each["verdict"]) for each in read_comparisons(perf)]
    assert found == [(1, "slow", "SLOWER"), (1, "fast", "FASTER"), (2, "slow", "SLOWER"), (2, "fast", "FASTER")]


def test_same_compares_a_stack_with_itself(same: tuple[PerfTests, Ended]) -> None:
    """--same needs no variant, and shows the smallest difference that can be found."""
    _, ended = same
    assert ended.code == 0, ended.err
    ended.line("trivial b10 gpus=1", "reference", "reference-again", "EQUIVALENT")
    ended.line("the smallest difference that 6 blocks find here:")


def test_comparison_writes_no_measurements_or_baselines(same: tuple[PerfTests, Ended]) -> None:
    """A comparison writes no measurements, no baselines and no history."""
    perf, _ = same
    (folder,) = (perf.folder / "perf_results").iterdir()
    assert not (folder / "measurements.jsonl").read_text()
    assert not (perf.folder / "baselines").exists()
    assert json.loads((folder / "session.json").read_text())["exit_code"] == 0


def test_comparison_is_in_all_exports(slower: tuple[PerfTests, Ended]) -> None:
    """Each line passes its schema and is read again, and the table, page and Markdown have the comparison."""
    perf, _ = slower
    folder = SessionFolder.open(max((perf.folder / "perf_results").iterdir()))
    (line,) = read_comparisons(perf)
    jsonschema.validate(line, json_schema(ComparisonRecord))
    (record,) = load_comparisons(folder)
    assert record.to_json() == line
    (row,) = csv.DictReader(io.StringIO((folder.path / "comparisons.csv").read_text()))
    assert (row["spec"], row["verdict"], row["variant"]) == (record.spec.label, "SLOWER", "new")
    assert float(row["ratio"]) == pytest.approx(line["estimate"]["ratio"], rel=1e-5)
    page = (folder.path / "report.html").read_text()
    for logs in folder.path.glob("logs/*"):
        (logs / "99").mkdir()  # no other test reads logs
        (logs / "99" / "worker-0.log").write_text("what a task printed\n")
    assert load_page_input(folder, SessionResults([], comparisons=[record])).without_measurement == []
    (table,) = re.findall(r"(?s)<table class=.*?</table>", page)
    assert "<th>variant against reference" in table
    assert "<td>SLOWER" in table
    assert "<h2>Comparison of software stacks</h2>" in page
    assert "1 comparison; took" in page
    assert "comparisons.csv, comparisons.jsonl" in page
    lines = format_markdown_summary(folder).splitlines()
    assert [each for each in lines if each.startswith(f"| {record.spec.label} |") and each.endswith("| SLOWER |")]


def test_comparison_on_simulated_hosts_is_marked(simulated: tuple[PerfTests, Ended]) -> None:
    """Terminal, CSV, page, Markdown and record of a comparison have the same verdict and the mark of simulated hosts."""
    perf, ended = simulated
    folder = SessionFolder.open(max((perf.folder / "perf_results").iterdir()))
    (line,) = read_comparisons(perf)
    marked = f"{line['verdict']} SIMULATED"
    assert "SIMULATED: the hosts of sim are simulated, and nothing was trained" in ended.out
    ended.line(marked)
    (row,) = csv.DictReader(io.StringIO((folder.path / "comparisons.csv").read_text()))
    assert (row["verdict"], row["simulated"]) == (line["verdict"], "true")
    assert f"<td>{marked}<" in (folder.path / "report.html").read_text()
    assert f"| {marked} |" in format_markdown_summary(folder)
    assert line["reference"]["fingerprint"]["hardware"]["simulated"] == "sim"


def test_variants_with_different_tasks_are_compared(simulated: tuple[PerfTests, Ended]) -> None:
    """A variant with another parameter server is compared, because the common tasks are on the same hosts."""
    perf, ended = simulated
    (line,) = read_comparisons(perf)
    assert line["verdict"] == "FASTER", ended.out


def test_workers_of_variants_are_on_the_same_hosts(perf: PerfTests) -> None:
    """Variants with parameter servers on one and on two separate hosts have their workers on the same hosts."""
    write_simulated(perf, "ps_on_worker_hosts = false\n")
    ended = run_ab(perf, "one:", "two: num_ps=2", "inception3", "gpus=4", "num_ps=1", "steps=10", "--cluster=sim")
    (line,) = read_comparisons(perf)
    assert line["verdict"] != "TAINTED", ended.out
    hosts = [run["task_hosts"] for block in line["blocks"] for run in block["runs"]]
    assert {(each["worker:0"], each["ps:0"]) for each in hosts} == {("sim-0002", "sim-0000")}
    assert {each.get("ps:1") for each in hosts} == {None, "sim-0001"}


def test_damaged_comparison_is_one_line(same: tuple[PerfTests, Ended], tmp_path: Path) -> None:
    """The message about a damaged comparison has the file, the line and the key."""
    (made,) = (same[0].folder / "perf_results").iterdir()
    folder = SessionFolder.open(shutil.copytree(made, tmp_path / made.name))
    path = folder.path / "comparisons.jsonl"
    data = json.loads(path.read_text())
    data["blocks"][0]["runs"] *= 2
    path.write_text(json.dumps(data) + "\n")
    with pytest.raises(SessionFileError, match=r"comparisons.jsonl:1: blocks.0.runs: must be a list of at most 4"):
        load_comparisons(folder)
    path.write_text(path.read_text().replace('"schema": 1', '"schema": 9', 1))
    with pytest.raises(SessionFileError, match=r"comparisons.jsonl:1: written by a newer version of pytest-dtfperf"):
        load_comparisons(folder)
    path.write_text("{}\nno JSON\n")
    with pytest.raises(SessionFileError, match=r"comparisons.jsonl:1: must be an object with the key 'id'"):
        load_comparisons(folder)


def test_time_limit_ends_a_comparison(perf: PerfTests) -> None:
    """After the time limit no block begins, and the verdict has the reason. A block sleeps longer than the limit here."""
    ended = run_ab(perf, "old:", "new: num_intra_threads=1", "trivial", "--time-limit=1s", TOY_STEP_S="0.3")
    assert ended.code == 0, ended.err
    ended.line("the time limit was reached")
    (found,) = read_comparisons(perf)
    assert found["verdict"] == "INCONCLUSIVE"
    assert len(found["blocks"]) <= 1  # none if the agents took a second to start


def test_block_that_would_end_after_the_time_limit_is_not_begun(perf: PerfTests) -> None:
    """A block does not begin with less time left than the longest block has taken."""
    source = """
from pytest_dtfperf.compare.variants import parse_variant
from pytest_dtfperf.session import Session

def count_blocks():
    return len(comparing.comparisons[0].blocks)

with Session.open(clusters_file="perf/clusters.toml", quiet=True) as session:
    variants = [parse_variant("old:"), parse_variant("new: num_intra_threads=1")]
    comparing = session.prepare_comparison(variants, [session.spec("trivial")])
    (found,) = comparing.carry_out(1.5, clock=count_blocks)
print(found.verdict, len(found.blocks), found.decision.reason.partition(":")[0], sep="; ")
"""
    ended = perf.run_python("-c", source)
    assert ended.out == "INCONCLUSIVE; 1; the time limit was reached\n", ended.err


def test_failing_variant_ends_only_its_comparison(perf: PerfTests) -> None:
    """A variant that cannot train is FAILED with its name, and the others have their verdicts."""
    ended = run_ab(perf, "old:", "bad: environment='TOY_DO=die worker:0'", SLOW, "trivial")
    assert ended.code == 1, ended.err
    found = {each["variant"]["name"]: each for each in read_comparisons(perf)}
    assert {name: each["verdict"] for name, each in found.items()} == {"bad": "FAILED", "new": "SLOWER"}
    assert "with variant bad" in found["bad"]["reason"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["old:", "trivial"], "a comparison needs two variants, and there is only old"),
        (["old:", "new:", "trivial"], "variants old and new are equal"),
        (["old:", "new: gpus=2", "trivial"], "variant new: gpus cannot differ between variants"),
        (["old:", "new: xla=true"], "which training?"),
        (["old:", "new: xla=true", "trivial", "num_ps=sweep"], "a comparison needs the number of parameter servers itself"),
        (["old:", "new: setup='module load x'", "trivial"], "has no set-up lines"),
        (["old:", "new: variable_update=mirrored num_ps=3", "trivial"], "variant new: "),
        (["old:", "new: xla=true", "--same", "trivial"], "--same compares one variant with itself, and there are old and new"),
        (["old:", "new: xla=true", "trivial", "--equivalence=1"], "--equivalence is a fraction, as 0.01 for 1 %, not 1"),
        (["old:", "new: xla=true", "trivial", "--max-blocks=3"], "--max-blocks must be 4 or more, not 3"),
        (["old:", "new: xla=true", "trivial", "--steps=0"], "--steps must be 1 or more, not 0"),
    ],
)
def test_invalid_comparison_is_one_line(
    perf: PerfTests, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    """Arguments that cannot be compared are one line with exit code 2, and nothing is started."""
    monkeypatch.chdir(perf.folder)
    assert message in read_refusal(capfd, "ab", *arguments, CLUSTERS_FILE)
    assert not (perf.folder / "perf_results").exists()


def write_interpreter(path: Path, printed: str) -> Path:
    """Write a program that prints a version and whether it has TensorFlow, as the check of an interpreter reads it."""
    path.write_text(f"#!/bin/sh\necho {printed}\n")
    path.chmod(0o755)
    return path


def test_missing_interpreter_is_one_line(perf: PerfTests) -> None:
    """A variant with a missing interpreter is refused before hosts are allocated."""
    ended = run_ab(perf, "old:", "new: python=/no/such/python", "trivial")
    assert ended.code == 2, ended.out
    assert "variant new: python: /no/such/python cannot be started" in ended.err
    assert len(ended.err.splitlines()) == 1
    assert not (perf.folder / "perf_results").exists()


def test_old_interpreter_is_one_line(perf: PerfTests) -> None:
    """An interpreter that is too old is refused with its version and the required one."""
    old = write_interpreter(perf.folder / "python", "3 9 True")
    ended = run_ab(perf, "old:", f"new: python={old}", "trivial")
    assert ended.code == 2, ended.out
    assert ended.err == f"dtfperf: variant new: python: {old} is Python 3.9: 3.11 or newer is needed\n"


def test_interpreter_without_tensorflow_is_one_line(perf: PerfTests) -> None:
    """An interpreter without TensorFlow is refused with the command that installs it."""
    (perf.folder / "perf" / "clusters.toml").write_text('[local]\nbackend = "local"\n')
    bare = write_interpreter(perf.folder / "python", "3 12 False")
    ended = run_ab(perf, "old:", f"new: python={bare}", "trivial")
    assert ended.code == 2, ended.out
    assert ended.err == f"dtfperf: variant new: python: {bare} has no TensorFlow: {bare} -m pip install tensorflow\n"


@pytest.mark.parametrize(
    ("container", "message"),
    [
        ("no-such-runner exec tf.sif", "container: this host has no program no-such-runner: install it"),
        ("env /no/such/tf.sif", "container: this host has no image /no/such/tf.sif"),
        ("sh broken.sh", "container: sh broken.sh does not start python3: the image is damaged. Correct container or"),
        ("sh silent.sh", "container: sh silent.sh does not start python3: exit code 3. Correct container or"),
    ],
    ids=["no runner", "no image", "damaged image", "without output"],
)
def test_container_that_does_not_start_is_one_line(
    perf: PerfTests, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], container: str, message: str
) -> None:
    """A variant with a container that does not start is refused before hosts are allocated, by comparison and search."""
    (perf.folder / "broken.sh").write_text("echo the image is damaged >&2\nexit 3\n")
    (perf.folder / "silent.sh").write_text("exit 3\n")
    monkeypatch.chdir(perf.folder)
    bad = f"new: container='{container}'"
    for command in (["ab", "old:", bad], ["bisect", "old:", bad, "last: xla=true"]):
        assert read_refusal(capfd, *command, "trivial", CLUSTERS_FILE).startswith(f"dtfperf: variant new: {message}")
    assert not (perf.folder / "perf_results").exists()


@pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed: apt-get install bubblewrap")
def test_stack_in_a_container_is_compared(perf: PerfTests) -> None:
    """A stack in a container is compared with one outside, and a missing interpreter in the container is one line."""
    inside = "new: container='bwrap --dev-bind / / --die-with-parent --' container_python="
    ended = run_ab(perf, "old:", inside + sys.executable, "trivial", "--max-blocks=4")
    assert ended.code == 0, ended.out + ended.err
    (found,) = read_comparisons(perf)
    assert found["verdict"] == "EQUIVALENT"
    missing = run_ab(perf, "old:", f"{inside}/no/such/python", "trivial")
    assert missing.code == 2
    assert "variant new: container: bwrap --dev-bind / / --die-with-parent -- does not start /no/such/python: " in missing.err
    assert len(missing.err.splitlines()) == 1


def test_container_that_does_not_start_over_ssh_ends_the_comparison(perf: PerfTests, lab: Lab) -> None:
    """A container that does not start on the hosts ends the comparison before its first run, with the reason."""
    Laboratory(perf, lab)
    ended = run_ab(perf, "old:", "new: container='env /no/such/tf.sif'", "trivial", "gpus=2", "--cluster=lab")
    assert ended.code == 1, ended.out
    error = ended.err[ended.err.index("dtfperf: variant new: the agent on ") :].splitlines()
    assert error[1:] == ["    | container: this host has no image /no/such/tf.sif"]
    assert "run 1 of" not in ended.err
    wait_until("no session is left on any host", lambda: not any(each.sessions() for each in lab.machines))


def test_environment_without_this_package_trains(perf: PerfTests, tmp_path: Path) -> None:
    """An interpreter of this machine without this package can train."""
    venv.create(tmp_path / "bare", symlinks=True)
    bare = tmp_path / "bare" / "bin" / "python"
    (tmp_path / "toys").mkdir()
    (tmp_path / "toys" / "tests").symlink_to(REPOSITORY / "tests")
    path = str(tmp_path / "toys")  # of the agents, and not of the command, which is a fork
    program = f"import os, sys; os.environ['PYTHONPATH'] = {path!r}; from pytest_dtfperf.cli import main; sys.exit(main())"
    ended = perf.run_python("-c", program, "ab", "--seed=1", "old:", f"new: python={bare}", "trivial", CLUSTERS_FILE)
    assert ended.code == 0, ended.err
    (found,) = read_comparisons(perf)
    assert found["verdict"] == "EQUIVALENT", ended.out + ended.err


def test_slower_stack_is_explained(perf: PerfTests) -> None:
    """A comparison with traced runs has an explanation of the slower stack against the other."""
    ended = run_ab(perf, "old:", SLOW, "trivial", TOY_TRACES="1")
    assert ended.code == 1, ended.err
    (found,) = read_comparisons(perf)
    assert found["unexplained"] == ""
    explanation = found["explanation"]
    assert explanation["against"] == "old"
    assert explanation["step_s"] - explanation["baseline_step_s"] == pytest.approx(0.01, rel=0.1)


def test_session_in_python_compares_stacks(perf: PerfTests) -> None:
    """`Session.compare` returns the comparisons, and refuses no trainings and a session that changes baselines."""
    source = """
from pytest_dtfperf.compare.variants import parse_variant
from pytest_dtfperf.errors import UsageError
from pytest_dtfperf.session import Session, Settings

variants = [parse_variant("old:"), parse_variant("new: environment=TOY_STEP_S=0.02")]
with Session.open(clusters_file="perf/clusters.toml", quiet=True) as session:
    (found,) = session.compare(variants, [session.spec("trivial")], seed=3)
    try:
        session.compare(variants, [])
    except UsageError as error:
        print(error)
print(found.verdict, found.seed, len(found.runs("A")) == len(found.runs("B")))
with Session.open(clusters_file="perf/clusters.toml", settings=Settings(update_baselines="all")) as session:
    try:
        session.compare(variants, [session.spec("trivial")])
    except UsageError as error:
        print(error)
"""
    ended = perf.run_python("-c", source)
    assert ended.out.splitlines() == [
        'a comparison needs a training: compare(variants, [session.spec("mnist")])',
        "SLOWER 3 True",
        "a comparison of variants changes no baselines: --update-baselines is for runs of one stack",
    ], ended.err


def test_stacks_are_compared_over_ssh(perf: PerfTests, lab: Lab) -> None:
    """Stacks that differ in set-up lines are compared on two hosts over SSH, and no session is left there."""
    Laboratory(perf, lab)
    ended = run_ab(perf, "old:", "new: setup='export TOY_STEP_S=0.02'", "trivial", "gpus=2", "--cluster=lab")
    assert ended.code == 1, ended.out + ended.err
    (found,) = read_comparisons(perf)
    assert found["verdict"] == "SLOWER"
    assert found["estimate"]["ratio"] == pytest.approx(0.5, rel=0.05)
    assert {host for block in found["blocks"] for run in block["runs"] for host in run["hosts"]} == {"m1", "m2"}
    for each in lab.machines:
        assert not each.sessions()


def test_stacks_are_compared_on_slurm(perf: PerfTests, site: Site) -> None:
    """Stacks that differ in set-up lines are compared in one Slurm job."""
    mini = Mini(perf, site)
    ended = run_ab(perf, "old:", "new: setup='export TOY_STEP_S=0.02'", "trivial", "gpus=2", "--cluster=mini")
    assert ended.code == 1, ended.out + ended.err
    (found,) = read_comparisons(perf)
    assert found["verdict"] == "SLOWER"
    assert found["estimate"]["ratio"] == pytest.approx(0.5, rel=0.05)
    assert len(mini.jobs) == 1


def test_variant_with_more_hosts_needs_no_second_job(perf: PerfTests, site: Site) -> None:
    """Hosts for a variant that needs more of them than the reference are allocated before the first run, in one Slurm job."""
    mini = Mini(perf, site)
    mini.add_keys("ps_on_worker_hosts = false")
    ended = run_ab(perf, "old:", "new: num_ps=2", "trivial", "num_ps=1", "--max-blocks=4", "--cluster=mini")
    assert "A/B on mini, 3 hosts" in ended.out, ended.err
    assert len(mini.jobs) == 1


def test_training_with_more_hosts_needs_no_second_job(perf: PerfTests, site: Site) -> None:
    """The training with the most hosts, not that with the most devices, decides how many are allocated before the first run."""
    mini = Mini(perf, site)
    mini.add_keys("ps_on_worker_hosts = false")
    trainings = ["trivial", "gpus=2", "num_ps=1", "trivial", "gpus=1", "num_ps=3"]
    ended = run_ab(perf, "old:", "new: num_intra_threads=1", *trainings, "--max-blocks=4", "--cluster=mini")
    assert [len({*block["runs"][0]["hosts"]}) for each in read_comparisons(perf) for block in each["blocks"][:1]] == [3, 4]
    assert [job.nodes for job in mini.jobs] == [4], ended.err


def test_interrupted_comparison_keeps_its_blocks(perf: PerfTests) -> None:
    """A comparison that is interrupted ends with exit code 130, and its session has the finished blocks."""
    # With this seed the first training has its block before the second one, which waits until it is ended.
    arguments = ["old:", "new: num_intra_threads=1", "trivial", "trivial", "steps=7", "--seed=1"]
    waits = perf.folder / "waits"
    toys = {"TOY_DO": "wait in 7 steps", "TOY_WAITS": str(waits)}
    with perf.start_command("ab", *arguments, "--clusters-file=perf/clusters.toml", **toys) as process:
        wait_until("the second training waits", waits.exists, patience_s=ENDS_S)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=ENDS_S)
    assert process.returncode == 130
    made, waiting = read_comparisons(perf)
    (block,) = made["blocks"]
    assert block["order"] in ("ABBA", "BAAB")
    assert waiting["blocks"] == []
