"""The cluster's rate of the steps that an external command has reported with `pytest_dtfperf.steps`. Pure."""

import math
from collections.abc import Sequence

from pytest_dtfperf.errors import InvalidMeasurement
from pytest_dtfperf.launch.slack import CROSS_CHECK, EDGE_SLACK_S, END_SKEW, WALL_SLACK_S
from pytest_dtfperf.measurement import CLOCK_SLACK_S, TaskReport
from pytest_dtfperf.spec import Spec
from pytest_dtfperf.spec.printed_number import UnclearNumber, parse
from pytest_dtfperf.spec.rate_of import DISTANCE, as_python

# Programs are started together, so their windows begin at the same time after that: up to this part of a window, or so many
# seconds.
START_SKEW, START_SLACK_S = 0.25, 0.5
HINT = "Of workers that do not wait for each other, say so: cross_replica_sync=False"
APART = f"they have not stepped together, or one clock or count is wrong. {HINT}"


def have_rate(spec: Spec, workers: Sequence[TaskReport]) -> bool:
    """Whether steps were reported, by workers whose steps make one rate: those that wait for each other, or a lone one.

    Of others nobody knows how long they have trained at the same time, so what they print counts, as without steps.
    """
    in_step = len(workers) == 1 or (spec.in_lockstep and spec.rate_of != "mean")
    return any(worker.impossible_steps or (worker.step_s and in_step) for worker in workers)


def rate(workers: Sequence[TaskReport], wall_s: float) -> float:
    """images/sec: the images of all workers' measured steps over the seconds of the chief's, which comes first.

    What a program does between its steps is in no rate. Raises `InvalidMeasurement` where the reports cannot all be true.
    """
    chief = workers[0]
    for worker in workers:
        _check(worker, wall_s)
        if len(worker.step_s) != len(chief.step_s):
            raise InvalidMeasurement(
                f"{worker.name} measured {len(worker.step_s)} steps, the chief {len(chief.step_s)}. {HINT}"
            )
    _check_images(workers)
    return math.fsum(worker.images for worker in workers) / math.fsum(chief.step_s)


def check_printed(spec: Spec, rate: float, printed: str | None) -> None:
    """Raise `InvalidMeasurement` where a program prints another rate than its steps have, or is asked for both.

    What it prints of itself may contain what is between its steps, so that the two differ.
    """
    if spec.rate_pattern is not None:
        raise InvalidMeasurement(
            f"there are two rates: the program reports its steps, which make {rate:.6g} images/sec, and "
            f"rate_pattern={as_python(spec.rate_pattern)} asks for a printed one ({printed or 'of which there is none'}). "
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
    """Raise `InvalidMeasurement` where workers count their images in different ways."""
    of_a_device = {worker.name: worker.images / len(worker.step_s) / max(1, worker.num_devices) for worker in workers}
    fewest, most = (pick(of_a_device, key=lambda name: of_a_device[name]) for pick in (min, max))
    if of_a_device[most] >= DISTANCE * of_a_device[fewest]:
        raise InvalidMeasurement(
            f"{most} reports {of_a_device[most]:.6g} images per step and device, and {fewest} {of_a_device[fewest]:.6g}: "
            "images_per_step is of one task on all its devices, not of all tasks"
        )


def _check(worker: TaskReport, wall_s: float) -> None:
    if worker.impossible_steps:
        raise InvalidMeasurement(f"{worker.name} reported steps that cannot be: {worker.impossible_steps}")
    if not worker.step_s:
        raise InvalidMeasurement(f"{worker.name} reported no steps, but others did: all workers must, or none")
    if not all(math.isfinite(s) and s > 0 for s in (*worker.step_s, worker.images, worker.window_s)):
        raise InvalidMeasurement(f"{worker.name}: a step took no time or had no images")
    total_s = math.fsum(worker.step_s)
    # Rounding alone may make a sum longer than what it is a part of.
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


def apart(workers: Sequence[TaskReport]) -> dict[str, tuple[float, str]]:
    """Return the workers whose window is not the chief's: by how many seconds, and a message.

    Of workers that step together it is the chief's, from the end of the warm-up on. Seconds are positive where the worker
    begins later than the chief or takes longer.
    """
    chief = workers[0]
    mean_s = chief.window_s / len(chief.step_s)
    slack_s = max(CROSS_CHECK * chief.window_s, END_SKEW * mean_s, EDGE_SLACK_S)
    found: dict[str, tuple[float, str]] = {}
    for worker in workers[1:]:
        begin_s = worker.window_at_s - chief.window_at_s
        if abs(begin_s) > max(START_SKEW * chief.window_s, START_SLACK_S):
            words = f"the measured steps of {worker.name} and of the chief begin {abs(begin_s):.3f} s apart"
            found[worker.name] = begin_s, words
        elif abs(apart_s := worker.window_s - chief.window_s) > slack_s:
            words = (
                f"the chief's steps lie in a window of {chief.window_s:.3f} s, those of {worker.name} in one of "
                f"{worker.window_s:.3f} s"
            )
            found[worker.name] = apart_s, words
    return found
