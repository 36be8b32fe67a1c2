"""The problems of a cluster with advice, derived from a diagnosis. Pure."""

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pytest_dtfperf.clusters.named import BACKENDS, OLDEST_PYTHON
from pytest_dtfperf.doctor.diagnosis import (
    NAMED,
    Diagnosis,
    HostDiagnosis,
    HostFacts,
    end_sentence,
    find_slow_links,
    format_are,
    format_bits_per_s,
    format_bytes,
    format_gpus,
    format_hosts,
    indent_lines,
    join_groups,
)
from pytest_dtfperf.errors import AllocationError, quote_lines
from pytest_dtfperf.formats import format_count, join_some
from pytest_dtfperf.launch import exposure
from pytest_dtfperf.launch.exposure import NetworkInterface, Protection

TENSORFLOW = "2.21.0"  # the version that is locked, which `setup = "uv"` installs
MOST_OFFSET_S = 0.05  # between two clocks; with more, times of different hosts cannot be compared
LEAST_FREE_BYTES = 1 << 30  # for checkpoints, compiled kernels and logs of a session
LEAST_FREE_FRACTION = 0.02
MOST_LOAD = 0.25  # of a machine's cores; more affects measurements

T = TypeVar("T")


@dataclass(frozen=True)
class Finding:
    """A problem, with advice."""

    message: str  # the problem, and its host
    advice: str  # the next step
    wrong: bool = True  # False: a note; training works and can be measured

    def __str__(self) -> str:
        return f"{end_sentence(self.message)} {end_sentence(self.advice)}"


@dataclass(frozen=True)
class ExpectedHardware:
    """The hardware of the hosts according to clusters.toml."""

    gpus: int | None = None  # per host; None: not set, or the devices are cores
    shares: int | None = None  # devices per host that are made of its cores
    shared_folder: bool = False  # the folder is set as one that all hosts share


def list_findings(diagnosis: Diagnosis, expected: ExpectedHardware) -> list[Finding]:
    """Return all findings, problems first."""
    found = [finding for rule in RULES for finding in rule(diagnosis, expected)]
    return sorted(found, key=lambda finding: not finding.wrong)


def _find_missing(diagnosis: Diagnosis, expected: ExpectedHardware) -> Iterator[Finding]:
    for host in diagnosis.hosts:
        if host.missing is not None:
            last_lines = quote_lines(host.last_lines)
            first, _, more = host.missing.partition("\n")
            about = first if host.name in first else f"{host.name}: {first}"
            yield Finding(
                f"{about.rstrip('.')}{last_lines}{indent_lines(more)}",
                f"Fix {host.name}, or take it out of the cluster's hosts",
            )


def _find_troubled_hosts(diagnosis: Diagnosis, expected: ExpectedHardware) -> Iterator[Finding]:
    for host in diagnosis.hosts:
        for trouble in host.troubles:
            yield Finding(f"{host.name} {trouble}", "Fix this first; it may cause some of the findings below")


def _check_python(diagnosis: Diagnosis, expected: ExpectedHardware) -> Iterator[Finding]:
    known = _select_known_hosts(diagnosis)
    old = [host for host, facts in known if _parse_version(facts.python) < OLDEST_PYTHON]
    if old:
        wanted = ".".join(map(str, OLDEST_PYTHON))
        yield Finding(
            f"Python on {format_hosts(old)} is older than {wanted}",
            "Name a newer one in clusters.toml (`python`), or load it in `setup`",
        )
    versions = _group((host, facts.python) for host, facts in known)
    if len(versions) > 1:
        minor = {_parse_version(version) for version in versions}
        yield Finding(
            f"Python differs: {join_groups(versions)}",
            "Give all hosts the same, or their rates cannot be compared",
            wrong=len(minor) > 1,
        )


def _check_tensorflow(diagnosis: Diagnosis, expected: ExpectedHardware) -> Iterator[Finding]:
    tried = [(host, host.trial, host.facts) for host in diagnosis.hosts if host.trial is not None and host.missing is None]
    absent = [host for host, trial, facts in tried if trial.error and (facts is None or facts.tensorflow is None)]
    if absent:
        first = next((facts for host, _, facts in tried if host in absent and facts), None)
        interpreter = first.executable if first else "its Python"
        package = f"'tensorflow[and-cuda]=={TENSORFLOW}'" if first and first.gpus else f"tensorflow-cpu=={TENSORFLOW}"
        yield Finding(
            f"TensorFlow is missing on {format_hosts(absent)} ({interpreter} cannot import it)",
            f"Install it there ({interpreter} -m pip install {package}), name an interpreter that has it (`python`), "
            'or, over SSH, set setup = "uv"',
        )
    for host, trial, facts in tried:
        if trial.error and host not in absent:
            version = facts.tensorflow if facts else ""
            last_lines = quote_lines(trial.last_lines)
            yield Finding(
                f"TensorFlow {version} on {host.name} is installed, but: {trial.error}{last_lines}",
                f"Try it there: {facts.executable if facts else 'python'} -c 'import tensorflow'",
            )
    versions = _group((host, trial.version) for host, trial, _ in tried if trial.version)
    if len(versions) > 1:
        yield Finding(
            f"TensorFlow differs: {join_groups(versions)}", "Install the same on all hosts: they would train differently"
        )


def _check_devices(diagnosis: Diagnosis, expected: ExpectedHardware) -> Iterator[Finding]:
    known = _select_known_hosts(diagnosis)
    for host, facts in known:
        if facts.gpus is None:
            yield Finding(
                f"the GPUs of {host.name} cannot be listed: {facts.gpus_error}",
                "Reboot it, or reset its GPUs, where nvidia-smi itself fails there",
            )
    if expected.gpus is not None:
        for count, hosts in _group((host, len(facts.gpus)) for host, facts in known if facts.gpus is not None).items():
            if count != expected.gpus:
                yield Finding(
                    f"clusters.toml has {format_gpus(expected.gpus)} per host, but there {format_are(count)} on "
                    f"{format_hosts(hosts)}",
                    "Correct gpus_per_host or devices_per_host there, or look for the GPUs with nvidia-smi",
                )
    if expected.shares is not None:
        for count, hosts in _group((host, facts.cores) for host, facts in known).items():
            if count < expected.shares:
                yield Finding(
                    f"clusters.toml makes {expected.shares} devices of each host's cores, but {format_hosts(hosts)} "
                    f"{'have' if len(hosts) > 1 else 'has'} {count}",
                    "Lower devices_per_host",
                )
    blind = [
        host
        for host, facts in known
        if facts.gpus and host.trial is not None and host.trial.gpus is not None and host.trial.gpus < len(facts.gpus)
    ]
    if blind and expected.shares is None:
        yield Finding(
            f"TensorFlow does not see all GPUs that nvidia-smi lists on {format_hosts(blind)}",
            "It is one without CUDA, or does not find its libraries: install tensorflow[and-cuda], or load CUDA in `setup`",
        )
    models = _group((host, " + ".join(sorted(set(facts.gpus or ())))) for host, facts in known if facts.gpus)
    if len(models) > 1:
        yield Finding(
            f"GPUs differ: {join_groups(models)}", "The slowest sets the pace: measure with hosts that are alike", wrong=False
        )


def _check_clocks(diagnosis: Diagnosis, expected: ExpectedHardware) -> Iterator[Finding]:
    """Compare clocks with this machine's. If all hosts agree that it is wrong, it is this machine's."""
    clocks = [(host, host.offset) for host in diagnosis.hosts if host.offset is not None]
    off = [(host, clock) for host, clock in clocks if abs(clock.s) - clock.uncertainty_s > MOST_OFFSET_S]
    if len(off) == len(clocks) > 1:
        middle = statistics.median(clock.s for _, clock in clocks)
        if all(abs(clock.s - middle) <= MOST_OFFSET_S + clock.uncertainty_s for _, clock in clocks):
            yield Finding(
                f"this machine's clock is {abs(middle):.3g} s {'behind' if middle > 0 else 'ahead of'} those of all hosts",
                "Training does not mind, but compare no times of this machine's with theirs; run chrony or ntpd here",
                wrong=False,
            )
            return
    for host, clock in off:
        yield Finding(
            f"the clock of {host.name} is {abs(clock.s):.3g} s {'ahead of' if clock.s > 0 else 'behind'} this machine's "
            f"(within {clock.uncertainty_s:.2g} s)",
            "Run chrony or ntpd there",
        )


def _check_ports(diagnosis: Diagnosis, expected: ExpectedHardware) -> Iterator[Finding]:
    """Yield hosts that cannot reach others: first hosts that none reaches, then pairs."""
    for host in diagnosis.hosts:
        if host.taken:
            yield Finding(
                f"port {', '.join(map(str, host.taken))} of {host.name} is taken, which a task would need",
                "End what listens there (ss -ltnp), or give up fixed_ports",
            )
    failed = [each for each in diagnosis.reached if each.error]
    tried = {(each.source, each.target) for each in diagnosis.reached}
    closed = {(each.source, each.target): each for each in failed}
    rest = dict(closed)
    for index, host in enumerate(diagnosis.hosts):
        to = [pair for pair in tried if pair[1] == index]
        if len(to) > 1 and all(pair in rest for pair in to):
            why = closed[to[0]]
            elsewhere = "" if host.has_address else f". No interface of it has that address: it has {_format_addresses(host)}"
            yield Finding(
                f"no host can reach {host.name} ({host.address}), port {why.port}: {why.error}{elsewhere}",
                "Open its firewall to the other hosts, or name the right network (`interface`, or over SSH `private_address`)",
            )
            rest = {pair: each for pair, each in rest.items() if pair not in to}
    if not rest:
        return
    failing = [f"{diagnosis.hosts[source].name} -> {diagnosis.hosts[target].name}" for source, target in sorted(rest)]
    example = rest[min(rest)]
    host = diagnosis.hosts[example.target]
    elsewhere = "" if host.has_address else f" No interface of {host.name} has that address: it has {_format_addresses(host)}."
    yield Finding(
        f"{join_some(failing, NAMED)} cannot connect. {diagnosis.hosts[example.source].name} to {host.name} ({host.address}), "
        f"port {example.port}: {example.error}.{elsewhere}".rstrip("."),
        "Open the firewalls between all hosts for TCP, as tasks listen on any free port; or set fixed_ports = true and open "
        "2220 to 2239",
    )


def _check_links(diagnosis: Diagnosis, expected: ExpectedHardware) -> Iterator[Finding]:
    """Yield slow links between different machines; within a machine no network is measured."""
    hosts = diagnosis.hosts
    for link in diagnosis.links:
        if link.error:
            names = f"{hosts[link.source].name} -> {hosts[link.target].name}"
            yield Finding(
                f"the link {names} could not be measured: {link.error}", "Look for loss and for a small MTU on the way"
            )
    rates = {
        (link.source, link.target): rate
        for link in diagnosis.links
        if (rate := link.bits_per_s) is not None and hosts[link.source].address != hosts[link.target].address
    }
    below, usual = find_slow_links(rates)
    if not below:
        return
    slowest = min(rates[pair] for pair in below)
    counts = Counter(host for pair in below for host in pair)
    host, times = counts.most_common(1)[0]
    guilty = f". {diagnosis.hosts[host].name} is in {'all' if times == len(below) else times} of them" if len(below) > 1 else ""
    slow = [f"{diagnosis.hosts[source].name} -> {diagnosis.hosts[target].name}" for source, target in sorted(below)]
    yield Finding(
        f"{join_some(slow, NAMED)} {'is' if len(slow) == 1 else 'are'} far slower than the other links: "
        f"{format_bits_per_s(slowest)} where {format_bits_per_s(usual)} is usual{guilty}",
        "Look at its cable, its interface's speed (ethtool) and its errors (ip -s link)",
    )


def _check_interfaces(diagnosis: Diagnosis, expected: ExpectedHardware) -> Iterator[Finding]:
    """Yield hosts without the interface of clusters.toml; or, if none is set, a faster interface of all hosts."""
    known = _select_known_hosts(diagnosis)
    if diagnosis.interface:
        for host, facts in known:
            try:
                exposure.choose_interface(host.name, diagnosis.interface, facts.interfaces)
            except AllocationError as error:
                problem, _, advice = str(error).rpartition(". ")
                yield Finding(problem, advice)
        return
    used = [facts.find_interface(host.address) for host, facts in known]
    if not known or None in used or BACKENDS[diagnosis.backend].is_local:
        return
    slowest = min((each for each in used if each and each.gbps), key=lambda each: each.gbps or 0.0, default=None)
    faster = [each for each in known[0][1].interfaces if slowest and _get_lowest_gbps(each.name, known) > (slowest.gbps or 0.0)]
    if slowest and faster:
        best = max(faster, key=lambda each: _get_lowest_gbps(each.name, known))
        yield Finding(
            f"tasks use {slowest.name} ({slowest.speed}), and all hosts have a faster interface: {best.name} ({best.speed})",
            f'Set interface = "{best.name}" in clusters.toml, if the hosts reach each other there',
            wrong=False,
        )


def _get_lowest_gbps(name: str, known: Sequence[tuple[HostDiagnosis, HostFacts]]) -> float:
    """Return the lowest speed of the interface of this name; 0 if a host lacks it, its address, or its speed."""
    usable = [
        next((each.gbps or 0.0 for each in facts.interfaces if each.name == name and each.addresses), 0.0) for _, facts in known
    ]
    return min(usable, default=0.0)


def _check_disks(diagnosis: Diagnosis, expected: ExpectedHardware) -> Iterator[Finding]:
    for host, facts in _select_known_hosts(diagnosis):
        for disk in facts.disks:
            if disk.free_bytes < LEAST_FREE_BYTES or disk.free_bytes < LEAST_FREE_FRACTION * disk.total_bytes:
                yield Finding(
                    f"the disk for {disk.what} ({disk.folder}) of {host.name} is nearly full: "
                    f"{format_bytes(disk.free_bytes)} of {format_bytes(disk.total_bytes)} are free",
                    "Make room there",
                    wrong=disk.free_bytes < LEAST_FREE_BYTES,
                )


def _check_files(diagnosis: Diagnosis, expected: ExpectedHardware) -> Iterator[Finding]:
    groups = group_by_shared_folder(diagnosis)
    if expected.shared_folder and len(groups) > 1:
        alike = "; ".join(format_hosts([diagnosis.hosts[host] for host in group]) for group in groups)
        yield Finding(f"{diagnosis.folder} is not the same on all hosts: {alike}", "Mount it everywhere, or remove `shared`")


def _check_load(diagnosis: Diagnosis, expected: ExpectedHardware) -> Iterator[Finding]:
    known = _select_known_hosts(diagnosis)
    busy = [(host, facts) for host, facts in known if facts.load > max(1.0, MOST_LOAD * facts.machine_cores)]
    if busy:
        most = max((facts for _, facts in busy), key=lambda facts: facts.load / facts.machine_cores)
        are, up_to = ("is", "") if len(busy) == 1 else ("are", "up to ")
        yield Finding(
            f"{format_hosts([host for host, _ in busy])} {are} busy: {up_to}{most.load:g} runnable processes on "
            f"{format_count(most.machine_cores, 'core')} over the last minute",
            "They slow measurements: find them with top",
            wrong=False,
        )


def _check_protection(diagnosis: Diagnosis, expected: ExpectedHardware) -> Iterator[Finding]:
    """Yield hosts with unprotected ports of tasks, or with ports that only the network protects."""
    for host, facts in _select_known_hosts(diagnosis):
        kind = get_protection(diagnosis, host, facts)
        if kind is Protection.NONE and BACKENDS[diagnosis.backend].is_local:
            yield Finding(
                f"all users who can connect to {host.name} can connect to its tasks: {facts.unisolated}; {facts.unguarded}",
                "Allow this user to create namespaces (docs/security.md), or keep other users from this machine",
                wrong=False,
            )
        elif kind is Protection.NONE:
            yield Finding(exposure.format_refusal(host.name, host.address, facts.addresses, facts.unguarded), exposure.WAYS_OUT)
        elif kind is Protection.PRIVATE and (public := [each for each in facts.addresses if not exposure.is_private(each)]):
            yield Finding(
                f"tasks on {host.name} use {host.address}, but listen on all its addresses, of which {', '.join(public)} "
                f"{'is' if len(public) == 1 else 'are'} public, and this package cannot set up a firewall ({facts.unguarded})",
                "Make sure that another firewall protects them",
                wrong=False,
            )


RULES: Sequence[Callable[[Diagnosis, ExpectedHardware], Iterable[Finding]]] = (
    _find_missing,
    _find_troubled_hosts,
    _check_python,
    _check_tensorflow,
    _check_devices,
    _check_interfaces,
    _check_ports,
    _check_links,
    _check_clocks,
    _check_disks,
    _check_files,
    _check_load,
    _check_protection,
)


def get_protection(diagnosis: Diagnosis, host: HostDiagnosis, facts: HostFacts) -> Protection:
    """Return what protects tasks' ports on a host from other users."""
    return exposure.get_protection(
        diagnosis.backend,
        diagnosis.network,
        address=host.address,
        addresses=facts.addresses,
        unguarded=facts.unguarded,
        unisolated=facts.unisolated,
    )


def group_by_shared_folder(diagnosis: Diagnosis) -> list[list[int]]:
    """Return groups of hosts that see each other's files: one group if all see the same folder."""
    groups: list[list[int]] = []
    for index, host in enumerate(diagnosis.hosts):
        if host.sees is None:
            continue
        group = next((each for each in groups if each[0] in host.sees), None)
        if group is None:
            groups.append([index])
        else:
            group.append(index)
    return groups


def _select_known_hosts(diagnosis: Diagnosis) -> list[tuple[HostDiagnosis, HostFacts]]:
    return [(host, host.facts) for host in diagnosis.hosts if host.facts is not None]


def _group(pairs: Iterable[tuple[HostDiagnosis, T]]) -> dict[T, list[HostDiagnosis]]:
    """Return hosts by a value, the most frequent value first."""
    found: dict[T, list[HostDiagnosis]] = {}
    for host, value in pairs:
        found.setdefault(value, []).append(host)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def group_interfaces(diagnosis: Diagnosis) -> dict[tuple[NetworkInterface, ...], list[HostDiagnosis]]:
    """Return the hosts by their interfaces with an address."""
    return _group(
        (host, tuple(NetworkInterface(each.name, (), each.kind, each.gbps) for each in facts.interfaces if each.addresses))
        for host, facts in _select_known_hosts(diagnosis)
    )


def _format_addresses(host: HostDiagnosis) -> str:
    return ", ".join(host.facts.addresses) if host.facts else "others"


def _parse_version(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
