"""What is found out about a measurement once it is judged: what its hosts can do, what they allow, and why it is not green.

Whatever goes wrong here costs that alone: the verdict is written down already, and stays.
"""

from pytest_dtfperf.baselines.checks import Check
from pytest_dtfperf.baselines.comparability import must_match
from pytest_dtfperf.baselines.entry import Entry
from pytest_dtfperf.baselines.verdict import Judgement
from pytest_dtfperf.errors import InfrastructureError, InvalidMeasurement, RunFailed
from pytest_dtfperf.explain.causes import Explanation
from pytest_dtfperf.measurement import Measurement
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.session import tracing
from pytest_dtfperf.session.bench import Bench
from pytest_dtfperf.session.diagnosis import diagnosed
from pytest_dtfperf.session.explaining import told
from pytest_dtfperf.session.limiting import limit_of


def follow_up(bench: Bench, test: str, record: Record, check: Check, judgement: Judgement, other: Measurement | None) -> Record:
    """Return the record with that, which is kept in the session's folder. `other`: what a check of two compares it with."""
    if check.verdict.asks_why and not record.measurement.probes:
        record = bench.probe(record)
    if tracing.needs_a_run(bench.settings, check.kind, check.verdict, record.measurement):
        record = _traced(bench, test, record)
    record = _limited(bench, record, check.side.entry)
    return _explained(bench, test, record, check, judgement, other)


def _traced(bench: Bench, test: str, record: Record) -> Record:
    """One more short run, on hosts that are still lent, for its anatomy alone."""
    spec, runs = tracing.short(record.spec), len(record.measurement.runs)
    with bench.measuring(record.spec, test):
        if not bench.lending.holds:
            return record
        try:
            run = bench.run(spec, test, number=runs + 1, of=runs + 1, explain=True)
        except (RunFailed, InvalidMeasurement, InfrastructureError):  # the progress has said so
            return record
        if must_match(record.measurement.fingerprint, bench.cluster.fingerprint_of(run)):
            return record
    return bench.folder.note_traced(record.id, run)


def _limited(bench: Bench, record: Record, entry: Entry | None) -> Record:
    """With the rate that its hosts and links would allow."""
    found = limit_of(record.measurement, entry)
    if found is None or found.to_json() == record.limit:
        return record
    return bench.folder.note_limit(record.id, found.to_json())


def _explained(
    bench: Bench, test: str, record: Record, check: Check, judgement: Judgement, other: Measurement | None
) -> Record:
    """Return it with what makes it slower, if it is not green. Of several judgements, the one of the verdict is explained."""
    why = told(check, record.measurement, other, bench.config.name, judgement)
    if not why or (record.verdict, record.reason) != (check.verdict, check.reason):
        return record
    return _diagnosed(bench, test, bench.folder.explain(record.id, **why), check, other)


def _diagnosed(bench: Bench, test: str, record: Record, check: Check, other: Measurement | None) -> Record:
    """With what experiments say of that, if somebody asked for them."""
    if not bench.settings.diagnose or record.explanation is None:
        return record
    entry, before = check.side.entry, other.traced_run if other else None
    then = before.anatomy if before else entry.anatomy if entry else None
    with bench.measuring(record.spec, test):
        tried = diagnosed(bench, test, record.measurement, Explanation.from_json(record.explanation), then)
    return bench.folder.note_experiments(record.id, [each.to_json() for each in tried]) if tried else record
