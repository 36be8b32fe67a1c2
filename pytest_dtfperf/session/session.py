"""Open a session on a cluster: an object that measures and judges, and releases its hosts when it is closed.

At its end baselines are accepted, its folder is completed, and exports are written, with and without pytest (`Completion`).
"""

import io
import math
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pytest_dtfperf.baselines.accept import Acceptance, Candidate, accept, explain_refusal
from pytest_dtfperf.baselines.entry import Provenance
from pytest_dtfperf.baselines.judgement import Judgement
from pytest_dtfperf.baselines.store import BaselineStore
from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.clusters import capacity, named
from pytest_dtfperf.compare.blocks import ABPolicy
from pytest_dtfperf.compare.record import ComparisonRecord
from pytest_dtfperf.compare.variants import Variant
from pytest_dtfperf.errors import DtfPerfError, ExportFailed, SessionFileError, UsageError, describe_unknown_name
from pytest_dtfperf.history.enter import HistoryEntry
from pytest_dtfperf.history.where import mask_passwords
from pytest_dtfperf.node.files import format_kind, is_regular_or_new
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.records.session import new_session_id
from pytest_dtfperf.report import session_exports
from pytest_dtfperf.report.progress import Progress
from pytest_dtfperf.report.series import PublishedPoint, find_published_rates
from pytest_dtfperf.report.session_exports import SessionResults
from pytest_dtfperf.session import preflight, signals
from pytest_dtfperf.session.comparison import ABComparison, StackComparing
from pytest_dtfperf.session.context import SessionContext, commit_of, versions
from pytest_dtfperf.session.experiment import Experiment
from pytest_dtfperf.session.own_models import with_name
from pytest_dtfperf.session.resolve import read_slowdowns, resolve
from pytest_dtfperf.session.settings import Settings
from pytest_dtfperf.spec import Spec, tables
from pytest_dtfperf.spec.checks import ZMQ_PRODUCER

# The outcome in session.json; the numbers are pytest's exit codes.
DONE, RED, INTERRUPTED, BROKEN = 0, 1, 2, 3


@dataclass(kw_only=True, eq=False)
class Session(SessionContext):
    """Measures on one cluster; `open` makes one. Hosts are allocated when something is first measured, and released by `close`.

    A `with` block closes it in any case: after an exception, Ctrl-C, SIGTERM or SIGHUP (which raise `SystemExit` within it,
    unless the program handles them itself). Measurements up to then are in the session folder.

    Attributes:
        id: the session's name, also of its folder.
        cluster: what the session trains on, read-only.
        store: the baselines.
        acceptance: the baselines that `close` has accepted.
        comparisons: the comparisons of software stacks, in their order.
        remarks: messages of `close` on the history and on exports that failed.
    """

    acceptance: Acceptance | None = field(default=None, init=False)
    remarks: Sequence[str] = field(default=(), init=False)
    _began_s: float = field(default_factory=time.monotonic, init=False)
    _signals: ExitStack = field(default_factory=ExitStack, init=False)
    _experiments: dict[str, Experiment] = field(default_factory=dict, init=False)
    comparisons: list[ABComparison] = field(default_factory=list, init=False)
    _is_closed: bool = field(default=False, init=False)

    @classmethod
    def open(
        cls,
        cluster: str = "local",
        *,
        clusters_file: Path | str | None = None,
        baselines: Path | str = "baselines",
        results: Path | str = "perf_results",
        settings: Settings | None = None,
        hosts: str | None = None,
        specs: Sequence[Spec] = (),
        tests: int = 1,
        progress: Progress | None = None,
        quiet: bool = False,
    ) -> Self:
        """Open a session on a cluster of clusters.toml. Nothing is allocated yet.

        Args:
            clusters_file: by default clusters.toml here, in perf_tests/, or in a folder above.
            hosts: only these hosts of the cluster, as "node03,node07"; by default all.
            specs: later measurements, as far as known, so that hosts are allocated once, for the largest of them.
            tests: how many measurements will be judged; they share the allowed false alarms.
            progress: where progress is shown; by default on stderr, or with `quiet` nowhere.

        Raises:
            UsageError: an argument or a file is invalid; nothing is started then.
        """
        _, config = named.choose(cluster, clusters_file, ["."])
        if hosts is not None:
            chosen = capacity.select_hosts(config, hosts)
            if chosen is None:
                raise UsageError(f"{config.name} does not allocate hosts by name: choose hosts by their number, or all")
            config = chosen
        session = cls(
            config=config,
            settings=settings or Settings(),
            store=BaselineStore(Path(baselines)),
            results=Path(results).absolute(),
            id=new_session_id(),
            command=[mask_passwords(word.encode(errors="replace").decode()) for word in sys.argv],
            make_progress=lambda: progress or _make_progress(quiet),
            tests=tests,
            expected=[capacity.compute_need(config, spec.gpus, spec.num_ps) for spec in specs],
            injected_slowdowns=read_slowdowns(os.environ),
        )
        session.check_baselines(f"cluster {config.name}")
        session.history()
        session.check_runnable()
        tables.expire_own_models()
        return session

    def __enter__(self) -> Self:
        self._signals.enter_context(signals.raise_exit())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self._signals:
            self._close(error)

    def close(self) -> None:
        """Release the hosts, accept baselines, and complete the session folder. The second call does nothing.

        Raises:
            SessionFileError: measurements could not be written.
            BaselineFileError: a file of baselines cannot be read or written.
        """
        self._close(None)

    # -- checks before anything is started

    def check_baselines(self, where: str) -> None:
        """Check that the baselines can be read, and contain the file that the cluster's table names. Raises `UsageError`."""
        self.store.check()
        known, system = self.store.systems_with_thresholds(), self.config.thresholds
        if system and system not in known:
            raise UsageError(f"{where} thresholds: {describe_unknown_name('system', system, known)}")

    def check_runnable(self) -> None:
        """Check that the requirements of runs exist, and that their folders have room. Raises `UsageError`."""
        _check_environment()
        if (address := self.history()) and address.path and not is_regular_or_new(address.path):
            raise UsageError(
                f"the history {address} is {format_kind(address.path.stat().st_mode)}, and no file: --history names another"
            )
        named.check_tensorflow(self.config, capacity.predict_device(self.config))
        if self.settings.update_baselines:
            self.store.check_writable()
        accepts = [preflight.baselines(self.store.folder)] if self.settings.update_baselines else []
        preflight.check_folders([preflight.results(self.results), *accepts, preflight.runtime(), preflight.temporary()])

    # -- measurements and checks

    def spec(self, model: Any = None, **wanted: Any) -> Spec:
        """Return the training, with the settings', the cluster's and the model's values for omitted fields.

        Args:
            model: a name, or a model of your own (docs/own-models.md).
            wanted: fields of `Spec`.

        Raises:
            SpecError: the training is impossible.
        """
        if model is not None:
            wanted["model"] = model
        wanted = with_name(wanted)
        cluster = self.cluster
        return resolve(
            wanted,
            self.settings,
            cluster.settings(wanted.get("model") or ""),
            cluster.device,
            between_hosts=cluster.between_hosts,
        )

    def measure(self, spec: Spec, *, test: str | None = None, repeats: int | None = None) -> Record:
        """Train until the comparison with the baseline is decided, or `repeats` times, and record the measurement.

        A spec that this session has measured under another name is not trained again.

        Args:
            test: its name in the records, by default the spec's label.

        Raises:
            SpecError, RunFailed, InvalidMeasurement, InfrastructureError: of a run.
        """
        return self._experiment(test or spec.label).measure([spec], repeats)[0]

    def sweep(self, spec: Spec, *, test: str | None = None, repeats: int | None = None) -> Record:
        """Return the measurement with the fastest number of parameter servers; the spec's own number does not count.

        Several short runs find two numbers that are measured in full; both are recorded. Raises the errors of `measure`.
        """
        return self._experiment(test or spec.label).sweep(spec, repeats)

    def measure_in_turn(self, specs: Sequence[Spec], *, test: str, repeats: int | None = None) -> list[Record]:
        """Measure specs for a comparison, a run of each in turn, so that a machine's drift affects them equally."""
        return self._experiment(test).measure(specs, repeats)

    def check(self, measured: Record, *, margin: float | None = None) -> Judgement:
        """Compare with the stored baseline, after further runs if they may be decisive; `experiment` has the other checks."""
        test = next((test for record, test in reversed(self.terms) if record == measured.id), measured.test)
        return self._experiment(test).check(measured, margin=margin)

    def compare(
        self,
        variants: Sequence[Variant],
        specs: Sequence[Spec],
        *,
        policy: ABPolicy | None = None,
        seed: int | None = None,
        same: bool = False,
        time_limit_s: float = math.inf,
    ) -> list[ABComparison]:
        """Compare software stacks by runs in turn on the same hosts, and write comparisons.jsonl. Baselines stay unchanged.

        Args:
            variants: two or more, of which the first is the reference (`compare.variants`).
            specs: the trainings; each variant adds its own fields.
            seed: of the random orders; None: drawn.
            same: whether the variants may be equal, to measure the noise between them.
            time_limit_s: no further block begins that would end later.

        Raises:
            UsageError: variants are equal, or a variant cannot train a spec; nothing is started then.
            AllocationError: no hosts are allocated, or a variant's agents do not start.
        """
        return self.prepare_comparison(variants, specs, policy=policy, seed=seed, same=same).carry_out(time_limit_s)

    def prepare_comparison(
        self,
        variants: Sequence[Variant],
        specs: Sequence[Spec],
        *,
        policy: ABPolicy | None = None,
        seed: int | None = None,
        same: bool = False,
        later: int = 0,
        test: str = "dtfperf ab",
    ) -> StackComparing:
        """Return the object that carries out `compare`, and has the comparisons also while they are made.

        Args:
            later: how many further comparisons will probably follow: they share the allowed error.
            test: shown to other sessions while they wait for the hosts.
        """
        if self._is_closed:
            raise UsageError(f"session {self.id} is closed: open another one")
        found = StackComparing(
            self,
            variants,
            specs,
            policy=policy or ABPolicy(),
            seed=seed,
            same=same,
            earlier=tuple(self.comparisons),
            later=later,
            test=test,
        )
        self.comparisons += found.comparisons
        return found

    def experiment(
        self,
        test: str,
        *,
        margin: float | None = None,
        efficiency: float | None = None,
        checks: int | None = None,
        on_record: Callable[[Record], object] = lambda record: None,
        attempt: int = 1,
    ) -> Experiment:
        """Return an object that measures and judges for a test of several checks, which share its part of the false alarms.

        Args:
            checks: the number of checks, which share it evenly; None: each further one gets less than the one before.
        """
        if self._is_closed:
            raise UsageError(f"session {self.id} is closed: open another one")
        return Experiment(self, test, margin=margin, efficiency=efficiency, checks=checks, on_record=on_record, attempt=attempt)

    def _experiment(self, test: str) -> Experiment:
        """Return the experiment of this name, with checks that share its false alarms."""
        return self._experiments.setdefault(test, self.experiment(test))

    def _close(self, error: BaseException | None) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self.release()
        finally:
            if self.has_measured:
                self._finish(error)

    def _finish(self, error: BaseException | None) -> None:
        """Make all last steps, even after failures, and raise the first failure if the session raised no error."""
        failures: list[Exception] = []
        completion = Completion(self, Path.cwd(), self._began_s, partial(_keep_failure, failures))
        if error is None:
            completion.accept()
        code = _exit_code(error or next(iter(failures), None), (record.verdict for record in completion.records))
        completion.finish(RED if code == DONE and any(each.verdict.is_bad for each in self.comparisons) else code)
        completion.export(comparisons=[each.to_record() for each in self.comparisons])
        self.acceptance = completion.acceptance
        exports = [str(failure) for failure in failures if isinstance(failure, ExportFailed)]  # affect their files only
        self.remarks = [*completion.remembered.lines, *exports]
        others = [failure for failure in failures if not isinstance(failure, ExportFailed)]
        if self.folder.write_failure:
            others.append(SessionFileError(self.folder.write_failure))
        if error is None and others:
            raise others[0]


@contextmanager
def _keep_failure(failures: list[Exception]) -> Iterator[None]:
    """Keep an error of a last step, so that the other steps are made."""
    try:
        yield
    except (DtfPerfError, OSError) as error:
        failures.append(error)


def _check_environment() -> None:
    """Raise `UsageError` for an invalid variable that only hosts read."""
    try:
        shlex.split(os.environ.get(ZMQ_PRODUCER, ""))
    except ValueError as exc:
        raise UsageError(f"{ZMQ_PRODUCER}={os.environ[ZMQ_PRODUCER]} is no command: {exc}") from exc


def _exit_code(error: BaseException | None, verdicts: Iterable[Verdict | None]) -> int:
    if error is None:
        return RED if any(verdict.fails(strict=False) for verdict in verdicts if verdict) else DONE
    return BROKEN if isinstance(error, Exception) else INTERRUPTED


def _make_progress(quiet: bool) -> Progress:
    if quiet:
        return Progress(io.StringIO(), is_terminal=False)
    return Progress(sys.stderr, is_terminal=sys.stderr.isatty())


def will_accept(judgement: Judgement, record: Record, settings: Settings) -> bool:
    """Return whether the session accepts this measurement as the new baseline, so that its verdict is no problem."""
    verdict, wanted = judgement.verdict, settings.update_baselines
    if judgement.kind != "baseline" or wanted is None or not (verdict.needs_reason or verdict.lacks_baseline):
        return False
    return explain_refusal(judgement, record.measurement, wanted, settings.allow_regression) is None


def accept_records(session: SessionContext, records: Sequence[Record], root: Path) -> Acceptance | None:
    """Make baselines of records that were compared with one, or found none; the last measurement of a spec counts.

    Args:
        root: A folder of the repository that the entries' commit is read from.

    Returns:
        None if the settings accept nothing.
    """
    settings = session.settings
    if settings.update_baselines is None:
        return None
    commit, started = commit_of(root), session.folder.session.started
    judged = [(record, record.verdict) for record in records if record.verdict]
    compared = [each for each in judged if any(check.kind == "baseline" for check in each[0].checks)]
    latest = {record.spec.key: (record, verdict) for record, verdict in compared}
    known = versions(session.packages)
    candidates = [
        Candidate(
            record.measurement,
            Judgement(verdict, record.reason or "", change=record.change),
            Provenance(session=session.id, test=record.test, date=started, versions=known, commit=commit),
        )
        for record, verdict in latest.values()
    ]
    acceptance = accept(session.store, candidates, mode=settings.update_baselines, reason=settings.allow_regression)
    written = {change.new.key for change in acceptance.changes}
    session.folder.accept([record.id for key, (record, _) in latest.items() if key in written])
    return acceptance


class Completion:
    """The last steps of a session, to be called in the order of the methods. A failed step does not prevent later ones.

    `guard` is entered around each step: it keeps a `DtfPerfError` or an `OSError` of the step. `root` is a folder of the
    repository with the commit to record, `began_s` the session's start by time.monotonic().
    """

    def __init__(
        self, session: SessionContext, root: Path, began_s: float, guard: Callable[[], AbstractContextManager[object]]
    ) -> None:
        self._session = session
        self._root = root
        self._began_s = began_s
        self._guard = guard
        self.acceptance: Acceptance | None = None
        self.remembered = HistoryEntry()
        self.published: Sequence[PublishedPoint] = ()
        self.remarks: list[str] = []  # messages about exports
        self.records: Sequence[Record] = session.folder.get_latest()
        with guard():
            self.records = session.folder.measurements()

    def accept(self) -> None:
        """Accept measurements as baselines if the settings require it."""
        with self._guard():
            self.acceptance = accept_records(self._session, self.records, self._root)
            self.records = self._session.folder.measurements() if self.acceptance else self.records

    def finish(self, exit_code: int, verdicts: Mapping[str, int] | None = None) -> None:
        """Record how the session ended, here and in the history; `verdicts` replaces those of the measurements."""
        with self._guard():
            wall_s = time.monotonic() - self._began_s
            commit = commit_of(self._root)
            self._session.folder.finish(exit_code=exit_code, wall_s=wall_s, verdicts=verdicts, commit=commit)
        self.remembered = self._session.remember()

    def export(self, sections: Sequence[tuple[str, Sequence[str]]] = (), comparisons: Sequence[ComparisonRecord] = ()) -> None:
        """Write the exports, with the `sections` of other plugins."""
        with self._guard():
            self.published = find_published_rates(self.records)
        results = SessionResults(self.records, self.published, self.remembered.pasts, sections, comparisons)
        for name in session_exports.EXPORTS:
            with self._guard():
                self.remarks += session_exports.write_export(name, self._session.folder, results)
