"""A session: one object, opened on a cluster, that measures and judges, and gives back what it was lent when it is closed."""

import io
import os
import shlex
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pytest_dtfperf.baselines.accept import Acceptance
from pytest_dtfperf.baselines.store import BaselineStore
from pytest_dtfperf.baselines.verdict import Judgement, Verdict
from pytest_dtfperf.clusters import capacity, named
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.errors import DtfPerfError, ExportFailed, SessionFileError, UsageError, unknown_name
from pytest_dtfperf.history.where import masked
from pytest_dtfperf.node.files import is_regular_or_new, kind_of
from pytest_dtfperf.records.session import SessionFolder, new_session_id
from pytest_dtfperf.report.progress import Progress
from pytest_dtfperf.session import allocation_manager, preflight, signals
from pytest_dtfperf.session.asked import Measured
from pytest_dtfperf.session.bench import Bench
from pytest_dtfperf.session.cluster import ClusterInfo
from pytest_dtfperf.session.completion import Completion
from pytest_dtfperf.session.experiment import Experiment
from pytest_dtfperf.session.own_models import with_name
from pytest_dtfperf.session.resolve import read_slowdowns, resolve
from pytest_dtfperf.session.settings import Settings
from pytest_dtfperf.spec import Spec, tables
from pytest_dtfperf.spec.checks import ZMQ_PRODUCER

# How a session ended, as its session.json says; the numbers are pytest's.
DONE, RED, INTERRUPTED, BROKEN = 0, 1, 2, 3


class Session:
    """Measures on one cluster. Hosts are lent when something is first measured, and given back by `close`.

    A `with` block closes it, however it ends: by an exception, Ctrl-C, SIGTERM or SIGHUP (which raise `SystemExit` within it,
    unless the program handles them itself). What was measured until then is in the session folder.
    """

    def __init__(self, bench: Bench) -> None:
        """See `open`, which checks everything first."""
        self._bench = bench
        self._began_s = time.monotonic()
        self._signals = ExitStack()
        self._experiments: dict[str, Experiment] = {}
        self._is_closed = False
        self.acceptance: Acceptance | None = None  # what `close` has accepted
        self.remarks: Sequence[str] = ()  # what `close` has to say of the history

    @classmethod
    def open(
        cls,
        cluster: str = "local",
        *,
        clusters_file: Path | str | None = None,
        baselines: Path | str = "baselines",
        results: Path | str = "perf_results",
        settings: Settings | None = None,
        specs: Sequence[Spec] = (),
        tests: int = 1,
        progress: Progress | None = None,
        quiet: bool = False,
    ) -> Self:
        """A session on a cluster of clusters.toml: here, in perf_tests/, in a folder above, or where `clusters_file` says.

        `specs`: what will be measured, as far as that is known, so that hosts are lent once, for the largest of them.
        `tests`: how many measurements will be judged; they share the false alarms that there may be. Progress is shown on
        stderr, unless `progress` says where else, or `quiet` nowhere. Raises `UsageError` for what cannot be, before anything
        is started.
        """
        settings = settings or Settings()
        _, config = named.choose(cluster, clusters_file, ["."])
        store = BaselineStore(Path(baselines))
        check_stored(store, config, f"cluster {config.name}")
        bench = Bench(
            config=config,
            settings=settings,
            store=store,
            results=Path(results).absolute(),
            session_id=new_session_id(),
            command=[masked(word.encode(errors="replace").decode()) for word in sys.argv],
            show=lambda: progress or _progress(quiet),
            tests=tests,
            expected=[allocation_manager.needed(spec.gpus, spec.num_ps, config) for spec in specs],
            injected_slowdowns=read_slowdowns(os.environ),
        )
        bench.history()
        check_runnable(bench)
        tables.expire_own_models()
        return cls(bench)

    def __enter__(self) -> Self:
        self._signals.enter_context(signals.leaving())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self._signals:
            self._close(error)

    def close(self) -> None:
        """Give the hosts back, accept what is to be accepted, and complete the session folder. Nothing, the second time.

        Raises `SessionFileError` where the disk refused what was measured, and `BaselineFileError`.
        """
        self._close(None)

    # -- what it is

    @property
    def id(self) -> str:
        return self._bench.session_id

    @property
    def cluster(self) -> ClusterInfo:
        return self._bench.cluster

    @property
    def folder(self) -> SessionFolder:
        """What was measured, on disk; made when it is first asked for."""
        return self._bench.folder

    @property
    def has_measured(self) -> bool:
        """Whether there is such a folder."""
        return self._bench.has_measured

    @property
    def store(self) -> BaselineStore:
        return self._bench.store

    # -- what it does

    def spec(self, model: Any = None, **wanted: Any) -> Spec:
        """What is asked for, with what the settings, the cluster and the model say of the rest. Raises `SpecError`.

        `model` is a name, or a model of your own (docs/own-models.md).
        """
        if model is not None:
            wanted["model"] = model
        wanted = with_name(wanted)
        cluster = self.cluster
        return resolve(
            wanted,
            self._bench.settings,
            cluster.settings(wanted.get("model") or ""),
            cluster.device,
            between_hosts=cluster.between_hosts,
        )

    def measure(self, spec: Spec, *, test: str | None = None, repeats: int | None = None) -> Measured:
        """Train until the comparison with the baseline is decided, or as often as `repeats` says, and record that.

        `test` is the name that it is recorded under, by default the spec's label. What has been measured under another name in
        this session is not trained again. Raises `SpecError`, `RunFailed`, `InvalidMeasurement`, `InfrastructureError`.
        """
        return self._experiment(test or spec.label).measure([spec], repeats)[0]

    def sweep(self, spec: Spec, *, test: str | None = None, repeats: int | None = None) -> Measured:
        """The measurement with the number of parameter servers that is fastest, whatever number the spec has.

        Several short runs find the two that are measured in full; both are recorded. Raises what `measure` raises.
        """
        return self._experiment(test or spec.label).sweep(spec, repeats)

    def measure_in_turn(self, specs: Sequence[Spec], *, test: str, repeats: int | None = None) -> list[Measured]:
        """Several specs that are to be compared, a run of each in turn, so that a machine's drift is no difference."""
        return self._experiment(test).measure(specs, repeats)

    def check(self, measured: Measured, *, margin: float | None = None) -> Judgement:
        """Compare with the stored baseline, after further runs where they may decide; `experiment` has the other checks."""
        return self._experiment(measured.asked_by).check(measured, margin=margin).judgement

    def experiment(
        self, test: str, *, margin: float | None = None, efficiency: float | None = None, checks: int | None = None
    ) -> Experiment:
        """Return what measures and judges for a test of several checks, which share its part of the false alarms.

        `checks`: how many there will be, which then share it evenly; None: each further one gets less than the one before.
        """
        if self._is_closed:
            raise UsageError(f"session {self.id} is closed: open another one")
        return Experiment(self._bench, test, margin=margin, efficiency=efficiency, checks=checks)

    def _experiment(self, test: str) -> Experiment:
        """One for each name, so that its checks share what it may spend."""
        return self._experiments.setdefault(test, self.experiment(test))

    def _close(self, error: BaseException | None) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._bench.close()
        finally:
            if self._bench.has_measured:
                self._finish(error)

    def _finish(self, error: BaseException | None) -> None:
        """All of it, whatever becomes of its steps; then what went wrong there is raised, if nothing else was."""
        failures: list[Exception] = []
        completion = Completion(self._bench, Path.cwd(), self._began_s, partial(_kept, failures))
        if error is None:
            completion.accept()
        completion.finish(_code(error or next(iter(failures), None), (record.verdict for record in completion.records)))
        completion.export()
        self.acceptance = completion.acceptance
        others = [str(failure) for failure in failures if isinstance(failure, ExportFailed)]  # each costs its own files alone
        self.remarks = [*completion.remembered.lines, *others]
        ours = [failure for failure in failures if not isinstance(failure, ExportFailed)]
        if self._bench.folder.refused:
            ours.append(SessionFileError(self._bench.folder.refused))
        if error is None and ours:
            raise ours[0]


@contextmanager
def _kept(failures: list[Exception]) -> Iterator[None]:
    """Keep what goes wrong at the end, so that the rest of it is done all the same."""
    try:
        yield
    except (DtfPerfError, OSError) as error:
        failures.append(error)


def check_stored(store: BaselineStore, config: ClusterConfig, where: str) -> None:
    """Whether the baselines can be read, and have what the cluster's table names. Raises `UsageError`."""
    store.check()
    known = store.systems_with_thresholds()
    if config.thresholds and config.thresholds not in known:
        raise UsageError(f"{where} thresholds: {unknown_name('system', config.thresholds, known)}")


def check_runnable(bench: Bench) -> None:
    """Whether what runs take and leave is there and has room. Raises `UsageError`."""
    _check_environment()
    if (address := bench.history()) and address.path and not is_regular_or_new(address.path):
        raise UsageError(
            f"the history {address} is {kind_of(address.path.stat().st_mode)}, and no file: --history names another"
        )
    named.check_tensorflow(bench.config, capacity.predict_device(bench.config))
    if bench.settings.update_baselines:
        bench.store.check_writable()
    accepts = [preflight.baselines(bench.store.folder)] if bench.settings.update_baselines else []
    preflight.check_folders([preflight.results(bench.results), *accepts, preflight.runtime(), preflight.temporary()])


def _check_environment() -> None:
    """Raise `UsageError` for a variable that is read by hosts alone, and cannot be right."""
    try:
        shlex.split(os.environ.get(ZMQ_PRODUCER, ""))
    except ValueError as exc:
        raise UsageError(f"{ZMQ_PRODUCER}={os.environ[ZMQ_PRODUCER]} is no command: {exc}") from exc


def _code(error: BaseException | None, verdicts: Iterable[Verdict | None]) -> int:
    if error is None:
        return RED if any(verdict.fails(strict=False) for verdict in verdicts if verdict) else DONE
    return BROKEN if isinstance(error, Exception) else INTERRUPTED


def _progress(quiet: bool) -> Progress:
    if quiet:
        return Progress(io.StringIO(), is_terminal=False)
    return Progress(sys.stderr, is_terminal=sys.stderr.isatty())
