"""A run made from its tasks' reports if these are consistent; for external commands also from their own steps. Pure."""

import hashlib
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from pytest_dtfperf.datamodel.fingerprint import TrainedProgram
from pytest_dtfperf.datamodel.host_state import Disturbance, HostState
from pytest_dtfperf.datamodel.measurement import CLOCK_SLACK_S, Run
from pytest_dtfperf.datamodel.step_times import StepBreakdown, WorkerTimings
from pytest_dtfperf.datamodel.task_report import TaskReport
from pytest_dtfperf.errors import InvalidMeasurement
from pytest_dtfperf.launch.agents import CHIEF
from pytest_dtfperf.launch.tracing import with_cpu
from pytest_dtfperf.spec import Spec
from pytest_dtfperf.spec.command import DISTANCE, cluster_rate, format_pattern
from pytest_dtfperf.spec.printed_number import UnclearNumber, parse

# Programs are started together, so their windows begin at the same time after that: up to this part of a window, or so many
# seconds.
START_SKEW, START_SLACK_S = 0.25, 0.5
HINT = "If workers do not wait for each other, set cross_replica_sync=False"
APART = f"they have not stepped together, or one clock or count is wrong. {HINT}"


def has_own_steps(spec: Spec, workers: Sequence[TaskReport]) -> bool:
    """Return whether steps were reported by workers that form one rate: those that wait for each other, or a single one.

    For others it is unknown how long they trained at the same time, so the printed rate counts.
    """
    in_step = len(workers) == 1 or (spec.in_lockstep and spec.rate_of != "mean")
    return any(worker.impossible_steps or (worker.step_s and in_step) for worker in workers)


def compute_rate_of_own_steps(workers: Sequence[TaskReport], wall_s: float) -> float:
    """Return images/sec: the images of all workers' measured steps over the seconds of the chief's, which comes first.

    The time between a program's steps is not part of the rate. Raises `InvalidMeasurement` if the reports are inconsistent.
    """
    chief = workers[0]
    for worker in workers:
        _check_own_steps(worker, wall_s)
        if len(worker.step_s) != len(chief.step_s):
            raise InvalidMeasurement(
                f"{worker.name} measured {len(worker.step_s)} steps, the chief {len(chief.step_s)}. {HINT}"
            )
    _check_images(workers)
    return math.fsum(worker.images for worker in workers) / math.fsum(chief.step_s)


def check_printed_rate(spec: Spec, rate: float, printed: str | None) -> None:
    """Raise `InvalidMeasurement` if a program prints another rate than its steps have, or should report both.

    A printed rate may include the time between its steps, so that the two differ.
    """
    if spec.rate_pattern is not None:
        raise InvalidMeasurement(
            f"there are two rates: the program reports its steps, which make {rate:.6g} images/sec, and "
            f"rate_pattern={format_pattern(spec.rate_pattern)} asks for a printed one ({printed or 'of which there is none'}). "
            "Leave out rate_pattern, or the steps; of workers that do not wait for each other the printed one counts with "
            "cross_replica_sync=False"
        )
    try:
        number = parse(printed) if printed else rate
    except UnclearNumber:
        return
    if not rate / DISTANCE < number < rate * DISTANCE:
        raise InvalidMeasurement(
            f"the program prints {printed} images/sec, and its steps make {rate:.6g}: {DISTANCE:g} times as many or more "
            "cannot both be true. images_per_step is of one task on all its devices, not of all tasks"
        )


def _check_images(workers: Sequence[TaskReport]) -> None:
    """Raise `InvalidMeasurement` if workers count their images in different ways."""
    of_a_device = {worker.name: worker.images / len(worker.step_s) / max(1, worker.num_devices) for worker in workers}
    fewest, most = (pick(of_a_device, key=lambda name: of_a_device[name]) for pick in (min, max))
    if of_a_device[most] >= DISTANCE * of_a_device[fewest]:
        raise InvalidMeasurement(
            f"{most} reports {of_a_device[most]:.6g} images per step and device, and {fewest} {of_a_device[fewest]:.6g}: "
            "images_per_step is of one task on all its devices, not of all tasks"
        )


def _check_own_steps(worker: TaskReport, wall_s: float) -> None:
    if worker.impossible_steps:
        raise InvalidMeasurement(f"{worker.name} reported impossible steps: {worker.impossible_steps}")
    if not worker.step_s:
        raise InvalidMeasurement(f"{worker.name} reported no steps, but others did: all workers must, or none")
    if not all(math.isfinite(s) and s > 0 for s in (*worker.step_s, worker.images, worker.window_s)):
        raise InvalidMeasurement(f"{worker.name}: a step took no time or had no images")
    total_s = math.fsum(worker.step_s)
    # Rounding alone may make a sum larger than its total.
    if total_s > worker.window_s * (1 + 1e-6) or worker.window_s > worker.elapsed_s * (1 + 1e-6) + CLOCK_SLACK_S:
        raise InvalidMeasurement(
            f"{worker.name} reported steps of {total_s:.3f} s in a window of {worker.window_s:.3f} s, "
            f"and its program ran for {worker.elapsed_s:.3f} s"
        )
    if worker.elapsed_s > wall_s + WALL_SLACK_S:
        raise InvalidMeasurement(
            f"{worker.name} ran for {worker.elapsed_s:.3f} s, but the whole run took {wall_s:.3f} s by this machine's clock: "
            "one of them is wrong"
        )


def find_windows_apart(workers: Sequence[TaskReport]) -> dict[str, tuple[float, str]]:
    """Return the workers with another window than the chief's: by how many seconds, and a message.

    For workers that step together, it is the chief's, from the end of the warm-up on. Seconds are positive if the worker
    begins later than the chief or takes longer.
    """
    chief = workers[0]
    mean_s = chief.window_s / len(chief.step_s)
    slack_s = max(CROSS_CHECK * chief.window_s, END_SKEW * mean_s, EDGE_SLACK_S)
    found: dict[str, tuple[float, str]] = {}
    for worker in workers[1:]:
        begin_s = worker.window_at_s - chief.window_at_s
        if abs(begin_s) > max(START_SKEW * chief.window_s, START_SLACK_S):
            message = f"the measured steps of {worker.name} and of the chief begin {abs(begin_s):.3f} s apart"
            found[worker.name] = begin_s, message
        elif abs(apart_s := worker.window_s - chief.window_s) > slack_s:
            message = (
                f"the chief's steps lie in a window of {chief.window_s:.3f} s, those of {worker.name} in one of "
                f"{worker.window_s:.3f} s"
            )
            found[worker.name] = apart_s, message
    return found


# Largest disagreement between the chief's clock and a worker's, as a part of the measured time. Beyond it, one is wrong.
CROSS_CHECK = 0.02
# ... but the end of the last step may reach workers at different times, by this part of a step: in windows of a few steps of
# seconds each, as the large networks have on CPUs, that is more than 2 %.
END_SKEW = 0.25
# ... and by up to a whole one where each waits for values of its own: the others have begun the next step before they have come
# over a slow link, and cannot end it without it. 0.7 was seen.
VALUES_SKEW = 1.0
# ... and a worker may be descheduled at either edge while the chief is not. Seen on two cores with ten processes: 44 ms.
EDGE_SLACK_S = 0.1
# A window cannot be longer than its run by the controller's clock, which stops while its machine sleeps.
WALL_SLACK_S = 60.0


def summarise(
    spec: Spec,
    reports: Sequence[TaskReport],
    *,
    hosts: Mapping[str, str],
    threads: Mapping[str, int] | None = None,
    launch_s: Mapping[str, float],
    wall_s: float,
    state: Mapping[str, HostState] | None = None,
    disturbances: Sequence[Disturbance] = (),
    others_s: Mapping[str, float] | None = None,
    explained: tuple[StepBreakdown | None, str] = (None, ""),
    scored: tuple[WorkerTimings | None, str] = (None, ""),
) -> Run:
    """Make one run from its tasks' reports.

    A worker with steps that do not fit the chief's clock is one more disturbance if there are some: it may have been
    descheduled for long. In lockstep, this does not apply to the chief itself.

    Args:
        hosts: task -> its host, in placement order: a host's network bytes count once.
        threads: task -> how many cores it may use.
        state: host -> the state that it reports; `disturbances` is what follows from it.
        others_s: host -> seconds of its cores used by others, if that is no disturbance. A worker that is off by no
            more, on its host or the chief's, may have waited for them, and is a disturbance, too.
        explained: the step breakdown, or why there is none.
        scored: the worker timings likewise.

    Raises:
        InvalidMeasurement: the reports are inconsistent.
    """
    workers = sorted((report for report in reports if report.job == "worker"), key=lambda report: report.index)
    if not workers or workers[0].index != 0:
        raise InvalidMeasurement("the chief, worker:0, sent no report: there is no rate without its clock")
    chief = workers[0]
    if chief.elapsed_s > wall_s + WALL_SLACK_S:
        raise InvalidMeasurement(
            f"the chief measured {chief.elapsed_s:.3f} s, but the whole run took {wall_s:.3f} s by this machine's clock: "
            "one of them is wrong"
        )
    reports_steps = bool(spec.command) and has_own_steps(spec, workers)
    if reports_steps:
        _check_devices(spec, workers)
        rate = compute_rate_of_own_steps(workers, wall_s)
        check_printed_rate(spec, rate, chief.reported_rate)
    else:
        rate = _read_reported_rate(spec, workers) if spec.command else _compute_measured_rate(spec, workers)
    apart = find_windows_apart(workers) if reports_steps else {} if spec.command else _find_steps_apart(spec, workers)
    disturbances = [*disturbances, *_excuse_workers(spec, apart, hosts, others_s or {}, is_disturbed=bool(disturbances))]
    first_on_host = {hosts[worker.name]: worker for worker in reversed(workers)}.values()
    phases = {phase for report in reports for phase in report.startup_s}
    return Run(
        images_per_sec=rate,
        elapsed_s=math.fsum(chief.step_s) if reports_steps else chief.elapsed_s,
        step_s={worker.name: list(worker.step_s) for worker in workers if worker.step_s},
        loss=list(chief.loss),
        startup_s={**launch_s, **{p: max(r.startup_s.get(p, 0.0) for r in reports) for p in sorted(phases)}},
        bytes_sent=sum(worker.bytes_sent for worker in first_on_host),
        bytes_received=sum(worker.bytes_received for worker in first_on_host),
        **_collect_from_each_task(reports),
        wall_s=wall_s,
        accuracy=chief.evaluations[-1].score.top_1 if chief.evaluations else None,
        evaluations=list(chief.evaluations),
        hosts=list(dict.fromkeys(hosts.values())),
        task_hosts=dict(hosts),
        task_threads=dict(threads or {}),
        task_devices={worker.name: worker.num_devices for worker in workers},
        reported_rates={worker.name: worker.reported_rate for worker in workers if worker.reported_rate is not None},
        state=dict(state or {}),
        disturbances=disturbances,
        out_of_step={name: round(seconds, 6) for name, (seconds, _) in apart.items()},
        network=replace(chief.network, variables={}) if chief.network else None,
        program=_merge_programs(reports),
        step_breakdown=explained[0],
        unexplained="; ".join(filter(None, (explained[1], scored[1]))),
        worker_timings=with_cpu(scored[0], {report.name: report.cpu_s for report in workers}, len(chief.step_s)),
    )


def _collect_from_each_task(reports: Sequence[TaskReport]) -> dict[str, Any]:
    """Return the fields of a run that are mappings from each task to a field of its report."""
    names = [each.name for each in fields(Run) if each.metadata.get("of_each_task")]
    return {name: {report.name: getattr(report, name) for report in reports} for name in names}


def _merge_programs(reports: Sequence[TaskReport]) -> TrainedProgram:
    """Return the graphs of all workers as one, and each job's settings; nothing for an external command."""
    graphs = [report.graph for report in sorted(reports, key=lambda report: report.index) if report.graph]
    if not graphs:
        return TrainedProgram()
    operations: Counter[str] = Counter()
    for graph in graphs:
        operations.update(graph.operations)
    chief, *others = (graph.hash for graph in graphs)
    return TrainedProgram(
        graph=hashlib.sha256(" ".join([chief, *sorted(others)]).encode()).hexdigest()[: len(chief)] if others else chief,
        operations=dict(sorted(operations.items())),
        settings={report.job: dict(report.settings) for report in sorted(reports, key=lambda r: (r.job, -r.index))},
    )


def _read_reported_rate(spec: Spec, workers: Sequence[TaskReport]) -> float:
    """Return the rate that an external command reports; its steps, loss and clock are not checked."""
    _check_devices(spec, workers)
    return cluster_rate(
        spec,
        {worker.name: worker.reported_rate for worker in workers},
        [worker.num_devices for worker in workers],
        {worker.name: worker.last_lines for worker in workers},
        {worker.name: worker.unclear_rate for worker in workers if worker.unclear_rate},
    )


def _compute_measured_rate(spec: Spec, workers: Sequence[TaskReport]) -> float:
    _check_devices(spec, workers)
    _check(spec, workers)
    return spec.gpus * spec.batch_size * len(workers[0].step_s) / workers[0].elapsed_s


def _check_devices(spec: Spec, workers: Sequence[TaskReport]) -> None:
    devices = sum(worker.num_devices for worker in workers)
    if devices != spec.gpus:
        raise InvalidMeasurement(f"{devices} devices trained where {spec.gpus} were asked for")


def _check(spec: Spec, workers: Sequence[TaskReport]) -> None:
    chief = workers[0]
    steps = len(chief.step_s) if spec.stop_at_top_1_accuracy is not None and chief.step_s else spec.steps
    for worker in _select_stepping(spec, workers):
        if len(worker.step_s) != steps or len(worker.loss) != steps:
            raise InvalidMeasurement(f"{worker.name} measured {len(worker.step_s)} steps, {steps} were asked for")
        if not all(math.isfinite(loss) for loss in worker.loss):
            step = next(i for i, loss in enumerate(worker.loss) if not math.isfinite(loss))
            raise InvalidMeasurement(f"{worker.name}: the loss of measured step {step + 1} is {worker.loss[step]}")
        if not all(math.isfinite(s) and s > 0 for s in (*worker.step_s, worker.elapsed_s)):
            raise InvalidMeasurement(f"{worker.name}: a step took no time, or time ran backwards")


def _select_stepping(spec: Spec, workers: Sequence[TaskReport]) -> Sequence[TaskReport]:
    """Return the workers with steps of their own: only the chief if one session steps for all."""
    return workers[:1] if spec.mode.single_session else workers


def _excuse_workers(
    spec: Spec,
    deviating: Mapping[str, tuple[float, str]],
    hosts: Mapping[str, str],
    others_s: Mapping[str, float],
    *,
    is_disturbed: bool,
) -> list[Disturbance]:
    """Return a disturbance for each worker apart from the chief, if others explain all; else raise `InvalidMeasurement`."""
    contradicts_itself = spec.in_lockstep and CHIEF in deviating  # its time is the sum of its steps, even if they are disturbed
    waited = {name: _describe_delay(s, {hosts[name], hosts[CHIEF]}, others_s) for name, (s, _) in deviating.items()}
    wrong = [message for name, (_, message) in deviating.items() if not (is_disturbed or waited[name])]
    if contradicts_itself or wrong:
        raise InvalidMeasurement(f"{(wrong or [message for _, message in deviating.values()])[0]}{_format_consequence(spec)}")
    return [Disturbance(message=f"{message}{waited[name]}") for name, (_, message) in deviating.items()]


def _format_consequence(spec: Spec) -> str:
    """Return the consequence of a disagreement between a worker and the chief, as the end of a message."""
    return f": {APART}" if spec.command else ", so one clock or count is wrong"


def check_repetition(spec: Spec, before: Run, run: Run) -> None:
    """Raise `InvalidMeasurement` if a worker was out of step with the chief in two successive runs in the same way.

    A disturbance is an excuse once. A repetition has another cause than other processes, even if the host was busy again.
    """
    for worker, seconds in run.out_of_step.items():
        earlier_s = before.out_of_step.get(worker, 0.0)
        if seconds * earlier_s > 0:
            raise InvalidMeasurement(
                f"{worker} was out of step with the chief by {abs(seconds):.3f} s, and by {abs(earlier_s):.3f} s in the run "
                f"before: no other process does the same twice{_format_consequence(spec)}"
            )


def _describe_delay(apart_s: float, hosts: Collection[str], others_s: Mapping[str, float]) -> str:
    """Return a phrase on other processes that may have delayed a worker so long; empty if there are none."""
    found = [f"{others_s[host]:.3g} s of cores of {host}" for host in sorted(hosts) if others_s.get(host, 0.0) >= abs(apart_s)]
    return f", while others used {' and '.join(found)}" if found else ""


def _find_steps_apart(spec: Spec, workers: Sequence[TaskReport]) -> dict[str, tuple[float, str]]:
    """Return the workers with a sum of steps that differs from the chief's clock, with the difference and a message.

    The chief may be one of them. The difference is in seconds, and positive if the worker's steps take longer.

    Workers in lockstep step together, so each must have taken as long as the chief reports; the chief itself cannot differ,
    because it reports the duration of its own steps. Others end independently; the window closes with the slowest, and with
    several windows each has its own. The chief's clock then runs until all have reported, so that it is one of them.
    """
    chief = workers[0]
    every = spec.eval_during_training_every_n_steps
    windows = 1 if every is None else math.ceil(len(chief.step_s) / every)
    own_slack_s = max(CROSS_CHECK * chief.elapsed_s, CLOCK_SLACK_S)
    skew = VALUES_SKEW if spec.mode.ends_apart else END_SKEW
    end_s = max(skew * chief.elapsed_s / len(chief.step_s), EDGE_SLACK_S)  # of each window
    others_slack_s = max(own_slack_s, windows * end_s)
    totals = {worker.name: math.fsum(worker.step_s) for worker in _select_stepping(spec, workers)}
    longest_s = max(totals.values())
    slowest = {name: s for name, s in totals.items() if s == longest_s} if windows == 1 else {}
    compared = totals if spec.in_lockstep else slowest
    slack_s = {name: own_slack_s if spec.in_lockstep and name == chief.name else others_slack_s for name in compared}
    return {
        name: (
            apart_s,
            (
                f"the chief measured {chief.elapsed_s:.3f} s, the steps of {name} add up to {total_s:.3f} s: "
                f"more than {100 * CROSS_CHECK:g} % apart"
            ),
        )
        for name, total_s in compared.items()
        if abs(apart_s := total_s - chief.elapsed_s) > slack_s[name]
    }
