"""A recorded measurement with what it was made under: how often its spec was to be run, and on which terms it is judged."""

from dataclasses import dataclass, fields
from typing import Self

from pytest_dtfperf.baselines.terms import Terms
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.session.resolve import RepeatPlan


@dataclass(frozen=True, kw_only=True)
class Measured(Record):
    """A record as it was when it was handed out; whoever judges it may make further runs, which the session folder has."""

    plan: RepeatPlan
    terms: Terms  # of a first comparison with its baseline
    asked_by: str  # the test that it was handed to: one that another test has measured is judged on that one's own terms

    @classmethod
    def of(cls, record: Record, *, plan: RepeatPlan, terms: Terms, asked_by: str) -> Self:
        known = {field.name: getattr(record, field.name) for field in fields(Record)}
        return cls(**known, plan=plan, terms=terms, asked_by=asked_by)
