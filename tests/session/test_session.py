"""A session as a script uses it: opened on this machine, whose training takes no time, without pytest."""

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.clusters.ssh.endpoints import list_endpoints
from pytest_dtfperf.errors import UsageError
from pytest_dtfperf.session import Session
from pytest_dtfperf.testing.backends import wait_until
from tests.plugin.conftest import ENDS_S, Ended, PerfTests, perf_tests_in
from tests.plugin.test_lending import CLOUD

OPEN = """
import json, sys
from pytest_dtfperf.session import Session, Settings
from tests.plugin import pretend

pretend.register()

def opened(cluster="local", **more):
    return Session.open(cluster, clusters_file="perf/clusters.toml", quiet=True, **more)
"""

MEASURE = """
with opened() as session:
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
    """A folder with a cluster file: this machine, and a cloud that lends one allocation at a time."""
    project = perf_tests_in(tmp_path)
    clusters = project.folder / "perf" / "clusters.toml"
    clusters.write_text(clusters.read_text() + CLOUD + "max_jobs = 1\n")
    project.environment |= {"PRETEND_LOG": str(project.folder / "pretend.log")}
    return project


def script(project: PerfTests, source: str, **environment: str) -> Ended:
    return project.run_python("-c", OPEN + source, **environment)


def session_of(project: PerfTests) -> dict[str, Any]:
    (folder,) = (project.folder / "perf_results").iterdir()
    found: dict[str, Any] = json.loads((folder / "session.json").read_text())
    return found


def records(project: PerfTests) -> list[dict[str, Any]]:
    (folder,) = (project.folder / "perf_results").iterdir()
    return [json.loads(line) for line in (folder / "measurements.jsonl").read_text().splitlines()]


def test_it_measures_without_pytest(project: PerfTests) -> None:
    """A whole measurement with agents and tasks, its judgement and its record need no pytest: none of it is ever loaded."""
    project.cold = True  # what is forked has pytest
    ended = script(project, MEASURE)
    assert ended.code == 0, ended.err
    seen = json.loads(ended.out)
    assert seen == {"rate": pytest.approx(2000, rel=0.01), "verdict": "NO_BASELINE", "hosts": 1, "pytest": []}
    assert [(each["test"], each["verdict"]) for each in records(project)] == [
        ("trivial b10 gpus=2 num_ps=1 parameter_server", "NO_BASELINE")
    ]
    assert session_of(project)["exit_code"] == 0
    assert "pytest" not in session_of(project)["versions"]


def test_check_uses_the_terms_of_the_measurement(project: PerfTests) -> None:
    """The session keeps the plan and the terms that a measurement was made under, and records its check with these terms."""
    code = """
with opened(settings=Settings(repeats=2, margin=0.2), tests=4) as session:
    measured = session.measure(session.spec("trivial", gpus=1))
    session.check(measured)
terms = session.terms[measured.id, measured.test]
print(json.dumps([session.plans[measured.id].repeats, terms.to_json()]))
"""
    ended = script(project, code)
    assert ended.code == 0, ended.err
    repeats, terms = json.loads(ended.out)
    assert (repeats, terms["most"], terms["margin"]) == (2, 2, 0.2)
    assert terms["false_alarm"] == pytest.approx(0.05 / 4 / 2)
    assert records(project)[0]["checks"][0]["terms"] == terms


def test_an_accepted_baseline_judges_the_next_session(project: PerfTests) -> None:
    """`update_baselines` accepts at the session's end, and a slower session is REGRESSED, which its session.json says, too."""
    accepting = "with opened(settings=Settings(update_baselines='all')) as session:\n"
    checked = "    print(session.check(session.measure(session.spec('trivial', gpus=1))).verdict)\n"
    assert script(project, accepting + checked).out == "NO_BASELINE\n"
    (project.folder / "perf_results").rename(project.folder / "before")
    assert script(project, "with opened() as session:\n" + checked, TOY_STEP_S="0.02").out == "REGRESSED\n"
    assert session_of(project)["exit_code"] == 1


def test_baselines_that_cannot_be_accepted_cost_nothing_else(project: PerfTests) -> None:
    """A file of baselines that is damaged meanwhile is the session's error, and its folder is complete all the same."""
    code = """
with opened(settings=Settings(update_baselines="all")) as session:
    session.check(session.measure(session.spec("trivial", gpus=1)))
    file = session.store.folder / f"{session.cluster.system}.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text("{")
"""
    ended = script(project, code)
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
def test_however_a_block_ends_it_gives_back_what_was_lent(project: PerfTests, line: str, code: int, noted: int) -> None:
    """An exception, Ctrl-C and SIGTERM end the block as ever; the hosts are given back, and what was measured is kept."""
    ended = script(
        project,
        f"with opened('cloud') as session:\n    session.measure(session.spec('trivial', gpus=1))\n    {line}\n",
    )
    assert ended.code == code, ended.err
    lent = [json.loads(each)["what"] for each in (project.folder / "pretend.log").read_text().splitlines()]
    assert lent == ["asked", "lent", "given back"]
    assert session_of(project)["exit_code"] == noted
    assert len(records(project)) == 1


def test_sigterm_within_a_run_leaves_no_task(project: PerfTests) -> None:
    """A session that is told to end while its tasks train ends them first, and then itself."""
    begun = project.folder / "begun"
    process = subprocess.Popen(
        [project.python, "-c", OPEN + "with opened() as session:\n    session.measure(session.spec('trivial', gpus=1))\n"],
        cwd=project.folder,
        env=project.environ({"TOY_DO": "wait", "TOY_WAITS": str(begun)}),
        start_new_session=True,
    )
    wait_until("a task trains", begun.exists, ENDS_S)
    process.send_signal(signal.SIGTERM)
    assert process.wait(ENDS_S) == 128 + signal.SIGTERM
    assert list((project.folder / "runtime" / "dtfperf").iterdir()) == []
    assert session_of(project)["exit_code"] == 2


def test_two_sessions_take_turns(project: PerfTests) -> None:
    """On hosts that both have, two sessions of one script measure one after the other, each into a folder of its own."""
    code = """
with opened() as one, opened() as other:
    for session in (one, other, one):
        session.measure(session.spec("trivial", gpus=1), test=f"a measurement of {session.id}")
print(one.id != other.id, len(one.folder.measurements()), len(other.folder.measurements()))
"""
    ended = script(project, code)
    assert (ended.code, ended.out) == (0, "True 2 1\n"), ended.err


def test_a_session_that_would_wait_for_itself_says_so(project: PerfTests) -> None:
    """Where a cluster lends one allocation at a time, a second session of the same thread is refused, and may go on later."""
    code = """
from pytest_dtfperf.errors import UsageError
with opened("cloud") as one, opened("cloud") as other:
    one.measure(one.spec("trivial", gpus=1))
    try:
        other.measure(other.spec("trivial", gpus=1))
    except UsageError as error:
        print(error)
    one.close()
    other.measure(other.spec("trivial", gpus=1))
"""
    ended = script(project, code)
    assert ended.code == 0, ended.err
    ended.line("cluster cloud: another session of this very thread holds what this one would wait for: close that one first")


def test_a_closed_session_measures_no_more(project: PerfTests) -> None:
    """Who uses a session after its block hears that it is closed, in an error of ours; closing it again does nothing."""
    code = """
with opened() as session:
    spec = session.spec("trivial", gpus=1)
session.close()
session.measure(spec)
"""
    ended = script(project, code)
    assert ended.code == 1
    ended.line("UsageError: session ", " is closed: open another one")
    assert not (project.folder / "perf_results").exists()


@pytest.mark.parametrize(
    "call, words",
    [
        ("opened('nowhere')", "unknown cluster 'nowhere'"),
        ("opened().spec('inceptoin3')", "unknown model 'inceptoin3'. Did you mean 'inception3'?"),
        ("opened().spec('trivial', gpu=1)", "unknown argument 'gpu'. Did you mean 'gpus'?"),
    ],
)
def test_what_cannot_be_is_an_error_of_ours(project: PerfTests, call: str, words: str) -> None:
    """What a script asks for and cannot have is refused before anything starts, with what is known."""
    ended = script(
        project,
        f"from pytest_dtfperf.errors import UsageError\ntry:\n    {call}\nexcept UsageError as error:\n    print(error)\n",
    )
    assert words in ended.out, ended.err
    assert not (project.folder / "perf_results").exists()


PROBED = """
with opened(settings=Settings(update_baselines={update!r}, explain={explain!r})) as session:
    measured = session.measure(session.spec("trivial", gpus=1))
    print(session.check(measured).verdict)
"""


def test_what_hosts_can_do_is_kept_with_a_baseline_and_with_what_is_not_green(project: PerfTests) -> None:
    """Accepting a baseline measures what its hosts can do, which is stored with it; a slower session has it measured, too. One
    that passes has not, and with explain="never" nobody has. What they allow at most stands beside all but the last."""
    assert script(project, PROBED.format(update="all", explain="never")).out == "NO_BASELINE\n"
    assert "probes" not in records(project)[0]
    assert records(project)[0]["limit"]["images_per_sec"] is None
    assert "was not probed" in records(project)[0]["limit"]["unknown"]["cores"]
    (project.folder / "perf_results").rename(project.folder / "first")

    assert script(project, PROBED.format(update="all", explain="always")).out.split()[-1] in ("PASSED", "IMPROVED")
    accepted = records(project)[0]["probes"]
    (file,) = (project.folder / "baselines").glob("*.json")
    ((entry,),) = json.loads(file.read_text())["entries"].values()
    assert entry["probes"] == accepted
    (host,) = accepted["hosts"].values()
    assert host["readings"]["core.matmul"]["per_s"] == 1e9
    limit, rate = records(project)[0]["limit"], records(project)[0]["images_per_sec"]
    assert limit["bounds"][0]["resource"] == "cores"
    assert records(project)[0]["share_of_limit"] == pytest.approx(rate / limit["images_per_sec"])
    (project.folder / "perf_results").rename(project.folder / "second")

    assert script(project, PROBED.format(update=None, explain="always")).out == "PASSED\n"
    assert "probes" not in records(project)[0]
    assert records(project)[0]["limit"] == limit
    (project.folder / "perf_results").rename(project.folder / "third")

    slow = script(project, PROBED.format(update=None, explain="always"), TOY_STEP_S="0.02")
    assert slow.out == "REGRESSED\n", slow.err
    assert records(project)[0]["probes"]["hosts"].keys() == accepted["hosts"].keys()


def test_a_probe_that_fails_is_no_matter_of_the_measurement(project: PerfTests) -> None:
    """Where probing fails, the measurement is recorded and accepted as ever, with the reason beside it."""
    fails = json.dumps({"at": "compute", "do": "exit", "what": 3})
    ended = script(project, PROBED.format(update="all", explain="always"), TOY_PROBE=fails)
    assert ended.out == "NO_BASELINE\n", ended.err
    (record,) = records(project)
    assert record["accepted"]
    assert list(record["probes"]["unknown"].values()) == ["its task ended early (exit code 3): leaving early"]


HOSTS = """
[lab]
backend = "ssh"
hosts = ["m1", "m2", "m3"]
devices_per_host = 1
"""


def test_hosts_of_a_session_are_selected_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session on two hosts of three never asks for the third one."""
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
