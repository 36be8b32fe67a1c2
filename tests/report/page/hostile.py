"""A session with markup and scripts in every string that may come from elsewhere."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.clusters.protocol import Bill
from pytest_dtfperf.history.past import Past
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.records.stored import SessionInfo
from pytest_dtfperf.report.page import build
from pytest_dtfperf.report.page.build import PageInput, make_page
from pytest_dtfperf.report.page.html import TaskLog, WithoutMeasurement
from pytest_dtfperf.report.series import PublishedPoint
from pytest_dtfperf.report.session_exports import SessionResults
from tests.report.page.samples import session_records

EVIL = (
    "\"'><script>window.evil=1</script><img src=x onerror='window.evil=1'><svg onload=window.evil=1>"
    "</title></style></script></pre>{{7*7}}{%raw%}javascript:window.evil=1\x00\x1b[31m\u202e"
)

# Keys whose values have a checked form: spec fields, verdicts, kinds, dates. All other strings may be anything.
OURS = {
    "kind", "verdict", "model", "variable_update", "data", "data_format", "precision", "optimizer", "confidence", "schema",
    "date",
}  # fmt: skip


def poison(value: Any, key: str = "") -> Any:
    """Return the value with all strings, and names of tasks, hosts and versions, made hostile."""
    if isinstance(value, str):
        return value if key in OURS else value + EVIL
    if isinstance(value, Mapping):
        names = key in ("step_s", "cpu_s", "peak_rss_bytes", "tasks", "workers", "injected_slowdowns", "software", "variables")
        return {(name + EVIL if names else name): poison(each, name) for name, each in value.items()}
    return [poison(each, key) for each in value] if isinstance(value, list | tuple) else value


def make_hostile_records() -> list[Record]:
    records = []
    for before in session_records():
        data = before.to_json()
        spec, keys = data["spec"], [check["entry"]["key"] for check in data["checks"]]
        data = poison(json.loads(json.dumps(data))) | {"spec": spec, "id": before.id}
        for check, key in zip(data["checks"], keys, strict=True):
            check["entry"]["key"] = key
        data["fingerprint"]["program"]["graph"] = before.measurement.fingerprint.program.graph  # only a hash is read
        records.append(replace(Record.from_json(data), efficiency=before.efficiency))
    return records


def write_hostile_page(folder: Path) -> Path:
    """Write a page with hostile logs, history, published rows and a hostile session."""
    records = make_hostile_records()
    session = SessionInfo(
        id=EVIL, cluster=EVIL, started="2026-11-23T07:00:00+00:00", wall_s=1.0, command=["pytest", EVIL],
        versions={EVIL: EVIL}, costs=[Bill(usd=1.0, price_source=EVIL, price_date=EVIL)],
        verdicts={Verdict.REGRESSED: 1}, exit_code=1,
    )  # fmt: skip
    log = TaskLog(EVIL, [EVIL], 3)
    given = PageInput(
        session=session,
        results=SessionResults(
            records,
            [PublishedPoint(system=EVIL, model="inception3", batch_size=8, gpus=2, images_per_sec=1.0, citation=EVIL)],
            pasts={record.id: Past([(EVIL, 1.0), (EVIL, 2.0)], EVIL, EVIL) for record in records},
        ),
        logs={record.test: [log] for record in records},
        without_measurement=[WithoutMeasurement(EVIL, [log])],
        files=[EVIL],
    )
    path = folder / "hostile.html"
    path.write_text(build.render_page(make_page(given)), encoding="utf-8")
    return path
