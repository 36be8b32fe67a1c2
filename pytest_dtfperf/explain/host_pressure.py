"""Find the pressure on hosts and links: other processes, heat, too little memory, limits, and lower probed capacity.

It is read from the counters of hosts (`node/host_state.py`), from the disturbances of runs
(`launch/disturbance.py`), and from probes (`probes.py`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_dtfperf.datamodel.explanation import CauseKind
from pytest_dtfperf.datamodel.host_state import Disturbance, HostState
from pytest_dtfperf.datamodel.probes import ALL
from pytest_dtfperf.explain import thresholds
from pytest_dtfperf.explain.measurement_profile import MeasurementProfile, list_ends
from pytest_dtfperf.explain.probes import LINK, ChangedLimit, Slower, find_limits, find_slower

_QUOTA = "cpu_quota_cores"  # the name of the limit in probes


@dataclass(frozen=True)
class HostPressure:
    """A finding about one host, or about the link between two."""

    hosts: Sequence[str]
    kind: CauseKind  # that it supports
    words: str
    is_cpu_starved: bool = False  # the run's own processes are known to have waited for a core


# Limits that slow a training down, and the cause that each speaks for. With too few open files or locked pages it ends, or goes
# on as ever.
LIMITS: Mapping[str, CauseKind] = {
    "cores": CauseKind.OTHERS,
    _QUOTA: CauseKind.OTHERS,
    "priority": CauseKind.OTHERS,
    "scheduler": CauseKind.OTHERS,
    "clock_hz": CauseKind.CLOCK,
    "governor": CauseKind.CLOCK,
    "memory_bytes": CauseKind.MEMORY,
}


def find_host_pressures(baseline: MeasurementProfile, current: MeasurementProfile) -> Sequence[HostPressure]:
    found = [*_find_cpu_starved_hosts(baseline, current), *_find_disturbances(current.disturbances)]
    if baseline.probes and current.probes:
        found += _clocks(baseline, current)
        limits = find_limits(baseline.probes, current.probes)
        found += [_make_limit_strain(each, baseline.when) for each in limits if each.name in LIMITS]
        slower = find_slower(baseline.probes, current.probes)
        found += [
            _describe_slower(each) for each in slower if not (_is_due_to_clock(each, slower) or _is_due_to_core(each, slower))
        ]
    return found


def _find_cpu_starved_hosts(baseline: MeasurementProfile, current: MeasurementProfile) -> Iterator[HostPressure]:
    """Yield the hosts where the run's processes had to wait for cores, by the kernel's counts."""
    longer: dict[str, tuple[float, float]] = {}
    for host, state in current.states.items():
        before = baseline.states.get(host)
        kept, usual = (_limited_part(each) for each in (state, before))
        more = 0.0 if kept is None else kept - (usual or 0.0)
        if kept is not None and more > thresholds.MIN_QUOTA_SHARE and not _has_same_quota(host, baseline, current):
            is_known = before or (_limits(host, baseline) and _QUOTA not in _limits(host, baseline))
            message = f"a quota kept it from its cores for {_percent(kept)} of the run"
            message += "" if is_known else f", for how long {baseline.when} is not known"
            yield HostPressure([host], CauseKind.OTHERS, message, is_cpu_starved=True)
        if current.program_changes:  # another program may wait differently
            continue
        waited, usual = (_waited_for_each(each) for each in (state, before))
        if waited is None or usual is None or (waited > thresholds.MAX_RUN_QUEUE_WAIT_OF_IDLE_CORES and _was_idle(state)):
            continue
        if waited - usual > max(thresholds.MIN_RUN_QUEUE_INCREASE, thresholds.MIN_RELATIVE_RUN_QUEUE_INCREASE * usual):
            longer[host] = waited, usual
    most = max((waited - usual for waited, usual in longer.values()), default=0.0)
    for host, (waited, usual) in longer.items():
        if waited - usual > thresholds.MIN_SHARE_OF_LONGEST_QUEUE * most:
            message = (
                f"its threads waited {waited:.1f} s for a core for each second that they had one, {usual:.1f} s {baseline.when}"
            )
            yield HostPressure([host], CauseKind.OTHERS, message, is_cpu_starved=True)


def _has_same_quota(host: str, baseline: MeasurementProfile, current: MeasurementProfile) -> bool:
    """Return whether the host had a quota before that was not larger, as far as is known, and no stored effect of it.

    A baseline has its hosts' limits, but not the counts of their kernels.
    """
    if host in baseline.states or _QUOTA not in _limits(host, baseline):
        return False
    tighter = find_limits(baseline.probes, current.probes) if baseline.probes and current.probes else ()
    return not any((each.host, each.name) == (host, _QUOTA) for each in tighter)


def _limits(host: str, side: MeasurementProfile) -> Mapping[str, float | str]:
    """Return the probed limits of a host; empty if it was not probed."""
    return side.probes.hosts[host].limits if side.probes and host in side.probes.hosts else {}


def _limited_part(state: HostState | None) -> float | None:
    """Return the fraction of the run's core time that a quota took; None if it is not known, or the host has no cores listed.

    In a container, /proc/stat may number the cores anew.
    """
    if state is None or state.cpu.limited_s is None or not state.window_s * state.cores:
        return None
    return state.cpu.limited_s / (state.window_s * state.cores)


def _waited_for_each(state: HostState | None) -> float | None:
    """Return the seconds of waiting for a core per second on a core."""
    if state is None or state.cpu.waited_s is None or not state.cpu.own_s:
        return None
    return state.cpu.waited_s / state.cpu.own_s


def _was_idle(state: HostState) -> bool:
    """Return whether its cores were idle most of the time, and no quota kept the run from them."""
    cores_s = state.window_s * state.cores
    if not cores_s or state.quota or (_limited_part(state) or 0.0) > thresholds.MIN_QUOTA_SHARE:
        return False
    return state.cpu.busy_s + state.cpu.steal_s < thresholds.MAX_BUSY_OF_IDLE_CORES * cores_s


def _percent(part: float) -> str:
    return f"{100 * part:.0f} %"


def _is_due_to_clock(found: Slower, slower: Sequence[Slower]) -> bool:
    """Return whether copying or decoding became slower by no more than arithmetic: then it is neither memory nor input."""
    losses = (each.loss for each in slower if each.location == found.location and each.name == "core.matmul")
    return found.name in ("memory", "input") and found.loss < thresholds.MIN_LOSS_BEYOND_ARITHMETIC * next(losses, 0.0)


def _is_due_to_core(found: Slower, slower: Sequence[Slower]) -> bool:
    """Return whether a link lost no more than the arithmetic of one of its hosts without a free core during the probe."""
    ends = list_ends(found.location)
    without_core = (each for each in slower if each.location in ends and _has_no_core(each))
    return found.name == LINK and any(found.loss < each.loss for each in without_core)


def _has_no_core(found: Slower) -> bool:
    return found.cpu_share is not None and found.cpu_share < thresholds.MIN_CPU_SHARE_OF_PROBE


def _find_disturbances(disturbances: Sequence[Disturbance]) -> Iterator[HostPressure]:
    """Yield a finding for each disturbance of a known kind; its message names a GPU, but not the host."""
    for each in dict.fromkeys(disturbances):
        if each.kind and each.host:
            yield HostPressure([each.host], each.kind, each.message if each.gpu is None else str(each))


def _clocks(baseline: MeasurementProfile, current: MeasurementProfile) -> Iterator[HostPressure]:
    assert baseline.probes
    assert current.probes
    for host, probe in current.probes.hosts.items():
        before = baseline.probes.hosts[host].clock_hz if host in baseline.probes.hosts else None
        if before and probe.clock_hz and probe.clock_hz < (1 - thresholds.MIN_CLOCK_LOSS) * before:
            yield HostPressure([host], CauseKind.CLOCK, f"clock {probe.clock_hz / 1e9:.1f} of {before / 1e9:.1f} GHz")


def _make_limit_strain(found: ChangedLimit, when: str) -> HostPressure:
    before = "none" if found.before is None else found.before
    message = f"a limit of {found.host}: {found.name.replace('_', ' ')} {found.after}, {before} {when}"
    return HostPressure([found.host], LIMITS[found.name], message)


def _describe_slower(found: Slower) -> HostPressure:
    lost = f"{found.words} {100 * found.loss:.0f} % slower than {found.against} was, when probed"
    if found.name == LINK:
        return HostPressure(
            [end for end in list_ends(found.location) if end != ALL], CauseKind.LINK, f"{found.location}: {lost}"
        )
    kinds = {"memory": CauseKind.MEMORY, "input": CauseKind.INPUT}
    kind = CauseKind.OTHERS if _has_no_core(found) else kinds.get(found.name, CauseKind.COMPUTE)
    return HostPressure([found.location], kind, f"{found.location}: {lost}")
