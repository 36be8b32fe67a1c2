"""Tests of the README, in a clone and with a wheel. Tests of all pages are in tests/docs."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.plugin import zygote
from tests.plugin.conftest import WITHOUT, PerfTests, perf_tests_in

REPOSITORY = Path(__file__).parents[1]
README = (REPOSITORY / "README.md").read_text()


@pytest.fixture
def perf(tmp_path: Path) -> PerfTests:
    """Return perf tests with a training that takes no time."""
    return perf_tests_in(tmp_path)


def test_session_script_measures_and_judges(perf: PerfTests) -> None:
    """The example in docs/session.md, run beside a clusters.toml, measures on one device and on two, and judges."""
    (example,) = re.findall(r"```python\n(.*?)```", (REPOSITORY / "docs" / "session.md").read_text(), re.DOTALL)
    (perf.folder / "perf_tests").symlink_to(perf.folder / "perf")
    ended = perf.run_python("-c", example)
    assert ended.code == 0, ended.err
    assert [line.split()[:1] + line.split()[2:3] for line in ended.out.splitlines()] == [
        ["1", "NO_BASELINE"],
        ["2", "NO_BASELINE"],
    ]
    ended.line("mnist", "gpus=2", "run 1 of 3")


def test_readme_perf_test_is_in_perf_tests() -> None:
    """The README's example is in perf_tests/test_inception3.py."""
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert example.strip() in (REPOSITORY / "perf_tests" / "test_inception3.py").read_text()


COMMANDS = re.findall(r"^    ((?:pytest|dtfperf) .*?)(?:  +#.*)?$", README, re.MULTILINE)
MODULES = {"pytest": "pytest", "dtfperf": zygote.COMMANDS}
USAGE = {"pytest": 4, "dtfperf": 2}  # the exit codes of arguments that are not understood


@pytest.fixture(scope="module")
def project(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a project as the README makes one: the unpacked wheel, the files of `dtfperf init`, and our clusters.toml."""
    folder = tmp_path_factory.mktemp("project")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    ended = run_literally("dtfperf init", folder, folder / "site")
    assert ended.returncode == 0, ended.stderr
    shutil.copy(REPOSITORY / "perf_tests" / "clusters.toml", folder / "perf_tests")
    return folder


def environment(root: Path) -> dict[str, str]:
    """Return variables with which pytest only collects, and no accounts or hosts of the user are reachable."""
    environ = {
        name: value for name, value in PerfTests(REPOSITORY).environ().items() if not name.startswith(("AWS_", "SLURM_"))
    }
    return environ | {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), environ["PATH"]]),
        "PYTEST_ADDOPTS": " ".join(["--co", "-q", *WITHOUT]),
        "HOME": str(root / "nobodys"),
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_DEFAULT_REGION": "us-east-2",
        "SLURM_CONF": str(root / "no-slurm.conf"),
    }


def run_literally(command: str, root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Run a command as the README has it."""
    environ = {**environment(root), "PYTHONPATH": str(site)}
    return subprocess.run(
        ["sh", "-c", command], cwd=root, env=environ, capture_output=True, text=True, timeout=120, check=False
    )


# What they say of this machine alone is run by tests/docs, as is what all other pages say.
AT_CLUSTERS = [command for command in dict.fromkeys(COMMANDS) if "--cluster=" in command]


@pytest.mark.parametrize("command", AT_CLUSTERS)
def test_readme_commands_run_in_a_clone(command: str) -> None:
    """Each command with a cluster is accepted in the root of a clone, and pytest collects the perf tests."""
    program, *arguments = shlex.split(command)
    argv = ["-m", MODULES[program], *arguments]
    code, output = zygote.run_as_one(argv, REPOSITORY, environment(REPOSITORY), timeout_s=120)
    assert code != USAGE[program], output
    assert "Traceback" not in output
    if program == "pytest":
        assert code == 0, output
        assert "test_inception3.py::test_throughput" in output


# Those that go by a file or a folder of the project; the rest is the same there.
ELSEWHERE = [command for command in AT_CLUSTERS if "daint" not in command]


@pytest.mark.campaign(part=2)  # commands of pytest differ in the cluster's name alone, and each takes a new process
@pytest.mark.parametrize("command", ELSEWHERE)
def test_readme_commands_run_in_a_project(command: str, project: Path) -> None:
    """Each command with a cluster is accepted in a project with the wheel, and pytest collects the perf tests."""
    ended = run_literally(command, project, project / "site")
    output = ended.stdout + ended.stderr
    assert ended.returncode != USAGE[command.split()[0]], output
    assert "Traceback" not in output
    if command.startswith("pytest"):
        assert "test_inception3.py::test_throughput" in ended.stdout


def test_readme_first_screen_has_existing_targets() -> None:
    """The README's first screen installs, runs a command, and has targets that are in the Makefile, in this order."""
    makefile = (REPOSITORY / "Makefile").read_text()
    first_screen = "\n".join(README.splitlines()[:15])
    for target in re.findall(r"^    make (\w+)", first_screen, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
    assert first_screen.index("pip install") < first_screen.index("dtfperf run") < first_screen.index("make perf")
    assert "make test" in first_screen
