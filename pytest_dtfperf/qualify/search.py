"""Propose trainings that find the hosts and links that slow a training, by adaptive group testing. Pure.

    rows     groups of about sqrt(N) hosts train side by side; those that are slower than the fastest ones are suspected
    halves   suspected hosts train in parts, each filled up with fit hosts, until a smallest slow set is left: QuickXplain
             (U. Junker, AAAI 2004, 167-172), which finds a host, or two hosts that are slow only together
    confirm  that set trains again, beside a group of fit hosts in the same round; only these new runs name it
    layouts  without slow rows, groups of hosts of different rows: a link between two of them, or all links between rows

All groups have the same number of hosts, so that rates of any two compare. A synchronous training is as fast as its slowest
host or link, so a set with a slow part is slow; this is all that is assumed of the training.

`group_rates.py` answers whether a group is slow. The k-th confirmation may err with a probability of error / (k (k + 1)), so
all of them together with at most `error`. `benchmarks/isolation.py` holds that against simulated clusters.
"""

import math
import statistics
from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import combinations
from typing import Any

from pytest_dtfperf.codec import JsonData, describe
from pytest_dtfperf.formats import format_count
from pytest_dtfperf.launch.link_rounds import make_matchings
from pytest_dtfperf.qualify.group_rates import (
    FEW_HOSTS,
    UNKNOWN_NOISE,
    Group,
    GroupAnswer,
    GroupQuestion,
    GroupRates,
    SearchPolicy,
    TooNoisy,
    choose_group_size,
    choose_layouts,
    make_layout,
)
from pytest_dtfperf.stats.noise import Noise

Rounds = Generator[list[Group], None, Any]  # yields the groups of a round, which are recorded before it goes on

HINTED_NOISE = Noise(run=0.01, degrees_of_freedom=4)  # at least, while runs only confirm what step timings have shown
MIXED_RUNS = 3  # of groups of several rows, until when each round of a search has one as control
LAYOUTS_IF_FOUND = 2  # by default: what explains the loss is known, and other links are only checked once
ATTEMPTS = 3  # searches in one suspected group, until it is left as it is
MOST_HOSTS_OF_LINK = 2  # a larger slow set is a sign of a wrong answer before
MOST_MATCHINGS = 3  # rounds that pair rows, to find which of them are far from the others


class SlowSetKind(StrEnum):
    """What is slow."""

    HOST = "host"
    LINK = "link"  # hosts that are slow only together
    BETWEEN = "between"  # the links of a group to all others; without hosts: all links between groups


class Outcome(StrEnum):
    """How a search ended."""

    FOUND = "found"
    EQUAL = "equal"
    UNRESOLVED = "unresolved"  # a group is slow, and no set of hosts in it was confirmed
    STOPPED = "stopped"
    NOT_JUDGED = "not judged"


@dataclass(frozen=True, kw_only=True)
class SlowSet(JsonData):
    """Hosts or links that were confirmed to slow the training."""

    kind: SlowSetKind = field(metadata=describe("host; link: slow only together; between: to hosts of other groups"))
    hosts: Sequence[str] = field(metadata=describe("The smallest set of hosts that is slow"))
    slowdown: float = field(metadata=describe("Loss of rate of a training with them, as a fraction", at_most=1))
    runs: int = field(metadata=describe("Trainings that confirmed it", at_least=1))


@dataclass(frozen=True, kw_only=True)
class Conclusion(JsonData):
    """The result of a search, as far as it has come."""

    outcome: Outcome = field(metadata=describe("found, equal, unresolved, stopped or not judged"))
    reason: str = field(metadata=describe("Of the outcome"))
    findings: Sequence[SlowSet] = field(metadata=describe("Confirmed, in the order of their confirmation"))
    fit: Sequence[str] = field(metadata=describe("Hosts of groups that were as fast as the fastest ones"))
    unknown: Sequence[str] = field(metadata=describe("All others that are not in a finding"))
    runs: int = field(metadata=describe("Trainings made", at_least=0))
    rounds: int = field(metadata=describe("Times that trainings ran side by side", at_least=0))
    pairs: float = field(metadata=describe("Fraction of all pairs of hosts that trained in one group", at_least=0, at_most=1))
    spread: float | None = field(
        metadata=describe("Standard deviation of the logarithm of a group's rate; null: unknown", at_least=0)
    )


class HostSearch:
    """The state of a search. `propose` returns the next trainings, and `record` takes their rates, until none is left.

    search = HostSearch(hosts)
    while groups := search.propose():
        search.record([train(group) for group in groups])
    print(search.conclude())
    """

    def __init__(
        self,
        hosts: Sequence[str],
        policy: SearchPolicy | None = None,
        *,
        noise: Noise = UNKNOWN_NOISE,
        suspects: Sequence[str] = (),
    ) -> None:
        """Begin a search.

        Args:
            hosts: in an order in which neighbours are likely to share a switch.
            noise: the spread of runs, if it was calibrated.
            suspects: hosts that step timings have shown to be late. Two rounds can confirm one; if none is
                confirmed, all hosts are searched.
        """
        self.policy = policy or SearchPolicy()
        self.hosts = list(hosts)
        self.size = choose_group_size(len(hosts))
        self.findings: list[SlowSet] = []
        self._suspects = [each for each in suspects if each in self.hosts]
        self._rates = GroupRates(self.policy, noise)
        self._last: dict[Group, float | None] = {}  # of the last round
        self._fit: dict[str, int] = {}  # host -> how often it has filled a group up
        self._mixed: list[float] = []  # rates of fit groups of several rows
        self._plain: list[float] = []  # rates of fit rows
        self._suspected: set[str] = set()
        self._unresolved: list[Group] = []
        self._certain: set[Group] = set()  # groups that are certainly fit
        self._uncertain: set[Group] = set()
        self._row: Mapping[str, int] = {}
        self._confirmations = 0
        self._runs = self._rounds = 0
        self._pairs: set[tuple[str, str]] = set()
        self._proposed: list[Group] | None = None
        self._search = self._find_all()
        self._is_over = False
        self._why_noisy = ""

    def propose(self) -> list[Group]:
        """Return the groups of hosts of the next round, which have no host in common; none: the search is over."""
        if self._proposed is None and not self._is_over:
            try:
                self._proposed = next(self._search, None)
            except TooNoisy as error:
                self._why_noisy = str(error)
            self._is_over = self._proposed is None
        return list(self._proposed or [])

    def record(self, rates: Sequence[float | None]) -> None:
        """Take the rates of the round's groups, in their order and any unit; None: the training failed."""
        groups = self.propose()
        self._last = {}
        for group, rate in zip(groups, rates, strict=True):
            log = None if rate is None else math.log(rate)
            self._last[group] = log
            if log is not None:
                self._rates.by_group.setdefault(group, []).append(log)
                self._pairs.update(combinations(sorted(group), 2))
        self._runs += len(groups)
        self._rounds += 1
        self._proposed = None

    @property
    def suspected_hosts(self) -> Sequence[str]:
        """The hosts of groups that are being searched, or that no search has resolved."""
        unresolved = {host for group in self._unresolved for host in group}
        return [each for each in self.hosts if each in self._suspected | unresolved]

    def conclude(self) -> Conclusion:
        """Return what is known by now. Before the search is over, this is STOPPED."""
        outcome, reason = self._choose_outcome()
        named = {host for each in self.findings for host in each.hosts}
        suspected = set(self.suspected_hosts)
        fit = [each for each in self.hosts if each in self._fit and each not in named | suspected | self._uncertain_hosts]
        spread, degrees_of_freedom = self._rates.pool_spread()
        total = len(self.hosts) * (len(self.hosts) - 1) // 2
        return Conclusion(
            outcome=outcome,
            reason=reason,
            findings=list(self.findings),
            fit=fit,
            unknown=[each for each in self.hosts if each not in named and each not in fit],
            runs=self._runs,
            rounds=self._rounds,
            pairs=len(self._pairs) / total if total else 0.0,
            spread=spread if degrees_of_freedom else None,
        )

    def _choose_outcome(self) -> tuple[Outcome, str]:
        if len(self.hosts) < 2:
            return Outcome.NOT_JUDGED, "one host has no other one to be compared with"
        if not self._is_over:
            return Outcome.STOPPED, "the search has not ended"
        if self._why_noisy:
            return Outcome.NOT_JUDGED, self._why_noisy
        if self._unresolved:
            return Outcome.UNRESOLVED, "a group is slow, and no host or link in it was confirmed"
        if self.findings and not self._fit:
            return Outcome.FOUND, "late by step timings, and confirmed in two groups; the other hosts were not searched"
        if self.findings:
            return Outcome.FOUND, "confirmed beside fit hosts"
        if not self._fit:
            return Outcome.NOT_JUDGED, "no group could train"
        loss = f"{100 * self.policy.smallest:g} %"
        if self._uncertain:
            return Outcome.NOT_JUDGED, (
                f"no group is certainly slower than the others by {loss}, but {format_count(len(self._uncertain), 'group')} "
                f"may be, after {self.policy.most_repeats} runs"
            )
        return Outcome.EQUAL, f"no group is slower than the others by {loss}"

    # The search

    def _find_all(self) -> Rounds:
        if len(self.hosts) < 2:
            return
        if self._suspects and len(self.hosts) >= 2 * self.size:
            yield from self._check_suspects()
            if self.findings:
                return
        size = self.size
        if len(self.hosts) < FEW_HOSTS or not (yield from self._compare_rows(size)):
            yield from self._compare_rows(1)
            if size > 1 and not (yield from self._compare_rows(size)):
                self._unresolved.append(tuple(self._list_unnamed()))
                return
        layouts = self.policy.layouts or (LAYOUTS_IF_FOUND if self.findings else choose_layouts(len(self.hosts)))
        for number in range(1, layouts if size > 1 else 1):
            if not (yield from self._compare_layout(number)):
                return

    def _compare_rows(self, size: int) -> Generator[list[Group], None, bool]:
        """Search in groups of neighbours. Return False if at least half are slow: then the fastest may not be fit either."""
        self.size, self._fit, self._mixed, self._plain = size, {}, [], []
        hosts = self._list_unnamed()
        rows = [tuple(hosts[at : at + size]) for at in range(0, len(hosts) - size + 1, size)]
        rest = tuple(hosts[len(rows) * size :])
        self._row = {host: number for number, row in enumerate([*rows, rest]) for host in row}
        if len(rows) < 2:
            self._add_fit(hosts)
            return True
        fit, slow = yield from self._screen(rows)
        if size > 1 and 2 * len(fit) < len(rows) + (len(rows) > 2):
            return False
        self._add_fit(host for row in fit for host in row)
        if fit:
            yield from self._examine([*((row, True) for row in slow), *([(rest, False)] if rest else [])])
        return True

    def _list_unnamed(self) -> list[str]:
        named = {host for each in self.findings if each.kind is SlowSetKind.HOST for host in each.hosts}
        return [each for each in self.hosts if each not in named]

    def _screen(self, groups: Sequence[Group]) -> Generator[list[Group], None, tuple[list[Group], list[Group]]]:
        """Train groups until each is fit or slow, and return both."""
        questions = [GroupQuestion(group) for group in groups]
        turn = questions
        while turn:
            yield [each.hosts for each in turn]
            for each in turn:
                each.rates.append(self._last[each.hosts])
            reference = self._rates.find_fastest(questions)
            for each in questions:
                each.answer = self._rates.answer_question(each, reference)
            turn = [each for each in questions if each.answer is GroupAnswer.OPEN]
            if turn:
                self._rates.check_noise()
        for each in questions:
            self._note_answer(each, each.hosts)
        fit = [each for each in questions if each.answer in (GroupAnswer.FIT, GroupAnswer.UNCERTAIN)]
        for each in fit:
            (self._mixed if self._is_mixed(each.hosts) else self._plain).extend(each.known)
        return [each.hosts for each in fit], [each.hosts for each in questions if each.answer is GroupAnswer.SLOW]

    def _examine(self, suspected: Sequence[tuple[Group, bool]]) -> Rounds:
        """Search in several groups side by side; each comes with whether it is known to be slow."""
        searches = [self._find_in_group(group, is_slow) for group, is_slow in suspected]
        self._suspected = {host for group, _ in suspected for host in group}
        asked = [(search, question) for search in searches if (question := next(search, None))]
        while asked:
            packed, controls = self._pack([question for _, question in asked])
            if not packed:
                self._unresolved += [tuple(question.hosts) for _, question in asked]
                return
            yield [*packed.values(), *controls]
            for group in controls:
                if (rate := self._last[group]) is not None and self._is_mixed(group):
                    self._mixed.append(rate)
            left = []
            for search, question in asked:
                if question in packed:
                    question.rates.append(self._last[packed[question]])
                    question.controls.append(self._last[controls[0]] if controls else None)
                    question.answer = self._rates.answer_question(question, self._mixed or self._plain)
                following: GroupQuestion | None = question
                if question.answer is not GroupAnswer.OPEN:
                    self._note_answer(question, packed[question])
                    if question.answer is GroupAnswer.FIT and self._is_mixed(packed[question]):
                        self._mixed += question.known
                    following = next(search, None)
                if following:
                    left.append((search, following))
            asked = left
        self._suspected = set()

    def _find_in_group(self, group: Group, is_slow: bool) -> Generator[GroupQuestion, None, None]:
        """Find, confirm and take out one smallest slow set after the other, until the rest of the group is fit."""
        rest, failed = list(group), 0
        while rest:
            if not is_slow:
                question = GroupQuestion(tuple(rest))
                yield question
                if question.answer is not GroupAnswer.SLOW:
                    break
            found = yield from self._find_smallest((), (), tuple(rest))
            question = GroupQuestion(found, self._share_error(), is_confirmation=True)
            if len(found) <= MOST_HOSTS_OF_LINK:
                yield question
            if question.answer is GroupAnswer.SLOW:
                kind = SlowSetKind.HOST if len(found) == 1 else SlowSetKind.LINK
                self._add_finding(kind, found, *self._rates.compare(question, self._mixed or self._plain))
                rest.remove(found[0])
            elif (failed := failed + 1) == ATTEMPTS:
                self._unresolved.append(tuple(rest))
                return
            is_slow = False
        self._suspected -= set(group)
        self._add_fit(rest)

    def _find_smallest(self, background: Group, added: Group, hosts: Group) -> Generator[GroupQuestion, None, Group]:
        """Return a smallest set of these hosts that is slow with the background. With `added`, it may be slow by itself."""
        if added:
            question = GroupQuestion(background, is_step=True)
            yield question
            if question.answer is GroupAnswer.SLOW:
                return ()
        if len(hosts) == 1:
            return hosts
        first, second = hosts[: len(hosts) // 2], hosts[len(hosts) // 2 :]
        later = yield from self._find_smallest((*background, *first), first, second)
        earlier = yield from self._find_smallest((*background, *later), later, first)
        return (*earlier, *later)

    def _pack(self, questions: Sequence[GroupQuestion]) -> tuple[dict[GroupQuestion, Group], list[Group]]:
        """Return as many questions as fit into one round, each with its group, and a group of fit hosts as control."""
        packed: dict[GroupQuestion, Group] = {}
        controls: list[Group] = []
        free = sorted((each for each in self._fit if each not in self._suspected), key=lambda host: self._fit[host])

        def take(number: int) -> Group:
            taken = self._choose_of_rows(free, number)
            for host in taken:
                free.remove(host)
                self._fit[host] += 1
            return taken

        for question in sorted(questions, key=lambda each: not each.is_confirmation):
            needed = self.size - len(question.hosts)
            if needed > len(free):
                continue
            packed[question] = self._sort((*question.hosts, *take(needed)))
            wants_control = question.is_confirmation or len(self._mixed) < MIXED_RUNS
            if wants_control and not controls and len(free) >= self.size:
                controls.append(self._sort(take(self.size)))
        return packed, controls

    def _choose_of_rows(self, free: Sequence[str], number: int) -> Group:
        """Return so many hosts, of as many different rows as possible."""
        seen: Counter[int] = Counter()
        ranked = []
        for at, host in enumerate(free):
            ranked.append((seen[self._row.get(host, -1)], at, host))
            seen[self._row.get(host, -1)] += 1
        return tuple(host for _, _, host in sorted(ranked)[:number])

    def _check_suspects(self) -> Rounds:
        """Train each suspect in one of two groups, and then in the other one, which is slow if the suspect is."""
        for suspect in self._suspects:
            others = [each for each in self.hosts if each not in self._suspects] + [
                each for each in self._suspects if each != suspect
            ]
            with_it, without = (suspect, *others[: self.size - 1]), tuple(others[self.size - 1 : 2 * self.size - 1])
            swapped = (without[0], *with_it[1:]), (suspect, *without[1:])
            question = GroupQuestion((suspect,), self._share_error(), is_confirmation=True)
            noise = self._rates.noise
            self._rates.noise = max(noise, HINTED_NOISE, key=lambda each: each.degrees_of_freedom)
            while question.answer is GroupAnswer.OPEN:
                slow, fast = (with_it, without) if len(question.rates) % 2 == 0 else swapped[::-1]
                slow, fast = self._sort(slow), self._sort(fast)
                yield [slow, fast]
                question.rates.append(self._last[slow])
                question.controls.append(self._last[fast])
                if len(question.rates) % 2 == 0:
                    question.answer = self._rates.answer_question(question, [])
            if question.answer is GroupAnswer.SLOW:
                self._add_finding(SlowSetKind.HOST, (suspect,), *self._rates.compare(question, []))
            self._rates.noise = noise

    # Links between rows

    def _compare_layout(self, number: int) -> Generator[list[Group], None, bool]:
        """Train groups of hosts of different rows; return whether another layout can follow."""
        named = {host for each in self.findings for host in each.hosts}
        left = [each for each in self.hosts if each in self._fit and each not in named]
        groups = [self._sort(group) for group in make_layout(left, self.size, number)]
        if len(groups) < 2 or not self._plain:
            return False
        before = list(self._plain)
        fit, slow = yield from self._screen(groups)
        together = [rate for group in fit for rate in self._rates.by_group[group]]
        if together and self._rates.is_slower(together, before):
            yield from self._pair_rows(left, 1 - math.exp(statistics.fmean(together) - statistics.fmean(before)))
            return False
        yield from self._examine([(group, True) for group in slow])
        return True

    def _pair_rows(self, hosts: Sequence[str], slowdown: float) -> Rounds:
        """Train halves of two rows together, in different pairings, to find the rows that are slow with all others."""
        rows = [row for at in range(0, len(hosts), self.size) if len(row := hosts[at : at + self.size]) == self.size]
        slow: dict[tuple[int, int], bool] = {}
        half, runs = self.size // 2, 0
        for matching in make_matchings(range(len(rows)))[:MOST_MATCHINGS]:
            groups = {pair: self._sort((*rows[pair[0]][:half], *rows[pair[1]][half:])) for pair in matching}
            questions = [GroupQuestion(group) for group in groups.values()]
            while turn := [each for each in questions if each.answer is GroupAnswer.OPEN]:
                yield [each.hosts for each in turn]
                for each in turn:
                    each.rates.append(self._last[each.hosts])
                    each.answer = self._rates.answer_question(each, self._plain)
                    runs += 1
            slow.update(zip(matching, (each.answer is GroupAnswer.SLOW for each in questions), strict=True))
        of_rows = [[is_slow for pair, is_slow in slow.items() if number in pair] for number in range(len(rows))]
        far = [rows[number] for number, own in enumerate(of_rows) if len(own) > 1 and all(own)]
        if far and any(not is_slow for is_slow in slow.values()):
            for row in far:
                self._add_finding(SlowSetKind.BETWEEN, tuple(row), slowdown, runs)
        else:
            self._add_finding(SlowSetKind.BETWEEN, (), slowdown, max(1, runs))

    # Decisions

    def _note_answer(self, question: GroupQuestion, group: Group) -> None:
        """Note whether the hosts of a question are fit, and the group that they trained in. What is slow is examined."""
        self._uncertain.discard(question.hosts)
        if question.answer is GroupAnswer.FIT:
            self._certain.add(group)
        elif question.answer is GroupAnswer.UNCERTAIN and not (question.is_step or question.is_confirmation):
            self._uncertain.add(question.hosts)

    @property
    def _uncertain_hosts(self) -> set[str]:
        """The hosts of uncertain groups that are in no group that is certainly fit."""
        certain = {host for group in self._certain for host in group}
        return {host for group in self._uncertain for host in group} - certain

    def _share_error(self) -> float:
        """Return the largest probability of an error of the next confirmation."""
        self._confirmations += 1
        return self.policy.error / (self._confirmations * (self._confirmations + 1))

    def _add_finding(self, kind: SlowSetKind, hosts: Group, slowdown: float, runs: int) -> None:
        self.findings.append(SlowSet(kind=kind, hosts=list(hosts), slowdown=slowdown, runs=runs))
        if kind is SlowSetKind.HOST:
            for host in hosts:
                self._fit.pop(host, None)

    def _add_fit(self, hosts: Iterable[str]) -> None:
        unnamed = set(self._list_unnamed())
        for host in hosts:
            if host in unnamed:
                self._fit.setdefault(host, 0)

    def _is_mixed(self, group: Group) -> bool:
        return len({self._row.get(host, -1) for host in group}) > 1

    def _sort(self, hosts: Iterable[str]) -> Group:
        return tuple(sorted(hosts, key=self.hosts.index))


def estimate_cost(
    hosts: int, policy: SearchPolicy | None = None, *, noise: Noise = UNKNOWN_NOISE, slow_hosts: int = 0
) -> tuple[int, int]:
    """Return the runs and rounds of a search among so many hosts without any noise, of which the last ones are slow by 20 %."""
    names = [str(number) for number in range(hosts)]
    slow = set(names[hosts - slow_hosts :])
    search = HostSearch(names, policy, noise=noise)
    while groups := search.propose():
        search.record([0.8 if slow & set(group) else 1.0 for group in groups])
    found = search.conclude()
    return found.runs, found.rounds
