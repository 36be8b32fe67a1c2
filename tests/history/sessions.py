"""Session folders as sessions leave them, made from the few values that a test sets."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.datamodel.fingerprint import Fingerprint
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.records.session import SessionFolder
from tests.records.samples import measurement, spec

BEGAN = datetime(2026, 1, 1, 2, 15, tzinfo=UTC)
HARDWARE = {"cpu": "any", "cores": 2}


def folder_of(
    root: Path,
    night: int = 0,
    rates: Mapping[int, Sequence[float]] | None = None,
    *,
    software: Mapping[str, str] | None = None,
    hardware: Mapping[str, Any] | None = None,
    program: Mapping[str, Any] | None = None,
    commit: str | None = None,
    verdict: Verdict = Verdict.PASSED,
) -> SessionFolder:
    """The session of a night: `rates` by number of devices, one for each run."""
    started = BEGAN + timedelta(days=night)
    folder = SessionFolder.create(
        root,
        cluster="local",
        command=["pytest", "perf_tests"],
        versions={"python": "3.11.9", **(software or {})},
        session_id=f"{started:%Y%m%dT%H%M%SZ}-{night:06x}",
        started=started,
    )
    records = []
    for gpus, each in (rates or {1: [100.0, 101.0, 99.0]}).items():
        found = measurement(spec(gpus=gpus), each)
        data = {**found.fingerprint.to_json(), "hardware": hardware or HARDWARE, "software": dict(software or {})}
        fingerprint = Fingerprint.from_json(data | ({"program": program} if program else {}))
        made = replace(found, fingerprint=fingerprint)
        records.append(Record(id=secrets.token_hex(6), test=f"t.py::test_a[{gpus}]", measurement=made))
    # As `add` and then `judge` write them, but all in one write, which takes half of the time.
    folder._edit(lambda _: {each.id: each for each in records})
    folder._edit(lambda added: {each.id: added[each.id].with_verdict(verdict, "made up") for each in records})
    folder.finish(exit_code=0, wall_s=60.0, verdicts={str(verdict): 1}, commit=commit)
    return folder
