"""The nightly job with perf tests without TensorFlow: the measurements are invented, the processes and ends are real."""

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.cli import main
from pytest_dtfperf.nightly.night import run_pytest
from pytest_dtfperf.records.session import SessionFolder, session_folders
from tests.cli.table import read
from tests.nightly.test_notify import SECRET, webhook
from tests.plugin import zygote
from tests.plugin.conftest import INI, LIGHT
from tests.records.samples import measurement, spec

REPOSITORY = Path(__file__).parents[2]
ENDS_S = 300.0  # whatever has not ended by then hangs

MEASURES = """
import os
from pathlib import Path
from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.nightly.night import run_pytest
from pytest_dtfperf.records.session import SessionFolder
from pytest_dtfperf.plugin.xdist import get_session_id
from tests.records.samples import measurement, spec

def make_session(session_id, rate):
    names = {"session_id": session_id, "cluster": "local"}
    folder = SessionFolder.create(Path(os.environ["RESULTS"]), command=["pytest"], versions={}, **names)
    record = folder.add("test_rate", measurement(spec(), [rate, rate]))
    folder.judge(record.id, verdict=Verdict.PASSED if rate >= 10 else Verdict.REGRESSED, reason="made up")
    folder.finish(exit_code=0 if rate >= 10 else 1, wall_s=1.0)

def test_rate(pytestconfig):
    assert "DTFPERF_NOTIFY" not in os.environ
    rate, session_id = float(os.environ["RATE"]), get_session_id(pytestconfig)
    pytestconfig.add_cleanup(lambda: make_session(session_id, rate))  # after the plugin's own session
    assert rate >= 10
"""

# Says its process id through one pipe, then waits for a word on another; leaves a file when its teardown has run.
WAITS = """
import os, signal
import pytest

@pytest.fixture
def resource():
    signal.signal(signal.SIGTERM, lambda number, frame: pytest.exit("SIGTERM", returncode=143))
    yield
    open("torn-down", "w").close()

def test_waits(resource):
    with open("started", "w") as pipe:
        pipe.write(str(os.getpid()))
    open("go-on").read()
"""


class Night:
    """A folder with perf tests of one kind, and the nightly job in it."""

    def __init__(self, folder: Path, perf_test: str) -> None:
        self.folder = folder
        self.results = folder / "results"
        (folder / "perf_tests").mkdir()
        (folder / "perf_tests" / "test_made_up.py").write_text(perf_test)
        (folder / "pytest.ini").write_text(INI)
        for pipe in ("started", "go-on"):
            os.mkfifo(folder / pipe)

    @contextmanager
    def start(self, *, starts_forks: bool = True) -> Iterator["Running"]:
        """Run the nightly job for the length of the block; a pytest that is no fork has inherited files."""
        reader, writer = os.pipe()
        argv, env = self._argv(), self._environment
        with zygote.start(argv, self.folder, env, stdout=writer, stderr=writer, starts_forks=starts_forks) as process:
            os.close(writer)
            yield Running(process, reader)

    def run(self, *options: str, **environment: str) -> tuple[int, str]:
        """Run `dtfperf nightly`, which `ci/nightly` runs, and return exit code and output."""
        variables = self._environment | environment
        return zygote.run_as_one(self._argv(*options), self.folder, variables, timeout_s=ENDS_S, starts_forks=True)

    def _argv(self, *options: str) -> list[str]:
        return ["-m", "pytest_dtfperf.cli", "nightly", *self._arguments, *options]

    @property
    def _arguments(self) -> list[str]:
        return ["--cluster=local", f"--results={self.results}", "--deadline=5"]

    @property
    def _environment(self) -> dict[str, str]:
        return clean(os.environ) | zygote.SEARCH_PATH | {"RESULTS": str(self.results)} | LIGHT

    def wait_until_started(self) -> int:
        """Return the process id of a perf test that waits."""
        return int((self.folder / "started").read_text())

    def go_on(self) -> None:
        (self.folder / "go-on").write_text("go on")

    @property
    def sessions(self) -> list[SessionFolder]:
        return session_folders(self.results)


def clean(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without variables of pytest and CI."""
    return {name: value for name, value in environment.items() if not name.startswith(("PYTEST", "GITHUB_", "DTFPERF_"))}


@dataclass(frozen=True)
class Running:
    process: zygote.Started
    output: int  # a pipe's end

    def wait_for_end(self) -> tuple[int, str]:
        """Return exit code and output after the end of its pytest."""
        (output,) = zygote.read_all(self.output, timeout_s=ENDS_S)
        return self.process.wait(ENDS_S), output


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def waiting_night(tmp_path: Path) -> Night:
    return Night(tmp_path, WAITS)


@pytest.fixture
def measuring_night(tmp_path: Path) -> Night:
    return Night(tmp_path, MEASURES)


@pytest.mark.campaign(part=3)
@pytest.mark.parametrize(
    "perf_test, options, code, outcome",
    [
        ("def test_a(): pass", [], 0, "All tests passed."),
        ("def test_a(): assert False", [], 1, "Tests failed."),
        ("def test_a(): raise KeyboardInterrupt", [], 2, "pytest was interrupted."),
        ("def test_a(): pass", ["--no-such-option"], 4, "pytest refused its options."),
        ("", [], 5, "No test was collected."),
        ("import os\ndef test_a(): os.kill(os.getpid(), 9)", [], 137, "pytest was killed by SIGKILL."),
        ("import os\ndef test_a(): os.kill(os.getpid(), 40)", [], 168, "pytest was killed by SIGRTMIN+6."),
    ],
)
def test_night_ends_with_pytests_exit_code(tmp_path: Path, perf_test: str, options: list[str], code: int, outcome: str) -> None:
    """The night ends with pytest's exit code, or 128 + N for signal N, and every end writes a summary."""
    night = Night(tmp_path, perf_test)
    found, output = night.run(*options)
    assert (found, output.splitlines()[-1]) == (code, f"nightly: {outcome} Exit code {code}.")
    assert f"{outcome} Nothing was measured." in (night.results / "summary.md").read_text()


@pytest.mark.parametrize(
    ("script", "code", "outcome"),
    [
        ("exit 0", 0, "All tests passed."),
        ("exit 1", 1, "Tests failed."),
        ("exit 2", 2, "pytest was interrupted."),
        ("exit 3", 3, "pytest itself broke."),
        ("exit 4", 4, "pytest refused its options."),
        ("exit 5", 5, "No test was collected."),
        ("exit 77", 77, "pytest ended with exit code 77."),
        ("kill -9 $$", 137, "pytest was killed by SIGKILL."),
        ("kill -40 $$", 168, "pytest was killed by SIGRTMIN+6."),
    ],
)
def test_outcome_follows_from_the_exit_code(tmp_path: Path, script: str, code: int, outcome: str) -> None:
    """Each exit code of pytest, and each signal that killed it, has its own exit code and text."""
    with (tmp_path / "lock").open("w") as lock:
        assert run_pytest(["sh", "-c", script], deadline_s=ENDS_S, lock=lock.fileno()) == (code, outcome)


def test_alerts_have_what_is_new(measuring_night: Night) -> None:
    """A night with a new regression sends it, the same regression of the next night is sent no more, and a green night resolves
    it. The webhook's path, which is its secret, is nowhere in the output."""
    with webhook() as server:
        outputs = [measuring_night.run("--history=never", RATE=rate, DTFPERF_NOTIFY=server.url)[1] for rate in ("9", "9", "12")]
    assert [(len(posted["new"]), len(posted["resolved"])) for posted in server.posted] == [(1, 0), (0, 1)]
    assert server.posted[0]["new"][0]["kind"] == "REGRESSED"
    assert ["was notified" in output for output in outputs] == [True, False, True]
    assert SECRET not in "".join(outputs)


def test_metrics_are_of_the_last_night(measuring_night: Night) -> None:
    """A night writes its file for node_exporter and fills a Pushgateway; a night that measured nothing replaces both."""
    file = measuring_night.folder / "dtfperf.prom"
    with webhook() as server:
        gateway = f"http://me:{SECRET.replace('/', '%2F')}@127.0.0.1:{server.server_port}"
        _, output = measuring_night.run("--history=never", f"--metrics={file}", RATE="12", DTFPERF_METRICS=gateway)
        measured = file.read_text()
        code, _ = measuring_night.run(
            "--history=never", f"--metrics={file}", "-k", "nothing", RATE="12", DTFPERF_METRICS=gateway
        )
    assert f"nightly: metrics in {file}\nnightly: metrics in 127.0.0.1\n" in output
    assert "sEcReT" not in output
    assert code == 5
    assert [path for path, _, _ in server.put] == ["/metrics/job/dtfperf/cluster/local"] * 2
    assert [content for _, _, content in server.put] == [measured, file.read_text()]
    assert "dtfperf_rate_images_per_second{" in measured
    assert "dtfperf_rate_images_per_second{" not in file.read_text()
    assert 'dtfperf_nightly_exit_code{cluster="local"} 5.0\n' in file.read_text()


@pytest.mark.parametrize(
    ("option", "message"),
    [("--notify=nonsense", "--notify takes https://..."), ("--metrics=dtfperf.txt", "--metrics takes a file *.prom")],
)
def test_wrong_target_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, message: str) -> None:
    """A wrong receiver of alerts or target of metrics is refused with the allowed ones, and nothing is started."""
    assert main(["nightly", "--cluster=local", f"--results={tmp_path / 'results'}", "--deadline=5", option]) == 4
    assert f"nightly: {message}" in capsys.readouterr().err
    assert not (tmp_path / "results").exists()


def test_json_has_the_result_of_the_night(measuring_night: Night) -> None:
    """With --json stdout has the exit code, the session's folder and the losses; pytest's output goes to stderr."""
    argv, env = measuring_night._argv("--json"), measuring_night._environment | {"RATE": "10"}
    code, out, err = zygote.run(argv, measuring_night.folder, env, ENDS_S, starts_forks=True)
    data = read("nightly", out)
    (session,) = measuring_night.sessions
    assert (data["exit_code"], data["session"], data["losses"]) == (code, str(session.path), [])
    assert "test session starts" in err


BESIDE_ANOTHER_SESSION = """
import os
from pathlib import Path
from pytest_dtfperf.plugin.xdist import get_session_id
from pytest_dtfperf.records.session import SessionFolder
from tests.records.samples import measurement, spec

def make_session(command, **names):
    folder = SessionFolder.create(Path(os.environ["RESULTS"]), cluster="local", command=command, versions={}, **names)
    folder.add("test_rate", measurement(spec(), [10.0, 10.0]))
    folder.finish(exit_code=0, wall_s=1.0)

def test_rate(pytestconfig):
    command = ["pytest", *pytestconfig.invocation_params.args]
    if os.environ["MEASURES"] == "yes":
        make_session(command, session_id=get_session_id(pytestconfig))
    make_session(command, session_id="29991231T235959Z-000000")
"""


@pytest.mark.parametrize("measures", ["yes", "no"])
def test_session_of_another_user_is_not_that_of_the_night(tmp_path: Path, measures: str) -> None:
    """A session with the same arguments, cluster and folder, that began during the night, is not reported as the night's."""
    night = Night(tmp_path, BESIDE_ANOTHER_SESSION)
    code, output = night.run("--json", MEASURES=measures)
    assert code == 0, output
    *own, other = night.sessions
    assert [(each.path / "summary.md").exists() for each in own] == [True] * (measures == "yes")
    assert not (other.path / "summary.md").exists()
    if measures == "no":
        assert "Nothing was measured." in (night.results / "summary.md").read_text()


def make_earlier_session(night: Night, second: int = 0, *, rate: float = 10.0, has_ended: bool = True) -> SessionFolder:
    """Make an old session with a measurement, as an earlier night does."""
    session_id = f"20200101T0000{second:02d}Z-000000"
    folder = SessionFolder.create(night.results, cluster="local", command=["pytest"], versions={}, session_id=session_id)
    record = folder.add("test_rate", measurement(spec(), [rate, rate]))
    folder.judge(record.id, verdict=Verdict.PASSED, reason="made up")
    if has_ended:
        folder.finish(exit_code=0, wall_s=1.0)
    return folder


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a session of another user")
def test_sessions_of_others_are_neither_compared_with_nor_removed(measuring_night: Night) -> None:
    """Another user's session is no previous one, and no reference of a loss. --keep removes neither it nor a running one."""
    own, running = (make_earlier_session(measuring_night, at, has_ended=at == 0) for at in range(2))
    others = make_earlier_session(measuring_night, 2, rate=100.0)
    os.chown(others.path, 65534, 65534)
    code, output = measuring_night.run("--keep=1", RATE="12.5")
    assert code == 0, output
    left = [folder.id for folder in measuring_night.sessions]
    assert left[:-1] == [running.id, others.id]
    text = (measuring_night.sessions[-1].path / "summary.md").read_text()
    assert f"Previous session: `{own.id}`" in text
    assert "Slower than in earlier nights" not in text


def test_options_are_passed_to_pytest(measuring_night: Night) -> None:
    """Folders of tests, the baselines, the history and unknown arguments are passed to pytest, and no password is printed."""
    options = ["--tests=one", "--tests=two", "--baselines=accepted", "--history=postgresql://me:secret@db/perf"]
    _, output = measuring_night.run(*options, "-q", "-k", "nothing or none")
    assert output.splitlines()[0] == (
        f"nightly: {zygote.zygote().python} -P -m pytest_dtfperf.node.module_command pytest one two "
        f"--dtfperf-cluster=local --dtfperf-perf-results={measuring_night.results} "
        "--dtfperf-history=postgresql://me:***@db/perf "
        "--dtfperf-baselines=accepted -q -k nothing or none"
    )
    assert "secret" not in output


def test_night_uses_long_options(measuring_night: Night) -> None:
    """The night works if `--cluster` is an option of the project and short names are disabled."""
    (measuring_night.folder / "pytest.ini").write_text(f"{INI}dtfperf_short_options = false\n")
    (measuring_night.folder / "conftest.py").write_text(
        "def pytest_addoption(parser): parser.addoption('--cluster', choices=['theirs'], default='theirs')\n"
    )
    code, output = measuring_night.run(RATE="12.5")
    assert code == 0, output
    assert len(measuring_night.sessions) == 1


@pytest.mark.parametrize(
    "options, message",
    [
        (["--deadline=0"], "--deadline must be a number of minutes above 0, not '0'"),
        (["--deadline=soon"], "--deadline must be a number of minutes above 0, not 'soon'"),
        (["--deadline=inf"], "--deadline must be a number of minutes above 0, not 'inf'"),
        (["--keep=0"], "--keep must be at least 1, not '0'"),
        (["--cluster="], "--cluster must be given: dtfperf nightly --help"),
        (["--cluster=a/b"], "--cluster must be a name of letters, digits, '.', '_' and '-', not 'a/b'"),
    ],
)
def test_wrong_option_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str) -> None:
    """A wrong option is one line and exit code 4, and nothing is started."""
    assert main(["nightly", "--cluster=local", f"--results={tmp_path / 'results'}", "--deadline=5", *options]) == 4
    assert capsys.readouterr() == ("", f"nightly: {message}\n")
    assert not (tmp_path / "results").exists()


def test_summary_compares_with_the_night_before(measuring_night: Night) -> None:
    """The summary is in the session folder and in GitHub's file, and compares with the night before."""
    github, output_file = measuring_night.folder / "github.md", measuring_night.folder / "github.txt"
    first = make_earlier_session(measuring_night, rate=12.5)
    code, output = measuring_night.run(RATE="5", GITHUB_STEP_SUMMARY=str(github), GITHUB_OUTPUT=str(output_file))
    assert code == 1

    second = measuring_night.sessions[1]
    path = second.path / "summary.md"
    assert f"nightly: summary in {path}" in output
    lines = path.read_text().splitlines()
    assert "Tests failed." in lines
    assert "**1 REGRESSED** in 1 s" in lines
    assert (
        "| REGRESSED | `inception3 b8 gpus=1 num_ps=0 parameter_server` | 5.00 ±0.0 % | - | - | - | 12.50 (-60.0 %) |" in lines
    )
    assert f"Previous session: `{first.id}`" in lines
    assert github.read_text() == path.read_text()
    assert output_file.read_text() == f"artifact={second.path}\n"


def test_loss_without_a_baseline_is_reported(measuring_night: Night) -> None:
    """Without a baseline, a lower rate is reported with its interval, and fails the night with --fail-on-loss."""
    earlier = make_earlier_session(measuring_night, rate=100.0)
    outcomes = ("All tests passed.", "All tests passed. 1 rate slower than in earlier nights.")
    for rate, code, outcome, option in zip(("42", "17.64"), (0, 1), outcomes, ((), ("--fail-on-loss",)), strict=True):
        found, output = measuring_night.run(*option, RATE=rate)
        assert (found, output.splitlines()[-1]) == (code, f"nightly: {outcome} Exit code {code}.")
        text = (measuring_night.sessions[-1].path / "summary.md").read_text()
        assert "## Slower than in earlier nights" in text
        assert "- inception3 b8 gpus=1 num_ps=0 parameter_server: -58.0 % (" in text
        assert f" images/sec of {earlier.id}\n" in text
        earlier = measuring_night.sessions[-1]


def test_night_as_fast_as_the_one_before_has_no_loss(measuring_night: Night) -> None:
    """A night without a loss does not mention losses."""
    make_earlier_session(measuring_night, rate=100.0)
    assert measuring_night.run("--fail-on-loss", RATE="100")[0] == 0
    assert "Slower than in earlier nights" not in (measuring_night.sessions[-1].path / "summary.md").read_text()


def test_site_has_the_session(tmp_path: Path) -> None:
    """With --site the session's page is made; another folder is refused in a line without an effect on the exit code."""
    night = Night(tmp_path, TRAINS)
    (tmp_path / "perf_tests" / "clusters.toml").write_text(CLUSTERS)
    code, output = night.run(f"--site={tmp_path / 'site'}", XDG_RUNTIME_DIR=str(tmp_path))
    assert code == 0, output
    (session,) = night.sessions
    assert f"nightly: site in {tmp_path / 'site' / 'index.html'}: " in output
    assert (tmp_path / "site" / "sessions" / f"{session.id}.html").exists()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("mine")
    code, output = night.run(f"--site={tmp_path / 'other'}", "-k", "nothing", XDG_RUNTIME_DIR=str(tmp_path))
    assert code == 5
    assert f"nightly: no site: {tmp_path / 'other'} has files that are not of a site" in output


def test_site_uses_the_configured_history(tmp_path: Path) -> None:
    """The site is made of the history that the ini file sets."""
    night = Night(tmp_path, TRAINS)
    (tmp_path / "perf_tests" / "clusters.toml").write_text(CLUSTERS)
    (tmp_path / "pytest.ini").write_text(f"{INI}dtfperf_history = team.sqlite\n")
    code, output = night.run(f"--site={tmp_path / 'site'}", XDG_RUNTIME_DIR=str(tmp_path))
    assert code == 0, output
    (session,) = night.sessions
    assert (tmp_path / "team.sqlite").exists()
    assert (tmp_path / "site" / "sessions" / f"{session.id}.html").exists(), output


def test_damaged_night_before_is_noted(measuring_night: Night) -> None:
    """If the night before cannot be read, the summary has the table of this one, with the reason."""
    (make_earlier_session(measuring_night).path / "measurements.jsonl").write_text('{"schema": 1}\n')
    assert measuring_night.run(RATE="13.5")[0] == 0
    text = (measuring_night.sessions[1].path / "summary.md").read_text()
    assert "| PASSED | `inception3 b8 gpus=1 num_ps=0 parameter_server` | 13.50 " in text
    assert "Not compared with the night before: " in text
    assert "measurements.jsonl:1: is no measurement: the key 'id' is missing" in text


def test_keep_removes_the_oldest_sessions(measuring_night: Night) -> None:
    """--keep removes the oldest session folders of this cluster only."""
    other = SessionFolder.create(
        measuring_night.results, cluster="other", command=[], versions={}, session_id="20200101T000000Z-000000"
    )
    oldest, old = (make_earlier_session(measuring_night, second) for second in (1, 2))
    assert measuring_night.run("--keep=2", RATE="12.5")[0] == 0
    assert oldest not in measuring_night.sessions
    assert measuring_night.sessions[:2] == [other, old]
    assert len(measuring_night.sessions) == 3


def test_failed_removal_does_not_change_the_exit_code(measuring_night: Night) -> None:
    """If --keep cannot remove a folder, this is reported, and the exit code is the same."""
    first = make_earlier_session(measuring_night)
    elsewhere = measuring_night.folder / "elsewhere"
    first.path.rename(elsewhere)
    first.path.symlink_to(elsewhere)
    code, output = measuring_night.run("--keep=1", RATE="12.5")
    assert (code, output.splitlines()[-1]) == (0, "nightly: All tests passed. Exit code 0."), output
    assert f"nightly: {first.path} is kept, for it cannot be removed: " in output
    assert elsewhere.exists()


@pytest.mark.parametrize("variable", ["GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT"])
def test_unwritten_summary_does_not_change_the_exit_code(measuring_night: Night, variable: str) -> None:
    """If the summary cannot be written, this is reported, and the exit code is the same."""
    code, output = measuring_night.run(RATE="5", **{variable: "/dev/full"})
    assert (code, output.splitlines()[-1]) == (1, "nightly: Tests failed. Exit code 1."), output
    assert "nightly: the summary cannot be written to /dev/full: No space left on device" in output


def test_results_without_a_folder_are_a_wrong_option(measuring_night: Night) -> None:
    """If --results is no folder, nothing is started: one line and exit code 4."""
    measuring_night.results.write_text("")
    lock = measuring_night.results / "nightly.local.lock"
    words = f"the night's lock {lock} cannot be opened: File exists: --results must be a folder of yours"
    assert measuring_night.run() == (4, f"nightly: {words}\n")


def test_second_night_at_once_is_refused(waiting_night: Night) -> None:
    """A second night at once starts nothing, names the process that has the lock, and ends with 75."""
    with waiting_night.start() as first:
        waiting_night.wait_until_started()

        code, output = waiting_night.run()
        assert code == 75
        lock = f"{waiting_night.results}/nightly.local.lock"
        assert output.startswith(f"nightly: {lock} is held by process {first.process.pid} on ")
        assert output.endswith(": that night is not over. Nothing was started.\n")

        waiting_night.go_on()
        assert first.wait_for_end()[0] == 0
    assert waiting_night.run("-k", "none")[0] == 5


def test_killed_night_keeps_the_lock_until_pytest_ends(waiting_night: Night) -> None:
    """The lock is held until pytest ends, also if the nightly program was killed."""
    with waiting_night.start(starts_forks=False) as first:
        pid = waiting_night.wait_until_started()
        first.process.kill()
        first.process.wait(ENDS_S)

        assert waiting_night.run()[0] == 75
        assert is_alive(pid)
        waiting_night.go_on()
        assert "1 passed" in first.wait_for_end()[1]
    assert waiting_night.run("-k", "none")[0] == 5


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_ends_the_night_with_teardown(waiting_night: Night, number: signal.Signals) -> None:
    """A signal ends pytest after its teardown; the exit code is 128 + the signal's number."""
    with waiting_night.start() as night:
        pid = waiting_night.wait_until_started()
        night.process.send_signal(number)
        code, output = night.wait_for_end()
    assert code == 128 + number
    assert f"nightly: {number.name} came, and pytest was ended. Exit code {code}." in output
    assert (waiting_night.folder / "torn-down").exists()
    assert not is_alive(pid)


def test_night_with_nohup_ignores_sighup(waiting_night: Night) -> None:
    """With nohup, SIGHUP ends neither the night nor its pytest."""
    argv = ["nohup", sys.executable, *waiting_night._argv()]
    with subprocess.Popen(
        argv, cwd=waiting_night.folder, env=waiting_night._environment, stdout=subprocess.PIPE, text=True
    ) as night:
        pytest_pid = waiting_night.wait_until_started()
        for pid in (night.pid, pytest_pid):
            os.kill(pid, signal.SIGHUP)
        waiting_night.go_on()
        output, _ = night.communicate(timeout=ENDS_S)
    assert "nightly: All tests passed. Exit code 0." in output


def test_deadline_ends_the_night(waiting_night: Night) -> None:
    """A night that exceeds its deadline ends with exit code 124."""
    code, output = waiting_night.run("--deadline=0.01")
    assert code == 124
    assert "nightly: The deadline of 0.01 min passed, and pytest was ended. Exit code 124." in output


DEAF = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.fork()
signal.pause()
"""
TAKE_LOCK = "import fcntl, sys; fcntl.flock(open(sys.argv[1]), fcntl.LOCK_EX)"


def test_pytest_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    """A pytest that ignores SIGTERM is killed after its grace, with its children."""
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, outcome = run_pytest([sys.executable, "-c", DEAF], deadline_s=3.0, lock=lock.fileno(), grace_s=0.1)
    assert (code, outcome) == (124, "The deadline of 0.05 min passed, and pytest was ended.")
    # Whoever is left would hold the lock that it inherited.
    subprocess.run([sys.executable, "-c", TAKE_LOCK, tmp_path / "lock"], check=True, timeout=ENDS_S)


CLUSTERS = """
[local]
backend = "local"
dedicated = false
entry = "tests.plugin.toy_training:run"
training.repeats = 4
"""
TRAINS = """
def test_throughput(train, baseline):
    measurement = train(model="trivial", gpus=1, num_ps=1, warmup_steps=2, steps=10)
    baseline.check(measurement, margin=0.5)
"""


def test_injected_slowdown_fails_the_second_night(tmp_path: Path) -> None:
    """A night with an injected slow-down of an accepted baseline is REGRESSED, with half of the rate."""
    night = Night(tmp_path, TRAINS)
    (tmp_path / "perf_tests" / "clusters.toml").write_text(CLUSTERS)
    accepted = f"--baselines={tmp_path / 'baselines'}"
    here = {"XDG_RUNTIME_DIR": str(tmp_path)}  # locks of its own: not waiting for whatever else trains on this machine
    code, output = night.run(accepted, "--update-baselines=new", **here)
    assert code == 0, output

    code, output = night.run(accepted, DTFPERF_SLOWDOWN="worker:0=0.05", **here)
    assert code == 1, output
    first, second = night.sessions
    (before,), (after,) = first.measurements(), second.measurements()
    assert (before.verdict, after.verdict) == ("NO_BASELINE", "REGRESSED")
    assert after.images_per_sec < before.images_per_sec / 2
    assert second.session.verdicts == {"REGRESSED": 1}

    text = (second.path / "summary.md").read_text()
    assert "**1 REGRESSED**" in text
    assert "- injected slow-down: worker:0 slept 0.05 s in every step" in text
    assert f"Previous session: `{first.id}`" in text
