"""Tests of rows that other packages add to tables, and of the messages for rows that cannot be loaded."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_dtfperf import extensions
from pytest_dtfperf.cli import main
from pytest_dtfperf.clusters.named import BACKENDS
from pytest_dtfperf.errors import DtfPerfError, UsageError
from pytest_dtfperf.extensions import GROUPS, Table
from pytest_dtfperf.records.session import SessionFolder
from pytest_dtfperf.report import session_exports
from pytest_dtfperf.report.session_exports import SessionResults
from pytest_dtfperf.spec import INPUTS, MODELS, Model, Spec, inputs_of
from pytest_dtfperf.testing.backends import wait_until

REPOSITORY = Path(__file__).parents[1]
ROWS = """
from pytest_dtfperf.report.session_exports import Export
from pytest_dtfperf.spec import Input, Model

OWN = Model("added:Own", batch_size=7, data=("synthetic",))
INPUT = Input("added:Fed", models=("lenet",))
EXPORT = Export(("x.txt",), "added:write")
NOT_A_ROW = {"batch_size": 7}

def write(folder, results):
    raise ZeroDivisionError("nothing measured")
"""
GROUP = "pytest_dtfperf.models"


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> "Iterator[Install]":
    yield Install(tmp_path / "site", monkeypatch)
    forget_installed()


def forget_installed() -> None:
    extensions._entry_points.cache_clear()
    extensions._read_entry_points.cache_clear()


class Install:
    """Packages as pip lays them out, in a folder of which Python knows. The name of a row begins with its table's."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        folder.mkdir()
        (folder / "added.py").write_text(ROWS)
        (folder / "leaves.py").write_text("import sys\nsys.exit('no licence here')\n")
        monkeypatch.syspath_prepend(folder)
        monkeypatch.delitem(sys.modules, "added", raising=False)
        for table in (MODELS, INPUTS, session_exports.EXPORTS):
            monkeypatch.setattr(table, "_added", {})

    def __call__(self, package: str, **points: str) -> None:
        info = self._folder / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = [f"[pytest_dtfperf.{name.partition('_')[0]}]\n{name} = {value}\n" for name, value in points.items()]
        (info / "entry_points.txt").write_text("\n".join(lines))
        forget_installed()


def test_own_rows_come_first_and_cannot_be_replaced(install: Install) -> None:
    """Names of other packages come after ours, in order, and a name that we have too is ours."""
    ours = list(MODELS)
    install("late", models_b="added:OWN")
    install("early", models_a="added:OWN")
    assert list(MODELS) == [*ours, "models_a", "models_b"]
    assert len(MODELS) == len(ours) + 2
    assert MODELS["models_a"].batch_size == 7
    assert [MODELS.package_of(name) for name in ("models_a", "lenet", "nobody")] == ["early 1.0", None, None]
    table = Table(GROUP, Model, {"models_a": MODELS["lenet"]})
    assert table["models_a"] is MODELS["lenet"]
    assert table.package_of("models_a") is None
    assert extensions.packages()["late"] == "1.0"


def test_row_is_imported_on_access(install: Install) -> None:
    """Names come from the metadata of packages, and access to a row of ours imports no other package."""
    install("late", models_a="added:OWN")
    assert "models_a" in MODELS
    assert "nobody" not in MODELS
    assert MODELS["lenet"].batch_size == 32
    assert "added" not in sys.modules


@pytest.mark.parametrize(
    "value, problem",
    [
        ("added:NOT_A_ROW", r"models_a = 'added:NOT_A_ROW' of late 1.0 must be a pytest_dtfperf.spec.tables.Model, not dict"),
        ("added:ABSENT", r"of late 1.0 cannot be imported: AttributeError: module 'added' has no attribute 'ABSENT'"),
        ("leaves:OWN", r"of late 1.0 cannot be imported: SystemExit: no licence here$"),
        ("gone:OWN", r"of late 1.0 cannot be imported: ModuleNotFoundError: No module named 'gone'"),
    ],
)
def test_row_that_cannot_be_loaded_is_refused(install: Install, value: str, problem: str) -> None:
    """Access to a row that cannot be loaded is one message, which names the entry point and its package."""
    install("late", models_a=value)
    with pytest.raises(UsageError, match=problem):
        MODELS["models_a"]
    with pytest.raises(UsageError, match=problem):
        Spec(model="models_a", batch_size=1)


def test_broken_row_leaves_other_rows_usable(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    """Other models have their inputs, are validated and are listed, and the list has the reason of the broken row."""
    install("late", models_a="gone:OWN", inputs_a="gone:INPUT")
    assert inputs_of("lenet") == MODELS["lenet"].data
    with pytest.raises(UsageError, match="vgg11 cannot be fed from data=mnist"):
        Spec(model="vgg11", batch_size=1, data="mnist")
    assert main(["run", "--models"]) == 0
    listed = capsys.readouterr().out
    assert "lenet            batch_size=32" in listed
    assert "models_a         the entry point pytest_dtfperf.models: models_a = 'gone:OWN' of late 1.0 cannot be" in listed


HANGS = """
import pathlib, time
pathlib.Path("reached").touch()
time.sleep(600)
"""


@pytest.mark.parametrize(
    "command", [["pytest_dtfperf.cli", "run", "--models"], ["pytest", "-p", "no:cacheprovider"]], ids=["dtfperf", "pytest"]
)
def test_row_with_a_hanging_import_is_named_on_interrupt(install: Install, tmp_path: Path, command: list[str]) -> None:
    """Ctrl-C during the import of a row ends the program with a message that names the entry point and its package."""
    install("late", models_a="hanging:OWN")
    (tmp_path / "site" / "hanging.py").write_text(HANGS)
    (tmp_path / "test_perf.py").write_text("def test_it(train):\n    train(model='models_a')\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), str(REPOSITORY)])}
    waiting = subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wait_until("it is imported", (tmp_path / "reached").exists, 120)
    waiting.send_signal(signal.SIGINT)
    out, _ = waiting.communicate(timeout=120)
    assert "while the entry point pytest_dtfperf.models: models_a = 'hanging:OWN' of late 1.0 was imported" in out
    assert waiting.returncode == (130 if command[0] == "pytest_dtfperf.cli" else 2)


def test_row_of_two_packages_is_refused(install: Install) -> None:
    """A name that two packages register is refused, and the message names both."""
    install("early", models_a="added:OWN")
    install("late", models_a="added:OWN")
    with pytest.raises(
        UsageError, match=r"of (early|late) 1.0 has a rival of the same name in (early|late) 1.0: uninstall one"
    ):
        MODELS["models_a"]


def test_added_input_names_its_models(install: Install) -> None:
    """A model of ours can be fed from an added input that names it, and other models are refused."""
    install("late", inputs_a="added:INPUT")
    assert Spec(model="lenet", batch_size=1, data="inputs_a").input.models == ("lenet",)
    with pytest.raises(UsageError, match="vgg11 cannot be fed from data=inputs_a"):
        Spec(model="vgg11", batch_size=1, data="inputs_a")


def test_failing_export_names_its_package(install: Install, tmp_path: Path) -> None:
    """The error of a failing export has the names of the export and its package, and the exception."""
    install("late", exports_a="added:EXPORT")
    folder = SessionFolder.create(tmp_path, cluster="local", command=["pytest"], versions={})
    with pytest.raises(DtfPerfError, match=r"export exports_a of late 1.0 failed: ZeroDivisionError: nothing measured"):
        session_exports.write_export("exports_a", folder, SessionResults([]))


def test_tables_have_the_known_groups() -> None:
    """The groups of the four tables are the groups of entry points that are searched."""
    assert [MODELS.group, INPUTS.group, BACKENDS.group, session_exports.EXPORTS.group] == list(GROUPS)
