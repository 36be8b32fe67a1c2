"""Tests of the examples in docs/own-models.md, and of a changed model."""

import csv
import os
import re
import shutil
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.baselines.files import validate
from pytest_dtfperf.records.record import Record
from tests.cli.table import read
from tests.plugin.conftest import Ended, PerfTests, perf_tests_in
from tests.plugin.test_verdicts import records
from tests.real.imported import python, use_forks

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
HERE = """
[local]
backend = "local"
dedicated = false
devices_per_host = 2
device = "cpu"

[local.models."own_models.tutorial"]
steps = 4
"""


def copy_examples(perf: PerfTests) -> PerfTests:
    shutil.rmtree(perf.folder / "perf")
    (perf.folder / "perf").mkdir()
    for name in ("own_models.py", "test_own_models.py"):
        shutil.copy(EXAMPLES / name, perf.folder / "perf")
    (perf.folder / "perf" / "clusters.toml").write_text(use_forks(HERE))
    return perf


@dataclass(frozen=True)
class MeasuredSession:
    """Hold one session with all measurements of the tests below."""

    perf: PerfTests
    ended: Ended
    found: dict[str, Any]  # records, by the name of the model
    folder: Path  # of its results


@pytest.fixture(scope="module")
def measured_session(tmp_path_factory: pytest.TempPathFactory) -> MeasuredSession:
    """Measure the docs' examples, and a model with an operation that is not counted."""
    perf = copy_examples(perf_tests_in(tmp_path_factory.mktemp("own")))
    perf.draws = True  # tables need pandas
    perf.write(
        "def looped():\n"
        "    from keras import Input, Sequential, layers\n"
        "    return Sequential([Input((8, 8, 1)), layers.Reshape((8, 8)), layers.SimpleRNN(4), layers.Dense(10)])\n",
        "uncounted.py",
    )
    perf.write(
        "from uncounted import looped\n\n"
        "def test_it(train, baseline):\n"
        "    baseline.check(train(model=looped, variable_update='independent', batch_size=4, steps=3))\n",
        "test_uncounted.py",
    )
    ended = perf.run("--repeats=2", "--update-baselines", "-v")
    assert ended.code == 0, ended.out
    (folder,) = (perf.folder / "perf_results").glob("*-*")
    return MeasuredSession(perf, ended, {record["spec"]["model"]: record for record in records(perf)}, folder)


def test_examples_of_the_document_are_measured(measured_session: MeasuredSession) -> None:
    """A Keras model, a function and layers are measured, counted, written and accepted, and an edited one is INCOMPARABLE."""
    assert tomllib.loads(HERE)
    perf, ended = measured_session.perf, measured_session.ended
    found = {model: record for model, record in measured_session.found.items() if model.startswith("own_models.")}
    assert found.keys() == {"own_models.small_cnn", "own_models.tutorial", "own_models.TwoLayers"}
    for record in found.values():
        validate(Record, record, "a record")
        assert record["flops_per_sec"] > 0
        assert len(record["runs"][0]["loss"]) == 5
    network = found["own_models.small_cnn"]["runs"][0]["network"]
    assert network["image_shape"] == [32, 32, 3]
    assert network["multiply_adds"] == 30 * 30 * 16 * 27 + 15 * 15 * 16 * 10
    assert not re.search("weight_decay", ended.out)  # which nobody gave
    ended.line("own_models.small_cnn b16 gpus=2 num_ps=1 parameter_server")
    assert re.search(r"own_models\.tutorial: 47\.0 kFLOP per training image", ended.out)
    with (measured_session.folder / "own_models.small_cnn_b16.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert float(row["flops_per_sec"]) > 0

    perf.draws = False
    models = perf.folder / "perf" / "own_models.py"
    models.write_text(models.read_text().replace("layers.ReLU(),", "layers.Activation('tanh'),"))
    ended = perf.run("--repeats=1", "-k", "small_cnn")
    assert ended.code == 0, ended.out
    (record,) = records(perf)
    assert record["verdict"] == "INCOMPARABLE"
    assert "Tanh" in record["reason"]


def test_uncounted_operation_is_unknown(measured_session: MeasuredSession) -> None:
    """The operations of a model that is not counted are unknown, with the reason, null in JSON and empty in CSV."""
    record = measured_session.found["uncounted.looped"]
    assert (record["flops_per_sec"], record["share_of_peak"]) == (None, None)
    words = r"uncounted\.looped: FLOP not known: its graph has an operation that is not counted, \w+"
    assert re.search(words, measured_session.ended.out)
    with (measured_session.folder / "uncounted.looped_b4.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert row["flops_per_sec"] == ""
    assert "uncounted.looped: FLOP not known" in (measured_session.folder / "report.html").read_text()


def test_instance_in_a_module_trains(tmp_path: Path) -> None:
    """A Keras model that its module makes trains in a test, with another precision, and by its name on a command line, from the
    same variables."""
    perf = copy_examples(perf_tests_in(tmp_path))
    perf.python = python()  # the test's module makes the model, and so imports Keras
    folder = perf.folder / "perf"
    (folder / "held.py").write_text(
        "from keras import Input, Sequential, layers\n\n"
        "MODEL = Sequential([Input((8, 8, 3)), layers.Conv2D(4, 3, activation='relu'), layers.Flatten(), layers.Dense(5)])\n"
    )
    (folder / "test_own_models.py").write_text(
        "import held, pytest\n\n"
        "@pytest.mark.parametrize('precision', ['fp32', 'bf16'])\n"
        "def test_it(train, precision):\n"
        "    train(model=held.MODEL, precision=precision, variable_update='independent', batch_size=8, steps=4)\n"
    )
    ended = perf.run("--repeats=1")
    assert ended.code == 0, ended.out
    whole, short = records(perf)
    for record in (whole, short):
        assert record["spec"]["model"] == "held.MODEL"
        assert record["runs"][0]["network"]["parameters"] == 27 * 4 + 4 + 36 * 4 * 5 + 5
    losses = [record["runs"][0]["loss"] for record in (whole, short)]
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.05)

    words = ("run", "held:MODEL", "variable_update=independent", "batch_size=8", "steps=4", "--repeats=1", "--json")
    shown = perf.run_python(
        "-m",
        "pytest_dtfperf.cli",
        *words,
        "--explain=never",
        "--clusters-file=perf/clusters.toml",
        PYTHONPATH=make_search_path(perf),
    )
    assert shown.code == 0, shown.err
    (measurement,) = read("run", shown.out)
    assert measurement["runs"][0]["loss"] == pytest.approx(losses[0], rel=1e-4)


def make_search_path(perf: PerfTests) -> str:
    return os.pathsep.join([str(perf.folder / "perf"), perf.environ()["PYTHONPATH"]])


def test_unimportable_model_is_one_message(tmp_path: Path) -> None:
    """A model that tasks cannot import fails in one message without a traceback."""
    perf = copy_examples(perf_tests_in(tmp_path))
    (perf.folder / "perf" / "test_own_models.py").write_text("def test_it(train):\n    train(model=lambda images: images)\n")
    ended = perf.run("--repeats=1")
    assert ended.code == 1
    assert "is made within a function, where no task can import it from" in ended.out
    assert "Traceback" not in ended.out
