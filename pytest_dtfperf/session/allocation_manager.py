"""Allocate and release the hosts of a session, and show the properties of its cluster.

Hosts are kept for a session or for one measurement, and replaced when they are lost.

If all allocations are the same hosts, as on this machine, measurements take turns on them, even under different names in
clusters.toml. Elsewhere the number of allocations is limited: a slot of the cluster's `max_jobs` is held as long as the hosts.
Both limits include pytest-xdist's workers and other sessions of this user, in the order of requests. Messages of waiting name
the holder. No process holds hosts while it waits for a slot, or a slot while it waits for another one.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property
from typing import Any

from pytest_dtfperf.baselines.comparability import system_name
from pytest_dtfperf.clusters import capacity, named
from pytest_dtfperf.clusters.locks import LockHolder, LockWait, lock_hosts
from pytest_dtfperf.clusters.named import BACKENDS, ClusterConfig
from pytest_dtfperf.clusters.protocol import Allocation, Bill, Resources
from pytest_dtfperf.datamodel.fingerprint import Fingerprint
from pytest_dtfperf.datamodel.measurement import Run
from pytest_dtfperf.errors import AllocationError, AllocationOver, UsageError
from pytest_dtfperf.formats import format_count
from pytest_dtfperf.launch.launcher import Launcher
from pytest_dtfperf.node.owner import Owner
from pytest_dtfperf.session.resolve import merge_cluster_settings
from pytest_dtfperf.spec import Spec

_LOCK_THREADS: dict[str, int] = {}  # session -> the thread of this process that has a lock for it


class AllocationManager:
    """Allocates hosts of one cluster for this process, when they are first needed.

    Attributes:
        expected: the requirements of the session, as far as known.
        stacks: further software stacks by name, each as the cluster with it; all have agents on the same hosts.
    """

    def __init__(
        self,
        config: ClusterConfig,
        *,
        session: str,
        expected: Sequence[Resources] = (),
        on_status: Callable[[str], object],
        on_cost: Callable[[Bill], object] = lambda bill: None,
        while_waiting: Callable[[], AbstractContextManager[object]] = nullcontext,
        check_wait: Callable[[str], object] = lambda test: None,
    ) -> None:
        """Note the cluster and the functions to report to.

        Args:
            on_status: called with a message while the process waits.
            on_cost: called with the cost of an allocation, once it is released.
            while_waiting: entered while the process waits for its turn, for hosts, or for agents to start on them.
            check_wait: called with the test while the process waits for its turn; what it raises ends the wait.
        """
        self.expected = expected
        self.stacks: dict[str, ClusterConfig] = {}
        self.may_lack_hosts = False
        self._config = config
        self._session = session
        self._on_status = on_status
        self._on_cost = on_cost
        self._while_waiting = while_waiting
        self._check_wait = check_wait
        self._held: _HeldAllocation | None = None
        self._refusals: dict[Resources, AllocationError] = {}
        self._spec: Spec | None = None  # the training that is being measured
        self._least: Resources | None = None  # requirements of other trainings of this measurement
        self._purpose = "the session"  # shown to other sessions

    @contextmanager
    def measuring(self, spec: Spec, test: str) -> Iterator[None]:
        """Enclose one measurement of a test; hosts are allocated at its first request."""
        self._spec, self._purpose = spec, test
        with self._turn():
            try:
                yield
            finally:
                self._spec = self._least = None
                if self._config.allocation == "test":
                    self.release()

    def get_launcher(self, spec: Spec | None = None, stack: str | None = None) -> Launcher:
        """Return the launcher on enough hosts for `spec`, or for the current measurement. Raises `AllocationError`.

        Args:
            stack: a name of `stacks`; None: the cluster's own.
        """
        self._spec = spec or self._spec
        need = choose_request(self._spec, self.expected, self._config)
        if self._least:
            need = find_largest([need, self._least], self._config)
        if self._held and not is_enough(self._held.resources, need, self._config):
            self.release()
        with nullcontext() if self._held and self._held.has_agents(stack) else self._while_waiting():
            if self._held is None:
                self._held = self._allocate(need)
            return self._held.get_launcher(stack, self.stacks[stack] if stack else self._config)

    def allocate(self, spec: Spec) -> None:
        """Allocate enough hosts for `spec` if there are none, and start no agents. Raises `AllocationError`.

        During this measurement, hosts that replace them are enough for it, too.
        """
        self._least = choose_request(spec, self.expected, self._config)
        if self._held is None:
            with self._while_waiting():
                self._held = self._allocate(self._least)

    def run_servers_on_worker_hosts(self) -> ClusterConfig:
        """Run parameter servers on the hosts of workers from now on, even if the cluster has separate ones for them.

        Returns the cluster with this placement.
        """
        self._config = replace(self._config, ps_on_worker_hosts=True)
        return self._config

    def has_agents(self, stack: str) -> bool:
        """Return whether a software stack has agents on the hosts."""
        return self._held is not None and self._held.has_agents(stack)

    def end_agents(self, stack: str) -> None:
        """End a software stack's agents, if there are any. The hosts stay."""
        if self._held:
            self._held.end_agents(stack)

    def leave_out(self, hosts: Collection[str]) -> None:
        """End all agents, and start later ones on other hosts only. Hosts that are allocated stay allocated.

        Raises `AllocationError` if none is allocated, and no other host is known.
        """
        if self._held:
            self._held.leave_out(hosts)
            return
        backend = BACKENDS[self._config.backend]
        others = [host for host in backend.list_hosts(self._config) if host not in hosts]
        config = backend.select_hosts(self._config, ",".join(others)) if others else None
        if config is None:
            raise AllocationError(f"no other host of cluster {self._config.name} is known")
        self._config = config
        self._refusals.clear()

    @property
    def has_hosts(self) -> bool:
        """Whether hosts are allocated."""
        return self._held is not None

    @contextmanager
    def hold_between_runs(self, spec: Spec, test: str) -> Iterator[Launcher | None]:
        """Yield the launcher on hosts that are already allocated and enough for a spec, while no training runs there.

        None if there are none: nothing is allocated for it. If measurements take turns, this is one.
        """
        if self._held is None or not is_enough(self._held.resources, choose_request(spec, (), self._config), self._config):
            yield None
        elif self._spec is not None:
            yield self._held.get_launcher(None, self._config)
        else:
            with self.measuring(spec, test):
                yield self._held.get_launcher(None, self._config)

    def release(self) -> None:
        """End the agents and the allocation, if there is one."""
        held, self._held = self._held, None
        if held:
            held.close()

    def _allocate(self, need: Resources) -> "_HeldAllocation":
        """Allocate hosts; a request that was refused is refused again at once, without waiting."""
        if need in self._refusals:
            raise AllocationError(str(self._refusals[need]))
        try:
            request = replace(
                need,
                session=self._session,
                on_status=self._on_status,
                spent=self._on_cost,
                may_lack_hosts=self.may_lack_hosts,
            )
            return _HeldAllocation(self._config, request, slot=self._slot())
        except AllocationOver:
            raise
        except AllocationError as refusal:
            self._refusals[need] = refusal
            raise

    def _turn(self) -> AbstractContextManager[object]:
        """Return the lock on hosts that other sessions share."""
        return self._lock(self._machines, slots=1) if self._machines else nullcontext()

    def _slot(self) -> AbstractContextManager[object]:
        """Return the lock on one of the cluster's simultaneous allocations."""
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
                holder = LockHolder.make_own(session=self._session, purpose=self._purpose)
                held.enter_context(lock_hosts(names, slots, holder, self._report_wait))
            _LOCK_THREADS[self._session] = threading.get_ident()
            try:
                yield
            finally:
                _LOCK_THREADS.pop(self._session, None)

    def _report_wait(self, wait: LockWait) -> None:
        if wait.holders and all(each and _is_of_this_thread(each) for each in wait.holders):
            raise UsageError(
                f"cluster {self._config.name}: another session of this thread has the hosts that this one waits for: "
                "close that session first"
            )
        self._check_wait(self._purpose)
        self._on_status(f"waiting for {self._config.name}: {wait}")


def _is_of_this_thread(holder: LockHolder) -> bool:
    return holder.owner == Owner.read_own() and _LOCK_THREADS.get(holder.session) == threading.get_ident()


class _HeldAllocation:
    """One allocation, and a launcher on it for each software stack, made at the first request."""

    def __init__(self, config: ClusterConfig, resources: Resources, *, slot: AbstractContextManager[object]) -> None:
        self.resources = resources
        self._launchers: dict[str | None, Launcher] = {}
        self._left_out: set[str] = set()
        with ExitStack() as on_failure:
            on_failure.enter_context(slot)
            cluster = named.open_cluster(config)
            self._allocation: Allocation = on_failure.enter_context(cluster.allocate(resources))
            self._exits = on_failure.pop_all()

    def has_agents(self, stack: str | None) -> bool:
        return stack in self._launchers

    def get_launcher(self, stack: str | None, config: ClusterConfig) -> Launcher:
        """Return a stack's launcher. If its agents do not start, the hosts stay allocated for the next attempt."""
        if stack not in self._launchers:
            backend = named.BACKENDS[config.backend]
            is_whole = stack is None and not self._left_out
            allocation = self._allocation if is_whole else backend.share_hosts(self._allocation, config, self._left_out)
            self._launchers[stack] = self._exits.enter_context(Launcher(allocation, config, self.resources))
        return self._launchers[stack]

    def leave_out(self, hosts: Collection[str]) -> None:
        for stack in list(self._launchers):
            self.end_agents(stack)
        self._left_out.update(hosts)

    def end_agents(self, stack: str | None) -> None:
        if launcher := self._launchers.pop(stack, None):
            launcher.__exit__(None, None, None)

    def close(self) -> None:
        self._exits.close()


# The number of requested hosts: pure functions


def powers_of_two(limit: int) -> tuple[int, ...]:
    """Return 1, 2, 4, ... and `limit` itself."""
    return tuple(dict.fromkeys([*(1 << i for i in range(limit.bit_length())), limit]))


def get_most_servers(gpus: int, config: ClusterConfig) -> int:
    """Return the largest number of parameter servers of a sweep: one for each device, if the hosts have room."""
    there = capacity.count_hosts(config)
    if there is None:
        return gpus
    fitting = (
        n for n in range(gpus, 1, -1) if capacity.count_hosts_for(config, capacity.compute_need(config, gpus, n)) <= there
    )
    return next(fitting, 1)


def compute_need_of_test(test: Mapping[str, Any], given: Sequence[int] | None, config: ClusterConfig) -> Resources | None:
    """Return a test's requirements by its parameters, or by the device counts `given` for all tests; None if both are open."""
    gpus = test.get("gpus") or max(given or (0,))
    return capacity.compute_need(config, gpus, _num_ps(test, gpus, config)) if gpus else None


def _num_ps(test: Mapping[str, Any], gpus: int, config: ClusterConfig) -> int:
    """Return the number of parameter servers; for a sweep, the largest one."""
    given = test.get("num_ps")
    if given == "sweep":
        return get_most_servers(gpus, config)
    return given if isinstance(given, int) else 1


def choose_request(spec: Spec | None, expected: Sequence[Resources], config: ClusterConfig) -> Resources:
    """Return the request for training `spec`, or for no training: for a session, the largest of all requirements.

    Args:
        expected: the further requirements of the session, as far as known.

    Raises:
        UsageError: hosts are allocated for each measurement, and there is none.
    """
    current = [capacity.compute_need(config, spec.gpus, spec.num_ps)] if spec else []
    if config.allocation == "session":
        return find_largest([*current, *expected] or [Resources(devices=1)], config)
    if not current:
        raise UsageError(
            f'cluster {config.name} has no hosts between two measurements: its allocation = "test" allocates them '
            'again for each. Train first, or set allocation = "session" in clusters.toml'
        )
    return current[0]


def find_largest(needs: Iterable[Resources], config: ClusterConfig) -> Resources:
    """Return the requirements that are enough for each: any host can be a worker's, or only for parameter servers."""
    return max(needs, key=lambda need: (capacity.count_hosts_for(config, need), need.devices))


def is_enough(held: Resources, need: Resources, config: ClusterConfig) -> bool:
    """Return whether the hosts of an allocation are enough for other requirements."""
    return capacity.count_hosts_for(config, held) >= capacity.count_hosts_for(config, need)


def explain_lack_of_hosts(test: Mapping[str, Any], config: ClusterConfig) -> str | None:
    """Return why the cluster has too few hosts for a test with these parameters, or None."""
    gpus = test.get("gpus", 1)
    num_ps = _num_ps(test, gpus, config)
    need = capacity.compute_need(config, gpus, num_ps)
    there = capacity.count_hosts(config)
    if there is None or capacity.count_hosts_for(config, need) <= there:
        return None
    apart = f" and num_ps={num_ps} on hosts of their own" if need.separate_ps_hosts else ""
    return (
        f"{config.name} has {format_count(there, 'host')}, gpus={need.devices}{apart} need "
        f"{capacity.count_hosts_for(config, need)}"
    )


class ClusterInfo:
    """The properties of a cluster. `hosts`, `fingerprint` and `system` may allocate hosts, and raise `AllocationError`."""

    def __init__(self, config: ClusterConfig, get_launcher: Callable[[], Launcher]) -> None:
        """Note the function that returns the launcher, which allocates hosts if necessary."""
        self.config = config
        self._get_launcher = get_launcher

    def __repr__(self) -> str:
        return f"<cluster {self.name}: {self.backend}, {format_count(self.devices, f'{self.device} device')}>"

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def backend(self) -> str:
        return self.config.backend

    @cached_property
    def devices(self) -> int:
        """Devices of the whole cluster, as far as known without an allocation."""
        return capacity.count_devices(self.config) or self.devices_per_host

    @cached_property
    def devices_per_host(self) -> int:
        return capacity.predict_devices_per_host(self.config) or 1

    @cached_property
    def device(self) -> str:
        """The kind of the devices: "gpu" or "cpu"."""
        return capacity.predict_device(self.config)

    @cached_property
    def between_hosts(self) -> bool:
        """Whether a training's tasks may be on several hosts, with links between them."""
        return not BACKENDS[self.config.backend].is_local and capacity.count_hosts(self.config) != 1

    def settings(self, model: str) -> dict[str, Any]:
        """Return the settings in clusters.toml for training a model here."""
        found = merge_cluster_settings(self.config.training, self.config.models, model)
        return {"data_dir": self.config.data, **found} if self.config.data else found

    @property
    def hosts(self) -> Sequence[str]:
        return self._get_launcher().hosts

    @property
    def fingerprint(self) -> Fingerprint:
        """The properties of all hosts."""
        return self._with_shares(self._get_launcher().fingerprint)

    def collect_fingerprint(self, run: Run) -> Fingerprint:
        """Return the fingerprint of a run's hosts and of its software there."""
        found = self._with_shares(self._get_launcher().collect_fingerprint(run.hosts))
        return replace(found, program=run.program)

    @property
    def system(self) -> str:
        """The hardware's name, under which baselines are kept."""
        return system_name(self.fingerprint.hardware)

    def _with_shares(self, found: Fingerprint) -> Fingerprint:
        """Return the fingerprint with the number of shares of the cores, which are the devices of a host without GPUs."""
        if self.device == "gpu":
            return found
        return replace(found, hardware=replace(found.hardware, cpu_devices=self.devices_per_host))
