import re
from pathlib import Path

import pytest

from pytest_dtfperf.baselines.verdict import Verdict, gravest_first
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
def test_what_follows_from_a_verdict(verdict: Verdict) -> None:
    """Each verdict has the consequences the design gives it, with and without --strict-verdicts."""
    lenient, strict, history, baseline, reason = TABLE[verdict]
    assert (verdict.outcome(strict=False), verdict.outcome(strict=True)) == (lenient, strict)
    assert (verdict.fails(strict=False), verdict.fails(strict=True)) == (lenient == "fail", strict == "fail")
    assert verdict.row.history is history
    assert (verdict.may_become_baseline, verdict.needs_reason) == (baseline, reason)


def test_verdicts_are_their_names() -> None:
    """A verdict can be written into a file and read back as text."""
    assert {str(verdict) for verdict in Verdict} == set(Verdict.__members__)
    assert Verdict("REGRESSED") is Verdict.REGRESSED


def test_what_comes_of_two_verdicts() -> None:
    """Gravest first is the table's own order; what nobody has judged comes after all of them."""
    assert sorted([Verdict.PASSED, None, Verdict.TAINTED, Verdict.REGRESSED, Verdict.NO_BASELINE], key=gravest_first) == [
        Verdict.REGRESSED,
        Verdict.TAINTED,
        Verdict.NO_BASELINE,
        Verdict.PASSED,
        None,
    ]


def test_what_is_no_verdict_is_refused() -> None:
    """A word that has no row is no verdict, so that nothing can be graver than all the table knows."""
    with pytest.raises(ValueError, match="'SLOW' is not a valid Verdict"):
        Verdict("SLOW")


TESTS = {"pass": "passes", "warn": "passes; fails with `--strict-verdicts`", "fail": "fails", "error": "error, not failure"}


def test_the_docs_have_the_table() -> None:
    """docs/numbers.md has every verdict in its order, with its condition and its consequences."""
    wanted = [f"| {each} | {each.row.when} | {TESTS[each.row.outcome]} | {each.row.baseline} |" for each in Verdict]
    lines = NUMBERS.read_text().splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("| Verdict |")) + 2
    assert lines[start : lines.index("", start)] == wanted


def test_what_the_option_calls_undecided_is() -> None:
    """The verdicts that --strict-verdicts names as examples are of those that it changes."""
    (strict,) = (option for option in OPTIONS if option.name == "strict-verdicts")
    named = [verdict for verdict in Verdict if re.search(rf"\b{verdict}\b", strict.help)]
    assert named
    assert {verdict.row.outcome for verdict in named} == {"warn"}
