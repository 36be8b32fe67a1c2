"""Sessions that only measure: what a stored session measured, so many times more, for `dtfperf baselines calibrate --like`."""

from pathlib import Path

from pytest_dtfperf.errors import DtfPerfError, InvalidMeasurement, UsageError
from pytest_dtfperf.records.session import SessionFolder
from pytest_dtfperf.session.session import Session
from pytest_dtfperf.session.settings import Settings
from pytest_dtfperf.spec import Spec


def measure_again(
    like: SessionFolder, *, sessions: int, repeats: int, clusters_file: str | Path | None, baselines: Path, results: Path
) -> list[SessionFolder]:
    """One session after the other, each with hosts of its own, all of which do the same. Raises `DtfPerfError`."""
    specs = list(dict.fromkeys(record.spec for record in like.measurements()))
    if not specs:
        raise UsageError(f"{like.path} has measured nothing that could be measured again")
    found = []
    for number in range(1, sessions + 1):
        print(f"dtfperf: session {number} of {sessions}: as {like.id}", flush=True)
        with Session.open(
            like.session["cluster"],
            clusters_file=clusters_file,
            baselines=baselines,
            results=results,
            settings=Settings(repeats=repeats, all_repeats=True),
            specs=specs,
            tests=len(specs),
        ) as session:
            try:
                for spec in specs:
                    _measure(session, spec)
            except DtfPerfError as error:
                raise DtfPerfError(
                    f"session {number} was broken off. What the sessions before it have measured is in {results}; it can be "
                    f"used with --from. {error}"
                ) from error
        found.append(session.folder)
    return found


def _measure(session: Session, spec: Spec) -> None:
    """Judged, too, so that its margin is known. What is INVALID is recorded as that, and left out."""
    try:
        session.check(session.measure(spec))
    except InvalidMeasurement as error:
        print(f"dtfperf: {spec.label}: {error}", flush=True)
