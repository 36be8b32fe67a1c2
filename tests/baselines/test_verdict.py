import re
from pathlib import Path

import pytest

from pytest_dtfperf.baselines.verdict import Verdict, sort_by_severity
from pytest_dtfperf.plugin.options import OPTIONS

NUMBERS = Path(__file__).parents[2] / "docs" / "numbers.md"

#                          strict:  no      yes     history  baseline         needs a reason
TABLE = {
    Verdict.PASSED: ("pass", "pass", True, True, False),
    Verdict.IMPROVED: ("pass", "pass", True, True, False),
    Verdict.REGRESSED: ("fail", "fail", True, True, True),
    Verdict.ANCHOR: ("warn", "fail", True, True, False),
    Verdict.INCONCLUSIVE: ("warn", "fail", True, False, False),
    Verdict.NO_BASELINE: ("warn", "fail", True, True, False),
    Verdict.INCOMPARABLE: ("warn", "fail", True, True, False),
    Verdict.INVALID: ("fail", "fail", False, False, False),
    Verdict.TAINTED: ("warn", "fail", True, False, False),
    Verdict.INFRASTRUCTURE: ("error", "error", False, False, False),
}


@pytest.mark.parametrize("verdict", TABLE, ids=str)
def test_consequences_of_each_verdict(verdict: Verdict) -> None:
    """Each verdict has its consequences, with and without --strict-verdicts."""
    lenient, strict, history, baseline, reason = TABLE[verdict]
    assert (verdict.outcome(strict=False), verdict.outcome(strict=True)) == (lenient, strict)
    assert (verdict.fails(strict=False), verdict.fails(strict=True)) == (lenient == "fail", strict == "fail")
    assert verdict.row.history is history
    assert (verdict.may_become_baseline, verdict.needs_reason) == (baseline, reason)


def test_verdict_is_its_name() -> None:
    """The text of a verdict is its name, and the name is the verdict."""
    assert {str(verdict) for verdict in Verdict} == set(Verdict.__members__)
    assert Verdict("REGRESSED") is Verdict.REGRESSED


def test_gravest_first_sorts_by_the_table() -> None:
    """Verdicts are sorted in the order of their table, and a missing verdict is last."""
    assert sorted([Verdict.PASSED, None, Verdict.TAINTED, Verdict.REGRESSED, Verdict.NO_BASELINE], key=sort_by_severity) == [
        Verdict.REGRESSED,
        Verdict.TAINTED,
        Verdict.NO_BASELINE,
        Verdict.PASSED,
        None,
    ]


def test_unknown_verdict_is_refused() -> None:
    """An unknown word is no verdict."""
    with pytest.raises(ValueError, match="'SLOW' is not a valid Verdict"):
        Verdict("SLOW")


TESTS = {"pass": "passes", "warn": "passes; fails with `--strict-verdicts`", "fail": "fails", "error": "error, not failure"}


def test_docs_have_the_table_of_verdicts() -> None:
    """docs/numbers.md has every verdict in its order, with its condition and its consequences."""
    wanted = [f"| {each} | {each.row.when} | {TESTS[each.row.outcome]} | {each.row.baseline} |" for each in Verdict]
    lines = NUMBERS.read_text().splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("| Verdict |")) + 2
    assert lines[start : lines.index("", start)] == wanted


def test_option_names_only_verdicts_that_it_changes() -> None:
    """The help of --strict-verdicts names only verdicts that it changes."""
    (strict,) = (option for option in OPTIONS if option.name == "strict-verdicts")
    named = [verdict for verdict in Verdict if re.search(rf"\b{verdict}\b", strict.help)]
    assert named
    assert {verdict.row.outcome for verdict in named} == {"warn"}
