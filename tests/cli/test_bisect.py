"""`dtfperf bisect`: the slow commit, version or variant of a series is found, with steps of known lengths."""

import json
import signal
import subprocess
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.testing.backends import wait_until
from tests.cli.table import read, read_refusal
from tests.clusters.slurm.conftest import new_site, shared_site, site
from tests.clusters.slurm.site import Site
from tests.clusters.ssh.conftest import lab, shared_lab
from tests.clusters.ssh.lab import Lab
from tests.plugin.conftest import COMMANDS_HERE, ENDS_S, Ended, PerfTests, perf_tests_in
from tests.plugin.test_simulated import write as write_simulated
from tests.plugin.test_slurm import Mini
from tests.plugin.test_ssh import Laboratory

__all__ = ["lab", "new_site", "shared_lab", "shared_site", "site"]

PROGRAM = """
import time
from {module} import STEP_S
from pytest_dtfperf.steps import Steps

steps = Steps(10)
for _ in range(6):
    with steps:
        time.sleep(STEP_S)
"""
ONE_TASK = "variable_update=replicated"  # a parameter server would double the tasks of each run
PROGRAM_ALONE, TOY_ALONE = ("--command=python train.py", ONE_TASK), ("trivial", ONE_TASK)
FAST, SLOW = 0.1, 0.25  # seconds of a step: other load adds hundredths. Where that is much, a search has five times the blocks


@pytest.fixture
def perf(tmp_path: Path) -> PerfTests:
    perf = perf_tests_in(tmp_path)
    perf.environment["XDG_CACHE_HOME"] = str(tmp_path / "cache")
    return perf


@pytest.fixture
def programs(perf: PerfTests) -> PerfTests:
    (perf.folder / "perf" / "clusters.toml").write_text(COMMANDS_HERE)
    return perf


def run_bisect(perf: PerfTests, *arguments: str, **environment: str) -> Ended:
    """Run `dtfperf bisect` with one seed."""
    argv = ["-m", "pytest_dtfperf.cli", "bisect", *arguments, "--clusters-file=perf/clusters.toml", "--seed=1"]
    return perf.run_python(*argv, **environment)


def read_result(perf: PerfTests) -> dict[str, Any]:
    """Return bisection.json of the latest session."""
    folder = max((perf.folder / "perf_results").iterdir())
    found: dict[str, Any] = json.loads((folder / "bisection.json").read_text())
    return found


def make_series(*steps: float) -> list[str]:
    """Return variants with these seconds of a step. Each also has its number, as equal candidates are refused."""
    return [f"v{at}: environment=TOY_STEP_S={each} environment=NUMBER={at}" for at, each in enumerate(steps)]


def run_git(repo: Path, *arguments: str) -> str:
    named = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-c", "init.defaultBranch=main"]
    return subprocess.run(["git", "-C", repo, *named, *arguments], check=True, capture_output=True, text=True).stdout.strip()


def make_repository(folder: Path, steps: Sequence[float], before: str = "", *, broken: Sequence[int] = ()) -> list[str]:
    """Make a repository with a commit for each of these seconds of a step, and return the commits.

    Args:
        before: source that the program runs before its steps.
        broken: numbers of the commits that cannot be built.
    """
    folder.mkdir()
    run_git(folder, "init", "-q")
    (folder / "train.py").write_text(before + PROGRAM.format(module="speed"))
    commits = []
    for number, step_s in enumerate(steps):
        (folder / "speed.py").write_text(f"STEP_S = {step_s}\n")
        (folder / "build.sh").write_text("exit 3\n" if number in broken else f"echo {number} > built\n")
        run_git(folder, "add", "-A")
        run_git(folder, "commit", "-qm", f"Change number {number}")
        commits.append(run_git(folder, "rev-parse", "HEAD"))
    return commits


def test_slow_variant_of_a_series_is_found(perf: PerfTests) -> None:
    """The first slow variant is FOUND with its effect, in fewer blocks than candidates, without a baseline."""
    ended = run_bisect(perf, *make_series(*[0.01] * 7, *[0.02] * 9), *TOY_ALONE, "--json")
    assert ended.code == 0, ended.err
    found = read("bisect", ended.out)
    assert found["result"] == "FOUND"
    (change,) = found["changes"]
    assert change["candidates"] == ["v7"]
    assert change["ratio"] == pytest.approx(0.5, rel=0.02)
    assert change["low"] <= change["ratio"] <= change["high"]  # equal where rates are exact
    assert found["candidates"][7]["probability"] > 0.95
    assert len({block["candidate"] for block in found["blocks"]}) < 8
    assert read_result(perf) == found
    assert not (perf.folder / "baselines").exists()


def test_result_is_printed_with_its_probability(perf: PerfTests) -> None:
    """The output has a table of the candidates, the found one with its probability, and an explanation from traced runs."""
    ended = run_bisect(perf, *make_series(0.01, 0.01, 0.02, 0.02), *TOY_ALONE, TOY_TRACES="1")
    assert ended.code == 0, ended.err
    ended.line("candidate", "blocks", "against the first", "probability")
    ended.line("FOUND: with a probability of")
    ended.line("v2: -50")
    ended.line("instead of it: v")
    found = read_result(perf)
    assert found["unexplained"] == ""
    assert found["explanation"]["against"] == "v1"


def make_setup_series(*steps: float) -> list[str]:
    """Return variants with these seconds of a step, set by set-up lines of SSH and Slurm clusters."""
    return [f"v{at}: setup='export TOY_STEP_S={each} NUMBER={at}'" for at, each in enumerate(steps)]


def assert_slow_variant_is_found(perf: PerfTests, cluster: str) -> dict[str, Any]:
    """Search a series on two hosts of this cluster, assert that the slow variant is found, and return the result."""
    ended = run_bisect(perf, *make_setup_series(0.01, 0.01, 0.01, 0.02, 0.02), "trivial", "gpus=2", f"--cluster={cluster}")
    assert ended.code == 0, ended.out + ended.err
    found = read_result(perf)
    assert (found["result"], [change["candidates"] for change in found["changes"]]) == ("FOUND", [["v3"]])
    return found


def search_over_ssh(perf: PerfTests, request: pytest.FixtureRequest) -> None:
    lab: Lab = request.getfixturevalue("lab")
    Laboratory(perf, lab)
    found = assert_slow_variant_is_found(perf, "lab")
    assert {host for block in found["blocks"] for run in block["runs"] for host in run["hosts"]} == {"m1", "m2"}
    for each in lab.machines:
        assert not each.sessions()


def search_on_slurm(perf: PerfTests, request: pytest.FixtureRequest) -> None:
    site: Site = request.getfixturevalue("site")
    mini = Mini(perf, site)
    assert_slow_variant_is_found(perf, "mini")
    assert len(mini.jobs) == 1


@pytest.mark.campaign(part=2)  # agents of several stacks are started over SSH and on Slurm by tests/cli/test_ab.py, too
@pytest.mark.parametrize("search", [search_over_ssh, search_on_slurm], ids=["ssh", "slurm"])
def test_slow_variant_is_found_on_a_cluster(
    perf: PerfTests, request: pytest.FixtureRequest, search: Callable[[PerfTests, pytest.FixtureRequest], None]
) -> None:
    """The slow variant is found on two hosts over SSH, where no session is left, and on Slurm in one job."""
    search(perf, request)


def test_workers_of_candidates_are_on_the_same_hosts(perf: PerfTests) -> None:
    """Candidates with parameter servers on one to three separate hosts have their workers on the same one."""
    write_simulated(perf, "ps_on_worker_hosts = false\n")
    series = ("v0: num_ps=1", "v1: num_ps=2", "v2: num_ps=3")
    ended = run_bisect(perf, *series, "inception3", "gpus=2", "num_ps=1", "steps=10", "--cluster=sim")
    runs = [run for block in read_result(perf)["blocks"] for run in block["runs"]]
    assert {run["task_hosts"]["worker:0"] for run in runs} == {"sim-0003"}, ended.out + ended.err
    assert not any(run.get("disturbances") for run in runs)


def test_two_slow_variants_are_found(perf: PerfTests) -> None:
    """Two changes are SEVERAL, with both candidates."""
    ended = run_bisect(perf, *make_series(0.01, 0.01, 0.02, 0.02, 0.02, 0.04, 0.04), *TOY_ALONE)
    assert ended.code == 0, ended.err
    found = read_result(perf)
    assert found["result"] == "SEVERAL"
    assert [change["candidates"] for change in found["changes"]] == [["v2"], ["v5"]]


def test_equal_series_has_no_difference(perf: PerfTests) -> None:
    """If the last candidate is as fast as the first, the result is NO_DIFFERENCE."""
    ended = run_bisect(perf, "a:", "b: num_intra_threads=1", "c: num_intra_threads=2", *TOY_ALONE)
    assert ended.code == 0, ended.err
    ended.line("NO_DIFFERENCE: good and bad differ by less than 0.01")


def test_failing_variant_is_skipped(perf: PerfTests) -> None:
    """A candidate with failing tasks is skipped with its reason, and the change is found beside it."""
    variants = make_series(0.01, 0.01, 0.01, 0.02, 0.02)
    variants[2] = "v2: environment='TOY_DO=die worker:0'"
    ended = run_bisect(perf, *variants, *TOY_ALONE)
    assert ended.code == 0, ended.err
    found = read_result(perf)
    assert "with variant v2" in found["broken"]["2"]
    assert found["changes"][0]["candidates"] == ["v2", "v3"]
    ended.line("skipped: v2: ")


def test_skipped_candidate_can_end_a_search(perf: PerfTests) -> None:
    """No block follows a skipped candidate if all others were measured, and the change is found."""
    variants = make_series(0.01, 0.01, 0.02)
    variants[1] = "v1: environment='TOY_DO=die worker:0'"
    ended = run_bisect(perf, *variants, *TOY_ALONE)
    assert ended.code == 0, ended.err
    found = read_result(perf)
    assert (found["result"], found["changes"][0]["candidates"]) == ("FOUND", ["v1", "v2"])
    assert [block["candidate"] for block in found["blocks"]] == [2, 2]


AGENTS = """
import sys
from pytest_dtfperf.compare.bisection import BisectionPolicy
from pytest_dtfperf.compare.variants import parse_variant
from pytest_dtfperf.session import Session
from pytest_dtfperf.session.bisection import Candidate, StackBisection

def count_agents(_):
    counts.append(sum(session.allocations.has_agents(each.variant.name) for each in candidates))

counts = []
candidates = [Candidate(parse_variant(each)) for each in sys.argv[1:]]
with Session.open(clusters_file="perf/clusters.toml", quiet=True) as session:
    spec = session.spec("trivial", variable_update="replicated")
    search = StackBisection(session, candidates, spec, BisectionPolicy(), 1, count_agents)
    search.carry_out(600)
print(search.decision.end, len({each.candidate for each in search.blocks}) > 3, max(counts))
"""


def test_four_candidates_have_agents_at_most(perf: PerfTests) -> None:
    """A search of more than four stacks, the first one included, has agents of at most four at a time."""
    ended = perf.run_python("-c", AGENTS, *make_series(*[0.01] * 11, *[0.02] * 21))
    assert ended.out == "FOUND True 4\n", ended.err


def test_series_with_a_failing_first_candidate_fails(perf: PerfTests) -> None:
    """A search with a first candidate that cannot run is an error."""
    ended = run_bisect(perf, "a: environment='TOY_DO=die worker:0'", *make_series(0.01, 0.02), *TOY_ALONE)
    assert ended.code == 1, ended.err
    assert "with variant a" in ended.err


def test_search_without_blocks_is_undecided(perf: PerfTests) -> None:
    """If the blocks are used, the result is UNDECIDED with exit code 1, and --resume continues with more blocks."""
    arguments = [*make_series(*[0.01] * 20, *[0.02] * 20), *TOY_ALONE]
    ended = run_bisect(perf, *arguments, "--max-blocks=3")
    assert ended.code == 1, ended.err
    ended.line("UNDECIDED: the blocks do not decide, after 3 blocks")
    (change,) = read_result(perf)["changes"]
    assert "v20" in change["candidates"]
    (folder,) = (perf.folder / "perf_results").iterdir()
    assert f"--resume={folder} continues from here, if --max-blocks or --time-limit allow more blocks" in ended.err
    resumed = run_bisect(perf, *arguments, "--max-blocks=4", f"--resume={folder}")
    resumed.line("UNDECIDED: the blocks do not decide, after 4 blocks")


def test_slow_commit_is_found(programs: PerfTests) -> None:
    """The slow commit is named with its subject and files; the repository is unchanged, and cached worktrees can be cleared."""
    repo = programs.folder / "repo"
    commits = make_repository(repo, [FAST] * 4 + [SLOW] * 4)
    ended = run_bisect(programs, f"--repo={repo}", f"--good={commits[0]}", "--bad=main", *PROGRAM_ALONE)
    assert ended.code == 0, ended.err
    ended.line(f"{run_git(repo, 'rev-parse', '--short', commits[4])} Change number 4: -")
    ended.line("speed.py | 2")
    found = read_result(programs)
    assert found["changes"][0]["candidates"] == [commits[4][:12]]
    assert run_git(repo, "status", "--porcelain") == ""
    listed = programs.run_python("-m", "pytest_dtfperf.cli", "ab", "--cache")
    assert commits[4][:12] in listed.out
    cleared = programs.run_python("-m", "pytest_dtfperf.cli", "ab", "--cache=clear")
    assert cleared.code == 0, cleared.err
    assert run_git(repo, "worktree", "list").count("\n") == 0
    assert "0 stacks" in programs.run_python("-m", "pytest_dtfperf.cli", "ab", "--cache").out


def test_commits_with_a_failing_build_are_skipped(programs: PerfTests) -> None:
    """A commit with a failing set-up line is skipped with the reason and remains a possible candidate."""
    repo = programs.folder / "repo"
    commits = make_repository(repo, [FAST] * 3 + [SLOW] * 2, broken=[2, 3])
    setup = ("--setup=sh build.sh", "--setup=test -f built")
    ended = run_bisect(programs, f"--repo={repo}", f"--good={commits[0]}", *setup, *PROGRAM_ALONE)
    assert ended.code == 0, ended.err
    found = read_result(programs)
    assert sorted(found["broken"]) == ["2", "3"]
    assert "setup ended with exit code 3: it printed nothing" in found["broken"]["3"]
    assert found["changes"][0]["candidates"] == [each[:12] for each in commits[2:5]]


def make_wheels(folder: Path, steps: Sequence[float]) -> None:
    """Write wheels 1.0, 1.1, ... of a package with these seconds of a step."""
    folder.mkdir()
    for minor, step_s in enumerate(steps):
        version = f"1.{minor}"
        with zipfile.ZipFile(folder / f"toyspeed-{version}-py3-none-any.whl", "w") as wheel:
            info = f"toyspeed-{version}.dist-info"
            wheel.writestr("toyspeed.py", f"STEP_S = {step_s}\n")
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: toyspeed\nVersion: {version}\n")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")


def test_slow_version_of_a_package_is_found(programs: PerfTests) -> None:
    """The slow version of a package is found, with each version in an environment of its own."""
    make_wheels(programs.folder / "wheels", [FAST, SLOW, SLOW])
    (programs.folder / "train.py").write_text(PROGRAM.format(module="toyspeed"))
    index = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(programs.folder / "wheels"), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    index["PIP_NO_DEPS"] = "1"  # it has none, and to read those of all installed packages would take three seconds each time
    ended = run_bisect(programs, "--packages=toyspeed==1.0,1.1,1.2", *PROGRAM_ALONE, **index)
    assert ended.code == 0, ended.err
    ended.line("toyspeed==1.1: -")


def test_killed_bisection_is_resumed(perf: PerfTests) -> None:
    """--resume continues with the blocks of a killed session, and refuses other candidates and a damaged file."""
    variants = make_series(*[0.01] * 9, *[0.02] * 3)
    arguments = [*variants, *TOY_ALONE, "--clusters-file=perf/clusters.toml", "--seed=1"]
    with perf.start_command("bisect", *arguments) as process:
        wait_until("two blocks are made", lambda: _count_blocks(perf) >= 2)
        process.send_signal(signal.SIGKILL)
        process.wait(ENDS_S)
    (folder,) = (perf.folder / "perf_results").iterdir()
    before = json.loads((folder / "bisection.json").read_text())["blocks"]
    ended = run_bisect(perf, *variants, *TOY_ALONE, f"--resume={folder}")
    assert ended.code == 0, ended.err
    found = read_result(perf)
    assert found["resumed"] == folder.name
    assert found["blocks"][: len(before)] == before
    assert found["changes"][0]["candidates"] == ["v9"]
    other = run_bisect(perf, *variants[1:], *TOY_ALONE, f"--resume={folder}")
    assert other.code == 2
    assert "has other candidates" in other.err
    path = folder / "bisection.json"
    path.write_text(path.read_text().replace('"candidate": 11,', '"candidate": 12,'))
    damaged = run_bisect(perf, *variants, *TOY_ALONE, f"--resume={folder}")
    assert f"{path} is no bisection: candidate 12 is none of 12" in damaged.err


def _count_blocks(perf: PerfTests) -> int:
    files = list((perf.folder / "perf_results").glob("*/bisection.json"))
    return len(json.loads(files[0].read_text())["blocks"]) if files else 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a:", "b: xla=true", "trivial"], "a bisection needs 3 candidates, and there are 2: dtfperf ab compares two"),
        (["trivial"], "candidates are commits (--good, --bad), --packages or variants, and there is none"),
        (["a:", "trivial", "--packages=x==1,2"], "and there is variants and --packages"),
        (["a:", "b: xla=true", "a: steps=3", "trivial"], "candidate a is defined twice"),
        (["a:", "b: xla=true", "c:", "trivial"], "candidates a and c are equal: leave one of them out"),
        (["--good=v1", "trivial"], "is no git repository"),
        (["--packages=x>=1", "trivial"], "--packages=x>=1: write NAME==1.0..1.2, or NAME==1.0,1.1,1.2"),
        (["a:", "b: xla=true", "c: steps=3", "trivial", "--bad=HEAD"], "--bad and --setup are for commits"),
        (["a:", "b: xla=true", "c: steps=3"], "a bisection is of one training"),
        (["a:", "b: xla=true", "c: steps=3", "trivial", "trivial"], "a bisection is of one training"),
        (["a:", "b: xla=true", "c: steps=3", "trivial", "--confidence=0.3"], "--confidence must be 0.5 or more, not 0.3"),
        (["a:", "b: xla=true", "c: steps=3", "trivial", "--max-blocks=1"], "--max-blocks must be 2 or more, not 1"),
        (["a:", "b: xla=true", "c: steps=3", "trivial", "--steps=0"], "--steps must be 1 or more, not 0"),
        (
            ["a:", "b: xla=true", "c: steps=3", "trivial", "--command=python x.py"],
            "trivial: --command already defines the training",
        ),
        (["a:", "b: xla=true", "c: steps=3", "trivial", "--resume=nowhere"], "nowhere/bisection.json cannot be read"),
    ],
)
def test_invalid_search_is_one_line(
    perf: PerfTests, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    """Wrong arguments are one line with exit code 2, and nothing is started."""
    monkeypatch.chdir(perf.folder)
    assert message in read_refusal(capfd, "bisect", *arguments, "--clusters-file=perf/clusters.toml")
    assert not (perf.folder / "perf_results").exists()


def test_two_names_of_a_commit_are_refused(programs: PerfTests) -> None:
    """Candidates and variants that name the same commit by different refs are refused with one line and exit code 2."""
    repo = programs.folder / "repo"
    commits = make_repository(repo, [FAST, SLOW])
    stacks = [f"{name}: git={ref} repo={repo}" for name, ref in (("a", commits[0]), ("b", "main"), ("c", commits[1]))]
    ended = run_bisect(programs, *stacks, "--command=python train.py")
    assert (ended.code, ended.err) == (2, "dtfperf: candidates b and c are equal: leave one of them out\n")
    argv = ["-m", "pytest_dtfperf.cli", "ab", *stacks, "--command=python train.py", "--clusters-file=perf/clusters.toml"]
    compared = programs.run_python(*argv)
    assert compared.code == 2
    assert compared.err == "dtfperf: variants b and c are equal: --same compares a variant with itself\n"


def test_missing_or_later_commit_is_one_line(programs: PerfTests) -> None:
    """A missing commit and a good commit after the bad one are errors with exit code 2."""
    repo = programs.folder / "repo"
    commits = make_repository(repo, [FAST, FAST, SLOW])
    where = [f"--repo={repo}", "--command=python train.py"]
    missing = run_bisect(programs, *where, "--good=v9")
    assert missing.err == f"dtfperf: git: {repo} has no commit v9\n"
    later = run_bisect(programs, *where, f"--good={commits[2]}", f"--bad={commits[0]}")
    assert "does not come after" in later.err
    assert (missing.code, later.code) == (2, 2)
