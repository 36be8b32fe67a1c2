"""Why a run does not show its hosts' speed: other processes used them, or they lacked resources. Pure.

Disturbances are found in the state that each host reports (`node/host_run.py`). A disturbed run is discarded and repeated, so
in doubt a run counts as undisturbed: the record contains the state in any case.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from pytest_dtfperf.datamodel.explanation import CauseKind
from pytest_dtfperf.datamodel.host_state import Disturbance, GpuReading, GpuState, HostState
from pytest_dtfperf.formats import format_count

LEAST_S = 0.1  # of any counted time: kernels count some of it in ticks of 10 ms, and windows may be short

# Of the time of the cores that the run may use, for other processes. An idle machine's housekeeping, our own controller apart,
# stays below 1 %; a single busy process has 50 % of two cores, and 6 % of sixteen.
OTHERS_SHARE = 0.05
STEAL_SHARE = 0.05  # ... taken by the hypervisor, which no other number shows
MEMORY_STALL_SHARE = 0.10  # of the run, in which at least one process waited for memory; every start has a little of it
SWAP_MIB_PER_S = 10  # read back: memory is full, even if the kernel reports no stalls
CORE_HEAT_SHARE = 0.10  # of the run, for the core that was throttled longest: each makes its whole cluster wait
SAME_WINDOW = 1.1  # times as long: windows of hosts that train together differ by less
GPU_HEAT_SHARE = 0.10  # of a GPU's samples, which come every second or two
GPU_LEAST_SAMPLES = 2  # ... of which one may be a brief exception
GPU_OTHERS_PERCENT = 10  # in use before the run began: an idle process that holds memory disturbs no run

# Reasons for a lower clock that are not part of ordinary work. Others are: a GPU under load runs at its power cap, and fixed
# clocks are a setting of that machine.
GPU_SLOWDOWNS = {
    "hw_thermal_slowdown": "heat",
    "sw_thermal_slowdown": "heat",
    "hw_power_brake_slowdown": "the power supply",
    "hw_slowdown": "the hardware (heat or power)",
}


def find_disturbances(states: Mapping[str, HostState], *, dedicated: bool = True) -> list[Disturbance]:
    """Return the disturbances in this order: other processes, what each machine lacked, and what slowed its GPUs.

    Args:
        states: host -> its state.
        dedicated: whether no other jobs run on the hosts; otherwise other processes are no disturbance.
    """
    found: list[Disturbance] = []
    of_machine = group_by_machine(states)
    for host, state in states.items():
        others = _describe_others(host, of_machine[host]) if dedicated else ()
        found += [replace(each, host=host) for each in (*others, *_describe_heat(state), *_describe_memory(state))]
        for gpu in state.gpus:
            others = _describe_gpu_processes(gpu) if dedicated else ()
            found += [replace(each, host=host, gpu=gpu.index) for each in (*_describe_gpu(gpu), *others)]
    return found


def compute_taken_s(states: Mapping[str, HostState]) -> dict[str, float]:
    """Return host -> seconds of its cores used by others, including other guests of the same machine (steal)."""
    of_machine = group_by_machine(states)
    return {host: compute_others_s(host, of_machine[host]) + state.cpu.steal_s for host, state in states.items()}


def group_by_machine(states: Mapping[str, HostState]) -> dict[str, dict[str, HostState]]:
    """Return host -> the states of all hosts on its machine, itself included."""
    machines: dict[str, dict[str, HostState]] = {}
    for host, state in states.items():
        machines.setdefault(state.machine, {})[host] = state
    return {host: machines[state.machine] for host, state in states.items()}


def compute_others_s(host: str, states: Mapping[str, HostState]) -> float:
    """Return the seconds of a host's cores used by processes other than the run's and the controller's.

    `states` are at least those of all hosts on the same machine; further ones change nothing.
    """
    cpu = states[host].cpu
    own_s = cpu.own_s + cpu.controller_s + sum(other.cpu.own_s for other in _find_others_on_cores(host, states))
    return max(0.0, cpu.busy_s - own_s)


def _find_others_on_cores(host: str, states: Mapping[str, HostState]) -> Sequence[HostState]:
    """Return the states of other hosts on the same machine with cores in common: their work is the run's, too."""
    state = states[host]
    mine = state.core_numbers
    return [
        other for name, other in states.items() if name != host and other.machine == state.machine and mine & other.core_numbers
    ]


def _describe_others(host: str, states: Mapping[str, HostState]) -> Iterator[Disturbance]:
    state = states[host]
    window_s, cores = max(state.window_s, LEAST_S), state.cores
    # A host of parameter servers is sampled while the workers still build their graphs, which is not counted. What other
    # processes do on cores that it shares with workers' hosts, the states of those show.
    is_sampled_longer = any(window_s > SAME_WINDOW * other.window_s for other in _find_others_on_cores(host, states))
    theirs_s = 0.0 if is_sampled_longer else compute_others_s(host, states)
    # Under a quota all processes share the cores, and the run gets its own by the clock.
    if not state.quota and theirs_s > max(OTHERS_SHARE * cores * window_s, LEAST_S):
        used = theirs_s / window_s
        digits = f"{used:.2g}" if used < 99.5 else f"{used:.0f}"  # 128 cores are not 1.3e+02
        message = f"other processes used {digits} of {format_count(cores, 'core')} for the length of the run"
        yield Disturbance(message=message, kind=CauseKind.OTHERS)
    steal_s = state.cpu.steal_s
    if steal_s > max(STEAL_SHARE * cores * window_s, LEAST_S):
        message = f"the hypervisor gave {_format_percent(steal_s, cores * window_s)} of its cores' time to others (steal)"
        yield Disturbance(message=message, kind=CauseKind.OTHERS)


def _describe_heat(state: HostState) -> Iterator[Disturbance]:
    window_s, heat_s = max(state.window_s, LEAST_S), state.throttled_s
    if heat_s is not None and heat_s > max(CORE_HEAT_SHARE * window_s, LEAST_S):
        message = f"a core's clock was lowered for heat for {_format_percent(heat_s, window_s)} of the run"
        yield Disturbance(message=message, kind=CauseKind.CLOCK)


def _describe_memory(state: HostState) -> Iterator[Disturbance]:
    stalled_s, swapped_mib = state.memory.some_s, state.memory.swapped_in_mib
    window_s = max(state.window_s, LEAST_S)
    if stalled_s is not None and stalled_s > max(MEMORY_STALL_SHARE * window_s, LEAST_S):
        message = f"memory pressure: stalled for {_format_percent(stalled_s, window_s)} of the run"
        yield Disturbance(message=message, kind=CauseKind.MEMORY)
    if swapped_mib is not None and swapped_mib > SWAP_MIB_PER_S * max(window_s, 1.0):
        message = f"memory pressure: {swapped_mib} MiB came back from swap"
        yield Disturbance(message=message, kind=CauseKind.MEMORY)


def _describe_gpu(gpu: GpuState) -> Iterator[Disturbance]:
    samples = gpu.during.samples
    slow = {why: count for why, count in gpu.during.reasons.items() if why in GPU_SLOWDOWNS}
    # The general reason is set together with the particular one.
    particular = {why: count for why, count in slow.items() if why != "hw_slowdown"} or slow
    for why, count in particular.items():
        if count >= GPU_LEAST_SAMPLES and count >= GPU_HEAT_SHARE * samples:
            message = f"clocks lowered by {GPU_SLOWDOWNS[why]} ({why}) for {_format_percent(count, samples)} of the run"
            yield Disturbance(message=message, kind=CauseKind.CLOCK)
    before, after = ((reading or GpuReading()).ecc_uncorrected for reading in (gpu.before, gpu.after))
    if before is not None and after is not None and after > before:
        count = round(after - before)
        yield Disturbance(message=f"ECC: {format_count(count, 'uncorrected error')}")


def _describe_gpu_processes(gpu: GpuState) -> Iterator[Disturbance]:
    utilisation = (gpu.before or GpuReading()).utilisation or 0
    if gpu.others and utilisation >= GPU_OTHERS_PERCENT:
        processes = ", ".join(f"{each.name.rpartition('/')[2] or 'unnamed'} ({each.pid})" for each in gpu.others)
        yield Disturbance(message=f"{utilisation:.0f} % in use before the run, by {processes}", kind=CauseKind.OTHERS)


def _format_percent(fraction: float, whole: float) -> str:
    return f"{100 * fraction / whole:.0f} %"
