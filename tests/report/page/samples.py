"""A session with everything that a page can show."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pytest_dtfperf.baselines.entry import Entry, Provenance
from pytest_dtfperf.baselines.judgement import Judgement
from pytest_dtfperf.baselines.terms import ComparisonPolicy
from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.datamodel.explanation import Cause, CauseKind, Confidence, Explanation
from pytest_dtfperf.datamodel.fingerprint import Fingerprint, Hardware
from pytest_dtfperf.datamodel.measurement import Measurement, Run
from pytest_dtfperf.datamodel.step_times import (
    LinkTraffic,
    Part,
    Pause,
    StepBreakdown,
    TaskTime,
    WorkerTiming,
    WorkerTimings,
    WorkKind,
)
from pytest_dtfperf.history.past import Past
from pytest_dtfperf.records.record import Record, with_efficiencies
from pytest_dtfperf.records.session import SessionFolder
from pytest_dtfperf.records.stored import Budget
from pytest_dtfperf.spec import Spec
from tests.records.samples import record, spec

HARDWARE = Hardware(cpu="AMD EPYC 9B45", cores=2, memory_gib=8)
SOFTWARE = {"tensorflow": "2.21.0", "python": "3.11.9"}
THEN = Fingerprint(hardware=HARDWARE, software={"tensorflow": "2.20.0", "python": "3.11.9"})


def breakdown(workers: int = 2, slow_s: float = 0.0) -> StepBreakdown:
    """Return the breakdown of a training with one parameter server; the last worker's link may be slow."""
    last = f"worker:{workers - 1}"
    parts = [
        Part(WorkKind.FORWARD, last, None, 0.0312),
        Part(WorkKind.BACKWARD, last, None, 0.0588),
        Part(WorkKind.APPLY, "ps:0", None, 0.0041),
        Part(WorkKind.RECEIVE, f"ps:0>{last}", "conv0/weights", 0.0213 + slow_s),
        Part(WorkKind.SEND, f"{last}>ps:0", None, 0.0102),
        Part(WorkKind.INPUT, last, None, 0.0030),
        Part(WorkKind.HOST, last, None, 0.0054),
        Part(WorkKind.PYTHON, last, None, 0.0012),
        Part(WorkKind.WAIT, last, None, 0.0018),
    ]
    wall_s = sum(part.seconds for part in parts)
    tasks = {f"worker:{n}": TaskTime(wall_s, 0.15, {"forward": 0.03, "wait": wall_s - 0.03}) for n in range(workers)}
    tasks["ps:0"] = TaskTime(wall_s, None, {"apply": 0.01, "wait": wall_s - 0.01})
    links = [LinkTraffic("ps:0", f"worker:{n}", 95e6, 0.02, {"conv0/weights": 9e6}) for n in range(workers)]
    links += [LinkTraffic(f"worker:{n}", "ps:0", 95e6, 0.01, {}) for n in range(workers)]
    return StepBreakdown(4, wall_s, parts, tasks, links, {})


def scores(workers: int = 2) -> WorkerTimings:
    return WorkerTimings(
        steps=20,
        step_s=0.18,
        workers={
            f"worker:{n}": WorkerTiming(
                steps=20, python_s=0.001, receive_s=0.02, compute_s=0.09, finish_s=0.02, cpu_s=0.15, ready_s=0.11,
                ready_error_s=0.001, last=0.95 if n == workers - 1 else 0.05 / max(1, workers - 1), late_s=0.041 * (n - 0.5),
                late_error_s=0.001, behind=0.5,
            )
            for n in range(workers)
        },
        paused=2,
        pauses=[Pause(step=7, seconds=0.31, worker="worker:1")],
    )  # fmt: skip


EXPLANATION = Explanation(
    causes=[
        Cause(
            kind=CauseKind.LINK, seconds=0.038, share=0.94, location="ps:0>worker:1",
            words="worker:1 receives its variables at 0.9 Gbit/s, where it was 3.8 Gbit/s",
            evidence=[
                "95.0 MB from ps:0 take 59.3 ms of a step, 21.3 ms in the baseline", "links to other workers are as they were",
            ],
            confidence=Confidence.HIGH, next="dtfperf doctor --cluster=local",
        ),
        Cause(
            kind=CauseKind.OTHERS, seconds=0.0016, share=0.04, location="vm", words="another user had 0.2 of its cores",
            evidence=[], confidence=Confidence.LOW, next=None,
        ),
    ],
    step_s=0.178, baseline_step_s=0.137, unexplained_s=0.0009, noise_s=0.002, notes=["probes of the baseline are not known"],
)  # fmt: skip


def rich_run(run: Run, workers: int = 2, slow_s: float = 0.0) -> Run:
    """Return the run with all optional values."""
    names = [f"worker:{n}" for n in range(workers)]
    return replace(
        run,
        step_s={name: [0.17 + 0.001 * i for i in range(20)] for name in names},
        cpu_s={**dict.fromkeys(names, 3.1), "ps:0": 2.2},
        peak_rss_bytes=dict.fromkeys((*names, "ps:0"), 1234000000),
        bytes_sent=7_600_000_000,
        bytes_received=7_600_000_000,
        step_breakdown=breakdown(workers, slow_s),
        worker_timings=scores(workers),
        hosts=["vm"],
    )


def make_rich(what: Spec, *rates: float, workers: int = 2, slow_s: float = 0.0, **changes: Any) -> Record:
    plain = record(what, *rates, **changes)
    found: Measurement = plain.measurement
    runs = [rich_run(run, workers, slow_s) for run in found.runs]
    fingerprint = replace(found.fingerprint, hardware=HARDWARE, software=SOFTWARE)
    return replace(plain, measurement=replace(found, runs=runs, fingerprint=fingerprint, hosts=["vm"]))


def add_comparison(what: Record, rate: float, low: float, high: float, reason: str) -> Record:
    """Return the record with its baseline, and the check of its verdict."""
    assert what.verdict
    entry = Entry(
        key=what.spec.key,
        samples=[0.99 * rate, rate, 1.01 * rate],
        warmup_steps=2,
        steps=20,
        hosts=1,
        fingerprint=THEN,
        provenance=Provenance(
            session="20261101T010203Z-abcdef", test=what.test, date="2026-11-01T01:02:03+00:00", commit="5" * 40
        ),
        step_breakdown=breakdown(),
    )
    change = what.images_per_sec / rate - 1
    question: dict[str, Any] = {"terms": ComparisonPolicy(), "runs": len(what.measurement.runs), "entry": entry}
    numbers: dict[str, Any] = {"baseline_rate": rate, "change": change, "low": low, "high": high, "noise": 0.012}
    return replace(what, checks=(Judgement(what.verdict, reason, **question, **numbers),), reason=reason)


def session_records() -> list[Record]:
    one = add_comparison(
        make_rich(spec(num_ps=1), 9.7, 9.81, 10.1, name="one", workers=1, verdict=Verdict.PASSED),
        9.75,
        -0.011,
        0.024,
        "+0.6 %",
    )
    two = add_comparison(
        make_rich(
            spec(gpus=2, num_ps=1), 15.2, 15.4, 15.3, name="two", slow_s=0.038, verdict=Verdict.REGRESSED,
            test="perf_tests/test_inception3.py::test_throughput[2-1]", injected_slowdowns={"worker:1": 0.2},
        ),
        17.6, -0.142, -0.118, "-13.1 % against 17.60 images/sec: 85.8 % to 88.2 % of it, margin 5.0 %; 3 runs, noise 1.2 %",
    )  # fmt: skip
    better = add_comparison(
        make_rich(spec(gpus=2, variable_update="replicated"), 18.2, 18.4, name="better", verdict=Verdict.IMPROVED),
        16.4, 0.09, 0.142, "+11.6 %",
    )  # fmt: skip
    open_ = add_comparison(
        make_rich(spec(gpus=4, num_ps=1), 30.0, 34.0, name="open", workers=4, verdict=Verdict.INCONCLUSIVE), 32.9, -0.11, 0.06,
        "-2.7 % against 32.90 images/sec: 89.0 % to 106.0 % of it, margin 5.0 %; about 9 runs could tell",
    )  # fmt: skip
    new = make_rich(
        spec(model="mnist", batch_size=64, gpus=2, num_ps=1), 1817.2, 1900.4, name="new", verdict=Verdict.NO_BASELINE
    )
    slower = replace(two, explanation=EXPLANATION)
    return with_efficiencies([one, slower, better, open_, new])


HISTORY: Mapping[str, Past] = {  # id of a measurement -> its series
    each.id: Past(
        [(f"2026-10-{day:02}T02:15:00+00:00", each.images_per_sec * (1.14 if day < 20 else 1.0)) for day in range(1, 31)],
        began="2026-10-20T02:15:00+00:00",
        change="since 20 October 2026: -12.3 % (-12.9 % to -11.7 %); also changed: kernel 6.1 -> 6.2",
    )
    for each in session_records()[:2]
}


def folder_of(root: Any, records: Sequence[Record]) -> SessionFolder:
    """Write a session's folder with logs of its tests, and of a test without a measurement."""
    folder = SessionFolder.create(
        root, cluster="local", command=["pytest", "perf_tests", "--gpus=1,2,4", "--update-baselines=new"],
        versions={"python": "3.11.9", "pytest": "9.0"}, budget=Budget(false_alarms=0.05, tests=5),
    )  # fmt: skip
    for test in {each.test for each in records if each.verdict is Verdict.REGRESSED} | {"perf_tests/test_broken.py::test_it"}:
        logs = folder.new_logs(test)
        (logs / "worker-0.log").write_text("".join(f"step {n}: loss 7.0{n % 10}\n" for n in range(400)))
        (logs / "ps-0.log").write_text("<script>document.title = 'evil'</script>\x1b[31mred\n")
    folder.finish(
        exit_code=1, wall_s=149.7, verdicts={"REGRESSED": 1, "INCONCLUSIVE": 1, "NO_BASELINE": 1, "IMPROVED": 1, "PASSED": 1}
    )
    return folder
