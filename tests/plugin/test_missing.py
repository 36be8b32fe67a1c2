"""Tests of the messages for packages that are not installed."""

import os
import sys
from pathlib import Path

import pytest

from tests.plugin.conftest import REPOSITORY, Ended, PerfTests

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


def check_missing_tensorflow(ended: Ended, python: str) -> None:
    """Check that the only line on stderr names the Python that lacks TensorFlow and the package to install."""
    assert ended.code == 4
    assert [line for line in ended.err.splitlines() if line] == [
        ended.line("ERROR: cluster 'local' trains with", python, 'no TensorFlow: pip install "pytest-dtfperf[tensorflow]"')
    ]
    assert "Traceback" not in ended.out


def test_missing_tensorflow_is_one_line(perf: PerfTests) -> None:
    """Without TensorFlow, as far as pytest and its xdist workers see, one line has the message, and tests are collected and
    dry-run."""
    (perf.folder / "perf" / "clusters.toml").write_text(TENSORFLOW)
    bare = make_plugin_arguments(perf, "tensorflow")
    check_missing_tensorflow(perf.run(*bare, "-n2"), perf.python)
    assert perf.run(*bare, "--co", "-q").code == 0
    assert perf.run(*bare, "--dry-run").code == 0


# Two sessions in one process, which imports everything once: the first one is refused.
TWO_SESSIONS = """
import pytest, sys
code = pytest.main([*sys.argv[1:], "--cluster=local"])
pytest.main([*sys.argv[1:], "--cluster=toy"])
sys.exit(code)
"""


def test_own_training_needs_no_tensorflow(perf: PerfTests) -> None:
    """With a Python without TensorFlow, a cluster with an entry of its own trains, and another one has the message."""
    toy = perf.folder / "perf" / "clusters.toml"
    toy.write_text(TENSORFLOW + toy.read_text().replace("[local", "[toy"))
    ended = remove_packages(perf, "tensorflow").run_python("-c", TWO_SESSIONS, *perf.command("perf", "--gpus=1")[3:])
    check_missing_tensorflow(ended, perf.python)
    ended.line("1 undecided")


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
