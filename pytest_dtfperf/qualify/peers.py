"""Decide which hosts are slower than their peers, the hosts of the same hardware, from a few readings of each. Pure.

All hosts are read in rounds. The first rounds are a screening, which only chooses what is read again: a capacity of a host that
may be slow. Further rounds confirm it, and only they count for it, so that the number of hosts that were screened needs no
correction: the stated rate of false alarms is shared by the candidates and the interim analyses. A host is

    SLOW        if its loss is certainly more than the tolerance, by which hosts of one kind may differ
    FIT         if its loss is certainly less than the least loss that must be found
    NOT_JUDGED  otherwise: too few peers, too few undisturbed readings, or neither is certain at the end

Each reading is taken relative to the median of the other peers in the same round, each less its own level, so that what all
hosts have in common does not count (a step of median polish: J. W. Tukey, Exploratory Data Analysis, 1977, chapter 11). A
host's level is the trimmed mean of its readings, and its loss that against the median level of the others. A host is never part
of what it is compared with: of few hosts, a slow one would hide a part of its loss and of its noise. The noise of a reading is
estimated from the differences between rounds, of all peers together and without the largest (one reading in ten may be slow by
chance, as in `stats.noise`). With
`PEERS_FOR_SPREAD` peers or more, the spread of their levels widens the tolerance (the median absolute deviation: F. R. Hampel,
JASA 69, 1974, 383-393); of fewer, more than half must agree within the tolerance. A loss must be there without as many of the
slowest readings as may be slow for no reason. `benchmarks/qualify.py` has the error rates.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from pytest_dtfperf.codec import JsonData, describe
from pytest_dtfperf.datamodel.qualification import CapacityResult, HostVerdict
from pytest_dtfperf.explain.measurement_profile import find_medians_of_others
from pytest_dtfperf.formats import format_count, percent
from pytest_dtfperf.stats.noise import compute_t_quantile, count_most_rare

LEAST_PEERS = 3  # hosts of one kind, itself included: of two that differ, either could be slow
PEERS_FOR_SPREAD = 8  # fewer do not show how much hosts of a kind differ
LEAST_READINGS = 2  # of the screening that are undisturbed
MAD = 1.4826  # standard deviations of a normal distribution for each median absolute deviation
# Differences of two rounds that count for the noise, where one reading in ten may be slow for no reason, and the mean square of
# these smallest 80 % of normal deviates: 1 - 2 c p(c) / 0.8, for c = 1.2816, the 90th percentile.
COUNTED, COUNTED_SQUARE = 0.8, 0.4377
EFFICIENCY = 0.5  # of the degrees of freedom that a standard deviation of as many readings would have
UNSTEADY = 5.0  # times the noise: a host that scatters so has a noise of its own
LEAST_NOISE = 5e-4  # of a reading: smaller spreads of a few readings are chance
SURE = 1.0  # standard errors beyond the tolerance: screening reads such a host again
IMPOSSIBLE = 1000.0  # times the median of the peers: no host of their kind is so fast
MOST_ROUNDS = 1000  # that confirm a loss
MOST_TIMES_ROUNDS = 4  # as many rounds are advised at most: hosts that vary more need a quieter time
# Of the probability to call a slow host fit: for the screening, and as much for all later analyses together. The rest is for
# the errors of the level of the others, of which some may be slow, too.
MISSED_SHARE = 0.4
FIRST_ANALYSIS = 3  # at so many confirming rounds, and at twice, four times, ... as many


@dataclass(frozen=True, kw_only=True)
class QualifyPolicy(JsonData):
    """The error rates and the losses of a qualification."""

    false_alarms: float = field(
        default=0.02, metadata=describe("Largest fraction of runs that call any fit host slow", above=0, below=1)
    )
    missed: float = field(default=0.05, metadata=describe("Largest probability to call a slow host fit", above=0, below=1))
    tolerance: float = field(default=0.02, metadata=describe("Hosts of one kind may differ by so much", above=0, below=1))
    slow: float = field(default=0.05, metadata=describe("The least loss that must be found", above=0, below=1))
    screening: int = field(default=3, metadata=describe("Rounds that choose what is read again", at_least=2, at_most=100))
    confirming: int = field(default=96, metadata=describe("Most rounds that confirm a loss", at_least=1, at_most=MOST_ROUNDS))

    @property
    def analyses(self) -> list[int]:
        """The numbers of confirming rounds after which is decided."""
        found = [FIRST_ANALYSIS << i for i in range(20) if FIRST_ANALYSIS << i < self.confirming]
        return [*found, self.confirming]


Readings = Mapping[str, Mapping[str, float]]  # host -> capacity -> rate


def find_impossible(readings: Readings, kinds: Mapping[str, str]) -> dict[str, str]:
    """Return the hosts with a reading that none of their kind can have, to the reason. Fewer than three hosts show nothing."""
    rates: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for host, found in readings.items():
        for name, per_s in found.items():
            rates[kinds[host], name][host] = per_s
    usual = {key: statistics.median(by_host.values()) for key, by_host in rates.items() if len(by_host) >= LEAST_PEERS}
    return {
        host: f"{host} reported an impossible {key[1]} of {per_s:.3g} per second, its peers {median:.3g}"
        for key, median in usual.items()
        for host, per_s in rates[key].items()
        if per_s > IMPOSSIBLE * median
    }


@dataclass
class _Series:
    """The rates of one capacity of one host, by round."""

    rates: dict[int, float] = field(default_factory=dict)
    is_open: bool = True
    result: CapacityResult | None = None

    def close(self, result: CapacityResult) -> None:
        self.result, self.is_open = result, False


@dataclass(frozen=True)
class _Group:
    """The peers of one kind in one capacity: their readings beside those of the others, and their scales, as logarithms."""

    readings: Mapping[str, Mapping[int, float]]  # by round
    centres: Mapping[str, float]  # the median level of the others
    noise: float  # standard deviation of one reading, and of those that it is compared with
    degrees: float  # of freedom of the noise
    spread: float  # standard deviation of the levels of fit hosts
    has_majority: bool  # whether more than half of the hosts are within the tolerance of the centre
    own_noise: Mapping[str, float]  # of unsteady hosts

    def find_loss(self, host: str, readings: Sequence[float]) -> float:
        return self.centres[host] - _find_level(readings)

    def compute_error(self, host: str, readings: int) -> float:
        """Return the standard error of a host's loss."""
        return max(self.noise, self.own_noise.get(host, 0.0)) * _compute_level_error(readings)


UNREAD = CapacityResult(verdict=HostVerdict.NOT_JUDGED, reason="it has no undisturbed reading")


class PeerComparison:
    """The readings of all hosts so far, and the decisions on them. Call `add_round` until `is_decided`, then `results`."""

    def __init__(self, kinds: Mapping[str, str], policy: QualifyPolicy, *, false_alarms: float | None = None) -> None:
        """Note the hosts.

        Args:
            kinds: host to its hardware.
            false_alarms: the part of the policy's rate that these decisions may use; None: all of it.
        """
        self._policy = policy
        self._false_alarms = policy.false_alarms if false_alarms is None else false_alarms
        self._kinds = kinds
        self._series: dict[str, dict[str, _Series]] = {host: {} for host in kinds}
        self._candidates = 0
        self._left_out: set[str] = set()
        self.rounds = 0

    @property
    def is_screening(self) -> bool:
        """Whether the next round belongs to the screening."""
        return self.rounds < self._policy.screening

    @property
    def is_decided(self) -> bool:
        """Whether no further round would change a result."""
        return self._is_at_end or (not self.is_screening and next(self.iterate_open(), None) is None)

    def iterate_open(self) -> Iterator[tuple[str, str]]:
        """Yield the hosts and capacities that are not decided. Their peers must be read with them."""
        for host, series in self._series.items():
            if host not in self._left_out:
                yield from ((host, name) for name, each in series.items() if each.is_open)

    def list_rates(self, host: str) -> dict[str, list[float]]:
        """Return all undisturbed readings of a host, by capacity."""
        return {name: list(each.rates.values()) for name, each in self._series[host].items()}

    def leave_out(self, host: str) -> None:
        """Expect no more readings of a host. Those that it has stay readings of a peer."""
        self._left_out.add(host)

    def add_round(self, readings: Readings) -> None:
        """Add the undisturbed readings of one round, and decide what they suffice for."""
        for host, found in readings.items():
            for name, per_s in found.items():
                self._series[host].setdefault(name, _Series()).rates[self.rounds] = per_s
        self.rounds += 1
        if self._is_at_screening:
            self._screen_all()
        elif self.rounds - self._policy.screening in self._policy.analyses:
            self._confirm_all()

    def results(self) -> Mapping[str, Mapping[str, CapacityResult]]:
        """Return the result of each capacity of each host. What is still open, or was read of peers only, is NOT_JUDGED."""
        names: dict[str, dict[str, CapacityResult]] = defaultdict(dict)
        for host, found in self._series.items():
            names[self._kinds[host]] |= dict.fromkeys(found, UNREAD)
        ended = {host: {name: self._end(each) for name, each in found.items()} for host, found in self._series.items()}
        results = {host: {**names[self._kinds[host]], **found} for host, found in ended.items()}
        return {host: found for host, found in results.items() if found}

    def _end(self, series: _Series) -> CapacityResult:
        if series.result is None:
            return CapacityResult(
                verdict=HostVerdict.NOT_JUDGED, readings=len(series.rates), reason="the screening did not end"
            )
        return series.result

    def _groups(self) -> Mapping[tuple[str, str], Mapping[str, _Series]]:
        groups: dict[tuple[str, str], dict[str, _Series]] = defaultdict(dict)
        for host, found in self._series.items():
            for name, series in found.items():
                groups[self._kinds[host], name][host] = series
        return groups

    def _screen_all(self) -> None:
        for peers in self._groups().values():
            group = _measure_group(peers, self._policy)
            for host, series in peers.items():
                self._screen(host, series, group)
        self._candidates = sum(1 for _ in self.iterate_open())

    def _confirm_all(self) -> None:
        groups = self._groups()
        for peers in groups.values():
            if any(each.is_open for each in peers.values()) and (group := _measure_group(peers, self._policy)):
                for host, series in peers.items():
                    if series.is_open and self._select_fresh(host, group):
                        self._confirm(host, series, group, decisions=sum(map(len, groups.values())))

    def _select_fresh(self, host: str, group: _Group) -> list[float]:
        """Return the readings after the screening."""
        return [each for number, each in group.readings.get(host, {}).items() if number >= self._policy.screening]

    def _screen(self, host: str, series: _Series, group: _Group | None) -> None:
        result = CapacityResult(
            verdict=HostVerdict.NOT_JUDGED, per_s=statistics.median(series.rates.values()), readings=len(series.rates)
        )
        if len(series.rates) < LEAST_READINGS:
            why = f"{format_count(len(series.rates), 'undisturbed reading')} of {self._policy.screening}"
            series.close(replace(result, reason=why))
        elif group is None:
            series.close(replace(result, reason=f"fewer than {LEAST_PEERS} hosts of its kind were read together"))
        elif host not in group.readings:
            series.close(replace(result, reason=f"fewer than {LEAST_PEERS} hosts of its kind were read together with it"))
        elif not group.has_majority:
            series.close(replace(_describe(host, series, group), reason=_describe_disagreement(self._policy)))
        else:
            readings = list(group.readings[host].values())
            may_be_slow = group.find_loss(host, readings) - SURE * group.compute_error(host, len(readings)) > self._tolerance
            series.result = self._describe_open(host, series, group)
            if not may_be_slow and self._is_fit(host, readings, group):
                series.close(replace(_describe(host, series, group), verdict=HostVerdict.FIT))

    def _confirm(self, host: str, series: _Series, group: _Group, decisions: int) -> None:
        series.result = self._describe_open(host, series, group)
        if not group.has_majority:
            return
        if self._is_at_end and (rounds := self._estimate_rounds(host, group, decisions)):
            advice = f"; about {rounds} rounds would be enough (--max-rounds={rounds})"
            series.result = replace(series.result, reason=series.result.reason + advice)
        result, readings = _describe(host, series, group), list(group.readings[host].values())
        if self._is_slow(host, self._select_fresh(host, group), group, decisions):
            assert result.loss is not None
            series.close(replace(result, verdict=HostVerdict.SLOW, reason=f"{describe_loss(result.loss)} than its peers"))
        elif self._is_fit(host, readings, group):
            loss = group.find_loss(host, readings)
            if loss - SURE * group.compute_error(host, len(readings)) <= self._margin(group, decisions):
                series.close(replace(result, verdict=HostVerdict.FIT))

    def _describe_open(self, host: str, series: _Series, group: _Group) -> CapacityResult:
        """Return the result if nothing further is read."""
        result = _describe(host, series, group)
        assert result.loss is not None
        assert result.error is not None
        if not group.has_majority:
            return replace(result, reason=_describe_disagreement(self._policy))
        return replace(result, reason=describe_uncertainty(result.loss, result.error, "its peers", self._policy))

    def _is_slow(self, host: str, fresh: Sequence[float], group: _Group, decisions: int) -> bool:
        level, margin = self._slow_level, self._margin(group, decisions)
        loss = group.find_loss(host, fresh)
        if loss - compute_t_quantile(level, group.degrees) * group.compute_error(host, len(fresh)) <= margin:
            return False
        steady = sorted(fresh)[count_most_rare(len(fresh), level) :]
        return bool(steady) and group.centres[host] - statistics.median(steady) > margin

    def _is_fit(self, host: str, readings: Sequence[float], group: _Group) -> bool:
        loss, error = group.find_loss(host, readings), group.compute_error(host, len(readings))
        return loss + compute_t_quantile(self._fit_level, group.degrees) * error < -math.log1p(-self._policy.slow)

    def _estimate_rounds(self, host: str, group: _Group, decisions: int) -> int | None:
        """Return how many confirming rounds will probably decide on a host with this loss; None for more than are useful."""
        policy, readings = self._policy, list(group.readings[host].values())
        loss, error = group.find_loss(host, readings), group.compute_error(host, len(readings))
        to_slow, to_fit = loss - self._margin(group, decisions), -math.log1p(-policy.slow) - loss
        factors = [
            ((compute_t_quantile(level, group.degrees) + SURE) * error / distance) ** 2
            for level, distance in ((self._slow_level, to_slow), (self._fit_level, to_fit))
            if distance > 0
        ]
        needed = max(2 * policy.confirming, self.rounds * min(factors, default=math.inf) - policy.screening)
        most = min(MOST_ROUNDS, MOST_TIMES_ROUNDS * policy.confirming)
        return next((rounds for i in range(10) if needed <= (rounds := FIRST_ANALYSIS << i) <= most), None)

    def _margin(self, group: _Group, decisions: int) -> float:
        """Return the largest loss of a fit host: the tolerance, or by how much one of many hosts may differ by chance."""
        return max(self._tolerance, compute_t_quantile(self._false_alarms / decisions, len(group.readings) - 1) * group.spread)

    @property
    def _slow_level(self) -> float:
        """The probability of each analysis of a candidate to call it slow, if it is fit."""
        return self._false_alarms / max(1, self._candidates) / len(self._policy.analyses)

    @property
    def _fit_level(self) -> float:
        """The probability of the screening, or of each later analysis, to call a slow host fit."""
        return MISSED_SHARE * self._policy.missed / (1 if self._is_at_screening else len(self._policy.analyses))

    @property
    def _is_at_screening(self) -> bool:
        return self.rounds == self._policy.screening

    @property
    def _is_at_end(self) -> bool:
        return self.rounds >= self._policy.screening + self._policy.confirming

    @property
    def _tolerance(self) -> float:
        return -math.log1p(-self._policy.tolerance)


def describe_loss(loss: float) -> str:
    return f"{percent(abs(loss))} {'slower' if loss >= 0 else 'faster'}"


def describe_uncertainty(loss: float, error: float, reference: str, policy: QualifyPolicy) -> str:
    """Return why a host is neither fit nor slow."""
    about = f"{describe_loss(loss)} than {reference}, standard error {percent(error)}"
    return f"{about}: its readings vary too much to confirm or to exclude a loss of {percent(policy.slow)}"


def _describe_disagreement(policy: QualifyPolicy) -> str:
    return f"its peers differ by more than {percent(policy.tolerance)}, and no majority of them agrees"


def _describe(host: str, series: _Series, group: _Group) -> CapacityResult:
    """Return what is known of a capacity, without a verdict."""
    readings = list(group.readings[host].values())
    loss = -math.expm1(-group.find_loss(host, readings))
    per_s = statistics.median(series.rates.values())
    return CapacityResult(
        verdict=HostVerdict.NOT_JUDGED,
        per_s=per_s,
        peers_per_s=per_s / (1 - loss),
        loss=loss,
        error=group.compute_error(host, len(readings)),
        readings=len(readings),
    )


def _measure_group(peers: Mapping[str, _Series], policy: QualifyPolicy) -> _Group | None:
    """Return the readings and the scales of the peers with enough readings; None: they are too few."""
    screened = {host: [number for number in each.rates if number < policy.screening] for host, each in peers.items()}
    enough = {host: each.rates for host, each in peers.items() if len(screened[host]) >= LEAST_READINGS}
    found = {host: each for host, each in _compare_rounds(enough).items() if len(each) >= LEAST_READINGS}
    if len(found) < LEAST_PEERS:
        return None
    read = {host: list(each.values()) for host, each in found.items()}
    levels = {host: _find_level(values) for host, values in read.items()}
    noise, degrees = _measure_noise(list(read.values()))
    scatter = {host: MAD * statistics.median(abs(each - levels[host]) for each in values) for host, values in read.items()}
    centre = statistics.median(levels.values())
    distances = [abs(level - centre) for level in levels.values()]
    of_level = noise * _compute_level_error(round(statistics.median(map(len, read.values()))))
    is_known = len(read) >= PEERS_FOR_SPREAD
    spread = math.sqrt(max(0.0, (MAD * statistics.median(distances)) ** 2 - of_level**2)) if is_known else 0.0
    allowed = -math.log1p(-policy.tolerance) + 2 * of_level + spread
    return _Group(
        readings=found,
        centres=find_medians_of_others(levels),
        noise=noise,
        degrees=degrees,
        spread=spread,
        has_majority=sum(distance <= allowed for distance in distances) > len(distances) / 2,
        own_noise={host: own for host, own in scatter.items() if own > UNSTEADY * noise},
    )


def _compare_rounds(rates: Mapping[str, Mapping[int, float]]) -> dict[str, dict[int, float]]:
    """Return logarithms of the rates without what the other hosts have in common in each round with enough of them."""
    rounds: dict[int, dict[str, float]] = defaultdict(dict)
    for host, of_host in rates.items():
        for number, per_s in of_host.items():
            rounds[number][host] = math.log(per_s)
    relative: dict[str, dict[int, float]] = defaultdict(dict)
    rounds = {number: found for number, found in rounds.items() if len(found) >= LEAST_PEERS}
    for number, found in rounds.items():
        median = statistics.median(found.values())
        for host, each in found.items():
            relative[host][number] = each - median
    levels = {host: _find_level(list(each.values())) for host, each in relative.items()}
    for number, found in rounds.items():
        common = find_medians_of_others({host: each - levels[host] for host, each in found.items()})
        for host, each in found.items():
            relative[host][number] = each - common[host]
    return relative


def _measure_noise(series: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return the standard deviation of a reading, and its degrees of freedom, by the smaller differences between rounds."""
    squares = sorted((after - before) ** 2 for values in series for before, after in pairwise(values))
    counted = squares[: max(1, round(COUNTED * len(squares)))]
    noise = math.sqrt(math.fsum(counted) / len(counted) / COUNTED_SQUARE / 2)
    return max(noise, LEAST_NOISE), max(1.0, EFFICIENCY * len(squares))


def _find_level(values: Sequence[float]) -> float:
    """Return the mean without a third of the values at either end; of three the median."""
    ordered = sorted(values)
    left_out = len(ordered) // 3
    counted = ordered[left_out : len(ordered) - left_out]
    return math.fsum(counted) / len(counted)


def _compute_level_error(readings: int) -> float:
    """Return the standard error of a level, in standard deviations of a reading."""
    return (1.0 if readings < 3 else 1.18) / math.sqrt(readings)
