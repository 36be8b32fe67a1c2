"""Tests of `dtfperf qualify` with its real probes, on machines in network namespaces."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.real.qualify_cases import (
    DISK,
    EQUAL,
    EQUAL_QUOTAS,
    INTO,
    LINK_KINDS,
    QUOTA_KINDS,
    MachineCase,
    list_cases,
    order_cases,
    run_case,
    summarise,
    why_no_case,
)


@pytest.mark.campaign(only=True)
@pytest.mark.parametrize("case", list_cases(), ids=str)
def test_qualify_names_slow_hosts_and_links(case: MachineCase, tmp_path: Path) -> None:
    """Exactly the slow hosts, links with their direction, and pairs are named."""
    if reason := why_no_case(case):
        pytest.skip(reason)
    found = run_case(case, tmp_path)
    assert found.named == found.expected, found.reasons
    assert not found.is_false_fit


def test_campaign_has_several_cases_of_each_kind() -> None:
    """The campaign has at least 100 cases, four or more of each kind, and no case twice."""
    cases = list_cases()
    counts = Counter(case.kind for case in cases)
    assert len(cases) == len(set(cases)) >= 100
    assert set(counts) == {*LINK_KINDS, *QUOTA_KINDS, DISK, EQUAL, EQUAL_QUOTAS}
    assert min(counts.values()) >= 4


def test_summary_has_the_numbers_of_each_kind() -> None:
    """The table has a row for each kind, with right, missed and false names, false verdicts, and cases that failed."""
    link = {"kind": INTO, "expected": ["m1: link in"], "false_fit": False}
    lines: list[dict[str, Any]] = [
        {**link, "named": ["m1: link in"], "right": True, "reasons": {"m1": "slow"}},
        {**link, "named": [], "right": False, "false_fit": True, "reasons": {"m2": "no reading"}},
        {**link, "named": ["m1: link in", "m2"], "right": False, "reasons": {"m1": "slow", "m2": "slow"}},
        {"kind": INTO, "error": "OSError"},
        {"kind": EQUAL, "expected": [], "named": [], "right": True, "false_fit": False, "reasons": {"m1": "no reading"}},
        {"kind": EQUAL, "expected": [], "named": ["m1"], "right": False, "false_fit": False, "reasons": {"m1": "slow"}},
    ]
    assert summarise(lines).splitlines() == [
        "| Slow | Cases | Right | Missed | False name | Slow host called fit | Not judged | Failed or skipped |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
        f"| {INTO} | 4 | 1 | 1 | 1 | 1 | 1 | 1 |",
        f"| {EQUAL} | 2 | 1 | 0 | 1 | 0 | 1 | 0 |",
    ]


def test_kinds_of_cases_take_turns() -> None:
    """The campaign's order has all cases, and its first eleven have the most different kinds."""
    cases = list_cases()
    kinds = [case.kind for case in order_cases(cases, seed=3)]
    assert sorted(kinds) == sorted(case.kind for case in cases)
    assert len(set(kinds[:11])) == len(set(kinds))
