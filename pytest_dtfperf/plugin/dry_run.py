"""A dry run: every test runs until it reads a result; its trainings and their placement are noted and shown.

Registered as a plugin of pytest for --dry-run. The cluster is not contacted, so its hosts are those of clusters.toml.
"""

import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NoReturn, cast

import pytest

from pytest_dtfperf.clusters import capacity
from pytest_dtfperf.clusters.named import BACKENDS, ClusterConfig
from pytest_dtfperf.clusters.protocol import Resources
from pytest_dtfperf.formats import format_count
from pytest_dtfperf.launch.placement import FIRST_FIXED_PORT, HostView, PlacedTask, place
from pytest_dtfperf.plugin import xdist
from pytest_dtfperf.plugin.adapter import SessionAdapter
from pytest_dtfperf.plugin.outcome import DRY_RUN
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.report.dry_run import FREE_PORTS, PlannedTraining, format_dry_run
from pytest_dtfperf.report.time_estimates import DurationEstimate
from pytest_dtfperf.session.allocation_manager import choose_request, is_enough
from pytest_dtfperf.session.post_analysis import count_extra_runs
from pytest_dtfperf.session.resolve import RepeatPlan
from pytest_dtfperf.spec import Spec

DEVICES = {"gpu": "GPU", "cpu": "share"}  # a share of the cores


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
            spec=spec.to_json(),
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
        xdist.hand_over(session.config, [training.to_json() for training in self._trainings])

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
                width=terminalreporter._tw.fullwidth,
                colour=terminalreporter._tw.hasmarkup,
            )
        )

    def _estimate_duration(self, training: PlannedTraining) -> DurationEstimate | None:
        """Return how long a training may take; one that is not green may have one more run, which is traced."""
        spec, settings = Spec.from_json(training.spec), self._perf.session.settings
        fewest, most = training.runs
        return self._perf.past.training(spec, (fewest, most + count_extra_runs(settings, spec)))

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
