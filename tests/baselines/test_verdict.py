import pytest

from pytest_dtfperf.baselines.verdict import Verdict

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


@pytest.mark.parametrize("verdict", Verdict, ids=str)
def test_what_follows_from_a_verdict(verdict: Verdict) -> None:
    """Each verdict has the consequences the design gives it, with and without --strict-verdicts."""
    lenient, strict, history, baseline, reason = TABLE[verdict]
    assert (verdict.outcome(strict=False), verdict.outcome(strict=True)) == (lenient, strict)
    assert (verdict.fails(strict=False), verdict.fails(strict=True)) == (lenient == "fail", strict == "fail")
    assert verdict.enters_history is history
    assert (verdict.may_become_baseline, verdict.needs_reason) == (baseline, reason)


def test_verdicts_are_their_names() -> None:
    """A verdict can be written into a file and read back as text."""
    assert {str(verdict) for verdict in Verdict} == set(Verdict.__members__)
    assert Verdict("REGRESSED") is Verdict.REGRESSED
