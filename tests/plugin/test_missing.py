"""Tests of the messages for packages that are not installed."""

import os
import sys
from pathlib import Path

import pytest

from tests.plugin.conftest import REPOSITORY, PerfTests

PYTHON = str(Path(sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}"))
TENSORFLOW = """
[local]
backend = "local"
devices_per_host = 2
device = "cpu"
"""


def remove_packages(perf: PerfTests, *packages: str) -> PerfTests:
    """The same tests, with another Python that has all packages of this one but those."""
    folder = perf.folder / "site"
    folder.mkdir()
    for installed in Path(pytest.__file__).parents[1], *map(Path, sys.path):
        if installed.name != "site-packages":
            continue
        for each in installed.iterdir():
            if not each.name.startswith((*packages, "_editable")) and not (folder / each.name).exists():
                (folder / each.name).symlink_to(each)
    perf.environment["PYTHONPATH"] = os.pathsep.join([perf.environ()["PYTHONPATH"], str(folder)])
    perf.python = PYTHON
    return perf


def make_plugin_arguments(perf: PerfTests, package: str) -> tuple[str, ...]:
    """Return the arguments of pytest, which is a fork, with which the package is not installed."""
    perf.environment["LACKING"] = package
    return ("-p", "tests.plugin.lacking")


@pytest.mark.parametrize("arguments", [(), ("-n2",)], ids=["alone", "xdist"])
def test_missing_tensorflow_is_one_line(perf: PerfTests, arguments: tuple[str, ...]) -> None:
    """Without TensorFlow the only line on stderr names the Python that lacks it and the package to install."""
    (perf.folder / "perf" / "clusters.toml").write_text(TENSORFLOW)
    ended = (
        perf.run(*make_plugin_arguments(perf, "tensorflow"), *arguments)
        if arguments
        else remove_packages(perf, "tensorflow").run()
    )
    assert ended.code == 4
    assert [line for line in ended.err.splitlines() if line] == [
        ended.line("ERROR: cluster 'local' trains with", perf.python, 'no TensorFlow: pip install "pytest-dtfperf[tensorflow]"')
    ]
    assert "Traceback" not in ended.out


def test_collection_and_own_training_need_no_tensorflow(perf: PerfTests) -> None:
    """Without TensorFlow tests are collected and dry-run, and a cluster with an entry of its own trains."""
    toy = perf.folder / "perf" / "clusters.toml"
    text = toy.read_text()
    toy.write_text(TENSORFLOW)
    bare = make_plugin_arguments(perf, "tensorflow")
    assert perf.run(*bare, "--co", "-q").code == 0
    assert perf.run(*bare, "--dry-run").code == 0
    toy.write_text(text)
    remove_packages(perf, "tensorflow").run("--gpus=1").line("1 undecided")


def test_skipped_tests_are_counted_with_their_reason(perf: PerfTests) -> None:
    """The summary has each reason of skipped perf tests once with their number, also under xdist, and no reason of other
    tests."""
    perf.write(
        "import pytest\n"
        "@pytest.fixture\ndef images(): pytest.importorskip('no_such_package', reason='images need it: pip install it')\n"
        "def test_a(train, images, gpus): ...\n"
        "def test_b(train): pytest.skip('not today')\n"
        "def test_c(): pytest.skip('of no interest')\n"
    )
    for arguments in ((), ("-n2",)):
        ended = perf.run(*arguments)
        assert ended.code == 0
        assert ended.line("images need it") == "2 tests skipped: images need it: pip install it"
        assert ended.line("not today") == "1 test skipped: not today"
        assert "of no interest" not in ended.out


def test_missing_digits_are_reported_with_the_extra(perf: PerfTests) -> None:
    """Without scikit-learn an MNIST test of perf_tests/ is skipped, and the summary has the extra to install."""
    perf.environment["XDG_CACHE_HOME"] = str(perf.folder)
    tests = str(REPOSITORY / "perf_tests" / "test_mnist.py")
    options = ("-k", "io_overhead", "--gpus=1", f"--perf-results={perf.folder / 'results'}")
    ended = perf.run_python(*perf.command(*make_plugin_arguments(perf, "sklearn"), tests, *options)[1:])
    ended.line("1 test skipped: the offline data set needs scikit-learn: pip install", "pytest-dtfperf[digits]")
