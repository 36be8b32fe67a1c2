"""Run a night: lock the cluster, run pytest until it ends or a deadline passes, write the summary and publish the site."""

import fcntl
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from pytest_dtfperf.errors import DtfPerfError, SessionFileError, UsageError, format_exit
from pytest_dtfperf.formats import format_count, minute
from pytest_dtfperf.history.enter import choose_address_of
from pytest_dtfperf.history.where import Address, get_requested, mask_passwords, parse_address
from pytest_dtfperf.nightly import notify, summary
from pytest_dtfperf.nightly.notify import Alert, Receiver
from pytest_dtfperf.nightly.summary import Loss, find_losses
from pytest_dtfperf.node.files import format_kind
from pytest_dtfperf.node.module_command import make_project_command
from pytest_dtfperf.node.processes import kill_group
from pytest_dtfperf.records.session import (
    ID_VARIABLE,
    SessionFolder,
    find_session,
    new_session_id,
    select_by_arguments,
    session_folders,
)
from pytest_dtfperf.report import metrics_targets
from pytest_dtfperf.report.export_formats import GaugeFamily, format_gauges, format_prometheus
from pytest_dtfperf.report.metrics_targets import Target
from pytest_dtfperf.report.sources import load_sessions
from pytest_dtfperf.session import signals

USAGE, DEADLINE = 4, 124  # pytest's own; timeout(1)'s
GRACE_S = 60.0  # teardown stops agents on every host and gives an allocation back; a slow scheduler takes half of that
UNFINISHED_S = 86400.0  # after which an unfinished session has ended without its exit code
SECRETS = (notify.VARIABLE, metrics_targets.VARIABLE)  # variables that neither pytest nor a host needs

OUTCOMES = {
    0: "All tests passed.",
    1: "Tests failed.",
    2: "pytest was interrupted.",
    3: "pytest itself broke.",
    USAGE: "pytest refused its options.",
    5: "No test was collected.",
}


def run_pytest(
    argv: Sequence[str],
    *,
    deadline_s: float,
    lock: int,
    session_id: str = "",
    output: TextIO | None = None,
    grace_s: float = GRACE_S,
) -> tuple[int, str]:
    """Run pytest to its end, or end it; returns the night's exit code and what happened.

    `lock`: a descriptor it inherits. `session_id`: of its session. `output`: what it prints to; our own stdout by default.
    """
    print(f"nightly: {mask_passwords(' '.join(argv))}", flush=True)
    with _record_signals() as received:
        ends_at_s = time.monotonic() + deadline_s
        env = {name: value for name, value in os.environ.items() if name not in SECRETS} | {ID_VARIABLE: session_id}
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=output, process_group=0, pass_fds=[lock], env=env)
        while process.poll() is None and not received and time.monotonic() < ends_at_s:
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=min(1.0, max(0.0, ends_at_s - time.monotonic())))
        code = process.poll()
        if code is None:
            _terminate(process, grace_s)
        kill_group(process.pid)  # what pytest left behind, or could not end of itself
        process.wait()
    if received:
        return 128 + received[0], f"{signal.Signals(received[0]).name} came, and pytest was ended."
    if code is None:
        return DEADLINE, f"The deadline of {deadline_s / 60:g} min passed, and pytest was ended."
    if code < 0:
        return 128 - code, f"pytest {format_exit(code)}."
    return code, OUTCOMES.get(code, f"pytest ended with exit code {code}.")


@contextmanager
def _record_signals() -> Iterator[list[int]]:
    """Note the signals that ask us to end, instead of ending with pytest left running; but what nohup has ignored stays so."""
    received: list[int] = []
    restore = signals.install(lambda number, frame: received.append(number), (signal.SIGINT, *signals.NUMBERS))
    try:
        yield received
    finally:
        restore()


def _terminate(process: subprocess.Popen[bytes], grace_s: float) -> None:
    """Ask pytest to end and let its teardown run: only pytest itself, for its agents and xdist workers are its own to end."""
    process.send_signal(signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=grace_s)


def publish_site(out: Path, history: Address | None, results: Path) -> str:
    """Write the site; return the result in a line."""
    from pytest_dtfperf.history.database import Database
    from pytest_dtfperf.history.watching import load_history
    from pytest_dtfperf.report.site.build import build_site

    if history is None:
        return "no site: no history is kept"
    try:
        built = build_site(load_history(Database.open(history)), out, results=results)
    except (DtfPerfError, OSError) as error:
        return f"no site: {error}"
    return f"site in {out / 'index.html'}: {format_count(len(built.written), 'page')} written"


@contextmanager
def hold_lock(path: Path) -> Iterator[tuple[int | None, str]]:
    """Hold a lock for the night: (descriptor, ""); or, if another has it, (None, its owner).

    pytest inherits the descriptor, so that a night with a killed program is not over before its pytest ends.
    Raises `UsageError` where there can be no such file, or none that can be locked.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o644)
    except OSError as exc:
        raise UsageError(
            f"the night's lock {path} cannot be opened: {exc.strerror}: --results must be a folder of yours"
        ) from exc
    if not stat.S_ISREG(mode := os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UsageError(
            f"the night's lock {path} is {format_kind(mode)}, not a regular file: remove it, or name other --results"
        )
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield None, os.pread(descriptor, 1000, 0).decode().strip() or "a night that has just begun"
        return
    except OSError as exc:
        raise UsageError(
            f"the night's lock {path} cannot be locked: {exc.strerror}: --results must be on a file system with locks, or one "
            "night could not tell that another goes on"
        ) from exc
    else:
        os.ftruncate(descriptor, 0)
        os.pwrite(
            descriptor,
            f"process {os.getpid()} on {socket.gethostname()} since {minute(datetime.now(UTC).isoformat())} UTC\n".encode(),
            0,
        )
        yield descriptor, ""
    finally:
        os.close(descriptor)


FAILED, LOCKED = 1, 75  # pytest's own; sysexits' EX_TEMPFAIL


@dataclass(frozen=True, kw_only=True)
class Night:
    """What is to be done."""

    cluster: str
    results: Path  # where session folders are kept
    deadline_s: float
    tests: Sequence[str] = ("perf_tests",)
    baselines: Path | None = None
    history: str | None = None  # its address, as --history has it
    project_history: Path | str | None = None  # the setting in the project's configuration of pytest
    keep: int | None = None  # session folders of this cluster
    fail_on_loss: bool = False
    site: Path | None = None  # folder of the site that is made of the history
    receivers: Sequence[Receiver] = ()  # of alerts
    targets: Sequence[Target] = ()  # of metrics
    pytest: Sequence[str] = field(default_factory=list)  # further arguments

    @property
    def arguments(self) -> list[str]:
        """The arguments of pytest."""
        # By the names that are always ours: a short one may be another plugin's, or turned off.
        options = [f"--dtfperf-cluster={self.cluster}", f"--dtfperf-perf-results={self.results}"]
        if self.history:
            options.append(f"--dtfperf-history={self.history}")
        if self.baselines:
            options.append(f"--dtfperf-baselines={self.baselines}")
        return [*self.tests, *options, *self.pytest]

    @property
    def command(self) -> list[str]:
        """The command that runs pytest."""
        return make_project_command(sys.executable, "pytest", *self.arguments)

    @property
    def kept_in(self) -> Address | None:
        """Return the history that pytest enters the session into. Raises `UsageError`."""
        return parse_address(get_requested(self.history) or self.project_history, self.results)


@dataclass(frozen=True)
class NightResult:
    """What came of it."""

    code: int  # exit code: pytest's, or one of docs/nightly.md
    outcome: str = ""
    session: Path | None = None  # folder of what it has measured
    losses: Sequence[Loss] = ()
    site: str | None = None  # what became of it
    notified: Sequence[str] = ()  # a line for each receiver of an alert; none if nothing was new
    metrics: Sequence[str] = ()  # a line for each target


@dataclass(frozen=True)
class NightMetrics:
    """The numbers of a night that its session does not have."""

    cluster: str
    exit_code: int
    losses: int  # rates without a baseline that are slower than in earlier nights
    session: Path | None  # the folder

    def format(self) -> bytes:
        """Return all metrics in Prometheus' text format. Of a night that measured nothing, only its own numbers."""
        gauges = {
            "nightly_exit_code": ("Exit code of dtfperf nightly.", float(self.exit_code)),
            "nightly_ended_timestamp_seconds": ("When the last night ended.", time.time()),
            "nightly_losses": ("Rates without a baseline that are slower than in earlier nights.", float(self.losses)),
        }
        labels = {"cluster": self.cluster}
        own = format_gauges(GaugeFamily(name, text, [(labels, value)]) for name, (text, value) in gauges.items())
        try:
            return own + (format_prometheus(load_sessions(self.session)) if self.session else b"")
        except SessionFileError:  # reported by the night's summary
            return own


def run_night(night: Night, output: TextIO | None = None) -> NightResult:
    """Run a night. pytest prints to `output`, or to stdout. Raises `UsageError` if `results` cannot be written."""
    history = night.kept_in
    lock = night.results / f"nightly.{night.cluster}.lock"
    with hold_lock(lock) as (descriptor, holder):
        if descriptor is None:
            print(f"nightly: {lock} is held by {holder}: that night is not over. Nothing was started.", file=sys.stderr)
            return NightResult(LOCKED)
        earlier, session_id = _load_sessions(night), new_session_id()
        code, outcome = run_pytest(
            night.command, deadline_s=night.deadline_s, lock=descriptor, session_id=session_id, output=output
        )
        folder, found = _write_summary(night, session_id, earlier, outcome, history)
        if found and night.fail_on_loss and code == 0:
            code, outcome = FAILED, f"{outcome} {format_count(len(found), 'rate')} slower than in earlier nights."
        history = _choose_history(history, folder)
        site = publish_site(night.site, history, night.results) if night.site else None
        if site:
            print(f"nightly: {site}")
        notified = _notify(night, NightResult(code, outcome, folder, found), history) if night.receivers else []
        content = NightMetrics(night.cluster, code, len(found), folder).format()
        published = metrics_targets.publish_metrics(night.targets, content, night.cluster)
        for line in (*notified, *published):
            print(f"nightly: {line}")
        _remove_old(_load_sessions(night), night.keep)
        print(f"nightly: {outcome} Exit code {code}.")
        return NightResult(code, outcome, folder, found, site, notified, published)


def _choose_history(history: Address | None, folder: Path | None) -> Address | None:
    """Return the history that has a session: simulated ones are in another file than real ones. None: there is none."""
    if history is None or folder is None:
        return history
    try:
        return choose_address_of(SessionFolder.open(folder), history)
    except (DtfPerfError, OSError):  # the night's summary reports it
        return None


def _notify(night: Night, done: NightResult, history: Address | None) -> list[str]:
    """Send each receiver what is new to it; return a line for each receiver with something new."""
    state = night.results / f"nightly.{night.cluster}.alerts.json"
    session, before = SessionFolder(done.session) if done.session else None, notify.AlertState.load(state).problems
    slow_hosts = _find_slow_hosts(history, night.cluster)
    problems = notify.list_problems(night.cluster, done.code, done.outcome, session, done.losses, before, slow_hosts)
    alert = Alert(night.cluster, done.outcome, done.code, str(done.session) if done.session else None)
    return notify.notify(night.receivers, state, alert, problems)


def _find_slow_hosts(history: Address | None, cluster: str) -> dict[str, str] | None:
    """Return the hosts that are slow according to the history; None: not known."""
    from pytest_dtfperf.history.database import Database
    from pytest_dtfperf.history.watching import find_slow_hosts

    if history is None:
        return None
    try:
        return Database.open(history).write(lambda connection: find_slow_hosts(connection, cluster, datetime.now(UTC)))
    except (DtfPerfError, OSError):  # the night's summary reports it
        return None


def _load_sessions(night: Night) -> list[SessionFolder]:
    """Return the cluster's session folders, oldest first, without unreadable ones."""
    found = []
    for folder in session_folders(night.results):
        with suppress(SessionFileError):
            if folder.session.cluster == night.cluster:
                found.append(folder)
    return found


def _write_summary(
    night: Night, session_id: str, earlier: Sequence[SessionFolder], outcome: str, history: Address | None
) -> tuple[Path | None, list[Loss]]:
    """Write the summary of what the night has measured; returns its session's folder, and what it has lost."""
    folder = find_session(night.results, session_id)
    if folder is None:
        path = night.results / "summary.md"
        summary.write_summary(path, summary.format_empty_summary(night.cluster, outcome), path)
        return None, []
    earlier = [each for each in earlier if _is_own(each)]
    finished = [each for each in earlier if each.session.exit_code is not None]
    previous = next(reversed(select_by_arguments(finished, list(map(mask_passwords, night.arguments)))), None)
    found: list[Loss] = []
    with suppress(SessionFileError):  # which the summary reports itself
        found = find_losses(folder, earlier)
    text = summary.format_session_summary(folder, previous, found, outcome, history)
    summary.write_summary(folder.path / "summary.md", text, folder.path)
    return folder.path, found


def _is_own(folder: SessionFolder) -> bool:
    """Return whether this user has made the session. Others may use the same folder."""
    return folder.path.stat().st_uid == os.geteuid()


def _may_run(folder: SessionFolder) -> bool:
    """Return whether a session without an exit code may still run: then its folder has changed within a day."""
    return folder.session.exit_code is None and time.time() - folder.path.stat().st_mtime < UNFINISHED_S


def _remove_old(folders: Sequence[SessionFolder], keep: int | None) -> None:
    if keep is not None:
        for folder in [each for each in folders if _is_own(each)][:-keep]:
            try:
                if _may_run(folder):
                    continue
                shutil.rmtree(folder.path)
            except OSError as error:  # another user's, or a link to where there is more room: the night has ended all the same
                print(f"nightly: {folder.path} is kept, for it cannot be removed: {error.strerror or error}")
