"""What a session measures with: a cluster's hosts, a folder for what they yield, baselines to hold that against."""

import platform
import subprocess
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

from pytest_dtfperf import extensions
from pytest_dtfperf.baselines.comparability import system_name
from pytest_dtfperf.baselines.store import BaselineStore
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.clusters.protocol import Resources
from pytest_dtfperf.errors import DtfPerfError, first_line
from pytest_dtfperf.explain.probes import ALL, Probes
from pytest_dtfperf.history.enter import Remembered, enter, remember
from pytest_dtfperf.history.where import Address, address_of, asked_for
from pytest_dtfperf.launch.launcher import Launcher
from pytest_dtfperf.measurement import Run
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.records.session import SessionFolder
from pytest_dtfperf.report.progress import Progress
from pytest_dtfperf.session.allocation_manager import Lending
from pytest_dtfperf.session.cluster import ClusterInfo
from pytest_dtfperf.session.settings import Settings
from pytest_dtfperf.spec import Spec

PACKAGES = ("pytest-dtfperf", "tensorflow", "tensorflow-cpu")


def versions(more: Sequence[str] = ()) -> dict[str, str]:
    """Of Python, of `more` packages, of our own and TensorFlow's, and of those that add to our tables; as far as installed."""
    found = {"python": platform.python_version(), **extensions.packages()}
    for package in (*more, *PACKAGES):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


@dataclass(kw_only=True)
class Bench:
    """Nothing is lent, made or written before it is first needed."""

    config: ClusterConfig
    settings: Settings
    store: BaselineStore
    results: Path  # where session folders are
    session_id: str
    command: Sequence[str]  # what was started, as it is kept with the results
    show: Callable[[], Progress]  # where progress is shown; asked once
    tests: int = 1  # which share the false alarms that there may be
    expected: Sequence[Resources] = ()  # what will be needed, as far as that is known
    injected_slowdowns: Mapping[str, float] = field(default_factory=dict)  # task -> seconds it is made to sleep in every step
    packages: Sequence[str] = ()  # further ones whose versions are kept with the results
    while_waiting: Callable[[], AbstractContextManager[object]] = nullcontext  # entered while it waits for hosts

    @cached_property
    def progress(self) -> Progress:
        return self.show()

    @cached_property
    def cluster(self) -> ClusterInfo:
        return ClusterInfo(self.config, lambda: self.lending.launcher)

    @cached_property
    def lending(self) -> Lending:
        """The hosts; none are lent before somebody trains or asks for them."""
        return Lending(
            self.config,
            session=self.session_id,
            expected=self.expected,
            on_status=lambda words: self.progress.waiting(words),
            spent=lambda bill: self.folder.spend(bill),
            while_waiting=self.while_waiting,
        )

    @cached_property
    def folder(self) -> SessionFolder:
        """The session folder; made by the first process that measures."""
        return SessionFolder.create(
            self.results,
            session_id=self.session_id,
            cluster=self.config.name,
            command=self.command,
            versions=versions(self.packages),
            budget={"false_alarms": self.settings.false_alarms, "tests": self.tests},
        )

    def history(self) -> Address | None:
        """Where the session is entered when it ends; None: nowhere. Raises `UsageError`."""
        return address_of(asked_for(self.settings.history), self.results)

    def remember(self) -> Remembered:
        """Enter the session in the history, where one is kept; gives what there is to say of it. Nothing else depends on it."""
        address = self.history()
        return remember(self.folder, address) if address else Remembered()

    def fail(self, exit_code: int) -> None:
        """Write down in the folder and the history that the session ends otherwise after all. Raises `SessionFileError`."""
        self.folder.fail(exit_code)
        if address := self.history():
            enter(self.folder, address)

    @property
    def has_measured(self) -> bool:
        """Whether there is a session folder: this process has made it, or another of this session."""
        return "folder" in self.__dict__ or (self.results / self.session_id / "session.json").exists()

    @property
    def unkept(self) -> str | None:
        """Why the disk lacks measurements of this process, or None."""
        return self.folder.refused if "folder" in self.__dict__ and self.folder.unwritten else None

    def thresholds(self, fingerprint: Mapping[str, Any]) -> list[str]:
        """Whose files say what is asked of hosts: their hardware's, then the one that clusters.toml names."""
        system = system_name(fingerprint.get("hardware", {}))
        return [system, *([self.config.thresholds] if self.config.thresholds else [])]

    @contextmanager
    def measuring(self, spec: Spec, test: str) -> Iterator[None]:
        """Around the runs of one measurement: whatever other sessions must not do meanwhile, and the progress shown of it."""
        try:
            with self.lending.measuring(spec, test):
                yield
        finally:
            self.progress.measured()

    def run(self, spec: Spec, test: str, *, number: int, of: int, explain: bool = False, without: Collection[str] = ()) -> Run:
        """One run, shown while it goes on, with some further steps that are traced if it is to `explain` itself.

        `without`: hosts that it may not use. Its logs are kept whatever becomes of it. Raises what `Launcher.run` raises.
        """
        logs = self.folder.new_logs(test)

        def train(launcher: Launcher) -> Run:
            self.progress.run_started(spec, number, of)
            return launcher.run(
                spec,
                log_dir=logs,
                injected_slowdowns=self.injected_slowdowns,
                on_progress=self.progress.step,
                explain=explain,
                without=without,
            )

        try:
            run = self.lending.run(spec, train)
        except BaseException as error:
            self.progress.run_failed(first_line(error))
            raise
        self.progress.run_ended(run)
        return run

    def probe(self, record: Record, *, pairs: bool = False) -> Record:
        """The record with what its hosts and links can do (`Probes`), and that kept with it; `pairs`: each link alone, too.

        What was probed before on the same allocation is not probed again. As it was where nobody wants it (`--explain=never`),
        or no hosts are lent any more. What cannot be found out is `unknown`, with the reason: nothing is raised for it.
        """
        if self.settings.explain == "never":
            return record
        try:
            found = self._probes(record, pairs)
        except DtfPerfError as error:
            found = Probes(unknown={ALL: first_line(error)})
        return self.folder.note_probes(record.id, found.to_json()) if found else record

    def _probes(self, record: Record, pairs: bool) -> Probes | None:
        with self.lending.between_runs(record.spec, record.test) as launcher:
            if launcher is None:
                return None
            self.progress.waiting("measuring what the hosts can do")
            try:
                return launcher.probe(record.spec, pairs=pairs)
            finally:
                self.progress.measured()

    def close(self) -> None:
        """Give the hosts back, if there are any, and leave the terminal as it was."""
        try:
            if "lending" in self.__dict__:
                self.lending.give_back()
        finally:
            if "progress" in self.__dict__:
                self.progress.close()


GIT_TIMEOUT_S = 10.0  # a commit is worth a line, not a hanging session


def commit_of(root: Path) -> str | None:
    """The commit of the repository that `root` is in, if it is in one."""
    try:
        found = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None if found.returncode == 0 else None
