"""Comparisons of software stacks for people and programs: rows of a table, the reasons of each verdict, and CSV."""

from collections.abc import Callable, Mapping, Sequence

from pytest_dtfperf.baselines.files import check_schema_version, load
from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.codec import ValidationError
from pytest_dtfperf.compare.blocks import ABVerdict
from pytest_dtfperf.compare.record import COMPARISONS_FILE, ComparisonRecord, list_runs
from pytest_dtfperf.datamodel.measurement import SIMULATED
from pytest_dtfperf.errors import BaselineFileError, DtfPerfError, SessionFileError
from pytest_dtfperf.formats import format_count, percent, printable, rate
from pytest_dtfperf.records.session import SessionFolder
from pytest_dtfperf.records.stored import content_of, list_whole_lines
from pytest_dtfperf.report.explanations import describe_explanation
from pytest_dtfperf.report.measurement_text import Grid
from pytest_dtfperf.report.tables import make_table, render

HEADINGS = ("spec", "reference", "variant", "variant against reference", "runs", "verdict")
TITLE = "Comparison of software stacks"
WIDTH = 160  # of the table in a terminal
COMPARISONS_CSV = "comparisons.csv"

# What a test's verdict is for that of a comparison: pytest, JUnit's XML and reports know these.
TEST_VERDICTS: Mapping[ABVerdict, Verdict] = {
    ABVerdict.FASTER: Verdict.IMPROVED,
    ABVerdict.SLOWER: Verdict.REGRESSED,
    ABVerdict.EQUIVALENT: Verdict.PASSED,
    ABVerdict.INCONCLUSIVE: Verdict.INCONCLUSIVE,
    ABVerdict.TAINTED: Verdict.TAINTED,
    ABVerdict.INVALID: Verdict.INVALID,
    ABVerdict.FAILED: Verdict.INVALID,
    ABVerdict.INFRASTRUCTURE: Verdict.INFRASTRUCTURE,
}

# None is an empty cell.
CSV_COLUMNS: Mapping[str, Callable[[ComparisonRecord], object]] = {
    "id": lambda each: each.id,
    "hosts": lambda each: " ".join(each.hosts),
    "spec": lambda each: each.spec.label,
    "reference": lambda each: each.reference.name,
    "variant": lambda each: each.variant.name,
    "reference_images_per_sec": lambda each: each.reference.images_per_sec,
    "variant_images_per_sec": lambda each: each.variant.images_per_sec,
    "ratio": lambda each: each.estimate and each.estimate.ratio,
    "low": lambda each: each.estimate and each.estimate.low,
    "high": lambda each: each.estimate and each.estimate.high,
    "spread": lambda each: each.estimate and each.estimate.spread,
    "blocks": lambda each: each.estimate.blocks if each.estimate else 0,
    "verdict": lambda each: str(each.verdict),
    "simulated": lambda each: str(each.reference.fingerprint.is_simulated).lower(),
    "reason": lambda each: each.reason,
    "error": lambda each: each.error,
    "detectable": lambda each: each.detectable,
    "seed": lambda each: each.seed,
    "differences": lambda each: "; ".join(each.differences),
    "changes": lambda each: "; ".join(each.changes),
}


def load_comparisons(folder: SessionFolder) -> list[ComparisonRecord]:
    """Return the comparisons of a session's folder; none without comparisons.jsonl. Raises `SessionFileError`."""
    path = folder.path / COMPARISONS_FILE
    if not path.exists():
        return []
    found = []
    for number, line in enumerate(list_whole_lines(content_of(path)), start=1):
        where = f"{path}:{number}"
        try:
            data = load(line.decode(), where)
            check_schema_version(data, where)
        except UnicodeDecodeError as error:
            raise SessionFileError(f"{where}: is no text: {error}") from error
        except BaselineFileError as error:
            raise SessionFileError(str(error)) from error
        try:
            found.append(ComparisonRecord.from_json(data))
        except (ValidationError, DtfPerfError) as error:
            raise SessionFileError(f"{where}: {printable(str(error))}") from error
    return found


def make_row(comparison: ComparisonRecord) -> list[str]:
    """Return the texts of a comparison below `HEADINGS`."""

    def describe_side(name: str, images_per_sec: float | None) -> str:
        return f"{name} {rate(images_per_sec)} img/s" if images_per_sec else name

    counts = [str(len(list_runs(comparison.counted_blocks, side))) for side in "AB"]
    return [
        comparison.spec.label,
        describe_side(comparison.reference.name, comparison.reference.images_per_sec),
        describe_side(comparison.variant.name, comparison.variant.images_per_sec),
        str(comparison.estimate or "unknown"),
        "+".join(counts) if comparison.blocks else "0",
        f"{comparison.verdict} {SIMULATED}" if comparison.reference.fingerprint.is_simulated else comparison.verdict,
    ]


def list_reasons(comparison: ComparisonRecord) -> list[str]:
    """Return why a comparison has its verdict, what differs, and where the time of the slower side goes."""
    lines = [f"{comparison.spec.label}, {comparison.variant.name}: {comparison.reason}"]
    lines += [f"  changed: {change}" for change in comparison.changes]
    if comparison.explanation:
        lines += [f"  {line}" for line in describe_explanation(comparison.explanation)]
    if comparison.unexplained:
        lines.append(f"  {comparison.unexplained}")
    if (smallest := comparison.detectable) is not None and not comparison.verdict.is_difference:
        blocks = format_count(comparison.policy.max_blocks, "block")
        lines.append(f"  the smallest difference that {blocks} find here: {percent(smallest)}")
    return lines


def list_variants(comparisons: Sequence[ComparisonRecord]) -> list[str]:
    """Return a line for each variant, with the settings in which it differs from the reference."""
    found = {each.variant.name: each for each in comparisons}
    return [
        f"{each.reference.name} -> {name}: {'; '.join(each.differences) or 'no difference'}" for name, each in found.items()
    ]


def make_comparison_grid(comparisons: Sequence[ComparisonRecord]) -> Grid:
    return Grid(HEADINGS, [make_row(each) for each in comparisons])


def list_notes(comparisons: Sequence[ComparisonRecord]) -> list[str]:
    """Return the lines below the table: the variants, and the reasons of the verdicts."""
    return [*list_variants(comparisons), *(line for each in comparisons for line in list_reasons(each))]


def format_comparisons(comparisons: Sequence[ComparisonRecord]) -> list[str]:
    """Return the table with its notes for a terminal."""
    grid = make_comparison_grid(comparisons)
    table = make_table(grid.headings, grid.rows, [None] * len(HEADINGS), text_columns=range(len(HEADINGS)))
    return [*render([table], width=WIDTH, colour=False).splitlines(), *list_notes(comparisons)]
