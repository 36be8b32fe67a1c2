"""Explanations as text: the causes of a slower step, and where the time of a step goes."""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType

from pytest_dtfperf.datamodel.explanation import Cause, Confidence, Explanation
from pytest_dtfperf.datamodel.step_times import KINDS, MAX_LINKS, LinkTraffic, StepBreakdown, TaskTime
from pytest_dtfperf.explain.causes import Change
from pytest_dtfperf.explain.measurement_profile import ms, signed_ms
from pytest_dtfperf.formats import NONE, change_in_ms, format_count, format_ms, percent, printable
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.report.tables import make_table, render

MOST_NEXT = 3  # commands, those of the largest causes first


def load_explanation(record: Record) -> Explanation | None:
    return record.explanation


def list_explanation(record: Record) -> list[str]:
    """Return the change and a row for each cause, or the reason why it is unexplained; empty without an analysis."""
    found = load_explanation(record)
    if found is None:
        return [printable(record.unexplained)] if record.unexplained else []
    return [_format_change(found), *_list_causes(found), *map(printable, found.notes), *list_experiments(record)]


def list_experiments(record: Record) -> list[str]:
    """Return the result of each experiment on the causes."""
    return [f"tried: {printable(each.words)}" for each in record.experiments]


def format_largest_cause(record: Record) -> str:
    """Return the largest cause in one line; empty if none is known."""
    found = load_explanation(record)
    if found is None or not found.causes:
        return ""
    more = len(found.causes) - 1
    return f"{signed_ms(found.causes[0].seconds)} ms  {printable(found.causes[0].words)}{f' (and {more} more)' if more else ''}"


def list_next_commands(record: Record, session: str) -> list[str]:
    """Return the commands that show more. `session`: its folder."""
    found = load_explanation(record)
    if found is None:
        return []
    further = dict.fromkeys(printable(cause.next) for cause in found.causes if cause.next)
    search = [printable(found.search)] if found.search else []
    return [f"dtfperf explain {session} {record.id}", *list(further)[: MOST_NEXT - len(search)], *search]


def _format_change(found: Explanation) -> str:
    """Return `+108 of +112 ms per step (1,161 -> 1,273 ms)`."""
    known = f"{signed_ms(found.explained_s, found.change_s)} of " if found.causes else ""
    against = f", against {printable(found.against)}" if found.against not in ("", "its baseline") else ""
    return f"{known}{signed_ms(found.change_s)} ms per step ({ms(found.baseline_step_s)} -> {ms(found.step_s)} ms{against})"


def _list_causes(found: Explanation) -> Iterator[str]:
    """Yield the milliseconds of each cause, right-aligned, and the unexplained rest."""
    rows = [(signed_ms(cause.seconds, found.change_s), _format_cause(cause)) for cause in found.causes]
    rows.append((signed_ms(found.unexplained_s, found.change_s), "not explained"))
    width = max(len(seconds) for seconds, _ in rows)
    yield from (f"{seconds:>{width}} ms   {message}" for seconds, message in rows)


def _format_cause(cause: Cause) -> str:
    return f"{printable(cause.words)}{' (low confidence)' if cause.confidence == Confidence.LOW else ''}"


def describe_explanation(found: Explanation) -> list[str]:
    """Return the change, a row for each cause, the notes, and the evidence of each cause."""
    evidence = [f"  {line}" for cause in found.causes for line in _describe_cause(cause)]
    noise = f"changes of less than {ms(found.noise_s)} ms count as noise"
    return [
        f"why  {_format_change(found)}",
        *(f"     {line}" for line in (*_list_causes(found), *map(printable, found.notes), noise)),
        *evidence,
    ]


def _describe_cause(cause: Cause) -> Sequence[str]:
    heading = f"{cause.kind}{f' at {printable(cause.location)}' if cause.location else ''}: {signed_ms(cause.seconds)} ms, "
    heading += f"{100 * cause.share:.0f} % of the change; confidence {cause.confidence}"
    further = [f"next: {printable(cause.next)}"] if cause.next else []
    return [heading, *(f"  {printable(line)}" for line in (*cause.evidence, *further))]


_MIN_SHARE = 0.001  # of the step: smaller parts of the path share one line
_MAX_LINKS = 12
NO_PATH = "Its critical path is not known: TensorFlow's profiler does not show what waited for what."


def describe_breakdown(breakdown: StepBreakdown, *, width: int, colour: bool) -> str:
    """Return tables of the critical path, of each task's time and of the links, for a terminal or a log."""
    return render([*_make_path_blocks(breakdown), *_make_task_blocks(breakdown), *_make_link_blocks(breakdown)], width, colour)


def compare_breakdowns(changes: Sequence[Change], before: str, *, path: bool, width: int, colour: bool) -> str:
    """Return a table of the changes against the measurement with the id `before`. `path`: whether a critical path is known."""
    then, now = sum(change.before_s for change in changes), sum(change.after_s for change in changes)
    rows = [_make_change_row(change) for change in changes if abs(change.seconds) >= _MIN_SHARE * max(then, now)]
    rows.append(["the step", format_ms(then), format_ms(now), change_in_ms(now - then), ""])
    heading = (
        f"A step takes {format_ms(now)} instead of {format_ms(then)} ms, {change_in_ms(now - then)} ms against {before}. "
        f"{'On its critical path' if path else 'Of the slowest worker'}:"
    )
    drawn = make_table(["kind", "ms before", "ms after", "change", "most of it"], rows, [None] * 5)
    return render([heading, drawn, ""], width, colour)


def _make_change_row(change: Change) -> list[str]:
    location = change.location
    where = f"{location} {change_in_ms(change.locations[location])}" if location else ""
    return [change.kind, format_ms(change.before_s), format_ms(change.after_s), change_in_ms(change.seconds), where]


def _make_path_blocks(breakdown: StepBreakdown) -> Iterator[RenderableType]:
    taken = f"{format_ms(breakdown.wall_s)} ms, the mean of {format_count(breakdown.steps, 'traced step')}"
    if not breakdown.path:
        yield f"The slowest worker's step takes {taken}. {NO_PATH}"
        return
    yield f"A step takes {taken}. On its critical path:"
    large = [part for part in breakdown.path if part.seconds >= _MIN_SHARE * breakdown.wall_s]
    small = sum(part.seconds for part in breakdown.path) - sum(part.seconds for part in large)
    rows = [
        [
            part.kind,
            part.location or "several",
            part.variable or "",
            format_ms(part.seconds),
            _format_share(part.seconds, breakdown),
        ]
        for part in large
    ]
    if len(large) < len(breakdown.path):
        rows.append(["all else", "", "", format_ms(small), _format_share(small, breakdown)])
    yield make_table(["kind", "where", "variable", "ms", "share"], rows, [None] * 5, text_columns=(0, 1, 2))


def _format_share(seconds: float, breakdown: StepBreakdown) -> str:
    return percent(seconds / breakdown.wall_s) if breakdown.wall_s else NONE


def _make_task_blocks(breakdown: StepBreakdown) -> Iterator[RenderableType]:
    yield "\nWhere each task's time goes, in ms of its step:"
    kinds = [kind for kind in KINDS if any(kind in task.parts for task in breakdown.tasks.values())]
    rows = [[name, *_list_times(task, kinds)] for name, task in breakdown.tasks.items()]
    yield make_table(["task", "step", "CPU", *kinds], rows, [None] * (len(kinds) + 3), text_columns=(0,))


def _list_times(task: TaskTime, kinds: Sequence[str]) -> Iterator[str]:
    yield format_ms(task.wall_s)
    yield NONE if task.cpu_s is None else format_ms(task.cpu_s)
    for kind in kinds:
        yield format_ms(task.parts[kind]) if kind in task.parts else ""


def _make_link_blocks(breakdown: StepBreakdown) -> Iterator[RenderableType]:
    if breakdown.links:
        yield "\nTransfers between tasks in a step:"
        yield make_table(
            ["link", "MB", "ms", "Gbit/s"], map(_make_link_row, breakdown.links[:_MAX_LINKS]), [None] * 4, text_columns=(0,)
        )
        if (left_out := len(breakdown.links) - _MAX_LINKS) > 0:
            least = "at least " if len(breakdown.links) >= MAX_LINKS else ""  # the maximum number of stored links
            yield f"and {least}{format_count(left_out, 'link')} more, less busy than these"
    if any(breakdown.clock_error_s.values()):
        worst = max(breakdown.clock_error_s, key=lambda task: breakdown.clock_error_s[task])
        error = format_ms(breakdown.clock_error_s[worst])
        yield f"\nClocks are known to {error} ms or better; {printable(worst)} has the largest error."


def _make_link_row(link: LinkTraffic) -> list[str]:
    rate = link.bytes_per_s
    busy = NONE if link.busy_s is None else format_ms(link.busy_s)
    name = f"{link.source}>{link.destination}"
    return [name, f"{link.size_bytes / 1e6:.3f}", busy, NONE if rate is None else f"{8 * rate / 1e9:.2f}"]
