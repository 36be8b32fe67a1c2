"""What README says is true, from a clone and from a wheel. What all pages are held to: tests/docs."""

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
    """Perf tests whose training takes no time."""
    return perf_tests_in(tmp_path)


def test_the_script_of_the_docs_runs(perf: PerfTests) -> None:
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


def test_the_readmes_perf_test_is_ours() -> None:
    """The README's example is what stands in perf_tests/."""
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert example.strip() in (REPOSITORY / "perf_tests" / "test_inception3.py").read_text()


COMMANDS = re.findall(r"^    ((?:pytest|dtfperf) .*?)(?:  +#.*)?$", README, re.MULTILINE)
MODULES = {"pytest": "pytest", "dtfperf": zygote.COMMANDS}
USAGE = {"pytest": 4, "dtfperf": 2}  # the exit codes of arguments that are not understood


@pytest.fixture(scope="module")
def project(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project as the README says to make one: the wheel, unpacked in `site`, what its `init` writes, and our clusters."""
    folder = tmp_path_factory.mktemp("project")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    ended = run_literally("dtfperf init", folder, folder / "site")
    assert ended.returncode == 0, ended.stderr
    shutil.copy(REPOSITORY / "perf_tests" / "clusters.toml", folder / "perf_tests")
    return folder


def environment(root: Path) -> dict[str, str]:
    """In which pytest collects only, and nobody's accounts and hosts are at hand."""
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
    """As it stands in the README."""
    environ = {**environment(root), "PYTHONPATH": str(site)}
    return subprocess.run(
        ["sh", "-c", command], cwd=root, env=environ, capture_output=True, text=True, timeout=120, check=False
    )


# What they say of this machine alone is run by tests/docs, as is what all other pages say.
AT_CLUSTERS = [command for command in dict.fromkeys(COMMANDS) if "--cluster=" in command]


@pytest.mark.parametrize("command", AT_CLUSTERS)
def test_the_readmes_commands_are_understood(command: str) -> None:
    """The README's clusters are found from the root of a clone, and pytest collects the perf tests there for each."""
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


@pytest.mark.parametrize("command", ELSEWHERE)
def test_the_readmes_commands_are_understood_in_a_project_made_from_the_wheel(command: str, project: Path) -> None:
    """The README's clusters are found from the root of a project that has the wheel and a copy of the perf tests."""
    ended = run_literally(command, project, project / "site")
    output = ended.stdout + ended.stderr
    assert ended.returncode != USAGE[command.split()[0]], output
    assert "Traceback" not in output
    if command.startswith("pytest"):
        assert "test_inception3.py::test_throughput" in ended.stdout


def test_make_targets_exist() -> None:
    """The README's first screen installs, runs one command, and has two targets of the Makefile."""
    makefile = (REPOSITORY / "Makefile").read_text()
    first_screen = "\n".join(README.splitlines()[:15])
    for target in re.findall(r"^    make (\w+)", first_screen, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
    assert first_screen.index("pip install") < first_screen.index("dtfperf run") < first_screen.index("make perf")
    assert "make test" in first_screen
