"""Sessions of scripts on this machine without pytest, with trainings that take no time."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.clusters.ssh.endpoints import list_endpoints
from pytest_dtfperf.errors import UsageError
from pytest_dtfperf.session import Session
from pytest_dtfperf.testing.backends import wait_until
from tests.plugin import zygote
from tests.plugin.conftest import ENDS_S, Ended, PerfTests, perf_tests_in
from tests.plugin.test_allocations import CLOUD

OPEN = """
import json, sys
from pytest_dtfperf.session import Session, Settings
from tests.plugin import pretend

pretend.register()

def open_session(cluster="local", **more):
    return Session.open(cluster, clusters_file="perf/clusters.toml", quiet=True, **more)
"""

MEASURE = """
with open_session() as session:
    measured = session.measure(session.spec("trivial", gpus=2, num_ps=1))
    judgement = session.check(measured)
    seen = {
        "rate": measured.images_per_sec,
        "verdict": judgement.verdict,
        "hosts": len(session.cluster.hosts),
        "pytest": sorted(name for name in sys.modules if name.partition(".")[0] in ("pytest", "_pytest")),
    }
print(json.dumps(seen))
"""


@pytest.fixture
def project(tmp_path: Path) -> PerfTests:
    """Return a folder with a cluster file: this machine, and a cloud with one allocation at a time."""
    project = perf_tests_in(tmp_path)
    clusters = project.folder / "perf" / "clusters.toml"
    clusters.write_text(clusters.read_text() + CLOUD + "max_jobs = 1\n")
    project.environment |= {"PRETEND_LOG": str(project.folder / "pretend.log")}
    return project


def run_script(project: PerfTests, source: str, **environment: str) -> Ended:
    return project.run_python("-c", OPEN + source, **environment)


def session_of(project: PerfTests) -> dict[str, Any]:
    (folder,) = (project.folder / "perf_results").iterdir()
    found: dict[str, Any] = json.loads((folder / "session.json").read_text())
    return found


def read_records(project: PerfTests) -> list[dict[str, Any]]:
    (folder,) = (project.folder / "perf_results").iterdir()
    return [json.loads(line) for line in (folder / "measurements.jsonl").read_text().splitlines()]


def test_session_measures_without_pytest(project: PerfTests) -> None:
    """A measurement, its judgement and its record do not import pytest."""
    project.cold = True  # what is forked has pytest
    ended = run_script(project, MEASURE)
    assert ended.code == 0, ended.err
    seen = json.loads(ended.out)
    assert seen == {"rate": pytest.approx(2000, rel=0.01), "verdict": "NO_BASELINE", "hosts": 1, "pytest": []}
    assert [(each["test"], each["verdict"]) for each in read_records(project)] == [
        ("trivial b10 gpus=2 num_ps=1 parameter_server", "NO_BASELINE")
    ]
    assert session_of(project)["exit_code"] == 0
    assert "pytest" not in session_of(project)["versions"]


def test_check_uses_the_policy_of_the_measurement(project: PerfTests) -> None:
    """The session keeps the plan and the policy of a measurement, and records its check with them."""
    code = """
with open_session(settings=Settings(repeats=2, margin=0.2), tests=4) as session:
    measured = session.measure(session.spec("trivial", gpus=1))
    session.check(measured)
terms = session.terms[measured.id, measured.test]
print(json.dumps([session.plans[measured.id].repeats, terms.to_json()]))
"""
    ended = run_script(project, code)
    assert ended.code == 0, ended.err
    repeats, terms = json.loads(ended.out)
    assert (repeats, terms["most"], terms["margin"]) == (2, 2, 0.2)
    assert terms["false_alarm"] == pytest.approx(0.05 / 4 / 2)
    assert read_records(project)[0]["checks"][0]["terms"] == terms


def test_accepted_baseline_is_used_by_the_next_session(project: PerfTests) -> None:
    """`update_baselines` accepts at the session's end, and a slower session is REGRESSED with exit code 1 in session.json."""
    accepting = "with open_session(settings=Settings(update_baselines='all')) as session:\n"
    checked = "    print(session.check(session.measure(session.spec('trivial', gpus=1))).verdict)\n"
    assert run_script(project, accepting + checked).out == "NO_BASELINE\n"
    (project.folder / "perf_results").rename(project.folder / "before")
    assert run_script(project, "with open_session() as session:\n" + checked, TOY_STEP_S="0.02").out == "REGRESSED\n"
    assert session_of(project)["exit_code"] == 1


def test_failed_acceptance_keeps_the_session(project: PerfTests) -> None:
    """A damaged file of baselines is the session's error, and its folder is complete."""
    code = """
with open_session(settings=Settings(update_baselines="all")) as session:
    session.check(session.measure(session.spec("trivial", gpus=1)))
    file = session.store.folder / f"{session.cluster.system}.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text("{")
"""
    ended = run_script(project, code)
    assert ended.code == 1
    ended.line("BaselineFileError: ", ".json: ")
    assert session_of(project)["exit_code"] == 3
    (folder,) = (project.folder / "perf_results").iterdir()
    assert {"measurements.csv", "report.html"} <= {path.name for path in folder.iterdir()}


BREAKS = {
    "an error": ("raise ZeroDivisionError", 1, 3),
    "Ctrl-C": ("import os, signal; os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT, 2),
    "SIGTERM": ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", 128 + signal.SIGTERM, 2),
}


@pytest.mark.parametrize("line, code, noted", BREAKS.values(), ids=BREAKS)
def test_hosts_are_released_at_any_end(project: PerfTests, line: str, code: int, noted: int) -> None:
    """An exception, Ctrl-C and SIGTERM end the block, release the hosts and keep the measurement."""
    ended = run_script(
        project,
        f"with open_session('cloud') as session:\n    session.measure(session.spec('trivial', gpus=1))\n    {line}\n",
    )
    assert ended.code == code, ended.err
    events = [json.loads(each)["event"] for each in (project.folder / "pretend.log").read_text().splitlines()]
    assert events == ["requested", "allocated", "released"]
    assert session_of(project)["exit_code"] == noted
    assert len(read_records(project)) == 1


def test_sigterm_during_a_run_ends_the_session(project: PerfTests) -> None:
    """SIGTERM while tasks train ends the session with its locks."""
    begun = project.folder / "begun"
    source = OPEN + "with open_session() as session:\n    session.measure(session.spec('trivial', gpus=1))\n"
    environment = project.environ({"TOY_DO": "wait", "TOY_WAITS": str(begun)})
    with zygote.start(["-c", source], project.folder, environment, leads=True) as process:
        wait_until("a task trains", begun.exists, ENDS_S)
        process.send_signal(signal.SIGTERM)
        assert process.wait(ENDS_S) == 128 + signal.SIGTERM
    assert list((project.folder / "runtime" / "dtfperf").iterdir()) == []
    assert session_of(project)["exit_code"] == 2


def test_two_sessions_of_a_script_take_turns(project: PerfTests) -> None:
    """Two sessions of one script on the same hosts measure in turn, each into a folder of its own."""
    code = """
with open_session() as one, open_session() as other:
    for session in (one, other, one):
        session.measure(session.spec("trivial", gpus=1), test=f"a measurement of {session.id}")
print(one.id != other.id, len(one.folder.measurements()), len(other.folder.measurements()))
"""
    ended = run_script(project, code)
    assert (ended.code, ended.out) == (0, "True 2 1\n"), ended.err


def test_session_that_would_wait_for_itself_is_refused(project: PerfTests) -> None:
    """A second session of the same thread is refused if the cluster has one allocation, and works after the first is closed."""
    code = """
from pytest_dtfperf.errors import UsageError
with open_session("cloud") as one, open_session("cloud") as other:
    one.measure(one.spec("trivial", gpus=1))
    try:
        other.measure(other.spec("trivial", gpus=1))
    except UsageError as error:
        print(error)
    one.close()
    other.measure(other.spec("trivial", gpus=1))
"""
    ended = run_script(project, code)
    assert ended.code == 0, ended.err
    ended.line("cluster cloud: another session of this thread has the hosts that this one waits for: close that session first")


def test_closed_session_is_refused(project: PerfTests) -> None:
    """A measurement in a closed session is a UsageError, and makes no folder."""
    code = """
with open_session() as session:
    spec = session.spec("trivial", gpus=1)
session.close()
session.measure(spec)
"""
    ended = run_script(project, code)
    assert ended.code == 1
    ended.line("UsageError: session ", " is closed: open another one")
    assert not (project.folder / "perf_results").exists()


WRONG = {
    "open_session('nowhere')": "unknown cluster 'nowhere'",
    "open_session().spec('inceptoin3')": "unknown model 'inceptoin3'. Did you mean 'inception3'?",
    "open_session().spec('trivial', gpu=1)": "unknown argument 'gpu'. Did you mean 'gpus'?",
}


def test_wrong_arguments_are_usage_errors(project: PerfTests) -> None:
    """Each wrong argument of a script is a UsageError, before anything starts."""
    tried = "".join(f"try:\n    {call}\nexcept UsageError as error:\n    print(json.dumps(str(error)))\n" for call in WRONG)
    ended = run_script(project, f"from pytest_dtfperf.errors import UsageError\n{tried}")
    for line, words in zip(ended.out.splitlines(), WRONG.values(), strict=True):
        assert words in json.loads(line), ended.err
    assert not (project.folder / "perf_results").exists()


PROBED = """
with open_session(settings=Settings(update_baselines={update!r}, explain={explain!r})) as session:
    measured = session.measure(session.spec("trivial", gpus=1))
    print(session.check(measured).verdict)
"""


def test_probes_are_stored_with_baselines_and_bad_verdicts(project: PerfTests) -> None:
    """Probes are made for a new baseline and for a bad verdict, unless explain="never"; the limit is stored."""
    assert run_script(project, PROBED.format(update="all", explain="never")).out == "NO_BASELINE\n"
    assert "probes" not in read_records(project)[0]
    assert read_records(project)[0]["limit"]["images_per_sec"] is None
    assert "was not probed" in read_records(project)[0]["limit"]["unknown"]["cores"]
    (project.folder / "perf_results").rename(project.folder / "first")

    assert run_script(project, PROBED.format(update="all", explain="always")).out.split()[-1] in ("PASSED", "IMPROVED")
    accepted = read_records(project)[0]["probes"]
    (file,) = (project.folder / "baselines").glob("*.json")
    ((entry,),) = json.loads(file.read_text())["entries"].values()
    assert entry["probes"] == accepted
    (host,) = accepted["hosts"].values()
    assert host["readings"]["core.matmul"]["per_s"] == 1e9
    limit, rate = read_records(project)[0]["limit"], read_records(project)[0]["images_per_sec"]
    assert limit["bounds"][0]["resource"] == "cores"
    assert read_records(project)[0]["share_of_limit"] == pytest.approx(rate / limit["images_per_sec"])
    (project.folder / "perf_results").rename(project.folder / "second")

    assert run_script(project, PROBED.format(update=None, explain="always")).out == "PASSED\n"
    assert "probes" not in read_records(project)[0]
    assert read_records(project)[0]["limit"] == limit
    (project.folder / "perf_results").rename(project.folder / "third")

    slow = run_script(project, PROBED.format(update=None, explain="always"), TOY_STEP_S="0.02")
    assert slow.out == "REGRESSED\n", slow.err
    assert read_records(project)[0]["probes"]["hosts"].keys() == accepted["hosts"].keys()


def test_failed_probe_does_not_affect_the_measurement(project: PerfTests) -> None:
    """If probing fails, the measurement is recorded and accepted, with the reason."""
    fails = json.dumps({"at": "compute", "do": "exit", "what": 3})
    ended = run_script(project, PROBED.format(update="all", explain="always"), TOY_PROBE=fails)
    assert ended.out == "NO_BASELINE\n", ended.err
    (record,) = read_records(project)
    assert record["accepted"]
    assert list(record["probes"]["unknown"].values()) == ["its task ended early (exit code 3): leaving early"]


HOSTS = """
[lab]
backend = "ssh"
hosts = ["m1", "m2", "m3"]
devices_per_host = 1
"""


def test_hosts_of_a_session_are_selected_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session on two hosts of three has only these."""
    (tmp_path / "clusters.toml").write_text(HOSTS)
    monkeypatch.chdir(tmp_path)
    config = Session.open("lab", hosts="m3,m1", quiet=True).config
    assert [each.name for each in list_endpoints(config)] == ["m1", "m3"]


@pytest.mark.parametrize(
    ("cluster", "hosts", "line"),
    [
        ("lab", "m1,m4", "unknown host of cluster 'lab' 'm4'"),
        ("local", "m1", "local does not allocate hosts by name: choose hosts by their number, or all"),
    ],
)
def test_unknown_hosts_of_a_session_are_refused(
    cluster: str, hosts: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that the cluster does not have, or hosts without names, are one message, and no folder is made."""
    (tmp_path / "clusters.toml").write_text(HOSTS)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=line):
        Session.open(cluster, hosts=hosts, quiet=True)
    assert not (tmp_path / "perf_results").exists()
