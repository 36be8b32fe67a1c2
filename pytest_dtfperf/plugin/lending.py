"""Who holds hosts, and when: taken when the first test trains, kept for the session or for one measurement, renewed when lost.

Where all allocations are the same hosts, as on this machine, measurements take turns on them, whatever clusters call them.
Elsewhere there may be only so many allocations: one of the cluster's `max_jobs` slots is held as long as the hosts are. Either
way pytest-xdist's workers and other sessions of this user count, first come, first served, and whoever waits is told for whom.
Nobody ever holds hosts and waits for a slot, or holds a slot and waits for another.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property
from typing import Any

from pytest_dtfperf.clusters import named
from pytest_dtfperf.clusters.lease import Holder, Wait, lease
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.clusters.protocol import Allocation, Resources
from pytest_dtfperf.errors import AllocationError, AllocationOver, UsageError
from pytest_dtfperf.launch.run import Launcher
from pytest_dtfperf.measurement import Run
from pytest_dtfperf.plugin import sizes
from pytest_dtfperf.spec import Spec


class Lending:
    """The hosts of one process.

    `collected` is what the tests need, as far as they have said; `tell` takes words of waiting, `spent` bills.
    """

    def __init__(
        self,
        config: ClusterConfig,
        *,
        session: str,
        collected: Sequence[Resources],
        tell: Callable[[str], object],
        spent: Callable[[Mapping[str, Any]], object],
    ) -> None:
        self._config = config
        self._session = session
        self._collected = collected
        self._tell = tell
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
        need = self.need(self._spec)
        if self._held and not sizes.covers(self._held.resources, need, self._config):
            self.give_back()
        if self._held is None:
            self._held = self._take(need)
        return self._held.launcher

    def run(self, spec: Spec, *, on_hosts: Callable[[], object], **how: Any) -> Run:
        """Train once, on new hosts if the old ones have been taken back. Raises what `Launcher.run` raises.

        `on_hosts` is called when there are hosts, and agents on them, and the run begins.
        """
        self._spec = spec
        try:
            return self._run(spec, on_hosts, how)
        except AllocationOver as over:
            self.give_back()
            self._tell(f"{over}".partition("\n")[0] + ": asking for other hosts")
        return self._run(spec, on_hosts, how)

    def _run(self, spec: Spec, on_hosts: Callable[[], object], how: Mapping[str, Any]) -> Run:
        launcher = self.launcher
        on_hosts()
        return launcher.run(spec, **how)

    def give_back(self) -> None:
        """End the agents and the allocation. Called when the session ends, too, however it ends."""
        held, self._held = self._held, None
        if held:
            held.close()

    def need(self, spec: Spec | None) -> Resources:
        """What is asked of the cluster to train this, or for no training: for the session, what its largest test needs."""
        now = [sizes.needed(spec.gpus, spec.num_ps, self._config)] if spec else []
        if self._config.allocation == "session":
            return sizes.largest([*now, *self._collected] or [Resources(devices=1)], self._config)
        if not now:
            raise UsageError(
                f'cluster {self._config.name} has no hosts between two measurements: its allocation = "test" lends them to '
                'each anew. Train first, or say allocation = "session" in clusters.toml'
            )
        return now[0]

    def _take(self, need: Resources) -> "_Held":
        """What was refused once is not waited for again: every later test says at once what the first one learnt."""
        if need in self._refused:
            raise AllocationError(str(self._refused[need]))
        try:
            asked = replace(need, session=self._session, tell=self._tell, spent=self._spent)
            return _Held(self._config, asked, slot=self._slot())
        except AllocationOver:
            raise
        except AllocationError as refusal:
            self._refused[need] = refusal
            raise

    def _turn(self) -> AbstractContextManager[object]:
        """Sole use of hosts that others use too."""
        return self._lease(self._places, slots=1) if self._places else nullcontext()

    def _slot(self) -> AbstractContextManager[object]:
        """One of the allocations that there may be at once."""
        if self._places:
            return nullcontext()
        return self._lease([f"cluster-{self._config.name}"], slots=self._config.jobs_at_once)

    @cached_property
    def _places(self) -> Sequence[str]:
        return named.shared_places(self._config)

    def _lease(self, places: Sequence[str], slots: int) -> AbstractContextManager[None]:
        return lease(places, slots, Holder.me(session=self._session, what=self._what), self._waiting)

    def _waiting(self, wait: Wait) -> None:
        self._tell(f"waiting for {self._config.name}, {wait}")


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
    def launcher(self) -> Launcher:
        """Agents that do not start leave the hosts as they were: the next test may try again without waiting in a queue."""
        if self._launcher is None:
            self._launcher = self._lent.enter_context(Launcher(self._allocation, self._config, self.resources))
        return self._launcher

    def close(self) -> None:
        self._lent.close()
