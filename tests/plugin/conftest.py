"""A user's folder of perf tests with a training that takes no time, and pytest run in it as a user runs it."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.plugin import zygote

REPOSITORY = Path(__file__).parents[2]
ENDS_S = 600.0  # whatever has not ended by then hangs

# Hypothesis loads itself into every pytest, for half a second that no perf test uses; pytest-benchmark runs git and hg.
WITHOUT = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-p", "no:benchmark", "-p", "tests.plugin.forked_workers")
WITHOUT_DRAWING = ("-p", "tests.plugin.without_drawing")
LIGHT = {"PYTEST_ADDOPTS": " ".join([*WITHOUT, *WITHOUT_DRAWING])}  # for a pytest that a command starts
DRAWING = "matplotlib,pandas"  # what a session draws with at its end: to import these takes a second of CPU time

CLUSTERS = """
[local]
backend = "local"
dedicated = false
entry = "tests.plugin.toy_training:run"
devices_per_host = 2
device = "cpu"

[local.training]
repeats = 3
batch_size = 10
warmup_steps = 1
steps = 4
margin = 0.1
"""

INI = """
[pytest]
dtfperf_explain = never
"""  # what is made to explain a verdict has tests of its own, and costs each session of the others seconds

THROUGHPUT = """
def test_throughput(train, baseline, gpus, num_ps, variable_update):
    measurement = train(model="trivial", gpus=gpus, num_ps=num_ps, variable_update=variable_update)
    baseline.check(measurement)
"""


@dataclass
class PerfTests:
    """Run with `run(...)`; what it prints is checked by the tests."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    python: str = sys.executable
    cold: bool = False  # whether each session is a new Python, for the tests of what is imported, and not a fork of one
    draws: bool = False  # whether pandas and matplotlib can be imported, for the tests of what they make
    starts_forks: bool = False  # whether the pytest that a command starts is a fork, too

    def write(self, source: str = THROUGHPUT, name: str = "test_perf.py") -> None:
        path = self.folder / "perf" / name
        path.write_text(source)
        # pytest keeps a module's code by size and second: another text of the same size in the same second would not be run.
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
            compiled.unlink()

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "pytest", *WITHOUT, *(() if self.draws else WITHOUT_DRAWING), *arguments]

    def environ(self, more: Mapping[str, str] = {}) -> dict[str, str]:
        path = os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
        cleaned = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "DTFPERF_", "TOY_"))}
        hidden = {} if self.draws else {zygote.HIDDEN: DRAWING}
        return {**cleaned, "PYTHONPATH": path, "COLUMNS": "200", **hidden, **self.environment, **more}

    def run(self, *arguments: str, **environment: str) -> "Ended":
        """`pytest perf ARGUMENTS`, with these variables set."""
        return self.run_python(*self.command("perf", *arguments)[1:], **environment)

    def start(
        self, *arguments: str, variables: Mapping[str, str] = {}, out: int = subprocess.DEVNULL, leads: bool = False
    ) -> zygote.Started:
        """The same while it goes on; it writes there, and `leads` a process group as in a terminal."""
        argv = self.command("perf", *arguments)[1:]
        return zygote.start(argv, self.folder, self.environ(variables), stdout=out, stderr=out, leads=leads)

    def start_command(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """Start `dtfperf ARGUMENTS`, with these variables set."""
        argv, pipe = zygote.make_command(*arguments), subprocess.PIPE
        return subprocess.Popen(argv, cwd=self.folder, env=self.environ(environment), stdout=pipe, stderr=pipe, text=True)

    def run_python(self, *arguments: str, **environment: str) -> "Ended":
        """`python ARGUMENTS`, with these variables set."""
        env = self.environ(environment)
        if not self.cold and zygote.may_fork(self.python, arguments, env):
            return Ended(*zygote.run(arguments, self.folder, env, timeout_s=ENDS_S, starts_forks=self.starts_forks))
        ended = subprocess.run(
            [self.python, *arguments],
            cwd=self.folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=ENDS_S,
            check=False,
        )
        return Ended(ended.returncode, ended.stdout, ended.stderr)


def wait_for_progress(process: subprocess.Popen[str], text: str) -> None:
    """Read what a command prints on stderr, up to a line with this text."""
    assert process.stderr
    while text not in process.stderr.readline():
        assert process.poll() is None


@dataclass(frozen=True)
class Ended:
    """The exit code and output of a program that has ended."""

    code: int
    out: str
    err: str

    def line(self, *words: str) -> str:
        """The first line with all these words; fails with the whole output if there is none."""
        found = [line for line in (self.out + self.err).splitlines() if all(word in line for word in words)]
        assert found, f"no line has {words}:\n{self.out}\n{self.err}"
        return found[0]


# For programs of their own: TensorFlow need not be there.
COMMANDS_HERE = """
[local]
backend = "local"
dedicated = false
entry = "pytest_dtfperf.training.command:run"
devices_per_host = 2
device = "cpu"
"""


def perf_tests_in(folder: Path) -> PerfTests:
    (folder / "perf").mkdir()
    (folder / "runtime").mkdir()
    (folder / "pytest.ini").write_text(INI)
    (folder / "perf" / "clusters.toml").write_text(CLUSTERS)
    tests = PerfTests(
        folder, {"XDG_RUNTIME_DIR": str(folder / "runtime"), "DTFPERF_HISTORY": "never"}
    )  # but where a test asks for it
    tests.write()
    return tests


def whole_tests_in(folder: Path) -> PerfTests:
    """The same, with nothing left out to save time: each session is a new Python, and draws."""
    tests = perf_tests_in(folder)
    tests.cold = tests.draws = True
    return tests


@pytest.fixture
def perf(tmp_path: Path) -> PerfTests:
    """Perf tests on a machine that has no baselines yet."""
    return perf_tests_in(tmp_path)


@pytest.fixture(scope="session")
def accepting_session(tmp_path_factory: pytest.TempPathFactory) -> tuple[PerfTests, Ended]:
    """Perf tests that --update-baselines has run once for all tests: 1000 images/sec on one device, 2000 on two."""
    tests = perf_tests_in(tmp_path_factory.mktemp("accepted"))
    ended = tests.run("-v", "--update-baselines")
    assert ended.code == 0, ended.out
    return tests, ended


@pytest.fixture(scope="session")
def baselines(accepting_session: tuple[PerfTests, Ended]) -> Path:
    """The folder with the baselines of that session."""
    return accepting_session[0].folder / "baselines"


@pytest.fixture
def accepted_tests(perf: PerfTests, baselines: Path) -> PerfTests:
    """Return perf tests with accepted baselines."""
    shutil.copytree(baselines, perf.folder / "baselines")
    return perf
