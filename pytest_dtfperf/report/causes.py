"""Why a step takes longer, as people read it: the same in a test's own words, in the terminal, in Markdown and in JUnit."""

from collections.abc import Iterator, Sequence

from pytest_dtfperf.explain.causes import Cause, Explanation
from pytest_dtfperf.explain.words import ms, signed_ms
from pytest_dtfperf.printable import printable
from pytest_dtfperf.records.record import Record

MOST_NEXT = 3  # commands: of more, the first are those of the largest causes


def load_explanation(record: Record) -> Explanation | None:
    return Explanation.from_json(record.explanation) if record.explanation else None


def list_explanation(record: Record) -> list[str]:
    """The change, what of it is explained, and a row for each cause; or why that cannot be told; nothing where nobody asked."""
    found = load_explanation(record)
    if found is None:
        return [printable(record.unexplained)] if record.unexplained else []
    return [_format_change(found), *_list_causes(found), *map(printable, found.notes), *list_experiments(record)]


def list_experiments(record: Record) -> list[str]:
    """What each experiment on its causes has said."""
    return [f"tried: {printable(str(each['words']))}" for each in record.experiments]


def format_largest_cause(record: Record) -> str:
    """The largest cause in one line, where only one line is read; empty where none is known."""
    found = load_explanation(record)
    if found is None or not found.causes:
        return ""
    more = len(found.causes) - 1
    return f"{signed_ms(found.causes[0].seconds)} ms  {printable(found.causes[0].words)}{f' (and {more} more)' if more else ''}"


def list_next_commands(record: Record, session: str) -> list[str]:
    """The commands that look further; `session`: its folder."""
    found = load_explanation(record)
    if found is None:
        return []
    further = dict.fromkeys(printable(cause.next) for cause in found.causes if cause.next)
    return [f"dtfperf explain {session} {record.id}", *list(further)[:MOST_NEXT]]


def _format_change(found: Explanation) -> str:
    """`+108 of +112 ms per step (1,161 -> 1,273 ms)`."""
    known = f"{signed_ms(found.explained_s, found.change_s)} of " if found.causes else ""
    against = f", against {printable(found.against)}" if found.against not in ("", "its baseline") else ""
    return f"{known}{signed_ms(found.change_s)} ms per step ({ms(found.baseline_step_s)} -> {ms(found.step_s)} ms{against})"


def _list_causes(found: Explanation) -> Iterator[str]:
    """Seconds of each cause, right-aligned, and what is left of the change."""
    rows = [(signed_ms(cause.seconds, found.change_s), _format_cause(cause)) for cause in found.causes]
    rows.append((signed_ms(found.unexplained_s, found.change_s), "not explained"))
    width = max(len(seconds) for seconds, _ in rows)
    yield from (f"{seconds:>{width}} ms   {words}" for seconds, words in rows)


def _format_cause(cause: Cause) -> str:
    sure = {"high": "", "medium": "", "low": " (not sure)"}[cause.confidence]
    return f"{printable(cause.words)}{sure}"


def describe_explanation(found: Explanation) -> list[str]:
    """The rows, and each cause with what speaks for it, for whoever asks further."""
    evidence = [f"  {line}" for cause in found.causes for line in _describe_cause(cause)]
    noise = f"what is below {ms(found.noise_s)} ms is noise, and no cause"
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
