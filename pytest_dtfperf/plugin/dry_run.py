"""A dry run: every test runs until it reads a result; its trainings and their placement are noted and shown.

Registered as a plugin of pytest for --dry-run. The cluster is not contacted, so its hosts are those of clusters.toml.
"""

import os
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NoReturn, cast

import pytest
from rich.console import Group
from rich.text import Text

from pytest_dtfperf.clusters import capacity
from pytest_dtfperf.clusters.named import BACKENDS, ClusterConfig
from pytest_dtfperf.clusters.placement import FIRST_FIXED_PORT, HostView, PlacedTask, place
from pytest_dtfperf.clusters.protocol import Resources
from pytest_dtfperf.codec import JsonData
from pytest_dtfperf.formats import duration, format_count
from pytest_dtfperf.plugin import xdist
from pytest_dtfperf.plugin.adapter import SessionAdapter
from pytest_dtfperf.plugin.outcome import DRY_RUN
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.report.tables import render
from pytest_dtfperf.report.time_estimates import DurationEstimate, sum_durations
from pytest_dtfperf.session.allocation_manager import choose_request, is_enough
from pytest_dtfperf.session.post_analysis import count_extra_runs
from pytest_dtfperf.session.resolve import RepeatPlan
from pytest_dtfperf.spec import Spec

FREE_PORTS = "free ones, found on each node when a run starts"
DEVICES = {"gpu": "GPU", "cpu": "share"}  # a share of the cores


@dataclass(frozen=True)
class PlannedTraining(JsonData):
    """One training of one test in a dry run."""

    position: int  # of its test among all
    test: str
    spec: Spec
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
    budget: str = "",
    width: int,
    colour: bool = False,
) -> str:
    """Return the section.

    Args:
        allocation: "session" or "test".
        workers: pytest processes that train; `at_once`: its limit.
        budget: the option that limits the time.
    """
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
        *([Text(f"{budget} shortens runs, and leaves out tests without time.")] if budget else []),
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
    first = {each.spec: each.test for each in reversed(trainings)}
    for file, of_file in groupby(trainings, key=lambda each: each.test.partition("::")[0]):
        yield Text("")
        yield Text(file, style="bold")
        for test, of_test in groupby(of_file, key=lambda each: each.test):
            yield Text(f"  {_shorten_test(test, file)}", style="bold")
            for training in of_test:
                if id(training) not in durations:
                    yield Text(f"    {training.label}: as measured by {_shorten_test(first[training.spec], file)}")
                    continue
                yield Text(f"    {training.label}: {_format_runs(training)}, {_format_estimate(durations[id(training)])}")
                yield from (Text(f"      {line}") for line in training.placement)
                if training.remark:
                    yield Text(f"      ({training.remark})", style="yellow")


def _list_measured(trainings: Sequence[PlannedTraining]) -> Iterator[PlannedTraining]:
    """Yield the trainings that no earlier test measures."""
    first: dict[Spec, str] = {}
    for training in trainings:
        if first.setdefault(training.spec, training.test) == training.test:
            yield training


def _shorten_test(test: str, file: str) -> str:
    return test.removeprefix(f"{file}::")


def _format_runs(training: PlannedTraining) -> str:
    fewest, most = training.runs
    count = format_count(most, "run") if fewest == most else f"{fewest} to {most} runs"
    return f"{count} of {training.spec.warmup_steps} + {training.spec.steps} steps"


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


class DryRunMeasurement:
    """A placeholder for a measurement: reading it skips the test."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # requested by Python itself
            raise AttributeError(name)
        pytest.skip(DRY_RUN)


class DryRun:
    """The trainings that tests have requested, here and in xdist's workers."""

    def __init__(self, perf: SessionAdapter) -> None:
        self._perf = perf
        self._trainings: list[PlannedTraining] = []
        self._workers = 0
        self._held: Resources | None = None

    def note(self, item: pytest.Item, spec: Spec, planned: RepeatPlan, *, remark: str = "") -> Record:
        """Note a training. Raises `SpecError` or `AllocationError` if it is not possible."""
        session, cluster = self._perf.session, self._perf.session.cluster
        resources = self._get_resources(spec)
        hosts = make_hosts(
            session.config, capacity.count_hosts_for(session.config, resources), cluster.device, cluster.devices_per_host
        )
        asked = Resources(resources.devices, resources.separate_ps_hosts, session=session.id)
        training = PlannedTraining(
            position=item.session.items.index(item),
            test=item.nodeid,
            spec=spec,
            label=spec.label,
            runs=(planned.repeats if session.settings.update_baselines else planned.fewest, planned.repeats),
            placement=describe(place(spec, hosts, session.config)),
            nodes=len(hosts),
            commands=list(BACKENDS[session.config.backend].list_commands(session.config, asked)),
            remark=remark,
        )
        self._trainings.append(training)
        return cast("Record", DryRunMeasurement())

    def take_over(self, noted: Sequence[Mapping[str, Any]]) -> None:
        """Add a worker's notes. Called in the controller."""
        self._trainings += [PlannedTraining.from_json(each) for each in noted]
        self._workers += bool(noted)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Skip also a test that does not read its measurement."""
        result = yield
        if self._trainings and self._trainings[-1].test == item.nodeid:  # each process runs one test at a time
            pytest.skip(DRY_RUN)
        return result

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        xdist.send_notes(session.config, [training.to_json() for training in self._trainings])

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._trainings:
            return
        config = self._perf.session.config
        terminalreporter.section(f"dry run: cluster {config.name} ({config.backend})")
        terminalreporter.write(
            format_dry_run(
                self._trainings,
                duration_of=self._estimate_duration,
                allocation=config.allocation,
                ports=_format_ports(config),
                workers=self._workers,
                at_once=config.jobs_at_once,
                budget=budget.option if (budget := self._perf.session.time_budget) else "",
                width=terminalreporter._tw.fullwidth,
                colour=terminalreporter._tw.hasmarkup,
            )
        )

    def _estimate_duration(self, training: PlannedTraining) -> DurationEstimate | None:
        """Return how long a training may take; one that is not green may have one more run, which is traced."""
        spec, settings = training.spec, self._perf.session.settings
        fewest, most = training.runs
        return self._perf.session.past.training(spec, (fewest, most + count_extra_runs(settings, spec)))

    def _get_resources(self, spec: Spec) -> Resources:
        """Return the allocation at that time: an allocation of the session is kept as long as it is enough."""
        config = self._perf.session.config
        need = choose_request(spec, self._perf.session.allocations.expected, config)
        if config.allocation == "session" and self._held and is_enough(self._held, need, config):
            return self._held
        self._held = need
        return need


def make_hosts(config: ClusterConfig, count: int, device: str, devices_per_host: int) -> list[HostView]:
    """Return hosts according to clusters.toml; for this machine, its actual properties."""
    backend = BACKENDS[config.backend]
    cores = config.backend_keys.get(backend.cores_key or "", devices_per_host)
    cpus = tuple(sorted(os.sched_getaffinity(0))) if backend.is_local else tuple(range(cores))
    gpus = tuple(map(str, range(devices_per_host))) if device == "gpu" else ()
    return [HostView(f"node {number}", "", cpus, gpus) for number in range(1, count + 1)]


def describe(tasks: Sequence[PlacedTask]) -> list[str]:
    """Return a line for each job, workers first: its tasks, nodes and devices."""
    jobs = {job: [task for task in tasks if task.job == job] for job in ("worker", "ps")}
    return [line for job, of_job in jobs.items() if of_job for line in _format_lines(job, of_job)]


def _format_lines(job: str, tasks: Sequence[PlacedTask]) -> Iterator[str]:
    nodes = [task.host + 1 for task in tasks]
    if nodes != sorted(nodes):  # parameter servers that are distributed round-robin
        yield f"{job} {_format_range([task.index for task in tasks])} in turn on {_format_nodes(sorted(set(nodes)))}"
        return
    on_node = [list(group) for _, group in groupby(tasks, key=lambda task: task.host)]
    for (count, devices), alike in groupby(on_node, key=lambda group: (len(group), [task.num_devices for task in group])):
        groups = list(alike)
        several = f", {count} on each" if count > 1 and len(groups) > 1 else ""
        indices = [task.index for group in groups for task in group]
        where = _format_nodes([group[0].host + 1 for group in groups])
        yield f"{job} {_format_range(indices)} on {where}{several}{_format_devices(devices, groups[0][0].device, len(indices))}"


def _format_devices(counts: Sequence[int], device: str, tasks: int) -> str:
    if not any(counts):
        return ""
    message = " and ".join(format_count(count, DEVICES[device]) for count in dict.fromkeys(counts))
    of_what = " of the cores" if device == "cpu" else ""
    return f", {message}{of_what}{' each' if tasks > 1 else ''}"


def _format_nodes(numbers: Sequence[int]) -> str:
    return f"node{'s' * (len(numbers) > 1)} {_format_range(numbers)}"


def _format_range(numbers: Sequence[int]) -> str:
    """Return the range of consecutive numbers."""
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"


def _format_ports(config: ClusterConfig) -> str:
    if not config.fixed_ports:
        return FREE_PORTS
    firsts = ", ".join(f"{job} {port}" for job, port in sorted(FIRST_FIXED_PORT.items(), reverse=True))
    return f"fixed, on each node counted from {firsts}"
