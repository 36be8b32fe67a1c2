"""Written files, byte for byte: users read them, and so must later versions."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_dtfperf.baselines.judgement import Judgement, PublishedRate
from pytest_dtfperf.baselines.terms import ComparisonPolicy
from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.datamodel.task_report import Evaluation, Score, TaskReport
from pytest_dtfperf.plugin.dry_run import PlannedTraining
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.records.stored import encode_record
from pytest_dtfperf.spec import Spec
from pytest_dtfperf.spec.spec import TaskOrder
from tests.baselines.examples import calibrated_of, entry_of
from tests.records.samples import record, run, spec

WRITTEN = Path(__file__).with_name("written.jsonl")
EVALUATION = Evaluation(step=20, trained_s=1.5, score=Score(images=100, loss=0.5, total_loss=0.6, top_1=0.9, top_5=0.99))
EXTERNAL = spec(command=("train.py", "--x"), role_flags=("--job={job}",), environment=("NCCL_ALGO=Ring",), rate_of="mean")
ORDER = TaskOrder(run="r1", job="worker", index=1, spec=EXTERNAL, cluster={"ps": ("h0:1",), "worker": ("h0:2", "h1:2")})
REPORT = TaskReport(
    job="worker",
    index=0,
    step_s=[0.5, 0.25],
    loss=[7.0],
    startup_s={"build": 1.0},
    evaluations=[EVALUATION],
    reported_rate="9.5",
)
TRAINING = PlannedTraining(3, "a.py::b", spec(), "b8", (1, 10), ["worker 0 on node 1"], 2, ["salloc --nodes=2"])


def make_full_record() -> Record:
    """Return a record with all optional fields."""
    entry = replace(entry_of([10.0, 10.123456789]), noise=calibrated_of())
    published = PublishedRate(system="p2", citation="a page", images_per_sec=30.0, gpu="K80", cpu=None, gpus_per_node=8)
    plain = record(
        spec(gpus=2, num_ps=1), 10.0, 9.75, efficiency=0.93,
        verdict=Verdict.PASSED, reason="fast enough", injected_slowdowns={"worker:1": 0.25},
    )  # fmt: skip
    measured = replace(
        plain.measurement, runs=[*plain.measurement.runs, run(9.0, evaluations=[EVALUATION], accuracy=0.9, hosts=["h0"])]
    )
    good: dict[str, Any] = {"verdict": Verdict.PASSED, "runs": 2, "entry": entry}
    checks = [
        Judgement(
            **good,
            reason="slower, and not by more than the margin",
            terms=ComparisonPolicy(margin=0.1),
            baseline_rate=10.5,
            change=-0.05,
            low=-0.08,
            high=-0.02,
            noise=0.01,
            needs_runs=True,
        ),
        Judgement(**good, reason="as fast", kind="published", terms=ComparisonPolicy(least=3), published=published),
        Judgement(
            **good,
            reason="good",
            kind="efficiency",
            terms=ComparisonPolicy(threshold=0.9),
            other="a0",
            other_runs=1,
            other_entry=entry,
            value=0.93,
        ),
    ]
    return replace(plain, measurement=measured, checks=tuple(checks))


def test_written_form_is_unchanged() -> None:
    """A record, an order, a report and a dry run's training are written key by key as before, and read again."""
    lines = WRITTEN.read_bytes().splitlines(keepends=True)
    others = [ORDER, REPORT, TRAINING]
    assert lines == [encode_record(make_full_record()), *(json.dumps(each.to_json()).encode() + b"\n" for each in others)]
    assert encode_record(Record.from_json(json.loads(lines[0]))) == lines[0]
    assert Record.from_json(json.loads(lines[0])).checks == make_full_record().checks
    assert TaskOrder.from_json(json.loads(lines[1])) == ORDER
    assert TaskReport.from_json(json.loads(lines[2])).evaluations == [EVALUATION]
    assert PlannedTraining.from_json(json.loads(lines[3])) == TRAINING
    assert Spec.from_json(json.loads(lines[1])["spec"]) == EXTERNAL
