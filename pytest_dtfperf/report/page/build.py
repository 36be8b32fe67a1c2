"""Build a session's page: read its folder, make the view of its records, and render it."""

import os
import shlex
import stat
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from pytest_dtfperf.baselines.comparability import system_name
from pytest_dtfperf.baselines.verdict import Verdict, sort_by_severity
from pytest_dtfperf.compare.blocks import ABVerdict
from pytest_dtfperf.compare.record import COMPARISONS_FILE, LOGS_OF_COMPARISONS, ComparisonRecord, make_log_name
from pytest_dtfperf.datamodel.fingerprint import Fingerprint, Hardware
from pytest_dtfperf.formats import NONE, duration, format_count, join_some, percent, printable_bytes, rate
from pytest_dtfperf.records import arithmetic
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.records.session import SessionFolder, path_safe
from pytest_dtfperf.records.stored import SessionInfo
from pytest_dtfperf.report import measurement_text
from pytest_dtfperf.report.comparisons import COMPARISONS_CSV, TEST_VERDICTS, TITLE, list_notes, make_comparison_grid
from pytest_dtfperf.report.measurement_text import (
    ABOUT_LEARNING,
    ABOUT_SCORES,
    Grid,
    format_footnote,
    format_versions,
    list_measurement_notes,
    make_learning_grids,
    make_score_grids,
    make_sweep_grids,
)
from pytest_dtfperf.report.measurement_text import ABOUT_SWEEPS as ABOUT_SWEEPS
from pytest_dtfperf.report.notes import collect_reasons, list_error_rates, list_injected_slowdowns, suggest_accepting
from pytest_dtfperf.report.page import card, html
from pytest_dtfperf.report.page.card import CardContext, axis_limit, make_card
from pytest_dtfperf.report.page.html import Card, Fact, Page, ReasonView, Section, Standing, TaskLog, WithoutMeasurement
from pytest_dtfperf.report.series import PublishedPoint, find_nearest
from pytest_dtfperf.report.session_exports import SessionResults
from pytest_dtfperf.report.terminal import list_costs
from pytest_dtfperf.spec import labels

LINES, SIZE_BYTES = 25, 6_000  # limits of each log, counted from its end
FILES = 6  # of a test's last run
TOTAL_BYTES = 30_000  # of a session: further logs are only in the folder


def read_tails(folder: SessionFolder, tests: Collection[str]) -> Mapping[str, Sequence[TaskLog]]:
    """Return the ends of the logs of the last run of each test, up to the size limit."""
    return _limit_size((test, _read_run_tails(folder.path, folder.logs_of(test))) for test in tests)


def find_tests_without_measurement(folder: SessionFolder, measured: Collection[str]) -> list[WithoutMeasurement]:
    """Return tests with logs but without a measurement, because they failed before."""
    known = {path_safe(test) for test in measured}
    found = (path for path in _list_folder(folder.path / "logs") if path.name not in known)
    logs = _limit_size((path.name, _read_run_tails(folder.path, path)) for path in found)
    return [WithoutMeasurement(name, tail) for name, tail in logs.items()]


def _limit_size(found: Iterable[tuple[str, Sequence[TaskLog]]]) -> dict[str, Sequence[TaskLog]]:
    kept: dict[str, Sequence[TaskLog]] = {}
    room = TOTAL_BYTES
    for name, tail in found:
        room -= sum(len(line) for log in tail for line in log.lines)
        if room < 0:
            break
        if tail:
            kept[name] = tail
    return kept


def _read_run_tails(root: Path, logs: Path) -> list[TaskLog]:
    runs = sorted((path for path in _list_folder(logs) if path.name.isdecimal()), key=lambda path: int(path.name))
    if not runs:
        return []
    files = [path for path in _list_folder(runs[-1]) if path.name.endswith(".log")]
    return [log for path in files if (log := _read_tail(root, path))][:FILES]


def _list_folder(folder: Path) -> Iterator[Path]:
    """Yield the entries of a folder by name; none if it cannot be read."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    yield from (folder / name for name in names)


def _read_tail(root: Path, path: Path) -> TaskLog | None:
    """Return the end of a log; None if it is empty, unreadable or no regular file (reading a pipe would block)."""
    try:
        size = os.stat(path, follow_symlinks=False)
        if not stat.S_ISREG(size.st_mode) or not size.st_size:
            return None
        with path.open("rb") as file:
            file.seek(max(0, size.st_size - SIZE_BYTES))
            lines = file.read(SIZE_BYTES).split(b"\n")
    except OSError:
        return None
    kept = [line for line in lines if line.strip()][-LINES:]
    shown = sum(len(line) + 1 for line in kept)
    return TaskLog(path.relative_to(root).as_posix(), [printable_bytes(line) for line in kept], max(0, size.st_size - shown))


MOST_WHOLE = 30  # measurements with step breakdowns and tasks, the gravest first: hundreds would take megabytes
MOST_PUBLISHED = 6  # rows per model: one of each system with a published scaling table


@dataclass(frozen=True, kw_only=True)
class PageInput:
    """The data of a page. `session` is the content of session.json."""

    session: SessionInfo
    path: str = ""  # of its folder, as a user would type it
    results: SessionResults
    logs: Mapping[str, Sequence[TaskLog]] = field(default_factory=dict)  # by test, of its tasks
    without_measurement: Sequence[WithoutMeasurement] = ()
    files: Sequence[str] = ()  # names of files beside the page


def make_page(given: PageInput) -> Page:
    session, records = given.session, given.results.records
    context = CardContext(
        command=session.command,
        session=given.path or session.id,
        limit=axis_limit(records),
        labels=labels(record.spec for record in records),
        anchors={record.id: record.spec for record in records},
        history=given.results.pasts,
        logs=given.logs,
    )
    ordered = sorted(records, key=lambda record: sort_by_severity(record.verdict))
    cards = {
        record.id: make_card(record, f"m{number}", context, with_details=number <= MOST_WHOLE)
        for number, record in enumerate(ordered, start=1)
    }
    comparisons = given.results.comparisons
    counts = _count_verdicts(session.verdicts, records) or _count_comparisons(comparisons)
    started = datetime.fromisoformat(session.started)
    return Page(
        title=f"Performance on {session.cluster}, {started:%Y-%m-%d %H:%M} UTC",
        standing=counts[0][0] if counts else Standing.from_verdict(None),
        counts=counts,
        ended=_describe_end(session),
        facts=_list_facts(session, records, comparisons, given.files),
        why=_list_reasons(records, cards),
        how=[
            *(f"Injected slow-down (DTFPERF_SLOWDOWN): {text}" for text in list_injected_slowdowns(records)),
            *suggest_accepting(records),
        ],
        cards=list(cards.values()),
        brief=_describe_omissions(len(cards)),
        without_measurement=given.without_measurement,
        measured=_describe_amount(len(cards), len(comparisons)) + _describe_tests(session.verdicts, records),
        sections=[
            *_make_comparison_sections(comparisons),
            *_make_learning_sections(records),
            *_make_published_sections(records, given.results.published),
            *_make_plugin_sections(given.results.sections),
        ],
        legend=_list_legend(records, session),
        verdicts=_list_verdicts(records),
        remarks=list_costs(session.costs),
    )


def _describe_omissions(measurements: int) -> str:
    if measurements <= MOST_WHOLE:
        return ""
    return (
        f"To keep the page light, the first {MOST_WHOLE} have the breakdown of a step, their tasks, and their past in numbers; "
        "measurements.jsonl has them of all, and dtfperf explain shows them"
    )


def _count_verdicts(verdicts: Mapping[Verdict, int], records: Iterable[Record]) -> list[tuple[Standing, int]]:
    """Return counts of tests, or of measurements if no test was counted, as in a session that was ended early."""
    found = verdicts or Counter(record.verdict for record in records if record.verdict)
    ordered = sorted(found, key=sort_by_severity)
    return [(Standing.from_verdict(verdict), found[verdict]) for verdict in ordered]


def _count_comparisons(comparisons: Iterable[ComparisonRecord]) -> list[tuple[Standing, int]]:
    """Return counts of the comparisons' verdicts, the gravest first."""
    found = Counter(each.verdict for each in comparisons)
    standings = [(Standing.from_verdict(TEST_VERDICTS[verdict], str(verdict)), count) for verdict, count in found.items()]
    return sorted(standings, key=lambda each: each[0].order)


def _describe_amount(measurements: int, comparisons: int) -> str:
    """Return how much was measured; a session may have comparisons alone."""
    amounts = {"comparison": comparisons, "measurement": measurements}
    found = [format_count(count, name) for name, count in amounts.items() if count]
    return " and ".join(found) or format_count(0, "measurement")


def _describe_tests(verdicts: Mapping[Verdict, int], records: Iterable[Record]) -> str:
    """Return of how many tests the verdicts are, if those of the measurements are others."""
    if not verdicts or Counter(verdicts) == Counter(record.verdict for record in records if record.verdict):
        return ""
    return f"; the verdicts above are those of {format_count(sum(verdicts.values()), 'test')}"


def _describe_end(session: SessionInfo) -> str:
    if session.wall_s is None:
        return "not ended: what follows is as far as the session has come"
    return f"took {duration(session.wall_s)}, exit code {session.exit_code}"


def _list_facts(
    session: SessionInfo, records: Sequence[Record], comparisons: Sequence[ComparisonRecord], files: Sequence[str]
) -> list[Fact]:
    of_each = [*(record.measurement.hosts for record in records), *(each.hosts for each in comparisons)]
    hosts = dict.fromkeys(host for found in of_each for host in found)
    prints: list[Fingerprint] = [
        *(each.measurement.fingerprint for each in records),
        *(each.reference.fingerprint for each in comparisons),
    ]
    systems = dict.fromkeys(system_name(each.hardware) for each in prints if each.hardware != Hardware())
    software = dict.fromkeys(word for record in records for word in format_versions(record, session).split())
    facts = [
        Fact("session", session.id, is_code=True),
        Fact("command", shlex.join(session.command), is_code=True),
        Fact("hosts", join_some(list(hosts), 8)),
        Fact("hardware", ", ".join(systems)),
        Fact("software", ", ".join(word.replace("=", " ") for word in software)),
        Fact("beside it", ", ".join(files)),
    ]
    return [fact for fact in facts if fact.text]


def _list_reasons(records: Sequence[Record], cards: Mapping[str, Card]) -> list[ReasonView]:
    return [
        ReasonView(Standing.from_verdict(reason.verdict), reason.message, [cards[record.id] for record in reason.records])
        for reason in collect_reasons(records)
    ]


def _make_learning_sections(records: Sequence[Record]) -> list[Section]:
    found = [
        Section("Parameter servers", "sweeps", make_sweep_grids(records), [ABOUT_SWEEPS]),
        Section("Learning", "learning", make_learning_grids(records), [ABOUT_LEARNING]),
        Section("Scores on the test set", "scores", make_score_grids(records), [ABOUT_SCORES]),
    ]
    return [section for section in found if section.tables]


def _make_comparison_sections(comparisons: Sequence[ComparisonRecord]) -> list[Section]:
    if not comparisons:
        return []
    return [Section(TITLE, "comparisons", [make_comparison_grid(comparisons)], [], lines=list_notes(comparisons))]


def _make_plugin_sections(sections: Iterable[tuple[str, Sequence[str]]]) -> list[Section]:
    """Return the sections of other plugins as they print them. Anchors are numbered, because titles are arbitrary."""
    return [Section(title, f"section{number}", [], [], lines=lines) for number, (title, lines) in enumerate(sections, start=1)]


def _make_published_sections(records: Sequence[Record], published: Sequence[PublishedPoint]) -> list[Section]:
    tables, left_out = [], 0
    for model in sorted({record.spec.model for record in records}):
        of_model = [row for row in published if row.model == model]
        measured = {record.spec for record in records if record.spec.model == model}
        chosen = find_nearest(of_model, measured, MOST_PUBLISHED)
        left_out += len(of_model) - len(chosen)
        rows = [
            [
                row.name(measured), row.devices, rate(row.images_per_sec),
                NONE if row.efficiency is None else percent(row.efficiency), row.citation,
            ]
            for row in chosen
        ]  # fmt: skip
        tables += [Grid((model, "devices", "images/sec", "efficiency", "source"), rows)] if rows else []
    notes = ["For orientation: mostly other hardware and other software. No verdict rests on them unless a test asks for it"]
    notes += [f"{left_out} more rows are known of these models"] if left_out else []
    return [Section("Published results", "published", tables, notes, classes=" w5")] if tables else []


def _list_legend(records: Sequence[Record], session: SessionInfo) -> list[str]:
    if not records:
        return []
    return [
        format_footnote(record.measurement for record in records),
        *list_measurement_notes(record.measurement for record in records),
        card.ABOUT_WORKERS,
        "efficiency is rate(n) / (n x rate(1)), of the same training on one device in this session",
        *arithmetic.format_lines(record.measurement for record in records if record.is_valid),
        *([measurement_text.ABOUT_LIMITS] if any(record.share_of_limit for record in records) else []),
        *list_error_rates(records, session.budget),
    ]


def _list_verdicts(records: Iterable[Record]) -> list[tuple[Standing, str]]:
    found = sorted({record.verdict for record in records if record.verdict}, key=sort_by_severity)
    return [(Standing.from_verdict(verdict), _remove_links(verdict.row.when)) for verdict in found]


def _remove_links(markdown: str) -> str:
    """Return Markdown text without the target of its link: `something else` of `[something else](fingerprints.md)`."""
    before, opened, rest = markdown.partition("[")
    link_text, _, after = rest.partition("](")
    return before + link_text + after.partition(")")[2] if opened else markdown


PAGE_FILE = "report.html"
_BESIDE = ("session.json", "measurements.jsonl", "measurements.csv", COMPARISONS_FILE, COMPARISONS_CSV, "figures/*.svg")


def write_page(folder: SessionFolder, results: SessionResults) -> list[str]:
    """Write the page; return remarks on it.

    An error is returned as a remark: it must not make the session fail.
    """
    if not (results.records or results.sections or results.comparisons):
        return []
    try:
        text = render_page(make_page(load_page_input(folder, results)))
    except Exception as exc:  # records of other versions and of hosts may cause any error, and the table must be shown
        return [f"No {PAGE_FILE}: {type(exc).__name__}: {exc}"]
    return [f"Report: {folder.path / PAGE_FILE}"] if folder.write(PAGE_FILE, text.encode(errors="replace")) else []


def load_page_input(folder: SessionFolder, results: SessionResults) -> PageInput:
    """Return the data of the page, read from the folder."""
    records = results.records
    failed = dict.fromkeys(record.test for record in records if _has_failed(record))
    return PageInput(
        session=folder.session,
        path=f"{folder.path.parent.name}/{folder.id}",  # relative to the folder where the session was started, as in Markdown
        results=results,
        logs=read_tails(folder, failed),
        without_measurement=find_tests_without_measurement(
            folder, {*(record.test for record in records), *_list_compared(results.comparisons)}
        ),
        files=_list_files_beside(folder),
    )


def _list_compared(comparisons: Iterable[ComparisonRecord]) -> Iterator[str]:
    """Yield the names of the logs of stacks that trained, in place of a test's."""
    for each in comparisons:
        if each.blocks and each.verdict not in (ABVerdict.FAILED, ABVerdict.INVALID):
            yield from (make_log_name(LOGS_OF_COMPARISONS, side.spec, side.name) for side in (each.reference, each.variant))


def _has_failed(record: Record) -> bool:
    return record.verdict is not None and record.verdict.row.outcome in ("fail", "error")


def _list_files_beside(folder: SessionFolder) -> list[str]:
    found: Iterable[str] = (path.relative_to(folder.path).as_posix() for name in _BESIDE for path in folder.path.glob(name))
    return sorted(found)


def render_page(shown: Page, root: str | None = None) -> str:
    """Return the page as HTML. `root`: as for `html.render_template`."""
    return html.render_template("page.html", scripts=("script.js",), root=root, page=shown)
