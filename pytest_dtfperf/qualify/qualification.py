"""Qualify the hosts of a cluster before a job: measure each in rounds, and name those that are slower than their peers.

In a round all hosts are probed side by side (arithmetic, memory), then in pairs over their links in both directions, with other
partners in each round, and each host trains by itself. `peers.py` decides; after the first rounds only what is open is measured
again. Capacities of hosts and links share the stated rate of false alarms evenly.
"""

import math
import secrets
import shlex
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from pytest_dtfperf.baselines.comparability import system_name
from pytest_dtfperf.clusters.capacity import compute_need, count_hosts_for
from pytest_dtfperf.clusters.slurm.request import make_drain_command
from pytest_dtfperf.datamodel.probes import HostProbe, Probes, make_link_name, split_link_name
from pytest_dtfperf.datamodel.qualification import CapacityResult, HostResult, HostVerdict, PairResult, Qualification
from pytest_dtfperf.errors import DtfPerfError, InfrastructureError, UsageError
from pytest_dtfperf.explain.probes import READING_NAMES, is_disturbed, merge_probes
from pytest_dtfperf.formats import format_count, percent, with_prefix
from pytest_dtfperf.history.series import Series
from pytest_dtfperf.launch.link_rounds import Fan, Round, split
from pytest_dtfperf.launch.probing import ALL_FAMILIES
from pytest_dtfperf.qualify.group_rates import Group
from pytest_dtfperf.qualify.group_training import TIME_LIMIT_REACHED, GroupTrainer
from pytest_dtfperf.qualify.pairs import (
    LINK_IN,
    LINK_OUT,
    LINK_POLICY,
    PAIR_READINGS,
    PAIR_TRAINING,
    Pair,
    PairReadings,
    Tournament,
    count_matchings,
    count_training_matchings,
    select_better,
)
from pytest_dtfperf.qualify.peers import PeerComparison, QualifyPolicy, find_impossible
from pytest_dtfperf.qualify.recorded import judge_by_records, needs_readings
from pytest_dtfperf.records.host_readings import HostReading, append_host_readings, format_conditions
from pytest_dtfperf.session.context import SessionContext
from pytest_dtfperf.spec import Spec

FILE = "qualification.json"
TEST = "dtfperf qualify"
TRAINING = "training"
SLOWER_CLOCK = 0.97  # of the median of the peers: such a clock is named beside a slow host


class HostQualification:
    """One qualification. An invalid training is refused before anything is started."""

    def __init__(
        self,
        session: SessionContext,
        spec: Spec,
        *,
        policy: QualifyPolicy | None = None,
        trains: bool = True,
        time_limit_s: float = math.inf,
        recorded: Sequence[Series] | None = None,
        names: Collection[str] = (),
        on_status: Callable[[str], object] = lambda text: None,
    ) -> None:
        """Prepare a qualification.

        Args:
            spec: a training on all hosts. Each host makes its own part of it.
            policy: the error rates and the losses; of links, the losses are those of `LINK_POLICY`.
            trains: whether hosts train.
            time_limit_s: no round begins that would end later.
            recorded: readings of hosts in the history, by which a host that is measured alone is judged, instead of by peers.
            names: further names of that host in the history.
            on_status: called with a line about each round.
        """
        session.plan(spec)
        self._session = session
        self._spec = spec
        self._policy = policy or QualifyPolicy()
        self._trains = trains
        self._time_limit_s = time_limit_s
        seed = secrets.randbits(32)
        self._streams, self._pair_trainings = Tournament(seed), Tournament(seed + 1)
        self._on_status = on_status
        self._recorded, self._names = recorded, names
        self._hosts: list[str] = []
        self._kinds: dict[str, str] = {}
        self._probes = Probes()  # the last readings of all hosts
        self._link_conditions = ""
        self._pair_readings = PairReadings()
        self._why_not_measured: dict[Pair, str] = {}  # links that failed
        self._why_unmet = "it was not measured before the end"  # links between hosts that have not met
        self._why_stopped = ""

    def carry_out(self) -> Qualification:
        """Measure until all hosts are decided or the time is spent, write qualification.json, and return the results.

        Raises:
            AllocationError: no hosts are allocated, or agents do not start.
        """
        with self._session.measuring(self._spec, TEST):
            self._began_s = time.monotonic()
            # Each host trains with all of its devices, and with its own parameter servers.
            config = self._session.allocations.run_servers_on_worker_hosts()
            count = count_hosts_for(config, compute_need(config, self._spec.gpus, self._spec.num_ps))
            self._trainer = GroupTrainer(self._session, self._spec, TEST, hosts=count, on_status=self._on_status)
            launcher = self._trainer.get_launcher()
            hardware = {host: launcher.collect_fingerprint([host]).hardware for host in launcher.hosts}
            self._kinds = {host: system_name(each) for host, each in hardware.items()}
            self._is_simulated = any(each.simulated for each in hardware.values())
            self._own = self._compare(self._policy)
            self._links = self._compare(replace(self._policy, tolerance=LINK_POLICY.tolerance, slow=LINK_POLICY.slow))
            self._hosts = [*launcher.hosts, *self._trainer.lost]  # from here on, there is a result
            try:
                self._make_rounds()
            finally:
                self._write(self.result())
            return self.result()

    def _write(self, found: Qualification) -> None:
        """Write the results, and the readings of real hosts for the history."""
        folder = self._session.folder
        folder.write_json(FILE, found.to_json())
        if not self._is_simulated:
            append_host_readings(folder, HostReading.list_qualified(found, self._list_conditions()))

    def _list_conditions(self) -> dict[str, dict[str, str]]:
        """Return the conditions of each reading, by host. Readings under other conditions are not compared."""
        links = dict.fromkeys((LINK_IN, LINK_OUT), self._link_conditions)
        common = {TRAINING: self._trainer.shrink(1).key, PAIR_TRAINING: self._trainer.shrink(2).key, **links}
        probed = {
            host: {name: format_conditions(each.how) for name, each in probe.readings.items()}
            for host, probe in self._probes.hosts.items()
        }
        return {host: common | probed.get(host, {}) for host in self._hosts}

    @property
    def has_begun(self) -> bool:
        """Whether there is anything to report."""
        return bool(self._hosts)

    def result(self) -> Qualification:
        """Return what is known by now."""
        own, links = self._own.results(), self._links.results()
        if self._recorded is not None and not self._own.is_screening:  # fewer rounds decide nothing, as for several hosts
            own = self._judge_by_records(self._recorded)
        hosts = {
            host: self._judge_host(host, {**own.get(host, {}), **dict(sorted(links.get(host, {}).items()))})
            for host in self._hosts
        }
        return Qualification(
            cluster=self._session.config.name,
            hosts=hosts,
            pairs=[] if self._links.is_screening else list(self._pair_readings.judge_suspects()),
            unknown_links={} if self._links.is_screening else self._list_unknown_links(),
            false_alarms=self._policy.false_alarms,
            seconds=round(time.monotonic() - self._began_s, 1),
            rounds=max(self._own.rounds, self._links.rounds),
        )

    def _list_unknown_links(self) -> dict[str, str]:
        """Return the links between remaining hosts that have no rate, to the reason. Of many hosts only those that failed."""
        left = self._left
        unmet = [link for pair in self._pair_readings.list_unmet(left) for link in (pair, pair[::-1])]
        failed = [link for link in self._why_not_measured if set(link) <= {*left}]
        found = (link for link in dict.fromkeys([*failed, *unmet]) if link not in self._pair_readings.rates)
        why = self._why_stopped or self._why_unmet
        return {make_link_name(*link): self._why_not_measured.get(link, why) for link in found}

    def _judge_by_records(self, recorded: Sequence[Series]) -> dict[str, dict[str, CapacityResult]]:
        conditions = self._list_conditions()
        return {
            host: judge_by_records(
                self._own.list_rates(host), {host, *self._names}, kind, conditions[host], recorded, self._policy
            )
            for host, kind in self._kinds.items()
        }

    def _compare(self, policy: QualifyPolicy) -> PeerComparison:
        return PeerComparison(self._kinds, policy, false_alarms=policy.false_alarms / 2)

    # Rounds

    def _make_rounds(self) -> None:
        longest_s = 0.0
        while self._is_open_own or not self._is_decided_links:
            if not self._left:
                return
            began_s = time.monotonic()
            if not self._has_time(began_s, longest_s):
                if self._recorded is None or self._own.is_screening:  # otherwise the reason is that of the capacity
                    self._why_stopped = self._describe_time_limit(longest_s)
                return
            self._on_status(f"round {max(self._own.rounds, self._links.rounds) + 1}: {self._describe_round()}")
            try:
                self._make_round()
            except DtfPerfError as error:
                self._why_stopped = f"the cluster failed: {' '.join(str(error).split())}"
                return
            longest_s = max(longest_s, time.monotonic() - began_s)
        self._measure_pairs()

    def _describe_time_limit(self, longest_s: float) -> str:
        """Return that the time limit was reached, and after too few rounds how many are needed."""
        made, required = self._own.rounds, self._policy.screening
        if made >= required:
            return TIME_LIMIT_REACHED
        needed = f"{format_count(required, 'round')} are needed"
        if not made:
            return f"{TIME_LIMIT_REACHED} before the first round: {needed} (--time-limit)"
        after = f"{TIME_LIMIT_REACHED} after {format_count(made, 'round')}"
        return f"{after}: {needed}, and one takes up to {math.ceil(longest_s)} s (--time-limit)"

    @property
    def _is_open_own(self) -> bool:
        """Whether anything is undecided that hosts measure by themselves."""
        if self._recorded is None:
            return not self._own.is_decided
        found = self._judge_by_records(self._recorded).values()
        return any(needs_readings(self._own.rounds, each, self._policy) for each in found)

    @property
    def _measures_all(self) -> bool:
        """Whether the next round measures all capacities."""
        return self._own.is_screening or self._recorded is not None

    @property
    def _is_decided_links(self) -> bool:
        return len(self._left) < 2 or self._links.is_decided

    @property
    def _left(self) -> list[str]:
        """The hosts that are not lost."""
        return [host for host in self._hosts if host not in self._trainer.lost]

    def _describe_round(self) -> str:
        if self._measures_all:
            return format_count(len(self._left), "host")
        names = sorted({host for each in (self._own, self._links) for host, _ in each.iterate_open()})
        return f"{', '.join(names[:4])}{', ...' if len(names) > 4 else ''} again, beside all others"

    def _make_round(self) -> None:
        """Measure what is not decided, of all hosts."""
        is_open_own, is_open_links = self._is_open_own, not self._is_decided_links
        open_names = {name for each in (self._own, self._links) for _, name in each.iterate_open()}
        families = ALL_FAMILIES if self._measures_all else list_families(open_names)
        probes = self._leave_out_lost(self._trainer.repeat_without_lost_hosts(lambda: self._probe_all(families, is_open_links)))
        self._probes = merge_probes(self._probes, probes)
        if is_open_own:
            readings = {host: _select_readings(probe) for host, probe in probes.hosts.items() if not is_disturbed(probe)}
            if self._trains and (self._measures_all or TRAINING in open_names):
                for (host,), per_s in self._train([(host,) for host in self._left]).items():
                    readings.setdefault(host, {})[TRAINING] = per_s
            self._own.add_round(readings)
        if is_open_links:
            self._link_conditions = next((format_conditions(each.how) for each in probes.links.values()), "")
            found = {host: dict(each) for host, each in self._pair_readings.add_round(_list_pair_rates(probes)).items()}
            if self._trains and (self._links.is_screening or PAIR_TRAINING in open_names):
                for host, per_s in self._train_in_pairs().items():
                    found.setdefault(host, {})[PAIR_TRAINING] = per_s
            self._links.add_round(found)
        for host in self._trainer.lost:
            self._own.leave_out(host)
            self._links.leave_out(host)

    def _leave_out_lost(self, probes: Probes) -> Probes:
        """Return the probes of the hosts that answered. Leave out the others, and those with impossible readings."""
        readings = {host: _select_readings(probe) for host, probe in probes.hosts.items()}
        for (source, _), per_s in _list_pair_rates(probes).items():
            found = readings.setdefault(source, {})
            found[LINK_OUT] = max(per_s, found.get(LINK_OUT, 0.0))
        why = {host: text for host, text in probes.unknown.items() if host in self._kinds} | find_impossible(
            readings, self._kinds
        )
        self._trainer.lose({host: InfrastructureError(text, host=host) for host, text in why.items()})
        return replace(
            probes,
            hosts={host: probe for host, probe in probes.hosts.items() if host not in why},
            links={name: link for name, link in probes.links.items() if not set(split_link_name(name)) & why.keys()},
        )

    def _probe_all(self, families: Sequence[str], with_links: bool) -> Probes:
        """Probe all hosts that are left, and links between pairs of them."""
        left = self._left
        return self._probe(self._streams.draw(left, count_matchings(len(left))) if with_links else [], families)

    def _probe(self, matchings: Iterable[Sequence[Pair]], families: Sequence[str] = ()) -> Probes:
        launcher = self._session.allocations.get_launcher(self._spec)
        spec = self._trainer.shrink(len(self._left))
        rounds = _plan_rounds(launcher.hosts, matchings)
        probes = launcher.probe(spec, again=True, cold_input=True, rounds=rounds, families=families)
        failed = {name: why.removeprefix(f"{name}: ") for name, why in probes.unknown.items() if name not in self._kinds}
        self._why_not_measured |= {split_link_name(name): why for name, why in failed.items()}
        return probes

    def _probe_links(self, rounds: Sequence[Sequence[Pair]]) -> dict[Pair, float]:
        """Return the rates of the links in these rounds, without those of hosts that are lost."""
        probes = self._trainer.repeat_without_lost_hosts(lambda: self._probe(map(self._drop_lost, rounds)))
        lost = {host: InfrastructureError(why, host=host) for host, why in probes.unknown.items() if host in self._left}
        self._trainer.lose(lost)
        return _list_pair_rates(probes)

    def _measure_pairs(self) -> None:
        """Measure the pairs of few hosts that have not met, and then suspect pairs again, as often as the time limit allows."""
        try:
            self._measure_unmet()
            self._measure_suspects()
        except DtfPerfError as error:
            self._why_stopped = f"the cluster failed: {' '.join(str(error).split())}"

    def _measure_unmet(self) -> None:
        unmet = self._pair_readings.list_unmet(self._left) if len(self._hosts) > 2 else []
        if unmet and not self._has_time(time.monotonic()):
            self._why_unmet = TIME_LIMIT_REACHED
        elif unmet:
            self._on_status(f"{format_count(len(unmet), 'pair')} of hosts that have not met")
            self._pair_readings.add_unmet(self._probe_links(split(unmet)))

    def _measure_suspects(self) -> None:
        suspects = self._pair_readings.find_suspects() if len(self._hosts) > 2 else []
        longest_s = 0.0
        for _ in range(PAIR_READINGS):
            suspects = self._drop_lost(suspects)
            began_s = time.monotonic()
            if not suspects or not self._has_time(began_s, longest_s):
                return
            self._on_status(f"{format_count(len(suspects), 'pair')} of hosts again")
            self._pair_readings.add_again(self._probe_links([[pair] for pair in suspects]))
            longest_s = max(longest_s, time.monotonic() - began_s)

    def _drop_lost(self, pairs: Sequence[Pair]) -> list[Pair]:
        return [pair for pair in pairs if not set(pair) & self._trainer.lost.keys()]

    def _has_time(self, now_s: float, needed_s: float = 0.0) -> bool:
        return now_s - self._began_s + needed_s <= self._time_limit_s

    def _train_in_pairs(self) -> dict[str, float]:
        """Train each host with two others, one after the other, and return the better rate of each."""
        left = self._left
        rates: dict[Pair, float] = {}
        for matching in self._pair_trainings.draw(left, count_training_matchings(len(left))) if len(left) > 2 else []:
            rates |= {(here, there): per_s for (here, there), per_s in self._train(matching, rate_of_failed=0.0).items()}
        return select_better(rates)

    def _train(self, groups: Sequence[Group], rate_of_failed: float | None = None) -> dict[Group, float]:
        """Train each group by itself, and return the images per second of those that trained undisturbed, or failed."""
        rates: dict[Group, float] = {}
        for group, each in zip(groups, self._trainer.train(groups), strict=True):
            if each.run and not each.run.disturbances:
                rates[group] = each.run.images_per_sec
            elif not each.run and not set(group) & self._trainer.lost.keys():
                self._on_status(f"{' and '.join(group)} cannot train: {' '.join(each.failure.split())}")
                rates |= {group: rate_of_failed} if rate_of_failed is not None else {}
        return rates

    # Results

    def _judge_host(self, host: str, capacities: Mapping[str, CapacityResult]) -> HostResult:
        verdicts = {each.verdict for each in capacities.values()}
        slow = {name: each for name, each in capacities.items() if each.verdict is HostVerdict.SLOW}
        is_read = any(name not in (LINK_IN, LINK_OUT, PAIR_TRAINING) for name in capacities)  # not only with others
        expected = self._trains and TRAINING not in capacities
        if slow:
            verdict, reasons = HostVerdict.SLOW, [_describe_loss(name, each) for name, each in slow.items()]
            reasons += self._describe_clock(host)
        elif host in self._trainer.lost:
            verdict, reasons = HostVerdict.NOT_JUDGED, [self._trainer.lost[host]]
        elif HostVerdict.NOT_JUDGED in verdicts or not is_read or expected:
            verdict = HostVerdict.NOT_JUDGED
            reasons = [f"{name}: {each.reason}" for name, each in capacities.items() if each.verdict is HostVerdict.NOT_JUDGED]
            reasons = reasons[:1] or ["it has no undisturbed reading" if not is_read else "it has not trained undisturbed"]
        else:
            verdict, reasons = HostVerdict.FIT, []
        if verdict is HostVerdict.NOT_JUDGED and self._why_stopped and host not in self._trainer.lost:
            reasons = [self._why_stopped]
        probe = self._probes.hosts.get(host)
        return HostResult(
            verdict=verdict,
            kind=self._kinds.get(host, ""),
            capacities=capacities,
            reason="; ".join(reasons),
            clock_hz=probe.clock_hz if probe else None,
            most_clock_hz=probe.most_clock_hz if probe else None,
        )

    def _describe_clock(self, host: str) -> list[str]:
        """Return the clock of a slow host, if it is below that of its peers."""
        clocks = sorted(
            probe.clock_hz
            for name, probe in self._probes.hosts.items()
            if self._kinds[name] == self._kinds[host] and probe.clock_hz
        )
        own = self._probes.hosts[host].clock_hz if host in self._probes.hosts else None
        if not own or not clocks or own > SLOWER_CLOCK * clocks[len(clocks) // 2]:
            return []
        return [f"its clock is {with_prefix(own, 'Hz')}, that of its peers {with_prefix(clocks[len(clocks) // 2], 'Hz')}"]


def make_all_hosts_spec(session: SessionContext, spec: Spec, hosts: int, devices_per_host: int) -> Spec:
    """Return a training on so many hosts. Raises `UsageError` if it runs in one process."""
    whole = spec.replace(gpus=hosts * devices_per_host)
    if whole.in_one_process and hosts > 1:
        raise UsageError(f"{whole.label} trains in one process, on one host: use another variable_update")
    return whole


def list_drain_commands(found: Qualification) -> list[str]:
    """Return a command of Slurm for each slow host, which takes it out of use with the reason."""
    slow = found.list_hosts(HostVerdict.SLOW)
    return [shlex.join(make_drain_command(host, found.hosts[host].reason)) for host in slow]


def describe_pair(pair: PairResult) -> str:
    """Return a sentence about a slow pair."""
    here, there = pair.hosts
    if pair.verdict is not HostVerdict.SLOW:
        return f"{here} to {there}: the link may be slow; it was not measured often enough"
    return f"{here} to {there}: {with_prefix(8 * pair.per_s, 'bit/s')}, {percent(pair.loss)} less than both with other hosts"


def _describe_loss(name: str, result: CapacityResult) -> str:
    what = {LINK_IN: "link in", LINK_OUT: "link out"}.get(name) or (READING_NAMES[name][0] if name in READING_NAMES else name)
    if name in (LINK_IN, LINK_OUT) and result.per_s and result.peers_per_s:
        return f"{what}: {with_prefix(8 * result.per_s, 'bit/s')}, of its peers {with_prefix(8 * result.peers_per_s, 'bit/s')}"
    return f"{what}: {result.reason}"


def _select_readings(probe: HostProbe) -> dict[str, float]:
    return {name: each.per_s for name, each in probe.readings.items()}


def list_families(names: Collection[str]) -> list[str]:
    """Return the families of probes that measure these capacities: after the screening, no other ones are measured."""
    return [family for family in ALL_FAMILIES if any(name.split(".")[0] == family for name in names)]


def _plan_rounds(hosts: Sequence[str], matchings: Iterable[Sequence[Pair]]) -> list[Round]:
    """Return each matching as two rounds of streams, one for each direction."""
    numbers = {host: number for number, host in enumerate(hosts)}
    found: list[Round] = []
    for matching in matchings:
        for pairs in (matching, [(there, here) for here, there in matching]):
            streams = [(numbers[here], numbers[there]) for here, there in pairs]
            found.append([Fan(source, target, ((source, target),)) for source, target in streams])
    return found


def _list_pair_rates(probes: Probes) -> dict[Pair, float]:
    return {split_link_name(name): link.per_s for name, link in probes.links.items()}
