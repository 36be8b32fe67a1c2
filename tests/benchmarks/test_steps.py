"""The comparison of reported steps with those of our own loop: who times which, and that both are what a run is made of."""

import re
from collections import Counter

import pytest

from benchmarks.steps import BLOCK, blocks, main
from tests.real import imported


def test_both_time_as_many_blocks_and_begin_as_often() -> None:
    """Ours, theirs, theirs, ours: what changes evenly over a process meets both alike."""
    assert list(blocks(4 * BLOCK)) == [True, False, False, True] * 2
    assert Counter(blocks(10 * BLOCK)) == {True: 10, False: 10}


def test_a_process_is_a_ratio(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its steps are timed both ways whole, as our tasks report theirs and as a program tells the launcher."""
    monkeypatch.setenv("PATH", imported.path())
    assert main(["--model=trivial", "--batch=4", f"--steps={2 * BLOCK}", "--rounds=1"]) == 0
    told = capsys.readouterr()
    assert re.fullmatch(r"1 of 1: [\d.]+ ms, [\d.]+ in the median, [\d.]+ in the mean\n", told.err)
    ratio = r"[\d.]+  \([\d.]+ to [\d.]+, 1 ratios\)\n"
    assert re.search(rf"20 of each in a process\nmedian step {ratio}mean step   {ratio}$", told.out)
