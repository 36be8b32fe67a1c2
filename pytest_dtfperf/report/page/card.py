"""The part of one measurement on a session's page."""

import shlex
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from pytest_dtfperf.baselines.comparability import describe_notes, list_forbidden_differences
from pytest_dtfperf.baselines.entry import Entry
from pytest_dtfperf.baselines.judgement import Judgement
from pytest_dtfperf.datamodel.explanation import Explanation
from pytest_dtfperf.datamodel.measurement import Run
from pytest_dtfperf.datamodel.step_times import KINDS, MAX_LINKS, StepBreakdown, WorkerTiming, WorkerTimings
from pytest_dtfperf.explain.causes import compute_changes
from pytest_dtfperf.explain.measurement_profile import ms, signed_ms
from pytest_dtfperf.formats import NONE, change, change_in_ms, format_count, format_ms, minute, percent, rate
from pytest_dtfperf.history.past import Past
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.report import measurement_text
from pytest_dtfperf.report.measurement_text import Grid, format_rate_with_spread
from pytest_dtfperf.report.notes import list_hints_of, list_injected_slowdowns
from pytest_dtfperf.report.page import html
from pytest_dtfperf.report.page.html import (
    Bar,
    Card,
    CauseRow,
    Causes,
    Earlier,
    Fact,
    Standing,
    StepPart,
    StepsView,
    TaskLog,
    Workers,
    draw_stack,
)
from pytest_dtfperf.report.terminal import format_baseline, format_verdict
from pytest_dtfperf.spec import Spec

ACCEPTING = ("update-baselines", "allow-regression")
SELECTING = ("-k", "-m", "--deselect", "--ignore")


def make_rerun_command(command: Sequence[str], test: str) -> str:
    """Return the session's command for this test alone, without options that select tests or accept baselines.

    A session without pytest has one command for all its measurements, which is returned unchanged.
    """
    if not command or command[0] != "pytest":
        return shlex.join(command)
    return shlex.join(["pytest", *_list_kept_arguments(command[1:], test), test])


def _list_kept_arguments(arguments: Sequence[str], test: str) -> list[str]:
    kept: list[str] = []
    ends_value = False  # whether this argument is the value of a dropped option before it
    for word in arguments:
        name = word.partition("=")[0]
        if ends_value and not word.startswith("-"):
            ends_value = False
        elif name in SELECTING or (name.startswith("-k") and not name.startswith("--")):
            ends_value = word in SELECTING
        elif name.removeprefix("--dtfperf-").removeprefix("--") in ACCEPTING and name.startswith("--"):
            ends_value = name.endswith("allow-regression") and "=" not in word
        elif not _is_selector_of(word, test):
            kept.append(word)
    return kept


def _is_selector_of(word: str, test: str) -> bool:
    """Return whether the argument is a file, a folder or a test that contains this test."""
    path = word.removeprefix("./").rstrip("/")
    return not word.startswith("-") and (path == "." or test == path or test.startswith((f"{path}/", f"{path}::", f"{path}[")))


def make_steps(now: StepBreakdown, then: StepBreakdown | None) -> StepsView | None:
    """Return the bars and the table of a step; None if it took no time."""
    whole_s = max(now.wall_s, then.wall_s if then else 0.0)
    if whole_s <= 0:
        return None
    named = [("this session", now), *([("baseline", then)] if then else [])]
    bars = [_make_bar(name, breakdown, whole_s) for name, breakdown in named]
    found = {part.kind for _, breakdown in named for part in make_parts(breakdown)}
    return StepsView(
        f"mean of {format_count(now.steps, 'traced step')}",
        bars,
        [kind for kind in KINDS if kind in found],
        _make_comparison_grid(then, now) if then else _make_path_grid(now),
    )


def make_parts(breakdown: StepBreakdown) -> list[StepPart]:
    """Return the parts of a step by kind, in the order of all bars."""
    sums: Counter[str] = Counter()
    for part in breakdown.parts:
        sums[part.kind] += part.seconds  # type: ignore[assignment]  # typeshed: whole numbers
    return [StepPart(kind, sums[kind]) for kind in KINDS if sums[kind] > 0]


def _make_bar(name: str, breakdown: StepBreakdown, whole_s: float) -> Bar:
    length = f"{format_ms(breakdown.wall_s)} ms"
    return Bar(
        name,
        length,
        draw_stack(make_parts(breakdown), whole_s, f"A step of {name}, {length}; its parts stand in the table below"),
    )


def _make_path_grid(breakdown: StepBreakdown) -> Grid:
    rows = [[part.kind, format_ms(part.seconds), percent(part.seconds / breakdown.wall_s)] for part in make_parts(breakdown)]
    return Grid((_describe_scope(breakdown), "ms", "share"), [*rows, ["the step", format_ms(breakdown.wall_s), ""]])


def _describe_scope(breakdown: StepBreakdown) -> str:
    return "on the critical path" if breakdown.path else "of the slowest worker"


def _make_comparison_grid(then: StepBreakdown, now: StepBreakdown) -> Grid:
    rows = [
        [
            change.kind,
            format_ms(change.before_s),
            format_ms(change.after_s),
            change_in_ms(change.seconds),
            change.location or NONE,
        ]
        for change in compute_changes(then, now)
    ]
    rows.append(["the step", format_ms(then.wall_s), format_ms(now.wall_s), change_in_ms(now.wall_s - then.wall_s), ""])
    return Grid((_describe_scope(now), "ms before", "ms after", "change", "most of it"), rows)


def make_causes(explanation: Explanation, command: str) -> Causes:
    """Return the causes as the page shows them. `command` shows the whole explanation."""
    against = f", against {explanation.against}" if explanation.against not in ("", "its baseline") else ""
    largest = max((abs(cause.seconds) for cause in explanation.causes), default=0.0)
    return Causes(
        rows=[
            CauseRow(
                message=cause.words,
                seconds=f"{signed_ms(cause.seconds)} ms",
                share=percent(cause.share),
                width=round(100 * abs(cause.seconds) / largest, 1) if largest else 0.0,
                confidence=cause.confidence,
                evidence=list(cause.evidence),
                next=cause.next,
            )
            for cause in explanation.causes
        ],
        change=f"{ms(explanation.step_s)} ms instead of {ms(explanation.baseline_step_s)} ms{against}",
        unexplained=f"{signed_ms(explanation.unexplained_s)} ms",
        notes=list(explanation.notes),
        command=command,
    )


MOST_TASKS = 12  # rows: of more, the tasks with the longest steps

ABOUT_WORKERS = "CPU s of a task: of a worker in its measured window, of a parameter server over its life"


def make_workers(
    run: Run, scores: WorkerTimings | None, breakdown: StepBreakdown | None, *, number: int, total: int
) -> Workers | None:
    """Return the numbers of each task; None for a run without data of tasks, such as that of an external command."""
    tasks = sorted({*run.step_s, *run.peak_rss_bytes, *run.cpu_s}, key=_make_task_key)
    if not tasks:
        return None
    columns = _make_columns(run, scores, breakdown)
    shown = sorted(tasks, key=lambda task: -_compute_mean(run.step_s.get(task, ())))[:MOST_TASKS]
    rows = [[task, *(cell(task) for cell in columns.values())] for task in tasks if task in shown]
    left_out = len(tasks) - len(shown)
    notes = [f"and {format_count(left_out, 'task')} more, with shorter steps"] if left_out else []
    notes += [_format_traffic(run), *(_list_pauses(scores) if scores else [])]
    filled = [i for i in range(1, len(columns) + 1) if any(row[i] != NONE for row in rows)]
    headings = ("task", *columns)
    table = Grid([headings[i] for i in (0, *filled)], [[row[i] for i in (0, *filled)] for row in rows])
    return Workers(f"run {number} of {total}" if total > 1 else "its run", table, notes)


def _make_columns(
    run: Run, scores: WorkerTimings | None, breakdown: StepBreakdown | None
) -> Mapping[str, Callable[[str], str]]:
    scored: Mapping[str, WorkerTiming] = scores.workers if scores else {}
    return {
        "step ms": lambda task: _format_ms(run.step_s.get(task), _compute_mean),
        "median": lambda task: _format_ms(run.step_s.get(task), statistics.median),
        "slowest": lambda task: _format_ms(run.step_s.get(task), max),
        "CPU s": lambda task: f"{run.cpu_s[task]:.2f}" if task in run.cpu_s else NONE,
        "memory MB": lambda task: f"{run.peak_rss_bytes[task] / 1e6:.0f}" if task in run.peak_rss_bytes else NONE,
        "sends MB": lambda task: _format_bytes(breakdown, task, "source"),
        "receives MB": lambda task: _format_bytes(breakdown, task, "destination"),
        "ready ms": lambda task: _format_known(scored.get(task), "ready_s", lambda seconds: f"{1000 * seconds:.2f}"),
        "late ms": lambda task: _format_known(scored.get(task), "late_s", lambda seconds: f"{1000 * seconds:+.2f}"),
        "was last": lambda task: _format_known(scored.get(task), "last", percent),
    }


def _make_task_key(task: str) -> tuple[bool, str, int]:
    """Return a sort key: workers first, by their numbers."""
    job, _, index = task.partition(":")
    return job == "ps", job, int(index) if index.isdecimal() else 0


def _compute_mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else 0.0


def _format_ms(values: Sequence[float] | None, summarize: Callable[[Sequence[float]], float]) -> str:
    return format_ms(summarize(values)) if values else NONE


def _format_bytes(breakdown: StepBreakdown | None, task: str, end: str) -> str:
    """Return bytes per step over all links; NONE if the breakdown has the maximum of links, as others may be missing."""
    if breakdown is None or len(breakdown.links) >= MAX_LINKS:
        return NONE
    found = [link.size_bytes for link in breakdown.links if getattr(link, end) == task]
    return f"{sum(found) / 1e6:.2f}" if found else NONE


def _format_known(score: WorkerTiming | None, name: str, format_value: Callable[[float], str]) -> str:
    value = getattr(score, name, None)
    return NONE if value is None else format_value(value)


def _format_traffic(run: Run) -> str:
    sent, received = (f"{size / 1e6:,.1f} MB" for size in (run.bytes_sent, run.bytes_received))
    return f"The workers' hosts together sent {sent} and received {received} in the measured window"


def _list_pauses(scores: WorkerTimings) -> list[str]:
    if not scores.paused:
        return []
    longest = scores.pauses[0] if scores.pauses else None
    message = f"{format_count(scores.paused, 'step')} of {scores.steps} stood out"
    if longest is None:
        return [message]
    suffix = f" by {longest.worker}" if longest.worker else ""
    return [f"{message}, step {longest.step} by {1000 * longest.seconds:.1f} ms{suffix}"]


LEAST_AXIS, MOST_AXIS = 0.05, 0.4  # of the axis of changes: neither noise nor one broken host may dominate it


@dataclass(frozen=True, kw_only=True)
class CardContext:
    """The context of a card beside its record."""

    command: Sequence[str]  # of the session
    session: str  # the path of its folder
    limit: float  # of the axis of changes, common to all cards
    labels: Mapping[Spec, str]  # labels that distinguish the session's trainings
    anchors: Mapping[str, Spec] = field(default_factory=dict)  # id of a record -> its training
    history: Mapping[str, Past] = field(default_factory=dict)  # id of a measurement -> its series up to this session
    logs: Mapping[str, Sequence[TaskLog]] = field(default_factory=dict)  # by test, of its tasks


def axis_limit(records: Iterable[Record]) -> float:
    """Return the end of the axis of changes: a little beyond the largest, within limits."""
    found = [record.comparison for record in records if record.comparison]
    largest = max(
        (abs(x) for each in found for x in (each.change, each.low, each.high, each.margin) if x is not None), default=0.0
    )
    return min(max(1.1 * largest, LEAST_AXIS), MOST_AXIS)


def make_card(record: Record, anchor: str, context: CardContext, *, with_details: bool = True) -> Card:
    """Return the view of a record. `with_details`: with the step, the tasks and earlier rates as numbers."""
    entry = find_entry(record)
    traced = record.measurement.traced_run
    breakdown = traced.step_breakdown if traced else None
    before = entry.step_breakdown if entry else None
    explain_command = f"dtfperf explain {context.session} {record.id}"
    return Card(
        anchor=anchor,
        standing=Standing.from_verdict(record.verdict, format_verdict(record)),
        label=context.labels[record.spec],
        test=record.test,
        rate=format_rate_with_spread(record.measurement),
        rate_value=record.images_per_sec,
        efficiency=percent(record.efficiency) if record.efficiency else NONE,
        of_limit=measurement_text.format_limit_share(record),
        baseline=rate(record.baseline) if record.baseline else NONE,
        change=change(record.change) if record.change is not None else NONE,
        change_value=record.change,
        interval=_draw_interval(record, context.limit),
        past=make_earlier(context.history.get(record.id), f"past-{anchor}", with_details=with_details),
        facts=_list_facts(record, entry, context),
        causes=make_causes(record.explanation, explain_command) if record.explanation else None,
        no_causes=record.unexplained,
        steps=make_steps(breakdown, before) if breakdown and with_details else None,
        no_steps=traced.unexplained if traced and breakdown is None else "",
        workers=_make_workers_of_record(record) if with_details else None,
        differences=_list_differences(record, entry),
        command=make_rerun_command(context.command, record.test),
        logs=context.logs.get(record.test, ()),
    )


def find_entry(record: Record) -> Entry | None:
    """Return the baseline that the record was last compared with."""
    found = [check.entry for check in record.checks if check.kind == "baseline" and check.entry]
    return found[-1] if found else None


def _draw_interval(record: Record, limit: float) -> Markup | None:
    found = record.comparison
    if found is None or found.change is None:
        return None
    description = html.describe_interval(found.change, found.low, found.high, found.margin)
    return html.draw_interval(found.change, found.low, found.high, margin=found.margin, limit=limit, described=description)


def make_earlier(past: Past | None, name: str, *, with_details: bool) -> Earlier | None:
    """Return the earlier rates; None if there is one session only. `name`: id of the drawing."""
    if past is None or len(past.points) < 2:
        return None
    shown = list(past.points)
    began = next((i for i, (started, _) in enumerate(shown) if started >= past.began), None) if past.began else None
    rows = [[minute(started), rate(value)] for started, value in reversed(shown if with_details else ())]
    if rows and past.is_disturbed:
        rows[0][1] += ", disturbed"
    drawing = html.draw_trend(shown, name, began, is_disturbed=past.is_disturbed)
    description = html.describe_trend(shown, is_disturbed=past.is_disturbed)
    return Earlier(drawing, description, past.change, Grid(("session", "images/sec"), rows))


def _list_facts(record: Record, entry: Entry | None, context: CardContext) -> list[Fact]:
    measurement = record.measurement
    count = len(measurement.runs)
    disturbed = [str(each) for run in measurement.runs for each in run.disturbances]
    facts = [
        Fact("why", record.reason or ""),
        Fact("runs", ", ".join(rate(value) for value in measurement.rates) + f" images/sec ({count} in all)"),
        Fact("baseline", format_baseline(record.comparison) if record.comparison else ""),
        Fact("accepted", _format_provenance(entry) if entry else ""),
        Fact("efficiency", _format_efficiency(record, context)),
        Fact("limit", measurement_text.format_limit_or_reason(record)),
        Fact("hint", "; ".join(text.removeprefix(record.spec.label).lstrip(": ") for text in list_hints_of(record))),
        *(Fact(f"check of {check.kind}", f"{check.verdict}: {check.reason}") for check in _list_other_checks(record)),
        Fact("injected", "; ".join(list_injected_slowdowns([record]))),
        Fact("disturbed", "; ".join(dict.fromkeys(disturbed))),
        Fact("hosts", ", ".join(measurement.hosts)),
    ]
    return [fact for fact in facts if fact.text]


def _list_other_checks(record: Record) -> list[Judgement]:
    """Return the checks with another reason than that of the record."""
    return [check for check in record.checks if check.reason != record.reason]


def _format_provenance(entry: Entry) -> str:
    found = entry.provenance
    parts = [found.date[:10], f"in session {found.session}", *([f"at commit {found.commit[:12]}"] if found.commit else [])]
    return ", ".join([*parts, *([f"because {found.reason}"] if found.reason else [])])


def _format_efficiency(record: Record, context: CardContext) -> str:
    if record.efficiency is None or record.anchor is None:
        return ""
    anchor = context.anchors.get(record.anchor)
    return f"{percent(record.efficiency)} of {record.spec.gpus} x {context.labels[anchor] if anchor else record.anchor}"


def _list_differences(record: Record, entry: Entry | None) -> list[str] | None:
    if entry is None:
        return None
    fingerprint = record.measurement.fingerprint
    return [*list_forbidden_differences(entry.fingerprint, fingerprint), *describe_notes(entry.fingerprint, fingerprint)]


def _make_workers_of_record(record: Record) -> Workers | None:
    """Return the tasks of the last run that counts for the rate."""
    runs: Sequence[Run] = record.measurement.samples
    run = runs[-1]
    number = list(record.measurement.runs).index(run) + 1
    return make_workers(run, run.worker_timings, run.step_breakdown, number=number, total=len(record.measurement.runs))
