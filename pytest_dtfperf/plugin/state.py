"""What one pytest process knows and holds: options, cluster, session folder, baselines. Each is opened when first needed."""

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.baselines.store import BaselineStore
from pytest_dtfperf.baselines.system import system_name
from pytest_dtfperf.clusters import capacity, named
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.errors import UsageError, shown, unknown_name
from pytest_dtfperf.launch.run import Launcher
from pytest_dtfperf.measurement import Run
from pytest_dtfperf.plugin import options as command_line
from pytest_dtfperf.plugin import planted, sizes, writable
from pytest_dtfperf.plugin.display import Display
from pytest_dtfperf.plugin.lending import Lending
from pytest_dtfperf.plugin.parametrise import cannot_hold
from pytest_dtfperf.plugin.rehearsal import REASON, Rehearsal
from pytest_dtfperf.plugin.resolve import settings
from pytest_dtfperf.report.duration import Past, earlier
from pytest_dtfperf.report.progress import Progress
from pytest_dtfperf.report.session import SessionFolder
from pytest_dtfperf.spec import Spec


class PerfSession:
    """One session of perf tests, as this process sees it; xdist workers have one each, over one session folder."""

    def __init__(self, config: pytest.Config, session_id: str, starts: Sequence[Path]) -> None:
        self.options = command_line.read(config)
        self.planted = planted.read(os.environ)
        self.root = config.rootpath
        self._results = self.options.perf_results or self.root / "perf_results"
        self.session_id = session_id
        self.deselected: dict[str, int] = {}  # why -> how many tests
        self.tests: Sequence[str] = ()  # pytest's node ids of those that are left
        self.collected: Sequence[Mapping[str, Any]] = ()  # the parameters of each test that is left
        self.fixed: set[str] = set()  # records of which a test has said how many runs it wants
        self._pytest = config
        self._starts = starts
        self._held = ExitStack()

    @cached_property
    def rehearsal(self) -> Rehearsal | None:
        """What notes trainings in a dry run, where nothing else happens to them."""
        return Rehearsal(self) if self.options.dry_run else None

    def check(self) -> None:
        """Read the cluster file and the baselines before anything is started. Raises `UsageError`."""
        self._check_command()
        self._chosen  # noqa: B018 - reads it
        self.store.check()
        known = self.store.systems_with_thresholds()
        if self.config.thresholds and self.config.thresholds not in known:
            what = unknown_name("system", self.config.thresholds, known)
            raise UsageError(f"{self.clusters_file}: [{self.name}] thresholds: {what}")

    def _check_command(self) -> None:
        for word in self._command:
            if not _is_text(word):
                raise UsageError(f"the argument {shown(word)} is not UTF-8, which the command is kept in with the results")

    @property
    def _command(self) -> list[str]:
        return ["pytest", *map(str, self._pytest.invocation_params.args)]

    def check_runnable(self) -> None:
        """Called when there are tests to be run. Raises `UsageError`."""
        if self.rehearsal:
            return
        named.check_tensorflow(self.config, self.device)
        accepts = [writable.baselines(self.store.folder)] if self.options.update_baselines else []
        writable.check([writable.results(self._results), *accepts, writable.runtime(), writable.temporary()])

    # -- the cluster

    @cached_property
    def _chosen(self) -> tuple[Path | None, ClusterConfig]:
        return named.choose(self.options.cluster, self.options.clusters_file, self._starts)

    @property
    def clusters_file(self) -> Path | None:
        return self._chosen[0]

    @property
    def config(self) -> ClusterConfig:
        return self._chosen[1]

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def backend(self) -> str:
        return self.config.backend

    @cached_property
    def devices(self) -> int:
        """Devices of the whole cluster, as far as can be told without asking it."""
        return capacity.devices(self.config) or self.devices_per_host

    @cached_property
    def devices_per_host(self) -> int:
        return capacity.devices_per_host(self.config) or 1

    @cached_property
    def device(self) -> str:
        """What does the arithmetic: "gpu" or "cpu"."""
        return capacity.device(self.config)

    def cannot_hold(self, test: Mapping[str, Any]) -> str | None:
        """Why a test with these parameters cannot run here, or None."""
        unfit = cannot_hold(test, self.name, capacity.devices(self.config), self.devices_per_host)
        return unfit or sizes.too_large(test, self.config)

    def settings(self, model: str) -> dict[str, Any]:
        """What clusters.toml says of training a model here."""
        found = settings(self.config.training, self.config.models, model)
        return {"data_dir": self.config.data, **found} if self.config.data else found

    @cached_property
    def lending(self) -> Lending:
        """The hosts; none are lent before somebody trains or asks for them."""
        needs = (sizes.needed_by(test, self.options, self.config) for test in self.collected)
        return Lending(
            self.config,
            session=self.session_id,
            collected=[need for need in needs if need],
            tell=lambda words: self.progress.waiting(words),
            spent=lambda bill: self.folder.spend(bill),
        )

    @property
    def launcher(self) -> Launcher:
        """The agents. A dry run has none, so that a test which asks about the hosts is at its end."""
        if self.rehearsal:
            pytest.skip(REASON)
        return self.lending.launcher

    @property
    def hosts(self) -> Sequence[str]:
        return self.launcher.hosts

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """What all the hosts are."""
        return self._with_shares(self.launcher.fingerprint)

    def fingerprint_of(self, run: Run) -> Mapping[str, Any]:
        """What those hosts are that it was on, and what it ran there."""
        return {**self._with_shares(self.launcher.fingerprint_of(run.hosts)), "program": run.program}

    def _with_shares(self, found: Mapping[str, Any]) -> Mapping[str, Any]:
        """On a CPU, a device is a share of the cores: how many shares there are is part of what a host is."""
        if self.device == "gpu":
            return found
        return {**found, "hardware": {**found["hardware"], "cpu_devices": self.devices_per_host}}

    @property
    def system(self) -> str:
        """The hardware's name, which baselines are kept under."""
        return system_name(self.fingerprint["hardware"])

    # -- what is kept

    @cached_property
    def folder(self) -> SessionFolder:
        """The session folder; made by the first process that measures."""
        return SessionFolder.create(
            self._results,
            session_id=self.session_id,
            cluster=self.name,
            command=self._command,
            versions=versions(),
            budget={"false_alarms": self.options.false_alarms, "tests": len(self.collected)},
        )

    def stored_margin(self, fingerprint: Mapping[str, Any]) -> float | None:
        """What the baseline file of a system says may be lost there."""
        asked = (self.store.margin(system) for system in self._thresholds(fingerprint))
        return next((found for found in asked if found is not None), None)

    def stored_efficiency(self, fingerprint: Mapping[str, Any], spec: Spec) -> float | None:
        """What scaling efficiency the baseline file of a system asks for."""
        asked = (self.store.least_efficiency(system, spec.model, spec.gpus) for system in self._thresholds(fingerprint))
        return next((found for found in asked if found is not None), None)

    def _thresholds(self, fingerprint: Mapping[str, Any]) -> list[str]:
        """Whose files say what is asked of a place: its hardware's, then the one that clusters.toml names."""
        system = system_name(fingerprint.get("hardware", {}))
        return [system, *([self.config.thresholds] if self.config.thresholds else [])]

    @property
    def has_measured(self) -> bool:
        """Whether there is a session folder: this process has made it, or an xdist worker of this session."""
        return "folder" in self.__dict__ or (self._results / self.session_id / "session.json").exists()

    @property
    def unkept(self) -> str | None:
        """Why the disk lacks measurements of this process, or None."""
        return self.folder.refused if "folder" in self.__dict__ and self.folder.unwritten else None

    @cached_property
    def store(self) -> BaselineStore:
        return BaselineStore(self.options.baselines or self.root / "baselines")

    @cached_property
    def past(self) -> Past:
        """What is known of how long training takes on this cluster."""
        return Past(earlier(self._results, self.name), self.store.rates())

    # -- training

    @contextmanager
    def measuring(self, spec: Spec, test: str) -> Iterator[None]:
        """Around the runs of one measurement: whatever other sessions must not do meanwhile, and the progress shown of it."""
        try:
            with self.lending.measuring(spec, test):
                yield
        finally:
            self.progress.measured()

    def run(self, spec: Spec, test: str, *, number: int, of: int) -> Run:
        """One run, shown while it goes on; its logs are kept whatever becomes of it."""
        try:
            run = self.lending.run(
                spec,
                on_hosts=lambda: self.progress.run_started(spec, number, of),
                log_dir=self.folder.new_logs(test),
                planted=self.planted,
                on_progress=self.progress.step,
            )
        except BaseException as error:
            self.progress.run_failed(str(error).partition("\n")[0] or type(error).__name__)
            raise
        self.progress.run_ended(run)
        return run

    @cached_property
    def display(self) -> Display:
        """Registered as a plugin, so that it hears of tests."""
        display = Display(self, self._pytest)
        self._held.callback(display.close)
        return display

    @property
    def progress(self) -> Progress:
        return self.display.progress

    def close(self) -> None:
        """Give everything back. Called when the session ends, however it ends."""
        if "lending" in self.__dict__:
            self._held.callback(self.lending.give_back)
        self._held.close()

    # -- words

    def header(self) -> str:
        """One line at pytest's start."""
        place = [self.backend, *self._hosts_in_words(), f"{self.devices} {self.device} device{'s' * (self.devices > 1)}"]
        words = [f"cluster {self.name} ({', '.join(place)})"]
        words.append(f"baselines {self.store.folder}")
        if self.rehearsal:
            words.append("DRY RUN: nothing is started")
        elif warning := named.exposed(self.config):
            words.append(warning)
        if self.planted:
            words.append(f"DRILL {planted.VARIABLE}={os.environ[planted.VARIABLE]}")
        return "dtfperf: " + ", ".join(words)

    def _hosts_in_words(self) -> list[str]:
        """Nothing where there is no more than one."""
        hosts = capacity.hosts(self.config)
        if capacity.is_inside(self.config):
            return [f"inside a job with {hosts} host{'s' * (hosts != 1)}"]
        return [f"{hosts} hosts"] if hosts and hosts > 1 else []

    @property
    def rerun_options(self) -> list[str]:
        """What a test of this session needs to be run again alone: the options but those that accept."""
        return command_line.said(self._pytest, but=("update-baselines", "allow-regression"))


def _is_text(word: str) -> bool:
    """Whether the shell's bytes were UTF-8; Python hands on others as surrogates."""
    return not any("\ud800" <= sign <= "\udfff" for sign in word)


def versions() -> dict[str, str]:
    """Versions of what decides over the numbers, without importing any of it."""
    found = {"python": platform.python_version(), "pytest": pytest.__version__}
    for package in ("pytest-dtfperf", "tensorflow", "tensorflow-cpu"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
