"""Comparisons of software stacks as text: rows of a table, and the reasons of each verdict."""

from collections.abc import Sequence

from pytest_dtfperf.formats import format_count, percent, rate
from pytest_dtfperf.report.explanations import describe_explanation
from pytest_dtfperf.report.tables import make_table, render
from pytest_dtfperf.session.comparison import ABComparison

HEADINGS = ("spec", "reference", "variant", "variant against reference", "runs", "verdict")
TITLE = "comparison of software stacks"
WIDTH = 160  # of the table in files


def make_row(comparison: ABComparison) -> list[str]:
    """Return the texts of a comparison below `HEADINGS`."""

    def describe_side(name: str, images_per_sec: float | None) -> str:
        return f"{name} {rate(images_per_sec)} img/s" if images_per_sec else name

    runs = f"{len(comparison.runs('A'))}+{len(comparison.runs('B'))}" if comparison.blocks else "0"
    return [
        comparison.label,
        describe_side(comparison.reference.variant.name, comparison.rate("A")),
        describe_side(comparison.variant.variant.name, comparison.rate("B")),
        str(comparison.decision.estimate or "unknown"),
        runs,
        comparison.verdict,
    ]


def list_reasons(comparison: ABComparison) -> list[str]:
    """Return why a comparison has its verdict, what differs, and where the time of the slower side goes."""
    names = f"{comparison.label}, {comparison.variant.variant.name}"
    lines = [f"{names}: {comparison.decision.reason}"]
    lines += [f"  changed: {change}" for change in comparison.changes]
    if comparison.explanation:
        lines += [f"  {line}" for line in describe_explanation(comparison.explanation)]
    if comparison.unexplained:
        lines.append(f"  {comparison.unexplained}")
    if (smallest := comparison.detectable) is not None and not comparison.verdict.is_difference:
        blocks = format_count(comparison.policy.max_blocks, "block")
        lines.append(f"  the smallest difference that {blocks} find here: {percent(smallest)}")
    return lines


def list_variants(comparisons: Sequence[ABComparison]) -> list[str]:
    """Return a line for each variant, with the settings in which it differs from the reference."""
    found = {each.variant.variant.name: each for each in comparisons}
    return [
        f"{each.reference.variant.name} -> {name}: {'; '.join(each.differences) or 'no difference'}"
        for name, each in found.items()
    ]


def make_sections(comparisons: Sequence[ABComparison]) -> list[tuple[str, Sequence[str]]]:
    """Return the section of a report, with its title; none without comparisons."""
    if not comparisons:
        return []
    table = make_table(HEADINGS, map(make_row, comparisons), [None] * len(HEADINGS), text_columns=range(len(HEADINGS)))
    rows = render([table], width=WIDTH, colour=False).splitlines()
    reasons = [line for each in comparisons for line in list_reasons(each)]
    return [(TITLE, [*list_variants(comparisons), *rows, *reasons])]
