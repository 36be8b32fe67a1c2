"""A session of long ago, judged again: its verdicts are those of then, to the byte. Files in stored/ are never made anew.

When the order or the form of keys in a line changed, they were written in the new form, with the same values.
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
def test_stored_session_has_the_same_verdicts(
    options: list[str], expected: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Every line of a stored session, judged again, has the same bytes."""
    assert main(["judge", str(SESSION), "--json", *options]) == 1
    assert capsysbinary.readouterr().out == expected.read_bytes()
