"""Judge a host that is measured alone, by recorded readings of the same host and of others of the same hardware. Pure.

There are two references: the earlier sessions of the host, and the other hosts, each with the median of its latest sessions. A
new reading of an equal host differs from the median of n references by s * sqrt(1 + pi / 2n), where s is their standard
deviation, with n - 1 degrees of freedom. All capacities and references share the stated rate of false alarms evenly. A capacity
is SLOW if it is by one reference, and FIT if it is by all. Readings that were called slow are no reference.
"""

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from pytest_dtfperf.datamodel.qualification import CapacityResult, HostVerdict
from pytest_dtfperf.formats import format_count
from pytest_dtfperf.history.series import Series
from pytest_dtfperf.qualify.peers import LEAST_NOISE, LEAST_READINGS, QualifyPolicy, describe_loss, describe_uncertainty
from pytest_dtfperf.stats.noise import t_quantile

LEAST_RECORDED = 5  # sessions, or other hosts: the spread of fewer is not known
MOST_SESSIONS = 30  # of the host: older ones may be of another kernel or firmware
SESSIONS_OF_PEER = 5


def judge_by_records(
    capacities: Mapping[str, CapacityResult],
    names: Collection[str],
    kind: str,
    conditions: Mapping[str, str],
    recorded: Sequence[Series],
    policy: QualifyPolicy,
) -> dict[str, CapacityResult]:
    """Return the results of a host's capacities beside their records.

    Args:
        capacities: what was measured; `per_s` is the median of the readings.
        names: of the host.
        kind: its hardware.
        conditions: of the readings, by capacity.
        recorded: as of `history.series.make_host_series`.
    """
    level = policy.false_alarms / max(1, 2 * len(capacities))
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
        for name, each in capacities.items()
    }


def _list_references(names: Collection[str], same: Sequence[Series]) -> dict[str, list[float]]:
    """Return logarithms of the rates of each reference with enough of them, by its description."""
    own: list[float] = []
    peers: dict[str, list[float]] = {}
    for series in same:
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
    result: CapacityResult, references: Mapping[str, Sequence[float]], level: float, policy: QualifyPolicy
) -> CapacityResult:
    if result.per_s is None or result.readings < LEAST_READINGS:
        return result
    if not references:
        why = f"the history has fewer than {LEAST_RECORDED} sessions of this host, and of other hosts of its hardware"
        return replace(result, verdict=HostVerdict.NOT_JUDGED, reason=why)
    found = [_compare(result, name, rates, level, policy) for name, rates in references.items()]
    for verdict in (HostVerdict.SLOW, HostVerdict.NOT_JUDGED):
        if matching := [each for each in found if each.verdict is verdict]:
            return max(matching, key=lambda each: each.loss or 0.0)
    return max(found, key=lambda each: each.loss or 0.0)


def _compare(result: CapacityResult, name: str, rates: Sequence[float], level: float, policy: QualifyPolicy) -> CapacityResult:
    """Return the result beside one reference."""
    assert result.per_s
    centre, degrees = statistics.median(rates), len(rates) - 1
    error = max(statistics.stdev(rates), LEAST_NOISE) * math.sqrt(1 + math.pi / 2 / len(rates))
    loss = centre - math.log(result.per_s)
    lost = -math.expm1(-loss)
    if loss - t_quantile(level, degrees) * error > -math.log1p(-policy.tolerance):
        verdict, reason = HostVerdict.SLOW, f"{describe_loss(lost)} than {name}"
    elif loss + t_quantile(policy.missed, degrees) * error < -math.log1p(-policy.slow):
        verdict, reason = HostVerdict.FIT, ""
    else:
        verdict, reason = HostVerdict.NOT_JUDGED, describe_uncertainty(lost, error, name, policy)
    return replace(result, verdict=verdict, peers_per_s=math.exp(centre), loss=lost, error=error, reason=reason)
