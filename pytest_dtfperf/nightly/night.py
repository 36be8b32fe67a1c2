"""The whole of a night: pytest between a lock and a summary."""

import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from pytest_dtfperf.errors import SessionFileError
from pytest_dtfperf.formats import counted
from pytest_dtfperf.history.where import Address, address_of, asked_for
from pytest_dtfperf.nightly import ended, summary
from pytest_dtfperf.nightly.lock import locked
from pytest_dtfperf.nightly.losses import Loss, losses
from pytest_dtfperf.nightly.site import publish
from pytest_dtfperf.node.module_command import project_command
from pytest_dtfperf.records.session import SessionFolder, session_folders

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
    project_history: Path | str | None = None  # what the project's configuration of pytest says of it
    keep: int | None = None  # session folders of this cluster
    fail_on_loss: bool = False
    site: Path | None = None  # folder of the site that is made of the history
    pytest: Sequence[str] = field(default_factory=list)  # further arguments

    @property
    def command(self) -> list[str]:
        # By the names that are always ours: a short one may be another plugin's, or turned off.
        options = [f"--dtfperf-cluster={self.cluster}", f"--dtfperf-perf-results={self.results}"]
        if self.history:
            options.append(f"--dtfperf-history={self.history}")
        if self.baselines:
            options.append(f"--dtfperf-baselines={self.baselines}")
        return project_command(sys.executable, "pytest", *self.tests, *options, *self.pytest)

    @property
    def kept_in(self) -> Address | None:
        """The history that pytest enters the session into. Raises `UsageError`."""
        return address_of(asked_for(self.history) or self.project_history, self.results)


@dataclass(frozen=True)
class Done:
    """What came of it."""

    code: int  # exit code: pytest's, or as docs/nightly.md says
    outcome: str = ""
    session: Path | None = None  # folder of what it has measured
    losses: Sequence[Loss] = ()
    site: str | None = None  # what became of it


def carry_out(night: Night, output: TextIO | None = None) -> Done:
    """What pytest prints goes to `output`, or to stdout. Raises `UsageError` where nothing can be kept in `results`."""
    history = night.kept_in
    lock = night.results / f"nightly.{night.cluster}.lock"
    with locked(lock) as (descriptor, holder):
        if descriptor is None:
            print(f"nightly: {lock} is held by {holder}: that night is not over. Nothing was started.", file=sys.stderr)
            return Done(LOCKED)
        earlier = _sessions(night)
        code, outcome = ended.run(night.command, deadline_s=night.deadline_s, lock=descriptor, output=output)
        folder, found = _sum_up(night, earlier, outcome, history)
        if found and night.fail_on_loss and code == 0:
            code, outcome = FAILED, f"{outcome} {counted(len(found), 'rate')} slower than in earlier nights."
        site = publish(night.site, history, night.results) if night.site else None
        if site:
            print(f"nightly: {site}")
        _remove_old(_sessions(night), night.keep)
        print(f"nightly: {outcome} Exit code {code}.")
        return Done(code, outcome, folder, found, site)


def _sessions(night: Night) -> list[SessionFolder]:
    """This cluster's session folders, oldest first; one that cannot be read is nobody's."""
    found = []
    for folder in session_folders(night.results):
        with suppress(SessionFileError):
            if folder.session["cluster"] == night.cluster:
                found.append(folder)
    return found


def _sum_up(
    night: Night, earlier: Sequence[SessionFolder], outcome: str, history: Address | None
) -> tuple[Path | None, list[Loss]]:
    """Write the summary of what the night has measured; returns its session's folder, and what it has lost."""
    new = [folder for folder in _sessions(night) if folder not in earlier]
    if not new:
        summary.leave(night.results / "summary.md", summary.of_nothing(night.cluster, outcome), night.results / "summary.md")
        return None, []
    folder = new[-1]
    previous = next((each for each in reversed(earlier) if each.session["exit_code"] is not None), None)
    found: list[Loss] = []
    with suppress(SessionFileError):  # which the summary says itself
        found = losses(folder, earlier)
    text = summary.of_session(folder, previous, found, outcome, history)
    summary.leave(folder.path / "summary.md", text, folder.path)
    return folder.path, found


def _remove_old(folders: Sequence[SessionFolder], keep: int | None) -> None:
    if keep is not None:
        for folder in folders[:-keep]:
            try:
                shutil.rmtree(folder.path)
            except OSError as error:  # another user's, or a link to where there is more room: the night has ended all the same
                print(f"nightly: {folder.path} is kept, for it cannot be removed: {error.strerror or error}")
