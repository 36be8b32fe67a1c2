"""Train groups of hosts side by side: each group has agents of its own on all hosts of one allocation.

Stacks of `AllocationManager` do this, as for `dtfperf ab`. Hosts that are one machine train one after another.

A host that is lost, or cannot be reached, is left out from then on: its agents end, and later groups with it fail at once. The
loss ends the trainings of all other groups, too, because their agents were on the same host. They are repeated.
"""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pytest_dtfperf.clusters import named
from pytest_dtfperf.datamodel.measurement import Run
from pytest_dtfperf.errors import AllocationError, InfrastructureError, InvalidMeasurement, RunFailed, group_reasons
from pytest_dtfperf.launch.launcher import Launcher
from pytest_dtfperf.qualify.group_rates import Group
from pytest_dtfperf.session import signals
from pytest_dtfperf.session.context import SessionContext
from pytest_dtfperf.spec import Spec

T = TypeVar("T")
SIGNALS_S = 0.1  # how often signals are delivered while groups train
TIME_LIMIT_REACHED = "the time limit was reached"  # the reason of what is not decided then
MOST_SIDE_BY_SIDE = 8  # trainings at a time: each has an agent on each host


@dataclass(frozen=True)
class GroupRun:
    """One training of a group: its run, or why there is none."""

    spec: Spec
    run: Run | None = None
    failure: str = ""


class GroupTrainer:
    """Trains groups of the hosts of a session.

    Attributes:
        hosts: how many hosts the training on all of them has.
        lost: hosts that are left out, each with the reason.
        slots: how many groups train at a time.
    """

    def __init__(
        self,
        session: SessionContext,
        spec: Spec,
        test: str,
        *,
        hosts: int = 1,
        on_status: Callable[[str], object] = lambda text: None,
    ) -> None:
        """Prepare trainings.

        Args:
            spec: the training on all hosts, with equal numbers of devices.
            test: the name of the log folders.
            hosts: how many hosts that training has, if that is known before they are allocated; else set it before `shrink`.
            on_status: called with a line about each lost host.
        """
        self.lost: dict[str, str] = {}
        self._session, self._spec, self._test, self.hosts = session, spec, test, hosts
        self._on_status = on_status
        session.allocations.may_lack_hosts = True
        self._is_over, self._is_aborted = threading.Event(), threading.Event()
        backend = named.BACKENDS[session.config.backend]
        self._can_share_hosts = backend.can_share_hosts
        self.slots = 1 if backend.is_local or not backend.can_share_hosts else MOST_SIDE_BY_SIDE

    def shrink(self, hosts: int) -> Spec:
        """Return the training on so many hosts, with its parameter servers in proportion."""
        servers = max(1, round(self._spec.num_ps * hosts / self.hosts)) if self._spec.num_ps else 0
        return self._spec.replace(gpus=-(-self._spec.gpus // self.hosts) * hosts, num_ps=servers)

    def train(self, groups: Sequence[Group]) -> list[GroupRun]:
        """Train each group, as many at a time as there are slots.

        Raises:
            DtfPerfError: the cluster failed, or a lost host cannot be left out.
        """
        return [found for at in range(0, len(groups), self.slots) for found in self._train_wave(groups[at : at + self.slots])]

    def lose(self, losses: Mapping[str, InfrastructureError]) -> None:
        """Leave hosts out from now on, and report them. Raises the error of a host that is left out already or cannot be."""
        self._leave_out(losses)
        self._report(losses)

    def repeat_without_lost_hosts(self, action: Callable[[], T]) -> T:
        """Return the result of an action, which is called again whenever it loses a host. Raises `DtfPerfError`."""
        lost_before = len(self.lost)
        while True:
            try:
                result = action()
            except InfrastructureError as error:
                if not error.hosts:
                    raise
                self._leave_out(dict.fromkeys(error.hosts, error))
            else:
                self._report(list(self.lost)[lost_before:])
                return result

    def get_launcher(self) -> Launcher:
        """Return the launcher on all hosts that can be reached. Raises `DtfPerfError`, with all reasons if none can be."""
        try:
            return self.repeat_without_lost_hosts(self._start_agents)
        except AllocationError as error:
            reasons = [*format_reasons(self.lost), *([str(error)] if error.host is None else [])]
            raise AllocationError("; ".join(reasons)) from error

    def _start_agents(self) -> Launcher:
        launcher = self._session.allocations.get_launcher(self._spec)
        if not launcher.hosts:
            raise AllocationError("no host is left")
        return launcher

    def _leave_out(self, losses: Mapping[str, InfrastructureError]) -> None:
        for host, error in losses.items():
            if host in self.lost:
                raise error
            self.lost[host] = error.describe_host(host)
            if self._can_share_hosts:
                try:
                    self._session.allocations.leave_out([host])
                except AllocationError:
                    raise error from None

    def _report(self, hosts: Collection[str]) -> None:
        for reason, names in group_reasons({host: self.lost[host] for host in hosts}).items():
            self._on_status(f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} left out from now on: {reason}")

    def _train_wave(self, groups: Sequence[Group]) -> list[GroupRun]:
        found: dict[int, GroupRun] = {}
        while True:
            for at, group in enumerate(groups):
                if lost := next((host for host in group if host in self.lost), None):
                    found.setdefault(at, GroupRun(self.shrink(len(group)), failure=self.lost[lost]))
            left = [at for at in range(len(groups)) if at not in found]
            if not left:
                return [found[at] for at in range(len(groups))]
            lost_before = len(self.lost)
            launchers = self.repeat_without_lost_hosts(partial(self._get_launchers, len(left)))
            if len(self.lost) > lost_before:
                continue
            losses: dict[str, InfrastructureError] = {}
            results = self._train_side_by_side(launchers, [groups[at] for at in left])
            for at, result in zip(left, results, strict=True):
                if isinstance(result, GroupRun):
                    found[at] = result
                elif result.host is None:
                    raise result
                else:
                    losses[result.host] = result
            self.lose(losses)

    def _train_side_by_side(
        self, launchers: Sequence[Launcher], groups: Sequence[Group]
    ) -> list[GroupRun | InfrastructureError]:
        folders = [self._session.folder.new_logs(f"{self._test} {'+'.join(group)}") for group in groups]
        with signals.hold_signals() as deliver_signals, ThreadPoolExecutor(len(groups), "dtfperf-group") as pool:
            try:
                jobs = [pool.submit(self._train, *each) for each in zip(launchers, groups, folders, strict=True)]
                while wait(jobs, SIGNALS_S).not_done:
                    deliver_signals()
            except BaseException:  # Ctrl-C too: the trainings end before their hosts are released
                self._is_over.set()
                self._wait_for_end(jobs, deliver_signals)
                raise
        return [each.result() for each in jobs]

    def _wait_for_end(self, jobs: Sequence[Future[Any]], deliver_signals: Callable[[], None]) -> None:
        """Wait until interrupted trainings have ended. A further signal ends their agents at once."""
        self._on_status("interrupted: the trainings are being ended. Interrupt again to end them without their logs")
        while wait(jobs, SIGNALS_S).not_done:
            try:
                deliver_signals()
            except (KeyboardInterrupt, SystemExit):
                self._is_aborted.set()

    def _get_launchers(self, count: int) -> list[Launcher]:
        allocations = self._session.allocations
        if not self._can_share_hosts:
            return [allocations.get_launcher(self._spec)]
        config = replace(self._session.config, ps_on_worker_hosts=True)
        allocations.stacks.update({f"group {slot}": config for slot in range(count)})
        return [allocations.get_launcher(self._spec, f"group {slot}") for slot in range(count)]

    def _train(self, launcher: Launcher, group: Group, logs: Path) -> GroupRun | InfrastructureError:
        spec = self.shrink(len(group))
        without = [each for each in launcher.hosts if each not in group]
        is_cancelled, is_aborted = self._is_over.is_set, self._is_aborted.is_set
        try:
            run = launcher.run(spec, log_dir=logs, without=without, is_cancelled=is_cancelled, is_aborted=is_aborted)
            return GroupRun(spec, run)
        except (RunFailed, InvalidMeasurement) as error:
            return GroupRun(spec, failure=str(error))
        except InfrastructureError as error:
            return error


def format_reasons(reasons: Mapping[str, str]) -> list[str]:
    """Return a line for each reason, with all its hosts."""
    return [f"{', '.join(hosts)}: {reason}" for reason, hosts in group_reasons(reasons).items()]
