"""`dtfperf run`: trainings of the command line, measured and judged."""

import json
import shlex
import sys
from pathlib import Path

import pytest

from pytest_dtfperf.cli.run import WantedSpec
from pytest_dtfperf.cli.run import parse_specs as trainings_of
from pytest_dtfperf.errors import UsageError
from tests.cli.table import read, read_refusal
from tests.docs.commands import parse_arguments
from tests.plugin.conftest import Ended, PerfTests, perf_tests_in
from tests.plugin.test_verdicts import records, session


@pytest.fixture
def perf(tmp_path: Path) -> PerfTests:
    return perf_tests_in(tmp_path)


def run_trainings(perf: PerfTests, *arguments: str, **environment: str) -> Ended:
    """Run `dtfperf run` on the toys' cluster with 0.01 s for a step of ten images."""
    return perf.run_python("-m", "pytest_dtfperf.cli", "run", *arguments, "--clusters-file=perf/clusters.toml", **environment)


@pytest.mark.parametrize(
    "words, expected",
    [
        ("mnist", [WantedSpec("mnist")]),
        ("mnist gpus=2 xla=true", [WantedSpec("mnist", {"gpus": 2, "xla": True})]),
        ("mnist mnist gpus=2", [WantedSpec("mnist"), WantedSpec("mnist", {"gpus": 2})]),
        ("trivial data=cifar10 data_dir=/a=b", [WantedSpec("trivial", {"data": "cifar10", "data_dir": "/a=b"})]),
        ("vgg16 learning_rate=1e-3 num_ps=sweep", [WantedSpec("vgg16", {"learning_rate": 0.001, "num_ps": "sweep"})]),
        ('trivial environment=["A=1"]', [WantedSpec("trivial", {"environment": ["A=1"]})]),
        ("mine:cnn gpus=2 kit.nets:Kit.cnn", [WantedSpec("mine:cnn", {"gpus": 2}), WantedSpec("kit.nets:Kit.cnn")]),
    ],
)
def test_words_are_models_and_their_fields(words: str, expected: list[WantedSpec]) -> None:
    """A model begins a training, and the fields after it belong to it; values are JSON, or text."""
    assert list(trainings_of(words.split())) == expected


@pytest.mark.parametrize(
    "words, expected",
    [
        ("minst", "unknown model 'minst'. Did you mean 'mnist'?"),
        ("gpus=2 mnist", "gpus=2 is of no training: begin with a model"),
        ("mnist gpus=1 gpus=2", "mnist has gpus twice: 1 and '2'"),
        ("mnist command=train.py", "an external command is for a perf test"),
        ("mnist model=vgg16", "a model is named alone"),
        ("mine.cnn", "mine.cnn: a model of your own is a module, a colon and its name there: mine:cnn"),
    ],
)
def test_wrong_words_are_refused(words: str, expected: str) -> None:
    """A wrong word is refused with the right one."""
    with pytest.raises(UsageError, match=expected.replace("?", r"\?")):
        list(trainings_of(words.split()))


def test_training_is_measured_accepted_and_compared(perf: PerfTests) -> None:
    """A training is measured without a baseline, accepted as one, and compared with it."""
    accepted = run_trainings(perf, "trivial", "trivial", "gpus=2", "--update-baselines=new")
    assert accepted.code == 0, accepted.err
    accepted.line("trivial b10 gpus=1 num_ps=1", "1000", "accepted")
    accepted.line("trivial b10 gpus=2 num_ps=1", "2000", "accepted")
    accepted.line("trivial b10 gpus=2 num_ps=1 parameter_server: new, 2000")
    assert session(perf)["verdicts"] == {"NO_BASELINE": 2}

    slower = run_trainings(perf, "trivial", "gpus=2", TOY_STEP_S="0.02")
    assert slower.code == 1
    slower.line("REGRESSED: trivial b10 gpus=2")
    slower.line("rerun", "dtfperf", "run trivial gpus=2")
    assert "pytest" not in slower.line("rerun").replace("pytest_dtfperf", "")

    shown = run_trainings(perf, "trivial", "--json")
    assert shown.code == 0
    (measurement,) = read("run", shown.out)
    assert measurement["verdict"] == "PASSED"
    assert records(perf)[0]["images_per_sec"] == pytest.approx(1000)


def test_next_commands_are_valid(perf: PerfTests) -> None:
    """Each command below `Next:` is valid, and `--explain=always` is stored with the session."""
    first = run_trainings(perf, "trivial")
    following = [line.split("  ")[1] for line in first.out.partition("Next:\n")[2].splitlines() if line.startswith("  ")]
    assert len(following) == 3
    for command in following:
        parse_arguments(shlex.split(command)[1:])
    traced = run_trainings(perf, "trivial", "--explain=always")
    assert traced.code == 0, traced.err
    assert session(perf)["command"][-2] == "--explain=always"


def test_own_model_is_measured(perf: PerfTests) -> None:
    """`module:name` of perf_tests is measured, accepted and compared."""
    (perf.folder / "perf_tests").mkdir()
    (perf.folder / "perf_tests" / "mine.py").write_text(
        "class Kit:\n    class Net:\n        image_shape, classes = (8, 8, 3), 5\n"
        "        def logits(self, net, images):\n            return net.dense(net.flatten(images), 5)\n"
    )
    shown = run_trainings(perf, "mine:Kit.Net", "gpus=2", "--update-baselines=new", "--json")
    assert shown.code == 0, shown.err
    (measurement,) = read("run", shown.out)
    assert (measurement["spec"]["model"], measurement["spec"]["gpus"]) == ("mine.Kit.Net", 2)
    again = run_trainings(perf, "mine:Kit.Net", "gpus=2")
    again.line("mine.Kit.Net b10 gpus=2 num_ps=1 parameter_server", "PASSED")


def test_sweep_finds_the_number_of_servers(perf: PerfTests) -> None:
    """`best` without a baseline is an error with the remedy; `sweep` finds the number, and the next `best` uses it."""
    unknown = run_trainings(perf, "trivial", "gpus=2", "num_ps=best")
    assert unknown.code == 1
    unknown.line("no baseline of", "--num-ps=sweep")
    by_servers = json.dumps({"1": 0.02, "2": 0.01})
    swept = run_trainings(perf, "trivial", "gpus=2", "num_ps=sweep", "--update-baselines=new", TOY_PS_STEP_S=by_servers)
    assert swept.code == 0, swept.err
    assert {record["spec"]["num_ps"] for record in records(perf) if "sweep" in record} == {2}
    best = run_trainings(perf, "trivial", "gpus=2", "num_ps=best", TOY_PS_STEP_S=by_servers)
    best.line("trivial b10 gpus=2 num_ps=2", "PASSED")


def test_failed_training_does_not_affect_others(perf: PerfTests) -> None:
    """A failed training is reported, the other is measured and shown, and the exit code is 1."""
    ended = run_trainings(perf, "trivial", "gpus=2", "trivial", TOY_DO="die worker:1")
    assert ended.code == 1
    ended.line("dtfperf: trivial gpus=2:", "worker:1")
    ended.line("trivial b10 gpus=1", "1000", "NO_BASELINE")


def test_measurements_before_a_cluster_error_are_shown(perf: PerfTests) -> None:
    """A cluster error ends the command; the training before it is shown, also with --json."""
    words = ("trivial", "trivial", "gpus=2", "variable_update=horovod")
    ended = run_trainings(perf, *words)
    assert ended.code == 1
    ended.line("has no module horovod")
    ended.line("trivial b10 gpus=1", "1000", "NO_BASELINE")
    ended = run_trainings(perf, *words, "--json")
    assert ended.code == 1
    assert [measurement["images_per_sec"] for measurement in read("run", ended.out)] == [pytest.approx(1000)]


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (("trivial", "gps=2"), "trivial gps=2: unknown argument 'gps'. Did you mean 'gpus'?"),
        (("trivial", "gpus=0"), "trivial gpus=0: gpus must be a whole number of at least 1"),
        (("trivial", "num_ps=many"), "num_ps must be"),
        (("trivial", "--repeats=0"), "--repeats must be 1 or more"),
        (("mine:cnn",), "mine:cnn: mine cannot be imported: there is no module mine; looked for in /"),
        (("math:",), "math:: a model of your own is a module, a colon and its name there, as my_models:small_cnn"),
        (("math:sinn",), "math:sinn: unknown name in it 'sinn'. Did you mean 'sin'?"),
        (("math:pi",), "model=3.14159"),
        (("trivial", "--margin=5"), "--margin is a fraction of the baseline"),
        (("trivial", "--cluster=nowhere"), "unknown cluster 'nowhere'"),
    ],
)
def test_wrong_arguments_measure_nothing(
    perf: PerfTests,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    expected: str,
) -> None:
    """Wrong arguments are exit code 2 with a message, and no session folder is made."""
    monkeypatch.chdir(perf.folder)
    monkeypatch.setattr("sys.path", [*sys.path])  # to which the command adds the folder
    line = read_refusal(capfd, "run", *arguments, "--clusters-file=perf/clusters.toml")
    assert line.startswith("dtfperf: ")
    assert expected in line
    assert not (perf.folder / "perf_results").exists()
