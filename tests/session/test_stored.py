"""A session of long ago, judged again: its verdicts are those of then, to the byte. Files in stored/ are never made anew."""

import json
import re
from pathlib import Path

import pytest

from pytest_dtfperf.cli import main

# Fields that specs have got since, with what all trainings of then had, and the fields that they stand behind.
SINCE = {"wire_precision": ("variable_consistency", "fp32")}

# What reasons of INCOMPARABLE have got since.
INCOMPARABLE_RATE = re.compile(r": [0-9.]+ images/sec here, [+-][0-9.]+ % against its [0-9.]+")

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
    lines = [as_of_today(line) for line in expected.read_text().splitlines()]
    output = INCOMPARABLE_RATE.sub("", capsysbinary.readouterr().out.decode())
    assert output == "".join(f"{line}\n" for line in lines)


def as_of_today(line: str) -> str:
    """The same, where it is written today: the spec says in all its fields what was trained."""
    record = json.loads(line)
    assert json.dumps(record, ensure_ascii=False) == line  # nothing else is changed by it
    for name, (before, value) in SINCE.items():
        fields = list(record["spec"].items())
        at = [key for key, _ in fields].index(before) + 1
        record["spec"] = dict([*fields[:at], (name, value), *fields[at:]])
    return json.dumps(record, ensure_ascii=False)
