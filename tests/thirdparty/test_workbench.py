"""A package of another author with a model, an input, a backend, an export and hooks: built, installed, and used."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pytest

from tests.clusters.slurm.site import Site, why_not
from tests.plugin.conftest import WITHOUT, WITHOUT_DRAWING
from tests.real.imported import python

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]

CONTRACTS = """
import pytest

from pytest_dtfperf.clusters import named
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.testing.backends import BackendContract
from pytest_dtfperf.testing.exports import ExportContract
from pytest_dtfperf.testing.inputs import InputContract
from pytest_dtfperf.testing.models import ModelContract


class TestPerceptron(ModelContract):
    model = "perceptron"


class TestStripes(InputContract):
    data, model = "stripes", "lenet"


class TestRates(ExportContract):
    export = "rates"


class TestDesk(BackendContract):
    keeps_secrets = False

    @pytest.fixture
    def cluster(self):
        config = ClusterConfig(name="desks", backend="desk", backend_keys={"desks": 2}, devices_per_host=1)
        return named.open_cluster(config)
"""

PERF = """
def test_throughput(train, baseline):
    sizes = {"gpus": 2, "num_ps": 1, "batch_size": 4, "steps": 3, "warmup_steps": 1}
    baseline.check(train(model="perceptron", data="stripes", repeats=1, **sizes))
"""

CLUSTERS = """
[desks]
backend = "desk"
desks = 2
devices_per_host = 1

[daint]
backend = "slurm"
nodes = 1
devices_per_host = 2
time_limit = 5
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Return an environment with the package installed from its wheel."""
    source, built, site = (tmp_path_factory.mktemp(name) for name in ("source", "dist", "site"))
    shutil.copytree(HERE / "package", source, dirs_exist_ok=True)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(built), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(REPOSITORY)]), "COLUMNS": "160"}


@pytest.fixture
def perf(tmp_path: Path) -> Path:
    """Return a project with a perf test of the package's model on the package's input."""
    (tmp_path / "test_perf.py").write_text(PERF)
    (tmp_path / "clusters.toml").write_text(CLUSTERS)
    (tmp_path / "pytest.ini").write_text("[pytest]\ndtfperf_explain = never\n")  # nothing here looks at probes of hosts
    return tmp_path


# Whose agents, and what feeds a tower, are forks of a process that has imported TensorFlow, as `python -m pytest` else.
PYTEST = "import sys; sys.executable = sys.argv.pop(1); import pytest; sys.exit(pytest.main())"


def run(folder: Path, environment: Mapping[str, str], *arguments: str, own: str | None = None) -> tuple[int, str]:
    """Run pytest; `own` is its Python, for processes that must not be forks."""
    command = [sys.executable, "-c", PYTEST, own or python(), *WITHOUT, *WITHOUT_DRAWING, *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return done.returncode, done.stdout


COMMANDS = """
import contextlib, io, json, sys
from pytest_dtfperf.cli import main

def run_command(arguments):
    try:
        return main(arguments)
    except SystemExit as end:
        return end.code

found = []
for arguments in json.load(sys.stdin):
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        code = run_command(arguments)
    found.append([code, output.getvalue()])
print(json.dumps(found))
"""


def run_dtfperf(folder: Path, environment: Mapping[str, str], commands: Iterable[Sequence[str]]) -> list[tuple[int, str]]:
    """Return the exit code and the output of each command."""
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS],
        input=json.dumps([*commands]),
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [(code, output) for code, output in json.loads(done.stdout)]


def test_package_passes_the_contracts(environment: Mapping[str, str], tmp_path: Path) -> None:
    """Each row of the package passes the contract of its kind."""
    (tmp_path / "test_contracts.py").write_text(CONTRACTS)
    code, output = run(tmp_path, environment, "-q")
    assert code == 0, output
    assert int(re.findall(r"(\d+) passed", output)[0]) >= 33
    assert "skipped" not in output


def test_session_uses_the_package(environment: Mapping[str, str], perf: Path) -> None:
    """A session trains the package's model on its input and hosts, writes its export and calls its hooks."""
    code, output = run(perf, environment, "--cluster=desks", "--junitxml=junit.xml")
    assert code == 0, output
    assert "dtfperf: cluster desks (desk, 2 hosts" in output
    assert "perceptron b4 gpus=2 num_ps=1 parameter_server data=stripes" in output
    assert "Listed: rates.txt" in output
    assert re.search(r"^=+ workbench =+\nperceptron over 2 desks$", output, re.MULTILINE)
    (rates,) = (perf / "perf_results").glob("*/rates.txt")
    assert re.fullmatch(r"[\d.]+ perceptron b4 gpus=2 num_ps=1 parameter_server data=stripes\n", rates.read_text())
    assert '<property name="workbench" value="perceptron NO_BASELINE" />' in (perf / "junit.xml").read_text()
    (session,) = (perf / "perf_results").glob("*/session.json")
    assert '"dtfperf-workbench": "1.2"' in session.read_text()


def test_names_of_the_package_are_known(environment: Mapping[str, str], perf: Path) -> None:
    """The package's names are in the list of models and in messages about unknown names."""
    (perf / "other.toml").write_text('[shelf]\nbackend = "desk"\nshelves = 2\n')
    messages = {
        ("run", "perceptrom", "--cluster=desks"): "unknown model 'perceptrom'. Did you mean 'perceptron'?",
        ("run", "lenet", "data=strips", "--cluster=desks"): "unknown data 'strips'. Did you mean 'stripes'?",
        ("run", "vgg11", "data=stripes", "--cluster=desks"): "vgg11 cannot be fed from data=stripes.",
        ("run", "perceptron", "--cluster=shelf", "--clusters-file=other.toml"): "unknown key 'shelves'",
    }
    (code, output), *refused = run_dtfperf(perf, environment, [("run", "--models"), *messages])
    assert code == 0
    listed = {line.split()[0]: line for line in output.splitlines()}
    assert re.fullmatch(r"\S+ +batch_size=16 +data=synthetic,mnist,stripes  \(dtfperf-workbench 1\.2\)", listed["perceptron"])
    assert re.fullmatch(r"\S+ +batch_size=32 +data=synthetic,.*mnist,stripes", listed["lenet"])
    for message, (code, output) in zip(messages.values(), refused, strict=True):
        assert (code, message in output) == (2, True), output


@pytest.mark.campaign(only=True)  # TensorFlow is imported on the node; the session above is on hosts of the package
@pytest.mark.skipif(why_not() is not None, reason=why_not() or "")
def test_package_works_on_slurm(environment: Mapping[str, str], perf: Path) -> None:
    """A node of Slurm with the package trains its model."""
    with Site(nodes=1, gpus=0) as site:
        code, output = run(perf, {**environment, **site.environment}, "--cluster=daint", own=sys.executable)
    assert code == 0, output
    assert "perceptron b4 gpus=2 num_ps=1 parameter_server data=stripes" in output
