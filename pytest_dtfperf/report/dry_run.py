"""The report of a dry run: the allocations that the session would request, and the placement of each task."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from rich.console import Group
from rich.text import Text

from pytest_dtfperf.codec import JsonData
from pytest_dtfperf.formats import duration, format_count
from pytest_dtfperf.report.tables import render
from pytest_dtfperf.report.time_estimates import DurationEstimate, sum_durations

FREE_PORTS = "free ones, found on each node when a run starts"


@dataclass(frozen=True)
class PlannedTraining(JsonData):
    """One training of one test in a dry run."""

    position: int  # of its test among all
    test: str
    spec: Mapping[str, Any]
    label: str
    runs: tuple[int, int]  # fewest and most
    placement: Sequence[str]  # "worker 0-7 on nodes 1-8, 1 GPU each", a line for each job
    nodes: int  # of its allocation
    commands: Sequence[str]  # that request this allocation
    remark: str = ""


def format_dry_run(
    trainings: Iterable[PlannedTraining],
    *,
    duration_of: Callable[[PlannedTraining], DurationEstimate | None],
    allocation: str,
    ports: str,
    workers: int,
    at_once: int,
    width: int,
    colour: bool = False,
) -> str:
    """Return the section. `allocation`: "session" or "test"; `workers`: pytest processes that train; `at_once`: its limit."""
    found = sorted(trainings, key=lambda each: each.position)
    durations = {id(each): duration_of(each) for each in _list_measured(found)}
    lines = [
        Text("Nothing was asked of the cluster, allocated or started."),
        *_format_allocations(found, allocation, workers, at_once),
        Text(""),
        Text(f"Ports: {ports}."),
        *_format_tests(found, durations),
        Text(""),
        Text(_format_total(found)),
        *map(Text, _format_time(list(durations.values()), max(1, min(at_once, workers)))),
    ]
    for line in lines:
        line.no_wrap, line.overflow = True, "ignore"  # a command stays on one line to be copied
    return render([Group(*lines)], width, colour)


def _format_allocations(trainings: Sequence[PlannedTraining], allocation: str, workers: int, at_once: int) -> Iterator[Text]:
    """Yield each distinct allocation with its commands, in the order of first use."""
    distinct: dict[tuple[int, tuple[str, ...]], int] = {}
    for training in _list_measured(trainings):
        key = training.nodes, tuple(training.commands)
        distinct[key] = distinct.get(key, 0) + 1
    for (nodes, commands), used in distinct.items():
        of_one = "for one measurement" if used == 1 else f"for each of {used} measurements"
        times = "for the session" if allocation == "session" else of_one
        if workers > 1:
            each = f"for each of {workers} xdist workers" if allocation == "session" else times
            times = f"{each}, {min(at_once, workers)} at once"
        yield Text("")
        yield Text(f"{format_count(nodes, 'node')}, {times}{':' if commands else ''}")
        for command in commands:
            yield from (Text(f"    {line}", style="cyan") for line in command.splitlines())


def _format_tests(trainings: Sequence[PlannedTraining], durations: Mapping[int, DurationEstimate | None]) -> Iterator[Text]:
    """Yield each test with its trainings, file by file. A training that an earlier test measures is not measured again.

    `durations`: of the trainings that are measured, by their `id()`.
    """
    first = {_make_key(each): each.test for each in reversed(trainings)}
    for file, of_file in groupby(trainings, key=lambda each: each.test.partition("::")[0]):
        yield Text("")
        yield Text(file, style="bold")
        for test, of_test in groupby(of_file, key=lambda each: each.test):
            yield Text(f"  {_shorten_test(test, file)}", style="bold")
            for training in of_test:
                if id(training) not in durations:
                    yield Text(f"    {training.label}: as measured by {_shorten_test(first[_make_key(training)], file)}")
                    continue
                yield Text(f"    {training.label}: {_format_runs(training)}, {_format_estimate(durations[id(training)])}")
                yield from (Text(f"      {line}") for line in training.placement)
                if training.remark:
                    yield Text(f"      ({training.remark})", style="yellow")


def _list_measured(trainings: Sequence[PlannedTraining]) -> Iterator[PlannedTraining]:
    """Yield the trainings that no earlier test measures."""
    first: dict[str, str] = {}
    for training in trainings:
        if first.setdefault(_make_key(training), training.test) == training.test:
            yield training


def _make_key(training: PlannedTraining) -> str:
    return repr(sorted(training.spec.items()))


def _shorten_test(test: str, file: str) -> str:
    return test.removeprefix(f"{file}::")


def _format_runs(training: PlannedTraining) -> str:
    fewest, most = training.runs
    count = format_count(most, "run") if fewest == most else f"{fewest} to {most} runs"
    warmup_steps, steps = training.spec["warmup_steps"], training.spec["steps"]
    return f"{count} of {warmup_steps} + {steps} steps"


def _format_total(trainings: Sequence[PlannedTraining]) -> str:
    measured = list(_list_measured(trainings))
    fewest, most = (sum(each.runs[i] for each in measured) for i in (0, 1))
    runs = format_count(most, "run") if fewest == most else f"{fewest} to {most} runs"
    tests = len({each.test for each in trainings})
    return f"In all: {format_count(tests, 'test')}, {format_count(len(measured), 'measurement')}, {runs}."


def _format_estimate(found: DurationEstimate | None) -> str:
    return f"about {_format_seconds(found.likely_s)} ({found.basis})" if found else "time unknown"


def _format_seconds(seconds: float) -> str:
    return duration(max(seconds, 1.0))  # at least one second


def _format_time(found: Sequence[DurationEstimate | None], at_once: int) -> Iterator[str]:
    """Yield the time of all trainings, its basis, and the number of trainings of unknown length."""
    known = [each for each in found if each]
    unknown = len(found) - len(known)
    if not known:
        yield "Time: unknown: none of this was measured on this cluster before, and nothing has a baseline."
        return
    likely_s, most_s = (seconds / at_once for seconds in (sum_durations(known).likely_s, sum_durations(known).most_s))
    left_out = f", and {format_count(unknown, 'measurement')} of unknown length" if unknown else ""
    together = f", {at_once} at once" if at_once > 1 else ""
    most = f"up to {_format_seconds(most_s)} if every verdict takes all its runs"
    yield f"Time: about {_format_seconds(likely_s)}{left_out}{together}; {most}."
    grounds = Counter(each.basis.value for each in known)
    rest = ", ".join(f"{count} {basis}" for basis, count in grounds.items())
    yield f"  {rest}. Waiting for hosts and preparing them is not in it."
