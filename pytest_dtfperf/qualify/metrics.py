"""The metrics of a qualification and of an isolation for Prometheus; docs/qualify.md and docs/isolate.md list them."""

import time
from collections import Counter

from pytest_dtfperf.datamodel.qualification import HostVerdict, Qualification
from pytest_dtfperf.qualify.isolation import IsolationResult
from pytest_dtfperf.qualify.search import Outcome
from pytest_dtfperf.report.export_formats import GaugeFamily, format_gauges

QUALIFY_JOB, ISOLATE_JOB = "dtfperf_qualify", "dtfperf_isolate"  # groups of a Pushgateway


def format_qualification_metrics(found: Qualification, ended_s: float | None = None) -> bytes:
    """Return the metrics of a qualification. `ended_s`: Unix time of its end, by default now."""
    cluster = {"cluster": found.cluster}
    hosts = {name: {**cluster, "host": name, "kind": host.kind} for name, host in found.hosts.items()}
    counts = Counter(host.verdict for host in found.hosts.values())
    slow_pairs = [pair for pair in found.pairs if pair.verdict is HostVerdict.SLOW]
    return format_gauges(
        [
            GaugeFamily(
                "qualification_hosts",
                "Hosts of the last qualification by verdict.",
                [({**cluster, "verdict": each}, float(counts[each])) for each in HostVerdict],
            ),
            GaugeFamily(
                "qualification_host_verdict",
                "1 for the verdict of a host, 0 for the others.",
                [
                    ({**hosts[name], "verdict": each}, float(host.verdict is each))
                    for name, host in found.hosts.items()
                    for each in HostVerdict
                ],
            ),
            GaugeFamily(
                "qualification_loss_ratio",
                "Loss of a capacity against the median of the peers; below 0 it is faster.",
                [
                    ({**hosts[name], "capacity": capacity}, each.loss)
                    for name, host in found.hosts.items()
                    for capacity, each in host.capacities.items()
                    if each.loss is not None
                ],
            ),
            GaugeFamily(
                "qualification_slow_link_loss_ratio",
                "Loss of a slow link of two hosts that are fast with others.",
                [({**cluster, "source": pair.hosts[0], "target": pair.hosts[1]}, pair.loss) for pair in slow_pairs],
            ),
            GaugeFamily("qualification_duration_seconds", "Duration of the last qualification.", [(cluster, found.seconds)]),
            GaugeFamily(
                "qualification_ended_timestamp_seconds", "When the last qualification ended.", [(cluster, _find_end(ended_s))]
            ),
        ]
    )


def format_isolation_metrics(found: IsolationResult, ended_s: float | None = None) -> bytes:
    """Return the metrics of an isolation. `ended_s`: Unix time of its end, by default now."""
    labels, conclusion = {"cluster": found.cluster, "training": found.label}, found.conclusion
    slow = {host for finding in conclusion.findings for host in finding.hosts}
    numbers = {"fit": len(conclusion.fit), "slow": len(slow), "unknown": len(set(conclusion.unknown) - slow)}
    findings = [({**labels, "kind": each.kind, "hosts": ",".join(each.hosts)}, each.slowdown) for each in conclusion.findings]
    return format_gauges(
        [
            GaugeFamily(
                "isolation_outcome",
                "1 for the outcome of the last search, 0 for the others.",
                [({**labels, "outcome": each}, float(conclusion.outcome is each)) for each in Outcome],
            ),
            GaugeFamily(
                "isolation_hosts",
                "Hosts of the last search by what is known of them.",
                [({**labels, "state": state}, float(number)) for state, number in numbers.items()],
            ),
            GaugeFamily("isolation_slowdown_ratio", "Loss of rate of a training with these hosts or links.", findings),
            GaugeFamily("isolation_trainings", "Trainings of the last search.", [(labels, float(conclusion.runs))]),
            GaugeFamily("isolation_duration_seconds", "Duration of the last search.", [(labels, found.seconds)]),
            GaugeFamily("isolation_ended_timestamp_seconds", "When the last search ended.", [(labels, _find_end(ended_s))]),
        ]
    )


def _find_end(ended_s: float | None) -> float:
    return time.time() if ended_s is None else ended_s
