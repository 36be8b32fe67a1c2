"""One suspect with both sides: what its reason is read from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from pytest_dtfperf.explain.evidence import Evidence
from pytest_dtfperf.explain.kinds import is_server
from pytest_dtfperf.explain.model import Suspect
from pytest_dtfperf.explain.strain import Strain, strains
from pytest_dtfperf.explain.suspects import GROUPS
from pytest_dtfperf.explain.tables import Both
from pytest_dtfperf.explain.words import ends_of, with_host

Confidence = Literal["high", "medium", "low"]
_OF_SERVERS = ("apply", "server")  # suspects that are no worker's
_WITH_LOCATIONS = frozenset({"link", "input"})


@dataclass(frozen=True)
class Reason:
    """What a cause says of itself."""

    kind: str
    location: str | None
    words: str
    evidence: Sequence[str]
    confidence: Confidence


@dataclass(frozen=True)
class Case:
    then: Evidence
    now: Evidence
    both: Both
    suspect: Suspect

    @cached_property
    def hosts(self) -> Mapping[str, str]:
        """Task -> its host."""
        return {**self.then.hosts, **self.now.hosts}

    @property
    def location(self) -> str | None:
        """Of a single worker its name: there is no other. What parameter servers do is not there."""
        is_its = len(self.both.now.own) == 1 and self.suspect.what not in _OF_SERVERS
        return self.suspect.location or (next(iter(self.both.now.own)) if is_its else None)

    @property
    def who(self) -> str:
        """`worker:5 (node03)`; of many hosts' workers, that have it each for itself, only how many they are."""
        if self.location:
            return with_host(self.location, self.hosts)
        return f"each of {len(self.workers)} of the {len(self.both.now.own)} workers" if self.others else "every worker"

    @property
    def workers(self) -> Sequence[str]:
        return self.suspect.workers or sorted(self.both.now.own)

    @property
    def others(self) -> Sequence[str]:
        return [worker for worker in self.both.now.own if worker not in self.workers]

    @property
    def all_wait(self) -> str:
        is_one_of_several = self.suspect.location and len(self.both.now.own) > 1
        return "; all wait for it" if is_one_of_several and self.now.in_lockstep and not self.both.now.coordinated else ""

    @property
    def before(self) -> str:
        """Return what the numbers of the other side are of."""
        return "the others" if self.both.basis == "peers" else self.then.when

    @property
    def than(self) -> str:
        """Return what it is slower than."""
        if self.both.basis == "peers":
            return "the others"
        return "its baseline" if self.location and self.then.name == "the baseline" else self.then.name

    def seconds(self, what: str) -> tuple[float, float]:
        """Of a group of kinds, the mean of these workers: then and now."""
        found = (sum(side.seconds(worker, GROUPS[what]) for worker in self.workers) for side in (self.both.then, self.both.now))
        before, after = (seconds / len(self.workers) for seconds in found)
        return before, after

    def strains(self, *kinds: str) -> Sequence[str]:
        """What is known of its hosts that speaks for such a cause. For what has no place of its own it speaks where it is known
        of all hosts that have part in it; links and inputs are told with theirs.
        """
        at = {self.hosts.get(end, end) for end in ends_of(self.location)}
        found = [each for each in self._strains if each.kind in kinds and (not at or not at.isdisjoint(each.hosts))]
        is_told = (
            at or _WITH_LOCATIONS.issuperset(kinds) or {host for each in found for host in each.hosts} >= self._taking_part
        )
        return [each.words for each in found] if is_told else []

    @property
    def _taking_part(self) -> set[str]:
        """The hosts that have part in it, as far as they are known."""
        tasks = filter(is_server, self.hosts) if self.suspect.what in _OF_SERVERS else self.workers
        return {self.hosts[task] for task in tasks if task in self.hosts}

    @cached_property
    def _strains(self) -> Sequence[Strain]:
        return strains(self.then, self.now)

    def reason(self, kind: str, words: str, evidence: Sequence[str], agreeing: Sequence[str] = ()) -> Reason:
        """`agreeing`: what says the same and does not rest on the same seconds."""
        sure: Confidence = "medium" if not agreeing else "high"
        if self.both.basis == "peers":
            sure = "medium" if agreeing else "low"
        return Reason(kind, self.location, f"{words}{self.all_wait}", [*evidence, *agreeing], sure)
