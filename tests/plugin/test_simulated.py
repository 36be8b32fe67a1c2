"""Tests of sessions on a simulated cluster, with unchanged perf tests and marked measurements."""

import json
import re
import shlex
import xml.etree.ElementTree as ET

from pytest_dtfperf.records.session import SessionFolder
from pytest_dtfperf.report.markdown import format_markdown_summary
from tests.plugin.conftest import PerfTests

CLUSTER = """
[sim]
backend = "simulated"
hosts = 4
gpus_per_host = 2
kind = "P100"
rates = { inception3 = 142.0 }
seed = 1
"""
TESTS = """
def test_throughput(train, baseline, gpus):
    \"\"\"InceptionV3 trains no slower than its baseline.\"\"\"
    baseline.check(train(model="inception3", gpus=gpus, num_ps=1, batch_size=64, steps=20, warmup_steps=5))
"""
SLOW = "slow_hosts = [{ host = 1, slowdown = 1.4 }]\n"


def write(perf: PerfTests, more: str = "") -> None:
    clusters = perf.folder / "perf" / "clusters.toml"
    clusters.write_text(clusters.read_text().partition("\n[sim]")[0] + CLUSTER + more)
    perf.write(TESTS)


def test_simulated_session_is_marked_in_all_outputs(perf: PerfTests) -> None:
    """Terminal, records, CSV, page, Markdown and JUnit of a session on simulated hosts mark it as simulated."""
    write(perf)
    ended = perf.run("--cluster=sim", "--gpus=1,8", "--junitxml=junit.xml")
    assert ended.code == 0, ended.out + ended.err
    ended.line("dtfperf: cluster sim (simulated, 4 hosts, 8 gpu devices)", "SIMULATED: nothing is trained")
    ended.line("gpus=8 num_ps=1", "NO_BASELINE SIMULATED")
    assert "dtfperf doctor" not in ended.out
    assert "SIMULATED: the hosts of sim are simulated, and nothing was trained" in " ".join((ended.out + ended.err).split())
    properties = {each.get("name"): each.get("value") for each in ET.parse(perf.folder / "junit.xml").iterfind(".//property")}
    assert "sim" in [value for name, value in properties.items() if name and name.endswith(": simulated")]
    (folder,) = (perf.folder / "perf_results").iterdir()
    records = [json.loads(line) for line in (folder / "measurements.jsonl").read_text().splitlines()]
    assert {record["fingerprint"]["hardware"]["simulated"] for record in records} == {"sim"}
    heading, *rows = (folder / "measurements.csv").read_text().splitlines()
    at = heading.split(",").index("simulated")
    assert {row.split(",")[at] for row in rows} == {"true"}
    assert "NO_BASELINE SIMULATED" in (folder / "report.html").read_text()
    assert "NO_BASELINE SIMULATED" in format_markdown_summary(SessionFolder.open(folder), None, outcome="All tests passed.")


def test_simulated_cluster_has_its_own_baselines(perf: PerfTests) -> None:
    """An accepted rate is in a separate file, and a slow host is REGRESSED with the host as the cause, and exit code 1."""
    write(perf)
    assert perf.run("--cluster=sim", "--gpus=8", "--update-baselines", "--explain=always").code == 0
    (file,) = (perf.folder / "baselines").glob("*.json")
    assert file.name == "2x-simulated-p100-of-sim.json"
    again = perf.run("--cluster=sim", "--gpus=8")
    assert again.code == 0
    again.line("gpus=8 num_ps=1", "PASSED SIMULATED")
    write(perf, SLOW)
    slow = perf.run("--cluster=sim", "--gpus=8", "--explain=auto")
    assert slow.code == 1
    slow.line("gpus=8 num_ps=1", "REGRESSED SIMULATED")
    assert re.search(r"sim-0001 computes \d+ % slower than its baseline", " ".join(slow.out.split())), slow.out


def test_next_command_of_a_regression_finds_two_slow_hosts(perf: PerfTests) -> None:
    """With --diagnose, the printed `dtfperf isolate` finds the cluster and both slow hosts, and no doctor is printed."""
    write(perf)
    assert perf.run("--cluster=sim", "--gpus=8", "--update-baselines", "--explain=always").code == 0
    write(perf, "slow_hosts = [{ host = 1, slowdown = 1.4 }, { host = 2, slowdown = 1.4 }]\n")
    slow = perf.run("--cluster=sim", "--gpus=8", "--explain=auto", "--diagnose")
    assert slow.code == 1
    printed = re.search(r"dtfperf (isolate (?:.*\\\n)*.*)", slow.out)
    assert printed, slow.out
    assert "dtfperf doctor" not in slow.out
    arguments = shlex.split(printed[1].replace("\\\n", " "))
    found = perf.run_python("-m", "pytest_dtfperf.cli", *arguments, "--json")
    assert found.code == 1, found.err
    assert json.loads(found.out)["exclude"] == ["sim-0001", "sim-0002"]


def test_simulated_session_has_a_separate_history(perf: PerfTests) -> None:
    """A simulated session is entered in a file of its own, and a database on a server is refused with exit code 4."""
    write(perf)
    assert perf.run("--cluster=sim", "--gpus=1", f"--history={perf.folder / 'all.sqlite'}").code == 0
    assert {path.name for path in perf.folder.glob("*.sqlite")} == {"all.simulated.sqlite"}
    refused = perf.run("--cluster=sim", "--gpus=1", "--history=postgresql://perf@db/perf")
    assert refused.code == 4
    assert "simulated hosts have a history in a file: give --history=FILE" in refused.out + refused.err
