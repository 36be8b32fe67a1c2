"""One measurement's part of the page. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from pytest_dtfperf.baselines.comparability import must_match, noted
from pytest_dtfperf.baselines.entry import Entry
from pytest_dtfperf.explain.anatomy import Anatomy
from pytest_dtfperf.explain.causes import Explanation
from pytest_dtfperf.explain.scores import Scores
from pytest_dtfperf.formats import NONE, change, minute, percent, rate
from pytest_dtfperf.history.past import Past
from pytest_dtfperf.measurement import Run
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.report import limits
from pytest_dtfperf.report.learning import Grid
from pytest_dtfperf.report.numbers import format_rate_with_spread
from pytest_dtfperf.report.page import figures
from pytest_dtfperf.report.page.again import make_rerun_command
from pytest_dtfperf.report.page.steps import decode, make_causes, make_steps
from pytest_dtfperf.report.page.view import Card, Earlier, Fact, Log, Standing, Workers
from pytest_dtfperf.report.page.workers import make_workers
from pytest_dtfperf.report.reasons import list_injected_slowdowns
from pytest_dtfperf.report.terminal import format_baseline, format_verdict
from pytest_dtfperf.spec import Spec

LEAST_AXIS, MOST_AXIS = 0.05, 0.4  # of the axis of changes: noise must not fill it, nor one broken host press all else together


@dataclass(frozen=True, kw_only=True)
class CardContext:
    """What a card needs beside its record."""

    command: Sequence[str]  # of the session
    session: str  # the path of its folder
    limit: float  # of the axis of changes, which all cards share
    labels: Mapping[Spec, str]  # by which this session's trainings are told apart
    anchors: Mapping[str, Spec] = field(default_factory=dict)  # id of a record -> what it has trained
    history: Mapping[str, Past] = field(default_factory=dict)  # id of a measurement -> its series up to this session
    logs: Mapping[str, Sequence[Log]] = field(default_factory=dict)  # test -> of its tasks


def axis_limit(records: Iterable[Record]) -> float:
    """Where the axis of changes ends: a little beyond the largest, within reason."""
    found = [record.baseline for record in records if record.baseline]
    largest = max((abs(x) for b in found for x in (b.change, b.low, b.high, b.margin) if x is not None), default=0.0)
    return min(max(1.1 * largest, LEAST_AXIS), MOST_AXIS)


def make_card(record: Record, anchor: str, around: CardContext, *, whole: bool = True) -> Card:
    """`whole`: with the anatomy of a step, with its tasks and its past in numbers; causes are always told."""
    entry = find_entry(record)
    traced = record.measurement.traced_run
    anatomy = decode(Anatomy, traced.anatomy if traced else None)
    before = decode(Anatomy, entry.anatomy if entry else None)
    explanation = decode(Explanation, record.explanation)
    baseline = record.baseline
    return Card(
        anchor=anchor,
        standing=Standing.of(record.verdict, format_verdict(record)),
        label=around.labels[record.spec],
        test=record.test,
        rate=format_rate_with_spread(record.measurement),
        rate_value=record.images_per_sec,
        efficiency=percent(record.efficiency.value) if record.efficiency else NONE,
        efficiency_value=record.efficiency.value if record.efficiency else None,
        of_limit=limits.format_limit_share(record),
        baseline=rate(baseline.images_per_sec) if baseline else NONE,
        baseline_value=baseline.images_per_sec if baseline else None,
        change=change(baseline.change) if baseline else NONE,
        change_value=baseline.change if baseline else None,
        interval=_draw_interval(record, around.limit),
        past=make_earlier(around.history.get(record.id), f"past-{anchor}", whole=whole),
        facts=_list_facts(record, entry, around),
        causes=make_causes(explanation, f"dtfperf explain {around.session} {record.id}") if explanation else None,
        no_causes=record.unexplained,
        steps=make_steps(anatomy, before) if anatomy and whole else None,
        no_steps=traced.unexplained if traced and anatomy is None else "",
        workers=_make_workers_of_record(record) if whole else None,
        differences=_list_differences(record, entry),
        command=make_rerun_command(around.command, record.test),
        logs=around.logs.get(record.test, ()),
    )


def find_entry(record: Record) -> Entry | None:
    """The baseline that it was last held against."""
    found = [check.side.entry for check in record.checks if check.kind == "baseline" and check.side.entry]
    return found[-1] if found else None


def _draw_interval(record: Record, limit: float) -> Markup | None:
    found = record.baseline
    if found is None:
        return None
    words = figures.describe_interval(found.change, found.low, found.high, found.margin)
    return figures.draw_interval(found.change, found.low, found.high, margin=found.margin, limit=limit, described=words)


def make_earlier(past: Past | None, name: str, *, whole: bool) -> Earlier | None:
    """`name`: id of its drawing. One session alone has none."""
    if past is None or len(past.points) < 2:
        return None
    shown = list(past.points)
    began = next((i for i, (started, _) in enumerate(shown) if started >= past.began), None) if past.began else None
    rows = [[minute(started), rate(value)] for started, value in reversed(shown if whole else ())]
    if rows and past.is_disturbed:
        rows[0][1] += ", disturbed"
    drawing = figures.draw_trend(shown, name, began, is_disturbed=past.is_disturbed)
    words = figures.describe_trend(shown, is_disturbed=past.is_disturbed)
    return Earlier(drawing, words, past.change, Grid(("session", "images/sec"), rows))


def _list_facts(record: Record, entry: Entry | None, around: CardContext) -> list[Fact]:
    measurement = record.measurement
    count = len(measurement.runs)
    disturbed = [words for run in measurement.runs for words in run.disturbances]
    facts = [
        Fact("why", record.reason or ""),
        Fact("runs", ", ".join(rate(value) for value in measurement.rates) + f" images/sec ({count} in all)"),
        Fact("baseline", format_baseline(record) if record.baseline else ""),
        Fact("accepted", _format_provenance(entry) if entry else ""),
        Fact("efficiency", _format_efficiency(record, around)),
        Fact("limit", limits.format_limit_or_reason(record)),
        *(Fact(f"check of {check.kind}", f"{check.verdict}: {check.reason}") for check in _list_other_checks(record)),
        Fact("injected", "; ".join(list_injected_slowdowns([record]))),
        Fact("disturbed", "; ".join(dict.fromkeys(disturbed))),
        Fact("hosts", ", ".join(measurement.hosts)),
    ]
    return [fact for fact in facts if fact.text]


def _list_other_checks(record: Record) -> list[Any]:
    """Those whose words are not its reason."""
    return [check for check in record.checks if check.reason != record.reason]


def _format_provenance(entry: Entry) -> str:
    found = entry.provenance
    words = [found.date[:10], f"in session {found.session}", *([f"at commit {found.commit[:12]}"] if found.commit else [])]
    return ", ".join([*words, *([f"because {found.reason}"] if found.reason else [])])


def _format_efficiency(record: Record, around: CardContext) -> str:
    found = record.efficiency
    if found is None:
        return ""
    anchor = around.anchors.get(found.anchor)
    return f"{percent(found.value)} of {record.spec.gpus} x {around.labels[anchor] if anchor else found.anchor}"


def _list_differences(record: Record, entry: Entry | None) -> list[str] | None:
    if entry is None:
        return None
    fingerprint = record.measurement.fingerprint
    return [*must_match(entry.fingerprint, fingerprint), *noted(entry.fingerprint, fingerprint)]


def _make_workers_of_record(record: Record) -> Workers | None:
    """Of the last run that its rate rests on."""
    runs: Sequence[Run] = record.measurement.samples
    run = runs[-1]
    number = list(record.measurement.runs).index(run) + 1
    scores = decode(Scores, run.stragglers)
    return make_workers(run, scores, decode(Anatomy, run.anatomy), number=number, of=len(record.measurement.runs))
