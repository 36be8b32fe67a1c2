"""Tests of mistakes in a perf test, which are one line with their location."""

import pytest

from tests.plugin.conftest import PerfTests

MISTAKES = """
import pytest

def test_name(train):
    train(model="resnet5O", gpus=1)

def test_script(train):
    train(command=["python", "trian.py"], gpus=1)

def test_number(baseline):
    baseline.check(1234.5)

def test_several(baseline):
    baseline.check([1, 2])

def test_function(train, baseline):
    baseline.check_efficiency(train, anchor=train, at_least=0.9)

def test_threshold(baseline):
    baseline.check_overhead(synthetic=1, real=2, at_most="0.1")

def test_pattern(train):
    train(command=["true"], rate_pattern=r"rate\\s: \\d+", gpus=1)

def test_never(train):
    assert train

def test_skips(train):
    pytest.skip("another time")
"""
MESSAGES = {
    "unknown model 'resnet5O'. Did you mean 'resnet50'?": "test_perf.py:5: SpecError",
    "there is no file trian.py in ": "test_perf.py:8: UsageError",
    "Did you mean 'train.py'?": "",
    "baseline.check(): measurement must be what train() returns, not 1234.5": "test_perf.py:11: UsageError",
    "not [1, 2], which is several: check each of them": "test_perf.py:14: UsageError",
    "baseline.check_efficiency(): measurement must be what train() returns, not <pytest_dtfperf": "test_perf.py:17: UsageError",
    "baseline.check_overhead(): synthetic must be what train() returns, not 1": "test_perf.py:20: UsageError",
    r'rate_pattern=r"rate\s: \d+" needs a group around the number: r"total images/sec: ([\d.]+)"': "test_perf.py:23: SpecError",
}


def test_mistakes_are_reported_with_their_line(perf: PerfTests) -> None:
    """Each mistake is reported with the nearest name, and file and line of the test, without a traceback."""
    perf.write(MISTAKES)
    (perf.folder / "perf" / "train.py").touch()
    ended = perf.run()
    for words, line in MESSAGES.items():
        ended.line(words)
        ended.line(line)
    ended.line("test_never takes `train` and has trained nothing: call it, or leave it out")
    ended.line("7 failed", "1 passed", "1 skipped", "1 warning")
    assert "Traceback" not in ended.out
    assert ended.out.count("has trained nothing") == 1
    assert not (perf.folder / "perf_results").exists()


def test_invalid_folder_of_locks_is_one_error(perf: PerfTests) -> None:
    """An invalid folder of locks is one usage error of the session."""
    ended = perf.run(DTFPERF_LOCKS="/no/such/folder")
    assert ended.code == pytest.ExitCode.USAGE_ERROR
    assert (ended.out + ended.err).count("DTFPERF_LOCKS = '/no/such/folder' is no folder that this user may write to") == 1
