"""Adding on two levels: within groups of towers that are near each other, and then across groups."""

from collections.abc import Sequence

from pytest_dtfperf.training.variable_update.all_reduce.work import Algorithm, T, Topology, Work


def across_hosts(inner: str, outer: Algorithm) -> Algorithm:
    """`inner` within each worker, "pscpu" or "nccl"; `outer`, with all the shards, between one place of each."""

    def reduce(work: Work[T], values: Sequence[T], topology: Topology, *, turn: int, shards: int) -> list[T]:
        leaders, sums = [], []
        for group in topology.by_host:
            towers = [topology.towers[tower] for tower in group]
            leader = topology.hosts[group[0]] if inner == "pscpu" else towers[0]
            theirs = [values[tower] for tower in group]
            sums.append(work.add(theirs, leader) if inner == "pscpu" else work.nccl(theirs, towers)[0])
            leaders.append(leader)
        means = outer(work, sums, Topology(tuple(leaders), topology.all_hosts), turn=turn, shards=shards)
        here = {host: work.copy(means[i], leaders[i]) for i, host in enumerate(topology.all_hosts)}
        return [here[host] for host in topology.hosts]

    return reduce


def hierarchical_copy(work: Work[T], values: Sequence[T], topology: Topology, *, turn: int, shards: int) -> list[T]:
    """Two halves of the devices, each added on one of its own, then both: made for hosts whose GPUs are linked in two groups.

    The devices of a half take turns in adding for it, and the halves in adding both.
    """
    half = (len(values) + 1) // 2
    groups = [group for group in (range(half), range(half, len(values))) if group]
    mains = [topology.towers[group[turn % len(group)]] for group in groups]
    sums = [work.add([values[tower] for tower in group], main) for group, main in zip(groups, mains, strict=True)]
    adder = mains[turn % len(mains)]
    mean = work.mean(work.add(sums, adder), adder)
    copies = [work.copy(mean, main) for main in mains]
    return [copy for copy, group in zip(copies, groups, strict=True) for _ in group]


def nccl(work: Work[T], values: Sequence[T], topology: Topology, *, turn: int, shards: int) -> list[T]:
    """All at once. The towers are GPUs of one process."""
    sums = work.nccl(values, topology.towers)
    return [work.mean(total, device) for total, device in zip(sums, topology.towers, strict=True)]
