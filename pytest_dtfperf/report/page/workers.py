"""Each task's own numbers in one run of a measurement. Pure."""

import statistics
from collections.abc import Callable, Mapping, Sequence

from pytest_dtfperf.explain.anatomy import MOST_LINKS, Anatomy
from pytest_dtfperf.explain.scores import Scores, WorkerScore
from pytest_dtfperf.formats import NONE, counted, in_ms, percent
from pytest_dtfperf.measurement import Run
from pytest_dtfperf.report.learning import Grid
from pytest_dtfperf.report.page.view import Workers

MOST_TASKS = 12  # rows: of more, those whose steps took longest

ABOUT_WORKERS = "CPU s of a task: of a worker in its measured window, of a parameter server over its life"


def make_workers(run: Run, scores: Scores | None, anatomy: Anatomy | None, *, number: int, of: int) -> Workers | None:
    """None of a run that tells nothing of its tasks, as of an external command."""
    tasks = sorted({*run.step_s, *run.peak_rss_bytes, *run.cpu_s}, key=_make_task_key)
    if not tasks:
        return None
    columns = _make_columns(run, scores, anatomy)
    shown = sorted(tasks, key=lambda task: -_compute_mean(run.step_s.get(task, ())))[:MOST_TASKS]
    rows = [[task, *(cell(task) for cell in columns.values())] for task in tasks if task in shown]
    left_out = len(tasks) - len(shown)
    notes = [f"and {counted(left_out, 'task')} more, whose steps were shorter"] if left_out else []
    notes += [_format_traffic(run), *(_list_pauses(scores) if scores else [])]
    filled = [i for i in range(1, len(columns) + 1) if any(row[i] != NONE for row in rows)]
    headings = ("task", *columns)
    table = Grid([headings[i] for i in (0, *filled)], [[row[i] for i in (0, *filled)] for row in rows])
    return Workers(f"run {number} of {of}" if of > 1 else "its run", table, notes)


def _make_columns(run: Run, scores: Scores | None, anatomy: Anatomy | None) -> Mapping[str, Callable[[str], str]]:
    scored: Mapping[str, WorkerScore] = scores.workers if scores else {}
    return {
        "step ms": lambda task: _format_ms(run.step_s.get(task), _compute_mean),
        "median": lambda task: _format_ms(run.step_s.get(task), statistics.median),
        "slowest": lambda task: _format_ms(run.step_s.get(task), max),
        "CPU s": lambda task: f"{run.cpu_s[task]:.2f}" if task in run.cpu_s else NONE,
        "memory MB": lambda task: f"{run.peak_rss_bytes[task] / 1e6:.0f}" if task in run.peak_rss_bytes else NONE,
        "sends MB": lambda task: _format_bytes(anatomy, task, "source"),
        "receives MB": lambda task: _format_bytes(anatomy, task, "destination"),
        "ready ms": lambda task: _format_known(scored.get(task), "ready_s", lambda seconds: f"{1000 * seconds:.2f}"),
        "late ms": lambda task: _format_known(scored.get(task), "late_s", lambda seconds: f"{1000 * seconds:+.2f}"),
        "was last": lambda task: _format_known(scored.get(task), "last", percent),
    }


def _make_task_key(task: str) -> tuple[bool, str, int]:
    """Workers first, by their numbers."""
    job, _, index = task.partition(":")
    return job == "ps", job, int(index) if index.isdecimal() else 0


def _compute_mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else 0.0


def _format_ms(values: Sequence[float] | None, of: Callable[[Sequence[float]], float]) -> str:
    return in_ms(of(values)) if values else NONE


def _format_bytes(anatomy: Anatomy | None, task: str, end: str) -> str:
    """Per step, over all its links. Of an anatomy that has as many as one keeps, others may have been left out."""
    if anatomy is None or len(anatomy.links) >= MOST_LINKS:
        return NONE
    found = [link.size_bytes for link in anatomy.links if getattr(link, end) == task]
    return f"{sum(found) / 1e6:.2f}" if found else NONE


def _format_known(score: WorkerScore | None, name: str, words: Callable[[float], str]) -> str:
    value = getattr(score, name, None)
    return NONE if value is None else words(value)


def _format_traffic(run: Run) -> str:
    sent, received = (f"{size / 1e6:,.1f} MB" for size in (run.bytes_sent, run.bytes_received))
    return f"The workers' hosts together sent {sent} and received {received} in the measured window"


def _list_pauses(scores: Scores) -> list[str]:
    if not scores.paused:
        return []
    longest = scores.pauses[0] if scores.pauses else None
    words = f"{counted(scores.paused, 'step')} of {scores.steps} stood out"
    if longest is None:
        return [words]
    whose = f" by {longest.worker}" if longest.worker else ""
    return [f"{words}, step {longest.step} by {1000 * longest.seconds:.1f} ms{whose}"]
