"""A session of long ago, judged again: its verdicts are those of then, to the byte. Files in stored/ are never made anew.

When the order of keys in a line changed, they were written in the new order, with the same values.
"""

from pathlib import Path

import pytest

from pytest_dtfperf.cli import main

STORED = Path(__file__).parent / "stored"
SESSION = STORED / "20260131T021503Z-9f3c1a"

OTHERWISE = {
    "as of then": ([], SESSION / "measurements.jsonl"),
    "margin": (["--margin=0.02"], STORED / "expected" / "margin.jsonl"),
    "efficiency": (["--min-efficiency=0.95"], STORED / "expected" / "efficiency.jsonl"),
}


@pytest.mark.parametrize("options, expected", OTHERWISE.values(), ids=OTHERWISE)
def test_verdicts_are_those_of_then(options: list[str], expected: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    """Every line, with verdict, reason, interval and terms, comes out as it was written then, or as it was rejudged then."""
    assert main(["judge", str(SESSION), "--json", *options]) == 1
    assert capsysbinary.readouterr().out == expected.read_bytes()
