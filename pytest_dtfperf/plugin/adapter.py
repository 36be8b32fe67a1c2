"""The adapter between pytest and a session, and pytest-timeout's limit of a test that waits for hosts."""

import io
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any, NoReturn

import pytest

from pytest_dtfperf.baselines.store import BaselineStore
from pytest_dtfperf.clusters import capacity, named
from pytest_dtfperf.datamodel.measurement import SIMULATED
from pytest_dtfperf.errors import UsageError, show_value
from pytest_dtfperf.formats import format_count
from pytest_dtfperf.history.where import mask_passwords
from pytest_dtfperf.plugin import options as command_line
from pytest_dtfperf.plugin.display import Display
from pytest_dtfperf.plugin.outcome import DRY_RUN
from pytest_dtfperf.plugin.parametrise import explain_lack
from pytest_dtfperf.plugin.stack_comparison import StackComparer, check_options
from pytest_dtfperf.records.arithmetic import flop_per_image
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.report.progress import Progress
from pytest_dtfperf.session.allocation_manager import ClusterInfo, compute_need_of_test, explain_lack_of_hosts
from pytest_dtfperf.session.resolve import SLOWDOWN_VARIABLE, read_slowdowns
from pytest_dtfperf.session.session import Session
from pytest_dtfperf.spec import MODELS, Spec

STARTUP_S = 10.0  # for a model without an earlier measurement, only used to order tests
TYPICAL_FLOP_PER_S = 1e9  # likewise: an image of InceptionV3 counts as 34 s


class _Remaining(float):
    """The rest of a time limit in seconds; messages show the whole limit."""

    total_s: float = 0.0

    @classmethod
    def from_limits(cls, total_s: float, left_s: float) -> "_Remaining":
        remaining = cls(max(left_s, 0.001))
        remaining.total_s = getattr(total_s, "total_s", total_s)
        return remaining

    def __str__(self) -> str:
        return str(self.total_s)


@dataclass
class _Timer:
    """The timer of the test that runs in this process."""

    item: pytest.Item
    settings: Any  # pytest-timeout's own, a named tuple
    set_at_s: float


_RUNNING: list[_Timer] = []  # the current one, if there is any


class TimeLimit:
    """Hooks of pytest-timeout, which are called if that plugin is installed.

    A test's wait for its turn, for hosts, and for their agents does not count: such waits have limits of their own, and
    end as INFRASTRUCTURE. Only pytest-timeout's two hooks are used: one gives the timer's settings, and both may be called to
    stop it and to set it again (pytest-timeout's README, "Extending pytest-timeout").
    """

    @pytest.hookimpl(tryfirst=True, optionalhook=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> None:
        _RUNNING[:] = [_Timer(item, settings, monotonic())]

    @pytest.hookimpl(tryfirst=True, optionalhook=True)
    def pytest_timeout_cancel_timer(self, item: pytest.Item) -> None:
        _RUNNING.clear()


@contextmanager
def pause_time_limit() -> Iterator[None]:
    """Stop the timer of the running test, if it has one, and restart it with its remaining time."""
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
        limit = _Remaining.from_limits(timer.settings.timeout, left_s)
        hook.pytest_timeout_set_timer(item=timer.item, settings=timer.settings._replace(timeout=limit))


class SessionAdapter:
    """Connects pytest with the session of this process; xdist workers have one each, over one session folder."""

    def __init__(self, config: pytest.Config, session_id: str, starts: Sequence[Path]) -> None:
        """Read the options, the cluster file and the baselines, before anything is started.

        Args:
            starts: folders from which clusters.toml is searched.

        Raises:
            UsageError: one of these is invalid.
        """
        options = command_line.read_options(config)
        if options.ab:
            check_options(options, config)
            options = replace(options, history="never")  # runs of several stacks are no part of any series
        self.options = options
        self.deselected: dict[str, int] = {}  # reason -> number of tests
        self.tests: Sequence[str] = ()  # pytest's node ids of the selected ones
        self.root = config.rootpath
        self._pytest = config
        self._exits = ExitStack()
        self._display: Display | None = None
        command = ["pytest", *(mask_passwords(str(word)) for word in config.invocation_params.args)]
        for word in command:
            if not _is_text(word):
                raise UsageError(f"the argument {show_value(word)} is not UTF-8, which the command is kept in with the results")
        clusters_file, cluster = named.choose(self.options.cluster, self.options.clusters_file, starts)
        self.session = Session(
            config=cluster,
            settings=self.options,
            store=BaselineStore(self.options.baselines or self.root / "baselines"),
            results=self.options.perf_results or self.root / "perf_results",
            id=session_id,
            command=command,
            make_progress=self._make_progress,
            tests=0,
            injected_slowdowns=read_slowdowns(os.environ),
            packages=("pytest",),
            while_waiting=pause_time_limit,
        )
        self.comparer = StackComparer(self.session, options.ab) if options.ab else None
        # A dry run has no agents, so a test that asks about the hosts ends there.
        self.cluster = ClusterInfo(cluster, _skip) if self.options.dry_run else self.session.cluster
        capacity.predict_device(cluster)  # an error of listing this machine's GPUs is one line, too
        self.session.check_baselines(f"{clusters_file}: [{cluster.name}]")

    def expect(self, tests: Sequence[str], parameters: Sequence[Mapping[str, Any]]) -> None:
        """Note the node ids of the selected tests, which share the false alarms, and their parameters."""
        config = self.session.config
        needs = (compute_need_of_test(each, self.options.gpus, config) for each in parameters)
        self.tests = tests
        self.session.tests = len(tests)
        self.session.allocations.expected = [need for need in needs if need]

    def check_runnable(self) -> None:
        """Check that tests can be run. Raises `UsageError`."""
        if not self.options.dry_run:
            self.session.check_runnable()

    def explain_skip(self, test: Mapping[str, Any]) -> str | None:
        """Return why a test with these parameters cannot run here, or None."""
        config, cluster = self.session.config, self.cluster
        unfit = explain_lack(test, cluster.name, capacity.count_devices(config), cluster.devices_per_host)
        return unfit or explain_lack_of_hosts(test, config)

    def estimate_cost(self, test: str, parameters: Mapping[str, Any]) -> float:
        """Return about how many seconds a test takes, to sort tests from cheap to expensive.

        Seconds of an earlier session count. For a new test, the model in its node id counts, with the arithmetic of an
        image on each device. A test without a model in its id comes last.
        """
        known = self._estimate_s(test)
        if known is not None:
            return known
        model = max((name for name in MODELS if name in test), key=len, default=None)
        flop = flop_per_image(Spec(model=model, batch_size=1)) if model else None
        return math.inf if flop is None else STARTUP_S + flop * parameters.get("gpus", 1) / TYPICAL_FLOP_PER_S

    # -- output

    @property
    def display(self) -> Display:
        if self._display is None:
            self._display = Display(self._pytest, tests=lambda: self.tests, expected_s=self._estimate_s)
            self._exits.callback(self._display.close)
        return self._display

    def _make_progress(self) -> Progress:
        return Progress(io.StringIO(), is_terminal=False) if self.options.dry_run else self.display.progress

    def _estimate_s(self, test: str) -> float | None:
        found = self.session.past.test(test, self._estimate_runs)
        return found.likely_s if found else None

    def _estimate_runs(self, record: Record) -> int:
        """Return how many runs this session makes of a training that an earlier one has measured."""
        planned = self.session.plan_repeats(record.spec.model)
        if self.options.makes_all_repeats:
            return planned.repeats
        return min(max(len(record.measurement.runs), planned.fewest), planned.repeats)

    def close(self) -> None:
        """Release the hosts and the terminal. Called at the session's end in any case."""
        try:
            self.session.release()
        finally:
            self._exits.close()

    def header(self) -> str:
        """Return the line of pytest's header: the cluster, the baselines folder, and what makes this session special."""
        cluster, session = self.cluster, self.session
        devices = format_count(cluster.devices, f"{cluster.device} device")
        parts = [f"cluster {cluster.name} ({', '.join([cluster.backend, *self._describe_hosts(), devices])})"]
        parts.append(f"baselines {session.store.folder}")
        if self.options.dry_run:
            parts.append("DRY RUN: nothing is started")
        elif named.BACKENDS[session.config.backend].is_simulated:
            parts.append(f"{SIMULATED}: nothing is trained")
        elif warning := named.BACKENDS[session.config.backend].find_exposure(session.config):
            parts.append(warning)
        if session.injected_slowdowns:
            parts.append(f"INJECTED SLOW-DOWN {SLOWDOWN_VARIABLE}={os.environ[SLOWDOWN_VARIABLE]}")
        return "dtfperf: " + ", ".join(parts)

    def format_repeats_warning(self) -> str | None:
        """Return one line if fewer runs are allowed than confirm a loss; None: enough are allowed."""
        if not self.session.tests or self.options.dry_run or self.options.update_baselines:
            return None
        from pytest_dtfperf.baselines.terms import count_runs_to_confirm, share

        repeats = self.session.plan_repeats("").repeats
        false_alarm = share(self.options.false_alarms, tests=self.session.tests, red=0, check=0)
        needed = count_runs_to_confirm(false_alarm)
        if repeats >= needed:
            return None
        return (
            f"dtfperf: repeats={repeats} is too few to find a slower rate: it takes {needed} runs to confirm one. Give "
            f"--repeats={needed} or more. Only where the noise is calibrated, less than half of what is allowed fails"
        )

    def _describe_hosts(self) -> list[str]:
        """Return the number of hosts; empty for one."""
        hosts = capacity.count_hosts(self.session.config)
        if capacity.is_inside_allocation(self.session.config):
            return [f"inside a job with {format_count(hosts, 'host')}" if hosts else "inside a job"]
        return [f"{hosts} hosts"] if hosts and hosts > 1 else []

    @property
    def rerun_options(self) -> list[str]:
        """The options that run a test of this session again, without those that accept baselines or may contain a password."""
        return command_line.list_given_options(self._pytest, excluded=("update-baselines", "allow-regression", "history"))


def _is_text(word: str) -> bool:
    """Return whether the shell's bytes were UTF-8; Python represents others by surrogates."""
    return not any("\ud800" <= sign <= "\udfff" for sign in word)


def _skip() -> NoReturn:
    pytest.skip(DRY_RUN)
