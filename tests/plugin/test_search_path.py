"""Tests of files beside the tests with names of standard modules or packages, which no started program imports."""

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.clusters.ssh.conftest import NewLab, new_lab
from tests.plugin.conftest import (
    CLUSTERS,
    COMMANDS_HERE,
    WITHOUT,
    WITHOUT_DRAWING,
    Ended,
    PerfTests,
    whole_tests_in,
)
from tests.plugin.test_ssh import SETUP, TOY, TRAINING

__all__ = ["new_lab"]

# pytest itself imports these late, when it has put the tests' folder first.
PYTESTS_OWN = {"faulthandler", "pdb", "cmd", "code", "codeop"}
PACKAGES = ("numpy", "scipy", "pandas", "tensorflow", "sqlalchemy", "jinja2", "jsonschema", "rich")
EVERY = sorted(
    {name for name in sys.stdlib_module_names - PYTESTS_OWN if not name.startswith("_") and find_spec(name)} | {*PACKAGES}
)
REFUSES = "raise RuntimeError(f'{__file__} was imported')\n"


@pytest.fixture
def perf(tmp_path: Path) -> PerfTests:
    """Perf tests with a conftest.py, in new processes, beside which files may be put."""
    perf = whole_tests_in(tmp_path)
    (tmp_path / "perf" / "conftest.py").write_text("")
    return perf


def shadow(folder: Path, *names: str) -> None:
    for name in names:
        (folder / f"{name}.py").write_text(REFUSES)


def use_entry(folder: Path, entry: Path) -> None:
    """Make the entry of the cluster file in this folder a function of a new module."""
    entry.write_text("from tests.plugin.toy_training import run\n")
    (folder / "clusters.toml").write_text(CLUSTERS.replace("tests.plugin.toy_training:run", f"{entry.stem}:run"))


def run_beside(perf: PerfTests, *arguments: str, draws: bool = False) -> Ended:
    """`pytest`, as the program of that name does it, in the folder of the tests."""
    beside = PerfTests(perf.folder / "perf", perf.environment, cold=True)
    plugins = (*WITHOUT, *(() if draws else WITHOUT_DRAWING))
    return beside.run_python("-P", "-m", "pytest", "-c", "../pytest.ini", *plugins, ".", *arguments)


def run_command_beside(perf: PerfTests, *arguments: str) -> Ended:
    """`dtfperf`, as the program of that name does it, in the folder of the tests, which imports a file of its own."""
    folder = perf.folder / "perf"
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "conftest.py").write_text("import helper\n")
    (folder / "helper.py").write_text("")
    (folder / "baselines").mkdir()
    shadow(folder, *EVERY)
    ended = PerfTests(folder, perf.environment, cold=True).run_python("-P", "-m", "pytest_dtfperf.cli", *arguments)
    assert "was imported" not in ended.out + ended.err
    assert ended.code == 0, ended.out + ended.err
    return ended


def test_session_ignores_files_with_names_of_modules(accepted_tests: PerfTests, perf: PerfTests) -> None:
    """A session beside files with names of standard modules and packages imports the entry of its project, accepts a baseline,
    finds a regression and writes its page."""
    folder = perf.folder / "perf"
    assert {"types", "signal", "statistics", "json", "socket", "select", "struct", "contextlib", "fcntl"} <= {*EVERY}
    shadow(folder, *EVERY)
    use_entry(folder, folder / "my_training.py")
    perf.environment["TOY_STEP_S"] = "0.02"
    ended = run_beside(perf, "--gpus=1", "--num-ps=1,2", "--update-baselines=new", "--explain=always", draws=True)
    ended.line("num_ps=1", "REGRESSED")
    ended.line("num_ps=2", "accepted")
    assert "was imported" not in ended.out + ended.err
    assert list((perf.folder / "perf_results").glob("*/report.html"))


def test_ssh_hosts_ignore_files_with_names_of_modules(perf: PerfTests, new_lab: NewLab) -> None:
    """Agents over SSH start with such files beside the tests and in the home folders of the hosts."""
    lab = new_lab(2)
    table = lab.toml(TRAINING, TOY, "connect_s = 300", f"setup = ['{SETUP}']")
    (perf.folder / "perf" / "clusters.toml").write_text(table)
    shadow(perf.folder / "perf", *EVERY)
    for machine in lab.machines:
        shadow(machine.home, *EVERY)
    ended = run_beside(perf, "--cluster=lab", "--gpus=2")
    assert ended.code == 0, ended.out + ended.err
    ended.line("NO_BASELINE")


def test_launched_program_imports_files_of_its_folder(perf: PerfTests) -> None:
    """`dtfperf launch` ignores such files, and its program imports the one in its own folder."""
    folder = perf.folder / "perf"
    (folder / "clusters.toml").write_text(COMMANDS_HERE)
    shadow(folder, *(name for name in EVERY if name != "statistics"))
    (folder / "statistics.py").write_text("OWN = 'its own statistics'\n")
    (folder / "program.py").write_text("import statistics\nprint(statistics.OWN)\n")
    beside = PerfTests(folder, perf.environment, cold=True)
    ended = beside.run_python("-P", "-m", "pytest_dtfperf.cli", "launch", "program.py")
    assert ended.code == 0, ended.out + ended.err
    ended.line("its own statistics")


def test_nightly_ignores_files_with_names_of_modules(perf: PerfTests) -> None:
    """`dtfperf nightly` and its pytest ignore such files."""
    perf.environment["PYTEST_ADDOPTS"] = " ".join([*WITHOUT, *WITHOUT_DRAWING])
    run_command_beside(
        perf, "nightly", "--cluster=local", "--results=nights", "--deadline=9", "--tests=test_perf.py", "--gpus=1"
    )


def test_entry_on_pythonpath_is_found(perf: PerfTests) -> None:
    """An entry of clusters.toml in a folder of PYTHONPATH is imported."""
    site = perf.folder / "site"
    site.mkdir()
    use_entry(perf.folder / "perf", site / "their_training.py")
    perf.cold = perf.draws = False
    ended = perf.run("--gpus=1", PYTHONPATH=os.pathsep.join([str(site), perf.environ()["PYTHONPATH"]]))
    assert ended.code == 0, ended.out
    ended.line("NO_BASELINE")


def test_model_that_imports_a_shadowed_module_is_refused(perf: PerfTests) -> None:
    """A model that has imported a file with the name of a standard module is refused with the file's path."""
    folder = perf.folder / "perf"
    (folder / "calendar.py").write_text("IMAGES = 3\n")
    (folder / "my_models.py").write_text("import calendar\n\ndef cnn():\n    return calendar.IMAGES\n")
    perf.write(
        "import sys\nsys.modules.pop('calendar', None)\nimport my_models\ndef test_it(train):\n    train(model=my_models.cnn)\n"
    )
    perf.cold = perf.draws = False  # the tests' own folder is searched first in a fork, too
    ended = perf.run()
    ended.line("my_models needs ", f"{folder}/calendar.py", "a module of Python's standard library", "another name")


def test_model_imports_standard_modules_first(perf: PerfTests) -> None:
    """`dtfperf run my_models:cnn` finds the model in the folder, and imports standard modules, not the files there."""
    folder = perf.folder / "perf"
    shadow(folder, *(name for name in EVERY if name not in PACKAGES))
    (folder / "my_models.py").write_text("import colorsys, calendar\n\ndef cnn():\n    return calendar.January\n")
    beside = PerfTests(folder, perf.environment, cold=True)
    ended = beside.run_python("-P", "-m", "pytest_dtfperf.cli", "run", "my_models:cnn", "--json")
    assert ended.code == 0, ended.out + ended.err
    assert json.loads(ended.out.splitlines()[-1])["spec"]["model"] == "my_models.cnn"
