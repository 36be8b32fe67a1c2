"""The shared objects of a session: its hosts, results folder, baselines, progress display, and time budget."""

import platform
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from importlib import metadata
from pathlib import Path

from pytest_dtfperf import extensions
from pytest_dtfperf.baselines.comparability import system_name
from pytest_dtfperf.baselines.store import BaselineStore
from pytest_dtfperf.baselines.terms import ComparisonPolicy
from pytest_dtfperf.clusters import named
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.clusters.protocol import Resources
from pytest_dtfperf.datamodel.fingerprint import Fingerprint
from pytest_dtfperf.datamodel.measurement import Run
from pytest_dtfperf.datamodel.probes import ALL, Probes
from pytest_dtfperf.errors import AllocationOver, DtfPerfError, TimeBudgetSpent, get_first_line
from pytest_dtfperf.explain.probes import is_disturbed, merge_probes
from pytest_dtfperf.formats import format_count, format_time_budget
from pytest_dtfperf.history.enter import HistoryEntry, enter, remember
from pytest_dtfperf.history.where import Address, choose_address, get_requested, parse_address
from pytest_dtfperf.launch.launcher import Launcher
from pytest_dtfperf.limits.hints import predict_step_s
from pytest_dtfperf.records.host_readings import HostReading, append_host_readings
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.records.session import SessionFolder
from pytest_dtfperf.records.stored import Budget
from pytest_dtfperf.report.progress import Progress
from pytest_dtfperf.report.time_estimates import ClusterPast, load_earlier_sessions
from pytest_dtfperf.session.allocation_manager import AllocationManager, ClusterInfo
from pytest_dtfperf.session.preflight import check_program
from pytest_dtfperf.session.resolve import RepeatPlan, check_slowdowns, choose_time_budget, plan
from pytest_dtfperf.session.settings import Settings
from pytest_dtfperf.spec import Spec

PACKAGES = ("pytest-dtfperf", "tensorflow", "tensorflow-cpu")
PROBING = "measuring the capacity of the hosts"
GIT_TIMEOUT_S = 10.0  # a missing commit is better than a hanging session


def versions(more: Sequence[str] = ()) -> dict[str, str]:
    """Return the versions of packages that affect the numbers, if installed, without importing them.

    Args:
        more: further packages, besides Python, this package, TensorFlow, and the packages that extend this one.
    """
    found = {"python": platform.python_version(), **extensions.packages()}
    for package in (*more, *PACKAGES):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def shorten_names(tests: Sequence[str]) -> list[str]:
    """Return the names of tests without folders. Several cases of one function are one name, with their number."""
    cases = Counter(test.partition("[")[0] for test in tests)
    names = dict.fromkeys(test if cases[function := test.partition("[")[0]] == 1 else function for test in tests)
    short = {name: Path(name.partition("::")[0]).name + "".join(name.partition("::")[1:]) for name in names}
    return [f"{short[name]} ({cases[name]} cases)" if cases[name] > 1 else short[name] for name in names]


def is_evaluated(spec: Spec) -> bool:
    """Return whether the training is evaluated, so that its number of steps affects more than the precision of the rate."""
    return bool(spec.evaluate or spec.stop_at_top_1_accuracy or spec.eval_during_training_every_n_steps)


def commit_of(root: Path) -> str | None:
    """Return the commit of the repository that contains `root`; None if there is none."""
    try:
        found = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None if found.returncode == 0 else None


LEAST_STEPS = 3  # measured steps of a run: the median of fewer is one of them
RUNS = 2  # of a measurement, for a spread: the steps of each must leave time for the others
STEPS_SHARE = 0.5  # of a test's time, for measured steps: starting tasks and building graphs takes the rest
END_S = 20.0  # of a session outside of its measurements: pytest starts, hosts are released, figures and the page are made
END_SHARE = 0.1  # of a session that is too short for END_S


class TimeBudget:
    """The time of one session, with its end, shared evenly among the remaining tests.

    Time that a test does not use is for later ones. A run begins only if the runs before it show that it ends in time.
    """

    def __init__(self, total_s: float, tests: Callable[[], int], clock: Callable[[], float] = time.monotonic) -> None:
        """Start the clock.

        Args:
            total_s: seconds that the session may take, of which some are reserved for its end.
            tests: returns how many tests there are; more may become known later.
        """
        self.total_s = total_s
        self._tests = tests
        self._clock = clock
        self._began_s = clock()
        self._ends_s: dict[str, float] = {}  # test -> end of its time
        self.left_out: list[str] = []  # tests without time for a measurement
        self.shortened: set[str] = set()  # tests with fewer runs than without a budget
        self.unexplained: set[str] = set()  # tests without time for the analysis of their verdict

    @property
    def option(self) -> str:
        """The option that sets this budget."""
        return f"--time-budget={format_time_budget(self.total_s)}"

    @property
    def remaining_s(self) -> float:
        """The seconds that remain for measurements."""
        return self._began_s + self.total_s - min(END_S, END_SHARE * self.total_s) - self._clock()

    def begin(self, test: str, least_s: float = 0.0) -> bool:
        """Return whether a measurement may begin, and assign the test its share of the remaining time before its first one.

        Args:
            least_s: the expected seconds of its first runs. If less time is left, the test is noted as left out.
        """
        if self.remaining_s <= least_s:
            if test not in self.left_out:
                self.left_out.append(test)
            return False
        if test not in self._ends_s:
            self._ends_s[test] = self._clock() + self.remaining_s / max(1, self._count_later_tests())
        return True

    def require(self, test: str, least_s: float) -> None:
        """Raise `TimeBudgetSpent` if less time than this is left for a measurement."""
        if not self.begin(test, least_s):
            raise TimeBudgetSpent(f"left out, for {self.option} has no time for it: give more time, or none to set no limit")

    def check_wait(self, test: str) -> None:
        """Raise `TimeBudgetSpent` if a test that has begun waits for hosts after the end of the time."""
        if test in self._ends_s and self.remaining_s <= 0:
            raise TimeBudgetSpent(f"left out, for {self.option} was spent before other sessions released the hosts")

    def _count_later_tests(self) -> int:
        """Return how many tests have not begun yet."""
        return max(0, self._tests() - len({*self._ends_s, *self.left_out}))

    def get_remaining_s(self, test: str) -> float:
        """Return the seconds that remain of a test's share; below 0 if it has taken more."""
        return self._ends_s[test] - self._clock()

    def has_time(self, test: str, *, runs: int, fewest: int, run_s: float) -> bool:
        """Return whether a measurement may have another run, and note the test as shortened if not.

        Below the fewest runs for a verdict, a measurement takes time from later tests, but leaves each that of one such run.

        Args:
            runs: how many it has.
            fewest: how many a verdict needs.
            run_s: seconds that its last run took, or that of each spec if several are measured in turn.
        """
        left_s = self.remaining_s
        if runs >= fewest and test in self._ends_s:
            left_s = min(left_s, self.get_remaining_s(test))
        else:
            left_s -= self._count_later_tests() * run_s
        if left_s >= run_s:
            return True
        self.shortened.add(test)
        return False

    def can_explain(self, test: str, least_s: float) -> bool:
        """Return whether the analysis of a verdict may take so many seconds more, and note the test as unexplained if not.

        It may take the time of later tests.
        """
        if self.remaining_s >= least_s:
            return True
        self.unexplained.add(test)
        return False

    def choose_steps(self, spec: Spec, step_s: float, test: str, in_turn: int = 1) -> int:
        """Return how many steps of `step_s` seconds a run can have if so many trainings share the time; at most the spec's."""
        each_s = STEPS_SHARE * max(0.0, self.get_remaining_s(test)) / (RUNS * in_turn)
        return min(spec.steps, max(LEAST_STEPS, int(each_s / step_s) - spec.warmup_steps))

    def describe(self) -> list[str]:
        """Return a line each on tests that were left out, shortened or not explained; empty if there are none."""
        lines = []
        if self.left_out:
            many, names = format_count(len(self.left_out), "test"), ", ".join(shorten_names(self.left_out))
            lines.append(f"{self.option} had no time for {many}. Left out: {names}. Give more time, or none to set no limit")
        if self.shortened:
            count = len(self.shortened)
            lines.append(f"{self.option} left fewer runs for {format_count(count, 'test')}: wider intervals")
        if self.unexplained:
            count = len(self.unexplained)
            lines.append(f"{self.option} left no time to find all causes for {format_count(count, 'test')}: give more time")
        return lines


@dataclass(kw_only=True, eq=False)
class SessionContext:
    """The state that tests, sweeps and analyses of a session share. It allocates and writes nothing before it is needed."""

    config: ClusterConfig
    settings: Settings
    store: BaselineStore
    results: Path  # the folder of session folders
    id: str
    command: Sequence[str]  # the command as recorded with the results
    make_progress: Callable[[], Progress]  # called once, when there is progress to show
    tests: int = 1  # number of tests that share the allowed false alarms
    expected: Sequence[Resources] = ()  # later requirements, as far as known
    injected_slowdowns: Mapping[str, float] = field(default_factory=dict)  # task -> seconds that it sleeps in every step
    packages: Sequence[str] = ()  # further packages with versions that are recorded
    while_waiting: Callable[[], AbstractContextManager[object]] = nullcontext  # entered while it waits for hosts
    plans: dict[str, RepeatPlan] = field(default_factory=dict, init=False)  # record's id -> how often its spec is run
    terms: dict[tuple[str, str], ComparisonPolicy] = field(default_factory=dict, init=False)  # record's id, test -> its policy
    time_budget: TimeBudget | None = field(default=None, init=False)  # None: measurements may take any time
    _progress: Progress | None = field(default=None, init=False)
    _folder: SessionFolder | None = field(default=None, init=False)
    _capacity: Probes = field(default_factory=Probes, init=False)  # of this session's hosts and links
    _has_run_since_probe: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.allocations = AllocationManager(
            self.config,
            session=self.id,
            expected=self.expected,
            on_status=lambda text: self.progress.waiting(text),
            on_cost=lambda bill: self.folder.add_cost(bill),
            while_waiting=self.while_waiting,
            check_wait=self._check_wait,
        )
        self.cluster = ClusterInfo(self.config, self.allocations.get_launcher)
        if total_s := choose_time_budget(self.settings, self.config):
            self.time_budget = TimeBudget(total_s, lambda: self.tests)

    @property
    def progress(self) -> Progress:
        if self._progress is None:
            self._progress = self.make_progress()
        return self._progress

    @property
    def folder(self) -> SessionFolder:
        """The session folder; the first process of the session that measures makes it."""
        if self._folder is None:
            self._folder = SessionFolder.create(
                self.results,
                session_id=self.id,
                cluster=self.config.name,
                command=self.command,
                versions=versions(self.packages),
                budget=Budget(false_alarms=self.settings.false_alarms, tests=self.tests),
            )
        return self._folder

    @property
    def has_measured(self) -> bool:
        """Whether there is a session folder, made by this process or another one of this session."""
        return self._folder is not None or (self.results / self.id / "session.json").exists()

    @property
    def write_error(self) -> str | None:
        """Why the disk lacks measurements of this process, or None."""
        return self._folder.write_failure if self._folder and self._folder.unwritten else None

    def history(self) -> Address | None:
        """Return the address of the history; None: no history. Raises `UsageError`."""
        found = parse_address(get_requested(self.settings.history), self.results)
        is_simulated = named.BACKENDS[self.config.backend].is_simulated
        return choose_address(found, is_simulated=is_simulated) if found else None

    def remember(self) -> HistoryEntry:
        """Add the session to the history, if there is one, and return the history's reports."""
        address = self.history()
        return remember(self.folder, address) if address else HistoryEntry()

    def fail(self, exit_code: int) -> None:
        """Record in the folder and the history that the session ends with another exit code. Raises `SessionFileError`."""
        self.folder.fail(exit_code)
        if address := self.history():
            enter(self.folder, address)

    def threshold_systems(self, fingerprint: Fingerprint) -> list[str]:
        """Return the systems with thresholds for these hosts: that of their hardware, then the one in clusters.toml."""
        system = system_name(fingerprint.hardware)
        return [system, *([self.config.thresholds] if self.config.thresholds else [])]

    def plan(self, spec: Spec, repeats: int | None = None) -> RepeatPlan:
        """Return how often a spec is run. Raises `SpecError` for an impossible one, `UsageError`."""
        check_slowdowns(spec, self.injected_slowdowns)
        check_program(spec, self.config)
        return self.plan_repeats(spec.model, repeats)

    def plan_repeats(self, model: str, repeats: int | None = None) -> RepeatPlan:
        """Return how often trainings of a model are run. Raises `SpecError`."""
        return plan(self.settings, self.cluster.settings(model), repeats=repeats)

    @contextmanager
    def measuring(self, spec: Spec, test: str) -> Iterator[None]:
        """Enclose the runs of one measurement: other sessions cannot use the same hosts then, and its progress is shown."""
        try:
            with self.allocations.measuring(spec, test):
                yield
        finally:
            self.progress.end_measurement()

    def run(
        self,
        spec: Spec,
        test: str,
        *,
        number: int,
        total: int,
        explain: bool = False,
        without: Collection[str] = (),
        stack: str | None = None,
    ) -> Run:
        """Train once, on other hosts if the cluster reclaims the first ones, and keep the logs in any case.

        Args:
            number: the number of this run in its measurement; `total`: the number of all runs, to show.
            explain: trace some more steps after the measured ones.
            without: hosts that are not used.
            stack: the software stack, by its name in `allocations.stacks`.

        Raises:
            DtfPerfError: any error of `Launcher.run`.
        """
        logs = self.folder.new_logs(test)
        try:
            for is_last_try in (False, True):
                try:
                    launcher = self.allocations.get_launcher(spec, stack)
                    self._has_run_since_probe = True
                    self.progress.run_started(spec, number, total, stack)
                    run = launcher.run(
                        spec,
                        log_dir=logs,
                        injected_slowdowns=self.injected_slowdowns,
                        on_progress=self.progress.step,
                        explain=explain,
                        without=without,
                    )
                    break
                except AllocationOver as over:
                    if is_last_try:
                        raise
                    self.allocations.release()
                    self.progress.waiting(f"{get_first_line(over)}: requesting other hosts")
        except BaseException as error:
            self.progress.run_failed(get_first_line(error))
            raise
        self.progress.run_ended(run)
        return run

    def probe_capacity(self, spec: Spec) -> None:
        """Probe the hosts and links of a training, for the limits of measurements on them.

        Hosts that this session or another one probed within the hour are not probed again. Nothing is done with
        `--explain=never`, or for an external command, which has no limit. Nothing is raised: the limit is unknown then, and
        the training raises what prevents it.
        """
        if self.settings.explain == "never" or spec.command:
            return
        try:
            launcher = self.allocations.get_launcher(spec)
            found = launcher.probe_capacity(spec, on_begin=lambda: self.progress.waiting(PROBING))
            self._note_readings(launcher)
        except DtfPerfError as error:
            found = Probes(unknown={ALL: get_first_line(error)})
        except Exception as error:  # a defect of a probe affects only the limit
            found = Probes(unknown={ALL: f"{type(error).__name__}: {' '.join(str(error).split())}"})
        self._capacity = merge_probes(self._capacity, found)

    def fit_to_time(self, specs: Sequence[Spec], test: str, given: Collection[str]) -> list[Spec]:
        """Return specs to be measured in turn, with as many steps as the test's share of the time budget allows, never more.

        Steps that the test or the command line sets stay, as do those of a training that is evaluated. All steps stay on GPUs,
        where they are short, where the limit is unknown, and where each measurement has an allocation of its own, which ends
        with the probe. A training that another test has measured has the steps of that measurement, which is used again.

        Args:
            given: the fields that the test sets.
        """
        budget = self.time_budget
        if budget is None or "steps" in {*given, *self.settings.overrides} or not budget.begin(test):
            return list(specs)
        fitted = {spec: self._find_fitted(spec, test) for spec in specs}
        new = [spec for spec, found in fitted.items() if found is None]
        for spec in new:
            step_s = None if is_evaluated(spec) else self._predict_step_s(spec, test)
            fitted[spec] = spec if step_s is None else spec.replace(steps=budget.choose_steps(spec, step_s, test, len(new)))
        return [fitted[spec] or spec for spec in specs]

    def _find_fitted(self, spec: Spec, test: str) -> Spec | None:
        """Return the spec with the steps with which another test of this session has measured it; None: none has."""
        measured = self.folder.measurements() if self.has_measured and not is_evaluated(spec) else []
        others = (each.spec for each in measured if each.is_valid and each.test != test and each.spec.key == spec.key)
        return next((each for each in others if each == spec.replace(steps=each.steps)), None)

    def can_explain(self, test: str, least_s: float) -> bool:
        """Return whether the analysis of a verdict may take so many seconds more."""
        return self.time_budget is None or self.time_budget.can_explain(test, least_s)

    def estimate_run_s(self, spec: Spec, test: str) -> float:
        """Return about how many seconds a run takes; 0.0: unknown.

        The first that exists counts: runs of a similar training in this session, those of earlier sessions, the probed cores.
        """
        of_session = ClusterPast([self.folder.get_latest()], {})
        if found := of_session.training(spec, (1, 1)) or self.past.training(spec, (1, 1)):
            return found.likely_s
        step_s = self._predict_step_s(spec, test)
        return 0.0 if step_s is None else (of_session.start_s or 0.0) + (spec.warmup_steps + spec.steps) * step_s

    @cached_property
    def past(self) -> ClusterPast:
        """The durations of earlier trainings on this cluster."""
        return ClusterPast(load_earlier_sessions(self.results, self.config.name), self.store.rates())

    def _predict_step_s(self, spec: Spec, test: str) -> float | None:
        """Return about how many seconds a step takes on the probed cores; None: unknown, as on GPUs."""
        if self.cluster.device != "cpu" or self.config.allocation == "test" or spec.command:
            return None
        try:
            with self.measuring(spec, test):
                self.probe_capacity(spec)
                layout = self.allocations.get_launcher(spec).layout(spec)
        except DtfPerfError:  # the training will raise it
            return None
        return predict_step_s(spec, layout, self.capacity)

    @property
    def capacity(self) -> Probes:
        """The probes of this session's hosts and links."""
        return self._capacity

    def probe(self, record: Record, *, pairs: bool = False, again: bool = False) -> Record:
        """Return the record with the probes of its hosts and links, and store them.

        The record is unchanged with `--explain=never`, and if no hosts are allocated any more. Nothing is raised: a failed
        probe is `unknown`, with the reason.

        Args:
            pairs: probe each link by itself, too.
            again: repeat probes that were made before the last run on this allocation.
        """
        if self.settings.explain == "never":
            return record
        try:
            found = self._probe(record, pairs, again)
        except DtfPerfError as error:
            found = Probes(unknown={ALL: get_first_line(error)})
        return self.folder.note_probes(record.id, found) if found else record

    def _probe(self, record: Record, pairs: bool, again: bool) -> Probes | None:
        with self.allocations.hold_between_runs(record.spec, record.test) as launcher:
            if launcher is None:
                return None
            self.progress.waiting(PROBING)
            try:
                found = launcher.probe(record.spec, pairs=pairs, again=again and self._has_run_since_probe)
            finally:
                self.progress.end_measurement()
            self._has_run_since_probe = False
            self._note_readings(launcher)
            return found

    def _note_readings(self, launcher: Launcher) -> None:
        """Store the readings of undisturbed hosts from the last probe, for the history."""
        probes = {host: probe for host, probe in launcher.probed.hosts.items() if not is_disturbed(probe)}
        hardware = {host: launcher.collect_fingerprint([host]).hardware for host in probes}
        readings = [each for host in probes for each in HostReading.list_probed(host, hardware[host], probes[host])]
        append_host_readings(self.folder, readings)

    def _check_wait(self, test: str) -> None:
        if self.time_budget:
            self.time_budget.check_wait(test)

    def release(self) -> None:
        """Release the hosts, if there are any, and clear the progress display."""
        try:
            self.allocations.release()
        finally:
            if self._progress:
                self._progress.close()
