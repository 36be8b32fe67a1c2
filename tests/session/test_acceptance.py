"""Which of a session's measurements are said to have become baselines."""

import io
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_dtfperf.baselines.accept import Mode
from pytest_dtfperf.baselines.checks import ask
from pytest_dtfperf.baselines.store import BaselineStore
from pytest_dtfperf.baselines.terms import ComparisonPolicy
from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.clusters import named
from pytest_dtfperf.datamodel.measurement import Measurement
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.report.notes import collect_reasons, list_acceptance_remarks, suggest_accepting
from pytest_dtfperf.report.progress import Progress
from pytest_dtfperf.session.context import SessionContext
from pytest_dtfperf.session.session import accept_records
from pytest_dtfperf.session.settings import Settings
from tests.baselines.examples import entry_of, measurement_of
from tests.records.host_states import BUSY

TERMS = ComparisonPolicy(margin=0.05)


@pytest.fixture
def session(tmp_path: Path) -> SessionContext:
    _, config = named.choose("local", None, [str(tmp_path)])
    return SessionContext(
        config=config,
        settings=Settings(update_baselines="all"),
        store=BaselineStore(tmp_path / "baselines"),
        results=tmp_path / "perf_results",
        id="20260131T021503Z-9f3c1a",
        command=["pytest"],
        make_progress=lambda: Progress(io.StringIO(), is_terminal=False),
    )


def judged(session: SessionContext, measurement: Measurement) -> Record:
    """Compared with what is stored, and written down."""
    entry = session.store.find_for(measurement)
    found = ask("baseline", TERMS, measurement, entry=entry)
    record = session.folder.add("perf/test_perf.py::test_throughput", measurement)
    return session.folder.add_judgement(record.id, found)


FIRST = {
    "slower": (measurement_of([80, 80.5, 79.5, 80]), Verdict.REGRESSED),
    "disturbed": (measurement_of([99, 99], disturbed=[0, 1]), Verdict.TAINTED),
    "of fewer steps": (measurement_of([80, 80.5, 79.5, 80], steps=20), Verdict.REGRESSED),
}


@pytest.mark.parametrize("case", FIRST)
def test_only_what_is_stored_has_become_a_baseline(session: SessionContext, case: str) -> None:
    """The last measurement of a training is accepted; one before it is not, and its reason is told all the same."""
    first, verdict = FIRST[case]
    stored = entry_of([100, 100.5, 99.5, 100])
    session.store.update("cpu-amd-epyc-9b45-2c", [stored])
    before, last = judged(session, first), judged(session, measurement_of([101, 101.5, 100.5]))
    assert (before.verdict, last.verdict) == (verdict, Verdict.PASSED)
    acceptance = accept_records(session, session.folder.measurements(), Path.cwd())
    assert acceptance
    assert [list(change.new.samples) for change in acceptance.changes] == [[101, 101.5, 100.5]]
    records = session.folder.measurements()
    assert [record.accepted for record in records] == [False, True]
    assert [reason.verdict for reason in collect_reasons(records)] == [verdict]


def test_what_another_has_become_the_baseline_of_lacks_none(session: SessionContext) -> None:
    """Where a training is measured twice before it has a baseline, nobody is told to accept the first one, too."""
    for rate in (99.0, 101.0):
        judged(session, measurement_of([rate, rate + 0.5]))
    assert suggest_accepting(session.folder.measurements())
    accept_records(session, session.folder.measurements(), Path.cwd())
    records = session.folder.measurements()
    assert [record.accepted for record in records] == [False, True]
    assert suggest_accepting(records) == []


def busy(measurement: Measurement) -> Measurement:
    return replace(measurement, runs=[replace(run, disturbances=[BUSY]) for run in measurement.runs])


def test_what_would_be_refused_is_not_advised(session: SessionContext) -> None:
    """Of disturbed measurements it is said that no baseline can be made of them, and why; of a single run how many it takes."""
    judged(session, busy(measurement_of([99.0, 99.5])))
    (line,) = suggest_accepting(session.folder.measurements())
    assert line == (
        f"1 measurement has no baseline. None can be made, for every run was disturbed: {BUSY}. "
        "Measure when the machine is quiet; if other load is normal there, set alone = false in clusters.toml"
    )
    judged(session, measurement_of([99.0], gpus=4))
    first, second = suggest_accepting(session.folder.measurements())
    assert "with the same command and --update-baselines=new --repeats=2: later" in first
    assert second == line


@pytest.mark.parametrize("mode", ["all", "new"])
def test_nothing_accepted_is_told(session: SessionContext, mode: Mode) -> None:
    """Where nothing of what was asked for may become a baseline, the session does not end with 0; with "new" alone, what has
    one already was not asked for."""
    session.settings = Settings(update_baselines=mode)
    session.store.update("cpu-amd-epyc-9b45-2c", [entry_of([100, 100.5, 99.5, 100])])
    judged(session, busy(measurement_of([100.0, 100.5])))
    acceptance = accept_records(session, session.folder.measurements(), Path.cwd())
    assert acceptance
    assert acceptance.is_fruitless == (mode == "all")
    judged(session, busy(measurement_of([100.0, 100.5], gpus=4)))
    acceptance = accept_records(session, session.folder.measurements(), Path.cwd())
    assert acceptance
    assert acceptance.is_fruitless
    assert list_acceptance_remarks(acceptance, session.folder.measurements())[-1].startswith("NOTHING ACCEPTED: ")
    judged(session, measurement_of([50.0, 50.5], gpus=1))
    acceptance = accept_records(session, session.folder.measurements(), Path.cwd())
    assert acceptance
    assert not acceptance.is_fruitless
