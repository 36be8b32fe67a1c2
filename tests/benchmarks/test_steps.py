"""Tests of the comparison of reported steps with those of our own loop: the order of blocks, and the output."""

import re
from collections import Counter

import pytest

from benchmarks.steps import BLOCK, blocks, main
from tests.real import imported


def test_blocks_alternate_in_a_symmetric_order() -> None:
    """Blocks are ours, theirs, theirs, ours, and each side has the same number, so that a steady drift affects both equally."""
    assert list(blocks(4 * BLOCK)) == [True, False, False, True] * 2
    assert Counter(blocks(10 * BLOCK)) == {True: 10, False: 10}


def test_process_gives_one_ratio(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The command times the steps of one process both ways, and prints one ratio of medians and one of means."""
    monkeypatch.setenv("PATH", imported.path())
    assert main(["--model=trivial", "--batch=4", f"--steps={2 * BLOCK}", "--rounds=1"]) == 0
    captured = capsys.readouterr()
    assert re.fullmatch(r"1 of 1: [\d.]+ ms, [\d.]+ in the median, [\d.]+ in the mean\n", captured.err)
    ratio = r"[\d.]+  \([\d.]+ to [\d.]+, 1 ratios\)\n"
    assert re.search(rf"20 of each in a process\nmedian step {ratio}mean step   {ratio}$", captured.out)
