"""Find the hosts and links of an allocation that slow a training, by the training itself on groups of its hosts.

The training first runs on all hosts. If its step timings show that the others wait for a host, that host is confirmed in two
rounds. Otherwise, and if it is not confirmed, `search.py` proposes groups, which train side by side (`group_training.py`).
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pytest_dtfperf.baselines.comparability import system_name
from pytest_dtfperf.clusters.capacity import count_server_hosts
from pytest_dtfperf.codec import JsonData, describe
from pytest_dtfperf.datamodel.measurement import Run
from pytest_dtfperf.errors import DtfPerfError, HostLost, InvalidMeasurement, RunFailed, SpecError, UsageError
from pytest_dtfperf.explain.worker_timings import describe_late_worker, find_late_workers
from pytest_dtfperf.formats import format_count, format_minutes, percent
from pytest_dtfperf.qualify.group_rates import UNKNOWN_NOISE, Group, SearchPolicy
from pytest_dtfperf.qualify.group_training import TIME_LIMIT_REACHED, GroupTrainer
from pytest_dtfperf.qualify.search import Conclusion, HostSearch, Outcome, SlowSet, SlowSetKind, estimate_cost
from pytest_dtfperf.session.context import SessionContext
from pytest_dtfperf.spec import Spec
from pytest_dtfperf.stats.noise import Noise

FILE = "isolation.json"
TEST = "dtfperf isolate"
MOST_SUSPECTS = 3  # hosts that step timings show, beyond which all hosts are searched
MOST_FAILURES = 5  # of trainings that are reported
USUAL_SLOW = 1  # slow hosts of the usual search, for the estimate of its cost


@dataclass(frozen=True, kw_only=True)
class IsolationCost(JsonData):
    """How much a search takes if no host is slow, and if one is."""

    runs: Sequence[int] = field(metadata=describe("Trainings: without a slow host, and with one"))
    rounds: Sequence[int] = field(metadata=describe("Times that trainings run side by side, likewise"))
    seconds: Sequence[float] | None = field(metadata=describe("Likewise; null: no training has run yet", unit="s"))

    def __str__(self) -> str:
        least, most = self.runs
        text = f"{format_count(least, 'training')} in {format_count(self.rounds[0], 'round')} if no host is slow"
        text += f", about {most} in {self.rounds[1]} if one is"
        if self.seconds:
            minutes = [max(1, round(each / 60)) for each in self.seconds]
            text += f": {format_minutes(minutes[0])}" + (f" to {format_minutes(minutes[1])}" if minutes[1] > minutes[0] else "")
        return text


@dataclass(frozen=True, kw_only=True)
class IsolationResult(JsonData):
    """What was searched, and what was found."""

    id: str = field(metadata=describe("Of the session"))
    cluster: str = field(metadata=describe("Its name in clusters.toml"))
    label: str = field(metadata=describe("Of the training on all hosts that could be reached"))
    hosts: Sequence[str] = field(metadata=describe("With workers"))
    group_size: int = field(metadata=describe("Hosts of each group", at_least=1))
    images_per_sec: float | None = field(metadata=describe("Of the training on all hosts; null: it failed", above=0))
    late: Mapping[str, str] = field(metadata=describe("Host to what step timings of that training show"))
    lost: Mapping[str, str] = field(default_factory=dict, metadata=describe("Host that ended or did not answer, to how"))
    cost: IsolationCost = field(metadata=describe("As estimated before the search"))
    seconds: float = field(metadata=describe("From the first training on", unit="s", at_least=0))
    conclusion: Conclusion = field(metadata=describe("Of the search"))
    exclude: Sequence[str] = field(
        metadata=describe("Hosts without which the others train as fast as each other, and those that were lost")
    )
    failures: Sequence[str] = field(metadata=describe("Messages of trainings that failed, a few of them"))


class HostIsolation:
    """One search. Invalid trainings are refused before anything is started."""

    def __init__(
        self,
        session: SessionContext,
        spec: Spec,
        *,
        policy: SearchPolicy | None = None,
        time_limit_s: float = math.inf,
        on_status: Callable[[str], object] = lambda text: None,
    ) -> None:
        """Prepare a search.

        Args:
            spec: the training on all hosts.
            policy: what is searched, and how often the search may be wrong.
            time_limit_s: no round begins that would end later.
            on_status: called with a line about the cost, and about each round.

        Raises:
            UsageError: the training is not distributed over hosts.
        """
        if spec.in_one_process:
            raise UsageError(f"{spec.label} trains in one process, on one host: ask for more devices, as in gpus=8")
        session.plan(spec)
        self._session = session
        self._spec = spec
        self._policy = policy
        self._time_limit_s = time_limit_s
        self._on_status = on_status
        self._search: HostSearch | None = None
        self._trainer: GroupTrainer | None = None
        self._server_hosts = 0  # hosts with parameter servers alone
        self._whole: Run | None = None
        self._hosts: list[str] = []
        self._late: dict[str, str] = {}
        self._failures: list[str] = []
        self._cost: IsolationCost | None = None
        self._round_s = 0.0
        self._why_stopped = ""

    def carry_out(self) -> IsolationResult:
        """Search until it is decided or the time is spent, write isolation.json, and return what was found.

        Raises:
            AllocationError: no hosts are allocated, or agents do not start.
            UsageError: hosts have different numbers of devices of this training.
        """
        with self._session.measuring(self._spec, TEST):
            self._began_s = time.monotonic()
            self._choose_hosts()
            self._report_cost()
            self._train_on_all()
            assert self._search
            try:
                self._make_rounds(self._search)
            finally:
                self._session.folder.write_json(FILE, self.result().to_json())
            return self.result()

    def result(self) -> IsolationResult:
        """Return what is known by now."""
        assert self._search
        assert self._cost
        conclusion, lost = self._search.conclude(), dict(self._trainer.lost) if self._trainer else {}
        if self._why_stopped and conclusion.outcome is Outcome.STOPPED:
            conclusion = replace(conclusion, reason=self._why_stopped)
        return IsolationResult(
            id=self._session.id,
            cluster=self._session.config.name,
            label=self._spec.label,
            hosts=self._hosts,
            group_size=self._group_size,
            images_per_sec=self._whole.images_per_sec if self._whole else None,
            late=self._late,
            lost=lost,
            cost=self._cost,
            seconds=round(time.monotonic() - self._began_s, 1),
            conclusion=conclusion,
            exclude=list(dict.fromkeys([*list_excluded(conclusion.findings), *lost])),
            failures=self._failures[:MOST_FAILURES],
        )

    @property
    def has_begun(self) -> bool:
        """Whether there is anything to report."""
        return self._search is not None

    # The training on all hosts

    def _choose_hosts(self) -> None:
        """Note the hosts with workers. Those that cannot be reached are left out, and the training gets fewer devices."""
        if self._trainer is None:
            self._trainer = GroupTrainer(self._session, self._spec, TEST, on_status=self._on_status)
            self._server_hosts = count_server_hosts(self._session.config, self._spec.num_ps)
        launcher, lost = self._trainer.get_launcher(), self._trainer.lost
        if lost:
            self._trainer.hosts = len(launcher.hosts) + len(lost) - self._server_hosts
            self._spec = self._trainer.shrink(self._trainer.hosts - len(lost))
        layout = launcher.layout(self._spec)
        devices: dict[str, int] = {}
        for task, count in layout.devices.items():
            devices[layout.hosts[task]] = devices.get(layout.hosts[task], 0) + count
        switches = {node.name: node.switch or "" for node in launcher.placement.nodes}
        self._hosts = sorted((each for each in launcher.hosts if each in devices), key=lambda host: switches.get(host, ""))
        self._fingerprint = launcher.collect_fingerprint(self._hosts)
        if len(set(devices.values())) > 1:
            counts = ", ".join(f"{host}: {count}" for host, count in list(devices.items())[:4])
            raise UsageError(f"{self._spec.label} has different numbers of devices on hosts: {counts}. Ask for equal ones")
        self._trainer.hosts = len(self._hosts) + len(lost)

    def _report_cost(self) -> None:
        self._estimate(None)
        self._on_status(f"{format_count(len(self._hosts), 'host')}: one training on all of them, then {self._cost}")

    def _train_on_all(self) -> None:
        """Train on all hosts, and note what step timings show."""
        suspects: list[str] = []
        try:
            run = self._session.run(self._spec, TEST, number=1, total=1)
        except (RunFailed, InvalidMeasurement, HostLost) as error:
            self._failures.append(str(error))
            if isinstance(error, HostLost) and error.host is not None:  # also one with parameter servers alone
                assert self._trainer
                self._trainer.lose({error.host: error})
        else:
            self._choose_hosts()  # the cluster may have reclaimed the first ones
            self._whole = run
            self._round_s = run.wall_s
            self._late = find_late_hosts(run)
            suspects = list(self._late)
        if len(suspects) > MOST_SUSPECTS or 2 * len(suspects) >= len(self._hosts):
            suspects = []
        search = HostSearch(self._hosts, self._policy, noise=self._find_noise(), suspects=suspects)
        self._group_size = search.size
        self._estimate(self._round_s or None)
        self._search = search  # from here on, there is a result
        for text in self._late.values():
            self._on_status(text)
        if suspects:
            self._on_status(f"2 rounds of 2 trainings can confirm {' and '.join(suspects)}; if not, all hosts are searched")
        limit = f", at most until {format_minutes(round(self._time_limit_s / 60))}" if self._time_limit_s < math.inf else ""
        self._on_status(f"the search takes {self._cost}{limit}")

    def _find_noise(self) -> Noise:
        """Return the calibrated scatter of this training on these hosts, or an assumed one."""
        system = system_name(self._fingerprint.hardware)
        entry = self._session.store.find(system, self._spec, self._fingerprint, len(self._hosts))
        if entry is None or not entry.noise or entry.list_differences(self._fingerprint, len(self._hosts)):
            return UNKNOWN_NOISE
        self._on_status(f"runs of this training scatter by {percent(entry.noise.run)}, as its baseline was calibrated")
        return entry.noise

    def _estimate(self, run_s: float | None) -> None:
        """Set the cost, with the time of one run if it is known."""
        assert self._trainer
        count = len(self._hosts)
        found = [estimate_cost(count, self._policy, slow_hosts=slow) for slow in (0, min(USUAL_SLOW, count - 1))]
        seconds = run_s and [run_s * max(rounds, runs / self._trainer.slots) for runs, rounds in found]
        self._cost = IsolationCost(
            runs=[runs for runs, _ in found], rounds=[rounds for _, rounds in found], seconds=seconds or None
        )

    # Groups

    def _make_rounds(self, search: HostSearch) -> None:
        while groups := search.propose():
            if time.monotonic() - self._began_s + self._round_s > self._time_limit_s:
                self._why_stopped = TIME_LIMIT_REACHED
                return
            began_s = time.monotonic()
            progress = f"{format_count(len(groups), 'group')} of {format_count(len(groups[0]), 'host')}"
            self._on_status(f"round {search.conclude().rounds + 1}: {progress}")
            try:
                search.record(self._train_groups(groups))
            except SpecError:
                raise
            except DtfPerfError as error:
                self._why_stopped = f"the cluster failed: {' '.join(str(error).split())}"
                return
            self._round_s = max(self._round_s, time.monotonic() - began_s)

    def _train_groups(self, groups: Sequence[Group]) -> list[float | None]:
        """Train each group, and return their rates; None of one that failed."""
        assert self._trainer
        found = self._trainer.train(groups)
        self._failures += [
            f"{', '.join(group)}: {each.failure}" for group, each in zip(groups, found, strict=True) if not each.run
        ]
        return [measure_pace(each.spec, each.run) if each.run else None for each in found]


def measure_pace(spec: Spec, run: Run) -> float:
    """Return images per second, of workers that do not wait for each other as if all were as slow as the slowest."""
    if spec.in_lockstep:
        return run.images_per_sec
    return min(len(times) / sum(times) for times in run.step_s.values()) * spec.batch_size * spec.gpus


def list_excluded(findings: Sequence[SlowSet]) -> list[str]:
    """Return the hosts without which no finding is left: of a slow link one host, of a group with slow links all."""
    found: list[str] = []
    for each in findings:
        if each.hosts and not set(each.hosts) & set(found):
            found += each.hosts if each.kind is SlowSetKind.BETWEEN else each.hosts[:1]
    return found


def find_late_hosts(run: Run) -> dict[str, str]:
    """Return the hosts with workers that the others clearly wait for, each with a sentence about it, the latest first."""
    found: dict[str, str] = {}
    for each in find_late_workers(run.worker_timings) if run.worker_timings else ():
        host = run.task_hosts.get(each.worker)
        if host and host not in found:
            found[host] = describe_late_worker(each, host)
    return found
