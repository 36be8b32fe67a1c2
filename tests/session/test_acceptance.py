"""Acceptance of a session's measurements as baselines."""

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


def add_judged(session: SessionContext, measurement: Measurement) -> Record:
    """Compare the measurement with what is stored, and record it."""
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
def test_only_the_last_measurement_is_accepted(session: SessionContext, case: str) -> None:
    """The last measurement of a training is accepted; an earlier one is not, and its reason stays."""
    first, verdict = FIRST[case]
    stored = entry_of([100, 100.5, 99.5, 100])
    session.store.update("cpu-amd-epyc-9b45-2c", [stored])
    before, last = add_judged(session, first), add_judged(session, measurement_of([101, 101.5, 100.5]))
    assert (before.verdict, last.verdict) == (verdict, Verdict.PASSED)
    acceptance = accept_records(session, session.folder.measurements(), Path.cwd())
    assert acceptance
    assert [list(change.new.samples) for change in acceptance.changes] == [[101, 101.5, 100.5]]
    records = session.folder.measurements()
    assert [record.accepted for record in records] == [False, True]
    assert [reason.verdict for reason in collect_reasons(records)] == [verdict]


def test_no_acceptance_is_suggested_after_another_measurement(session: SessionContext) -> None:
    """If a later measurement of the training was accepted, the first one is not suggested."""
    for rate in (99.0, 101.0):
        add_judged(session, measurement_of([rate, rate + 0.5]))
    assert suggest_accepting(session.folder.measurements())
    accept_records(session, session.folder.measurements(), Path.cwd())
    records = session.folder.measurements()
    assert [record.accepted for record in records] == [False, True]
    assert suggest_accepting(records) == []


def disturb(measurement: Measurement) -> Measurement:
    return replace(measurement, runs=[replace(run, disturbances=[BUSY]) for run in measurement.runs])


def test_suggestion_has_the_reason_of_a_refusal(session: SessionContext) -> None:
    """A disturbed measurement is not suggested, with the reason; a single run is suggested with the required repeats."""
    add_judged(session, disturb(measurement_of([99.0, 99.5])))
    (line,) = suggest_accepting(session.folder.measurements())
    assert line == (
        f"1 measurement has no baseline. None can be made, for every run was disturbed: {BUSY}. "
        "Measure when the machine is quiet; if other load is normal there, set dedicated = false in clusters.toml"
    )
    add_judged(session, measurement_of([99.0], gpus=4))
    first, second = suggest_accepting(session.folder.measurements())
    assert "with the same command and --update-baselines=new --repeats=2: later" in first
    assert second == line


@pytest.mark.parametrize("mode", ["all", "new"])
def test_acceptance_without_a_result_is_fruitless(session: SessionContext, mode: Mode) -> None:
    """An acceptance without any new baseline is fruitless, except in mode "new" if the case has a baseline."""
    session.settings = Settings(update_baselines=mode)
    session.store.update("cpu-amd-epyc-9b45-2c", [entry_of([100, 100.5, 99.5, 100])])
    add_judged(session, disturb(measurement_of([100.0, 100.5])))
    acceptance = accept_records(session, session.folder.measurements(), Path.cwd())
    assert acceptance
    assert acceptance.is_fruitless == (mode == "all")
    add_judged(session, disturb(measurement_of([100.0, 100.5], gpus=4)))
    acceptance = accept_records(session, session.folder.measurements(), Path.cwd())
    assert acceptance
    assert acceptance.is_fruitless
    assert list_acceptance_remarks(acceptance, session.folder.measurements())[-1].startswith("NOTHING ACCEPTED: ")
    add_judged(session, measurement_of([50.0, 50.5], gpus=1))
    acceptance = accept_records(session, session.folder.measurements(), Path.cwd())
    assert acceptance
    assert not acceptance.is_fruitless
