"""Judge a host that is measured alone, by recorded readings of the same host and of others of the same hardware. Pure.

There are two references: the earlier sessions of the host, and the other hosts, each with the median of its latest sessions. A
new session of an equal host differs from the median of n references by s * sqrt(1 + pi / 2n), where s is their standard
deviation, with n - 1 degrees of freedom. The median of its own k readings differs from its rate by r * sqrt(pi / 2k), where r
is their standard deviation, with k - 1 degrees of freedom. Both errors are added, with the degrees of freedom of B. L. Welch
(Biometrika 34, 1947, 28-35). The first one has a part of the second one already, so that the sum is rather too large. Further
readings make the second one smaller, and `needs_readings` decides whether there are any. All capacities and references share
the stated rate of false alarms evenly. A capacity is SLOW if it is by one reference, which is decided once, at the end, and
FIT if it is by all. Readings that were called slow are no reference.
"""

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from pytest_dtfperf.datamodel.qualification import CapacityResult, HostVerdict
from pytest_dtfperf.formats import format_count
from pytest_dtfperf.history.series import Series
from pytest_dtfperf.qualify.peers import (
    LEAST_NOISE,
    LEAST_READINGS,
    MISSED_SHARE,
    QualifyPolicy,
    describe_loss,
    describe_uncertainty,
)
from pytest_dtfperf.stats.noise import compute_t_quantile

LEAST_RECORDED = 5  # sessions, or other hosts: the spread of fewer is not known
MOST_SESSIONS = 30  # of the host: older ones may be of another kernel or firmware
SESSIONS_OF_PEER = 5


def judge_by_records(
    readings: Mapping[str, Sequence[float]],
    names: Collection[str],
    kind: str,
    conditions: Mapping[str, str],
    recorded: Sequence[Series],
    policy: QualifyPolicy,
) -> dict[str, CapacityResult]:
    """Return the results of a host's capacities beside their records.

    Args:
        readings: of each capacity, undisturbed.
        names: of the host.
        kind: its hardware.
        conditions: of the readings, by capacity.
        recorded: as of `history.series.make_host_series`.
    """
    level = policy.false_alarms / max(1, 2 * len(readings))
    return {
        name: _judge(
            each,
            _list_references(
                names,
                [
                    series
                    for series in recorded
                    if (series.capacity, series.system) == (name, kind)
                    and series.points[-1]["conditions"] == conditions.get(name, "")
                ],
            ),
            level,
            policy,
        )
        for name, each in readings.items()
    }


def _list_references(names: Collection[str], all_series: Sequence[Series]) -> dict[str, list[float]]:
    """Return logarithms of the rates of each reference with enough of them, by its description."""
    own: list[float] = []
    peers: dict[str, list[float]] = {}
    for series in all_series:
        rates = [point["mean_log"] for point in series.points if point["verdict"] != HostVerdict.SLOW]
        if series.host in names:
            own += rates
        elif rates and series.points[-1]["verdict"] != HostVerdict.SLOW:
            peers.setdefault(series.host, []).extend(rates)
    levels = [statistics.median(rates[-SESSIONS_OF_PEER:]) for rates in peers.values()]
    found = {
        f"in its own {format_count(len(own[-MOST_SESSIONS:]), 'session')} before": own[-MOST_SESSIONS:],
        f"the recorded {format_count(len(levels), 'host')} of its hardware": levels,
    }
    return {name: rates for name, rates in found.items() if len(rates) >= LEAST_RECORDED}


def _judge(
    readings: Sequence[float], references: Mapping[str, Sequence[float]], level: float, policy: QualifyPolicy
) -> CapacityResult:
    result = CapacityResult(verdict=HostVerdict.NOT_JUDGED, per_s=statistics.median(readings), readings=len(readings))
    if len(readings) < LEAST_READINGS:
        return replace(result, reason=f"it has {format_count(len(readings), 'undisturbed reading')}")
    if not references:
        why = f"the history has fewer than {LEAST_RECORDED} sessions of this host, and of other hosts of its hardware"
        return replace(result, reason=why)
    found = [_compare(result, readings, name, rates, level, policy) for name, rates in references.items()]
    for verdict in (HostVerdict.SLOW, HostVerdict.NOT_JUDGED):
        if matching := [each for each in found if each.verdict is verdict]:
            return max(matching, key=lambda each: each.loss or 0.0)
    return max(found, key=lambda each: each.loss or 0.0)


def _compare(
    result: CapacityResult,
    readings: Sequence[float],
    name: str,
    rates: Sequence[float],
    level: float,
    policy: QualifyPolicy,
) -> CapacityResult:
    """Return the result beside one reference."""
    own = [math.log(each) for each in readings]
    centre = statistics.median(rates)
    squares = (
        max(statistics.stdev(rates), LEAST_NOISE) ** 2 * (1 + math.pi / 2 / len(rates)),
        max(statistics.stdev(own), LEAST_NOISE) ** 2 * math.pi / 2 / len(own),
    )
    error = math.sqrt(sum(squares))
    degrees = sum(squares) ** 2 / (squares[0] ** 2 / (len(rates) - 1) + squares[1] ** 2 / (len(own) - 1))
    loss = centre - statistics.median(own)
    lost = -math.expm1(-loss)
    if loss - compute_t_quantile(level, degrees) * error > -math.log1p(-policy.tolerance):
        verdict, reason = HostVerdict.SLOW, f"{describe_loss(lost)} than {name}"
    elif loss + compute_t_quantile(MISSED_SHARE * policy.missed, degrees) * error < -math.log1p(-policy.slow):
        verdict, reason = HostVerdict.FIT, ""
    else:
        verdict, reason = HostVerdict.NOT_JUDGED, describe_uncertainty(lost, error, name, policy)
    return replace(result, verdict=verdict, peers_per_s=math.exp(centre), loss=lost, error=error, reason=reason)


def needs_readings(rounds: int, results: Mapping[str, CapacityResult], policy: QualifyPolicy) -> bool:
    """Return whether a host is measured further after these rounds: until it is fit, or the rounds of the policy are made."""
    analyses = [policy.screening, *(policy.screening + each for each in policy.analyses)]
    if rounds >= analyses[-1]:
        return False
    is_fit = bool(results) and all(each.verdict is HostVerdict.FIT for each in results.values())
    return rounds not in analyses or not is_fit
