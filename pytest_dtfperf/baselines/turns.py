"""Compare the rates of two measurements of a session, though the machine may have changed between them. Pure.

Runs that are made in turn, round by round, share what the machine does. Where no round is shared, the side that was measured
first is measured again after the other: both answers must then agree, and their interval contains the change that was seen.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pytest_dtfperf.baselines.terms import Terms, least_runs
from pytest_dtfperf.formats import change
from pytest_dtfperf.measurement import Measurement, Run
from pytest_dtfperf.stats.comparison import Answer, RatioEstimate, against_drifting, against_each_other
from pytest_dtfperf.stats.noise import Noise


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What two measurements of a session tell of the ratio of their rates."""

    measurement: Measurement  # with the runs that were compared alone, as is `other`
    other: Measurement
    estimate: RatioEstimate
    note: str = ""  # why not all runs were compared


def compare(
    measurement: Measurement, other: Measurement, noises: tuple[Noise, Noise], floor: float, terms: Terms
) -> Comparison:
    """Compare two rates by the runs that may be compared: does their ratio reach `floor`?

    The two ways to compare what was not measured in turn share the error rates, for the second is taken if the first tells
    nothing.
    """
    if terms.has_one_noise:
        question = terms.question(floor, noises[0])
        estimate = against_each_other(measurement.rates, other.rates, noises[0], None, question)
        return Comparison(measurement=measurement, other=other, estimate=estimate)
    question = terms.question(floor, *noises)
    if are_in_turn(measurement, other):
        estimate = against_each_other(measurement.rates, other.rates, *noises, question)
        return Comparison(measurement=measurement, other=other, estimate=estimate)
    half = replace(question, false_alarm=question.false_alarm / 2, missed=question.missed / 2)
    if shared := shared_rounds(measurement, other):
        one, two = _of_rounds(measurement, shared), _of_rounds(other, shared)
        note = "of the runs that were made in turn alone"
        if one is None or two is None:
            return _unknown(measurement, other, note)
        estimate = against_each_other(one.rates, two.rates, *noises, half)
        return Comparison(measurement=one, other=two, estimate=estimate, note=note)
    for first, second in ((other, measurement), (measurement, other)):
        before, after = _around(first, second, runs_around(noises))
        if before and after:
            groups = [[run.images_per_sec for run in runs] for runs in (before, after)]
            bracketing, between = replace(first, runs=[*before, *after]), second.rates
            if first is other:
                estimate, sides = against_drifting([between], groups, *noises, half), (measurement, bracketing)
            else:
                estimate, sides = against_drifting(groups, [between], *noises, half), (bracketing, other)
            moved = sum(groups[1]) / len(groups[1]) / (sum(groups[0]) / len(groups[0])) - 1
            note = f"{first.spec.label} was measured before and after it ({change(moved)})"
            return Comparison(measurement=sides[0], other=sides[1], estimate=estimate, note=note)
    return _unknown(measurement, other, "not measured in turn, so that a change of the machine would count as a difference")


def are_in_turn(measurement: Measurement, other: Measurement) -> bool:
    """Return whether each round has a run of both, or nothing is known of rounds, as in old records."""
    rounds, others = _rounds(measurement), _rounds(other)
    return None in rounds | others or rounds == others


def shared_rounds(measurement: Measurement, other: Measurement) -> set[float | None]:
    """Return the rounds that have a run of both, disturbed or not."""
    return _rounds(measurement) & _rounds(other)


def runs_around(noises: tuple[Noise, Noise]) -> int:
    """Return how many runs of one side are compared before the other, and how many after it: one, where noise is known."""
    return max(map(least_runs, noises))


def to_measure_again(measurement: Measurement, other: Measurement, least: int) -> Measurement | None:
    """Return the side that lacks a run after the other, of `least`; None if the two can be compared, or share a round."""
    if are_in_turn(measurement, other) or shared_rounds(measurement, other):
        return None
    for first, second in ((measurement, other), (other, measurement)):
        before, after = _around(first, second, least)
        if before and len(after) >= least:
            return None
    ordered = sorted((measurement, other), key=lambda each: min(run.round_s or 0.0 for run in each.samples))
    return ordered[0]


def _around(first: Measurement, second: Measurement, least: int) -> tuple[list[Run], list[Run]]:
    """Return the nearest runs of `first` before all of `second`, and after them: `least` of each, if there are so many."""
    rounds = [run.round_s or 0.0 for run in second.samples]
    before = [run for run in first.samples if (run.round_s or 0.0) < min(rounds)]
    after = [run for run in first.samples if (run.round_s or 0.0) > max(rounds)]
    return before[-least:], after[:least]


def _of_rounds(measurement: Measurement, rounds: set[float | None]) -> Measurement | None:
    runs: Sequence[Run] = [run for run in measurement.runs if run.round_s in rounds and not run.disturbances]
    return replace(measurement, runs=runs) if runs else None


def _rounds(measurement: Measurement) -> set[float | None]:
    return {run.round_s for run in measurement.runs}


def _unknown(measurement: Measurement, other: Measurement, note: str) -> Comparison:
    ratio = measurement.images_per_sec / other.images_per_sec
    estimate = RatioEstimate(ratio=ratio, low=0.0, high=float("inf"), spread=0.0, degrees_of_freedom=0.0, answer=Answer.OPEN)
    return Comparison(measurement=measurement, other=other, estimate=estimate, note=note)
