"""What one pytest process knows: options, cluster, tests, and what they measure with. Each is opened when first needed."""

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from pytest_dtfperf.baselines.store import BaselineStore
from pytest_dtfperf.clusters import capacity, named
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.errors import UsageError, shown
from pytest_dtfperf.formats import counted
from pytest_dtfperf.history.where import masked
from pytest_dtfperf.launch.launcher import Launcher
from pytest_dtfperf.plugin import options as command_line
from pytest_dtfperf.plugin.display import Display
from pytest_dtfperf.plugin.outcome import DRY_RUN
from pytest_dtfperf.plugin.parametrise import cannot_hold
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.report.progress import Progress
from pytest_dtfperf.report.time_estimates import ClusterPast, load_earlier_sessions
from pytest_dtfperf.session import allocation_manager
from pytest_dtfperf.session.bench import Bench
from pytest_dtfperf.session.cluster import ClusterInfo
from pytest_dtfperf.session.resolve import SLOWDOWN_VARIABLE, plan, read_slowdowns
from pytest_dtfperf.session.session import check_runnable, check_stored


class _Remaining(float):
    """Seconds that are left of a time limit, which messages show as the whole."""

    whole: float = 0.0

    @classmethod
    def of(cls, whole: float, left_s: float) -> "_Remaining":
        remaining = cls(max(left_s, 0.001))
        remaining.whole = getattr(whole, "whole", whole)
        return remaining

    def __str__(self) -> str:
        return str(self.whole)


@dataclass
class _Timer:
    """The timer of the test that runs in this process."""

    item: pytest.Item
    settings: Any  # pytest-timeout's own, a named tuple
    set_at_s: float


_RUNNING: list[_Timer] = []  # the one, if there is any


class TimeLimit:
    """Hooks of pytest-timeout, which are called where that plugin is."""

    @pytest.hookimpl(tryfirst=True, optionalhook=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> None:
        _RUNNING[:] = [_Timer(item, settings, monotonic())]

    @pytest.hookimpl(tryfirst=True, optionalhook=True)
    def pytest_timeout_cancel_timer(self, item: pytest.Item) -> None:
        _RUNNING.clear()


@contextmanager
def stopped() -> Iterator[None]:
    """Stop the timer of the test that runs, if it has one, and let it go on with what was left of its time."""
    timer = _RUNNING[0] if _RUNNING else None
    if timer is None:
        yield
        return
    hook = timer.item.config.hook
    left_s = timer.settings.timeout - (monotonic() - timer.set_at_s)
    hook.pytest_timeout_cancel_timer(item=timer.item)
    try:
        yield
    finally:
        limit = _Remaining.of(timer.settings.timeout, left_s)
        hook.pytest_timeout_set_timer(item=timer.item, settings=timer.settings._replace(timeout=limit))


class PerfSession:
    """One session of perf tests, as this process sees it; xdist workers have one each, over one session folder."""

    def __init__(self, config: pytest.Config, session_id: str, starts: Sequence[Path]) -> None:
        self.options = command_line.read_options(config)
        self.injected_slowdowns = read_slowdowns(os.environ)
        self.root = config.rootpath
        self.session_id = session_id
        self.deselected: dict[str, int] = {}  # why -> how many tests
        self.tests: Sequence[str] = ()  # pytest's node ids of those that are left
        self.collected: Sequence[Mapping[str, Any]] = ()  # the parameters of each test that is left
        self._pytest = config
        self._starts = starts
        self._held = ExitStack()

    def check(self) -> None:
        """Read the cluster file and the baselines before anything is started. Raises `UsageError`."""
        for word in self._command:
            if not _is_text(word):
                raise UsageError(f"the argument {shown(word)} is not UTF-8, which the command is kept in with the results")
        clusters_file, config = self._chosen
        capacity.predict_device(config)  # GPUs of this machine that cannot be listed are one line, too
        check_stored(self.store, config, f"{clusters_file}: [{config.name}]")

    def check_runnable(self) -> None:
        """Called when there are tests to be run. Raises `UsageError`."""
        if not self.options.dry_run:
            check_runnable(self.bench)

    @property
    def _command(self) -> list[str]:
        return ["pytest", *(masked(str(word)) for word in self._pytest.invocation_params.args)]

    # -- what is measured with

    @cached_property
    def _chosen(self) -> tuple[Path | None, ClusterConfig]:
        return named.choose(self.options.cluster, self.options.clusters_file, self._starts)

    @property
    def config(self) -> ClusterConfig:
        return self._chosen[1]

    @cached_property
    def cluster(self) -> ClusterInfo:
        return ClusterInfo(self.config, self._launcher)

    def _launcher(self) -> Launcher:
        """A dry run has no agents, so that a test which asks about the hosts is at its end."""
        if self.options.dry_run:
            pytest.skip(DRY_RUN)
        return self.bench.lending.launcher

    @cached_property
    def store(self) -> BaselineStore:
        return BaselineStore(self.options.baselines or self.root / "baselines")

    @cached_property
    def _results(self) -> Path:
        return self.options.perf_results or self.root / "perf_results"

    @cached_property
    def bench(self) -> Bench:
        """First asked for when all tests are collected: how many they are, and what they need, is part of it."""
        needs = (allocation_manager.needed_by(test, self.options.gpus, self.config) for test in self.collected)
        return Bench(
            config=self.config,
            settings=self.options,
            store=self.store,
            results=self._results,
            session_id=self.session_id,
            command=self._command,
            show=self._shown,
            tests=len(self.collected),
            expected=[need for need in needs if need],
            injected_slowdowns=self.injected_slowdowns,
            packages=("pytest",),
            while_waiting=stopped,
        )

    @cached_property
    def past(self) -> ClusterPast:
        """What is known of how long training takes on this cluster."""
        return ClusterPast(load_earlier_sessions(self._results, self.config.name), self.store.rates())

    def cannot_hold(self, test: Mapping[str, Any]) -> str | None:
        """Why a test with these parameters cannot run here, or None."""
        cluster = self.cluster
        unfit = cannot_hold(test, cluster.name, capacity.count_devices(self.config), cluster.devices_per_host)
        return unfit or allocation_manager.too_large(test, self.config)

    # -- what is shown

    @cached_property
    def display(self) -> Display:
        """Registered as a plugin, so that it hears of tests."""
        display = Display(self._pytest, tests=lambda: self.tests, expected_s=self._expected_s)
        self._held.callback(display.close)
        return display

    def _shown(self) -> Progress:
        return Progress(io.StringIO(), is_terminal=False) if self.options.dry_run else self.display.progress

    def _expected_s(self, test: str) -> float | None:
        found = self.past.test(test, self._likely_runs)
        return found.likely_s if found else None

    def _likely_runs(self, record: Record) -> int:
        """Return how many runs this session makes of what an earlier one has measured."""
        planned = plan(self.options, self.cluster.settings(record.spec.model))
        if self.options.update_baselines or self.options.all_repeats:
            return planned.repeats
        return min(max(len(record.measurement.runs), planned.fewest), planned.repeats)

    def close(self) -> None:
        """Give everything back. Called when the session ends, however it ends."""
        if "bench" in self.__dict__:
            self._held.callback(self.bench.close)
        self._held.close()

    def header(self) -> str:
        """One line at pytest's start."""
        cluster = self.cluster
        devices = counted(cluster.devices, f"{cluster.device} device")
        words = [f"cluster {cluster.name} ({', '.join([cluster.backend, *self._hosts_in_words(), devices])})"]
        words.append(f"baselines {self.store.folder}")
        if self.options.dry_run:
            words.append("DRY RUN: nothing is started")
        elif warning := named.BACKENDS[self.config.backend].find_exposure(self.config):
            words.append(warning)
        if self.injected_slowdowns:
            words.append(f"INJECTED SLOW-DOWN {SLOWDOWN_VARIABLE}={os.environ[SLOWDOWN_VARIABLE]}")
        return "dtfperf: " + ", ".join(words)

    @property
    def few_repeats(self) -> str | None:
        """Return one line if there may be fewer runs than it takes to confirm a loss; None: there are enough."""
        if not self.collected or self.options.dry_run or self.options.update_baselines:
            return None
        from pytest_dtfperf.baselines.terms import least_runs_to_confirm, share

        repeats = plan(self.options, self.cluster.settings("")).repeats
        false_alarm = share(self.options.false_alarms, tests=len(self.collected), red=0, check=0)
        needed = least_runs_to_confirm(false_alarm)
        if repeats >= needed:
            return None
        return (
            f"dtfperf: repeats={repeats} is too few to find a slower rate: it takes {needed} runs to confirm one. Give "
            f"--repeats={needed} or more. Only where the noise is calibrated, less than half of what is allowed fails"
        )

    def _hosts_in_words(self) -> list[str]:
        """Nothing where there is no more than one."""
        hosts = capacity.count_hosts(self.config)
        if capacity.is_inside_allocation(self.config):
            return [f"inside a job with {counted(hosts, 'host')}" if hosts else "inside a job"]
        return [f"{hosts} hosts"] if hosts and hosts > 1 else []

    @property
    def rerun_options(self) -> list[str]:
        """What a test of this session needs to be run again alone: the options, but those that accept or have a password."""
        return command_line.given_options(self._pytest, but=("update-baselines", "allow-regression", "history"))


def _is_text(word: str) -> bool:
    """Whether the shell's bytes were UTF-8; Python hands on others as surrogates."""
    return not any("\ud800" <= sign <= "\udfff" for sign in word)
