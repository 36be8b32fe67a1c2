"""Who holds hosts, and when: taken when something is first trained, kept for a session or one measurement, renewed when lost.

Where all allocations are the same hosts, as on this machine, measurements take turns on them, whatever clusters call them.
Elsewhere there may be only so many allocations: one of the cluster's `max_jobs` slots is held as long as the hosts are. Either
way pytest-xdist's workers and other sessions of this user count, first come, first served, and whoever waits is told for whom.
Nobody ever holds hosts and waits for a slot, or holds a slot and waits for another.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property
from typing import Any

from pytest_dtfperf.clusters import capacity, named
from pytest_dtfperf.clusters.locks import LockHolder, LockWait, lock_hosts
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.clusters.protocol import Allocation, Resources
from pytest_dtfperf.errors import AllocationError, AllocationOver, UsageError, first_line
from pytest_dtfperf.formats import counted
from pytest_dtfperf.launch.launcher import Launcher
from pytest_dtfperf.measurement import Run
from pytest_dtfperf.node.owner import Owner
from pytest_dtfperf.spec import Spec


def powers_of_two(limit: int) -> tuple[int, ...]:
    """1, 2, 4, ... and `limit` itself."""
    return tuple(dict.fromkeys([*(1 << i for i in range(limit.bit_length())), limit]))


def most_servers(gpus: int, config: ClusterConfig) -> int:
    """How many parameter servers a sweep considers at most: one for each device, as in 2017, if there is room."""
    there = capacity.count_hosts(config)
    if there is None:
        return gpus
    fitting = (n for n in range(gpus, 1, -1) if capacity.count_hosts_for(config, needed(gpus, n, config)) <= there)
    return next(fitting, 1)


def needed(gpus: int, num_ps: int, config: ClusterConfig) -> Resources:
    """What training on so many devices with so many parameter servers needs. More than there is, is not asked for."""
    apart = 0 if config.ps_on_worker_hosts else -(-num_ps // (config.most_ps_per_host or 1))
    return Resources(devices=min(gpus, capacity.count_devices(config) or gpus), separate_ps_hosts=apart)


def needed_by(test: Mapping[str, Any], given: Sequence[int] | None, config: ClusterConfig) -> Resources | None:
    """What a test needs, as far as its parameters or the device counts `given` for all say; None if they say nothing."""
    gpus = test.get("gpus") or max(given or (0,))
    return needed(gpus, _num_ps(test, gpus, config), config) if gpus else None


def _num_ps(test: Mapping[str, Any], gpus: int, config: ClusterConfig) -> int:
    """Of a test that does not say, or leaves it to a baseline: the default. A sweep needs room for the most it considers."""
    given = test.get("num_ps")
    if given == "sweep":
        return most_servers(gpus, config)
    return given if isinstance(given, int) else 1


def to_ask_for(spec: Spec | None, expected: Sequence[Resources], config: ClusterConfig) -> Resources:
    """What is asked of the cluster to train `spec`, or for no training: for a session, what the largest of all needs.

    `expected`: what else the session will need, as far as that is known. Raises `UsageError` where hosts are lent for each
    measurement, and there is none.
    """
    now = [needed(spec.gpus, spec.num_ps, config)] if spec else []
    if config.allocation == "session":
        return largest([*now, *expected] or [Resources(devices=1)], config)
    if not now:
        raise UsageError(
            f'cluster {config.name} has no hosts between two measurements: its allocation = "test" lends them to '
            'each anew. Train first, or say allocation = "session" in clusters.toml'
        )
    return now[0]


def largest(needs: Iterable[Resources], config: ClusterConfig) -> Resources:
    """What is enough for each of them, one after the other: any host can be a worker's, or be for parameter servers alone."""
    return max(needs, key=lambda need: (capacity.count_hosts_for(config, need), need.devices))


def covers(held: Resources, need: Resources, config: ClusterConfig) -> bool:
    """Whether the hosts of an allocation are enough for another need."""
    return capacity.count_hosts_for(config, held) >= capacity.count_hosts_for(config, need)


def too_large(test: Mapping[str, Any], config: ClusterConfig) -> str | None:
    """Why the cluster has too few hosts for a test with these parameters, or None."""
    gpus = test.get("gpus", 1)
    num_ps = _num_ps(test, gpus, config)
    need = needed(gpus, num_ps, config)
    there = capacity.count_hosts(config)
    if there is None or capacity.count_hosts_for(config, need) <= there:
        return None
    apart = f" and num_ps={num_ps} on hosts of their own" if need.separate_ps_hosts else ""
    return (
        f"{config.name} has {counted(there, 'host')}, gpus={need.devices}{apart} need {capacity.count_hosts_for(config, need)}"
    )


_HELD_BY: dict[str, int] = {}  # session -> which of this process's threads has a lock for it


def _is_of_this_thread(holder: LockHolder) -> bool:
    return holder.owner == Owner.me() and _HELD_BY.get(holder.session) == threading.get_ident()


class Lending:
    """The hosts of one process.

    `expected` is what will be needed, as far as that is known; `on_status` takes words of waiting, `spent` bills.
    """

    def __init__(
        self,
        config: ClusterConfig,
        *,
        session: str,
        expected: Sequence[Resources],
        on_status: Callable[[str], object],
        spent: Callable[[Mapping[str, Any]], object],
        while_waiting: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """`while_waiting` is entered while this process waits for its turn, for hosts, or for agents to start on them."""
        self._while_waiting = while_waiting
        self._config = config
        self._session = session
        self._expected = expected
        self._on_status = on_status
        self._spent = spent
        self._held: _Held | None = None
        self._refused: dict[Resources, AllocationError] = {}
        self._spec: Spec | None = None  # what is being measured
        self._what = "the session"  # what for, as others are told

    @contextmanager
    def measuring(self, spec: Spec, test: str) -> Iterator[None]:
        """Around one measurement of a test; hosts are taken when it first asks for them."""
        self._spec, self._what = spec, test
        with self._turn():
            try:
                yield
            finally:
                self._spec = None
                if self._config.allocation == "test":
                    self.give_back()

    @property
    def launcher(self) -> Launcher:
        """The agents on hosts that are enough for what is being measured. Raises `AllocationError`."""
        need = to_ask_for(self._spec, self._expected, self._config)
        if self._held and not covers(self._held.resources, need, self._config):
            self.give_back()
        with nullcontext() if self._held and self._held.has_agents else self._while_waiting():
            if self._held is None:
                self._held = self._take(need)
            return self._held.launcher

    @property
    def holds(self) -> bool:
        """Whether hosts are lent now."""
        return self._held is not None

    def run(self, spec: Spec, train: Callable[[Launcher], Run]) -> Run:
        """What `train` makes of the hosts: called again, with new ones, where the cluster has taken the old ones back."""
        self._spec = spec
        try:
            return train(self.launcher)
        except AllocationOver as over:
            self.give_back()
            self._on_status(f"{first_line(over)}: asking for other hosts")
        return train(self.launcher)

    @contextmanager
    def between_runs(self, spec: Spec, test: str) -> Iterator[Launcher | None]:
        """Agents on hosts that are lent already and enough for a spec, while nothing trains there; None: there are none.

        Nothing is lent for it. Where measurements take turns, this is one.
        """
        if self._held is None or not covers(self._held.resources, to_ask_for(spec, (), self._config), self._config):
            yield None
        elif self._spec is not None:
            yield self._held.launcher
        else:
            with self.measuring(spec, test):
                yield self._held.launcher

    def give_back(self) -> None:
        """End the agents and the allocation. Called when the session ends, too, however it ends."""
        held, self._held = self._held, None
        if held:
            held.close()

    def _take(self, need: Resources) -> "_Held":
        """What was refused once is not waited for again: every later test says at once what the first one learnt."""
        if need in self._refused:
            raise AllocationError(str(self._refused[need]))
        try:
            asked = replace(need, session=self._session, on_status=self._on_status, spent=self._spent)
            return _Held(self._config, asked, slot=self._slot())
        except AllocationOver:
            raise
        except AllocationError as refusal:
            self._refused[need] = refusal
            raise

    def _turn(self) -> AbstractContextManager[object]:
        """Sole use of hosts that others use too."""
        return self._lock(self._machines, slots=1) if self._machines else nullcontext()

    def _slot(self) -> AbstractContextManager[object]:
        """One of the allocations that there may be at once."""
        if self._machines:
            return nullcontext()
        return self._lock([f"cluster-{self._config.name}"], slots=self._config.jobs_at_once)

    @cached_property
    def _machines(self) -> Sequence[str]:
        return named.BACKENDS[self._config.backend].list_shared_machines(self._config)

    @contextmanager
    def _lock(self, names: Sequence[str], slots: int) -> Iterator[None]:
        with ExitStack() as held:
            with self._while_waiting():
                held.enter_context(
                    lock_hosts(names, slots, LockHolder.me(session=self._session, what=self._what), self._waiting)
                )
            _HELD_BY[self._session] = threading.get_ident()
            try:
                yield
            finally:
                _HELD_BY.pop(self._session, None)

    def _waiting(self, wait: LockWait) -> None:
        if wait.holders and all(each and _is_of_this_thread(each) for each in wait.holders):
            raise UsageError(
                f"cluster {self._config.name}: another session of this very thread holds what this one would wait for: "
                "close that one first"
            )
        self._on_status(f"waiting for {self._config.name}: {wait}")


class _Held:
    """One allocation, and the agents on it once somebody asks for them."""

    def __init__(self, config: ClusterConfig, resources: Resources, *, slot: AbstractContextManager[object]) -> None:
        self.resources = resources
        self._config = config
        self._launcher: Launcher | None = None
        with ExitStack() as unless_lent:
            unless_lent.enter_context(slot)
            cluster = named.open_cluster(config)
            self._allocation: Allocation = unless_lent.enter_context(cluster.allocate(resources))
            self._lent = unless_lent.pop_all()

    @property
    def has_agents(self) -> bool:
        return self._launcher is not None

    @property
    def launcher(self) -> Launcher:
        """Agents that do not start leave the hosts as they were: the next test may try again without waiting in a queue."""
        if self._launcher is None:
            self._launcher = self._lent.enter_context(Launcher(self._allocation, self._config, self.resources))
        return self._launcher

    def close(self) -> None:
        self._lent.close()
