"""Both sides of a comparison, made by hand."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pytest_dtfperf.datamodel.explanation import Cause, Explanation
from pytest_dtfperf.datamodel.step_times import LinkTraffic, StepBreakdown, TaskTime, WorkerTiming, WorkerTimings
from pytest_dtfperf.explain.causes import explain
from pytest_dtfperf.explain.measurement_profile import MeasurementProfile

# Milliseconds of a worker's step.
USUAL = {"python": 1.0, "host": 9.0, "receive": 15.0, "forward": 30.0, "backward": 60.0, "send": 15.0, "apply": 2.0}
FLOOR_MS = 8.0  # from the slowest worker's own work to the step's end
BYTES = 12e6  # of each link in a step

Ms = Mapping[str, float]


def make_side(
    *workers: Ms,
    servers: Sequence[Ms] = ({"apply": 3.0},),
    cpu_ms: Sequence[float] = (),
    busy_ms: Mapping[tuple[str, str], float] | None = None,
    floor_ms: float = FLOOR_MS,
    more: Mapping[str, Any] | None = None,
) -> MeasurementProfile:
    """Make a side of workers that differ from the usual one in these milliseconds, and of servers that share the bytes."""
    own = [{**USUAL, **worker} for worker in workers or ({}, {})]
    wall = max(sum(each.values()) for each in own) + floor_ms
    tasks = {
        f"worker:{number}": _make_task(
            {**each, "wait": wall - sum(each.values())}, cpu_ms[number] if number < len(cpu_ms) else 90.0
        )
        for number, each in enumerate(own)
    }
    tasks |= {
        f"ps:{number}": _make_task({**each, "wait": wall - sum(each.values())}, None) for number, each in enumerate(servers)
    }
    found = StepBreakdown(
        5, wall / 1e3, [], tasks, list(_make_links(own, len(servers), busy_ms or {})), dict.fromkeys(tasks, 0.0), {}
    )
    errors = {kind: 0.01 * ms / 1e3 for kind, ms in USUAL.items()}
    return MeasurementProfile(
        step_s=[wall / 1e3 * (1 + each) for each in (-0.004, 0.0, 0.004)],
        step_breakdown=replace(found, error_s=errors),
        **(more or {}),
    )


def _make_task(parts: Ms, cpu_ms: float | None) -> TaskTime:
    seconds = {kind: each / 1e3 for kind, each in parts.items()}
    return TaskTime(sum(seconds.values()), cpu_ms / 1e3 if cpu_ms is not None else None, seconds)


def _make_links(workers: Sequence[Ms], servers: int, busy_ms: Mapping[tuple[str, str], float]) -> Sequence[LinkTraffic]:
    ends = [
        pair
        for w in range(len(workers))
        for p in range(servers)
        for pair in ((f"ps:{p}", f"worker:{w}"), (f"worker:{w}", f"ps:{p}"))
    ]
    return [LinkTraffic(source, to, BYTES / servers, busy_ms.get((source, to), 15.0) / 1e3, {}) for source, to in ends]


def slow_one(worker: int = 1, workers: int = 2, **ms: float) -> list[dict[str, float]]:
    """Return workers of which one takes so many milliseconds longer."""
    return [
        {kind: USUAL.get(kind, 0.0) + each for kind, each in ms.items()} if number == worker else {}
        for number in range(workers)
    ]


def slow_all(workers: int = 2, **ms: float) -> list[dict[str, float]]:
    """Return workers that all take so many milliseconds longer."""
    return [{kind: USUAL.get(kind, 0.0) + each for kind, each in ms.items()}] * workers


def make_timestamped_side(*workers: Mapping[str, float], step_ms: float) -> MeasurementProfile:
    """Make a side of worker timings alone, without a step breakdown."""
    usual = {"python_s": 1.0, "receive_s": 20.0, "compute_s": 95.0, "finish_s": 20.0, "cpu_s": 90.0}
    scores = {
        f"worker:{number}": WorkerTiming(
            steps=100,
            ready_s=sum(({**usual, **each})[name] for name in ("python_s", "receive_s", "compute_s")) / 1e3,
            ready_error_s=0.0005,
            **{name: ms / 1e3 for name, ms in {**usual, **each}.items()},
        )
        for number, each in enumerate(workers)
    }
    return MeasurementProfile(
        step_s=[step_ms / 1e3] * 3, worker_timings=WorkerTimings(steps=100, step_s=step_ms / 1e3, workers=scores)
    )


def explain_change(baseline: MeasurementProfile, current: MeasurementProfile) -> Explanation:
    found = explain(baseline, current)
    assert found
    return found


def find_top_cause(baseline: MeasurementProfile, current: MeasurementProfile) -> Cause:
    return explain_change(baseline, current).causes[0]
