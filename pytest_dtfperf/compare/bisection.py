"""Find which candidate of a series made training slower: log-ratios of blocks give a posterior and the next candidate.

Candidate 0 is known as good and is the reference of every block, the last one is known as bad. Each candidate has the level of
the one before it, unless it is a change. There may be no change, one, or two; levels after changes are independent and unknown,
and so is the noise. The evidence of each configuration of changes is integrated over levels and noise on a grid (as
P. Fearnhead, Statistics and Computing 16, 2006, 203-213, with unknown noise). A block may be an outlier.

Of two changes, one is minor if its log-ratio is less than a quarter of the other's. The search ends with one change although a
minor one beside it is possible: where blocks scatter by several per cent, many blocks would not exclude it.

The next candidate is the one with the most expected information for each second, which includes its build (D. V. Lindley,
Annals of Mathematical Statistics 27, 1956, 986-1005). `benchmarks/bisection.py` simulates how often and how soon it is right.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property

import numpy as np

from pytest_dtfperf.codec import JsonData, describe
from pytest_dtfperf.formats import change, percent

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Indices = np.ndarray[tuple[int, ...], np.dtype[np.intp]]

PRIOR = (0.04, 0.86, 0.1)  # of no change, one, and two
LEVEL_SCALE = 0.05  # half of all changes are larger (Cauchy): slow commits lose a per cent to a half
NOISES = np.geomspace(2e-4, 0.15, 18)  # standard deviations of a block's log-ratio
USUAL_NOISE, NOISE_WIDTH = 0.008, 0.8  # median of the noise's prior, and standard deviation of its logarithm
# For intervals. The search ends early if blocks scatter little by chance, so that the noise is larger than they show. Therefore
# intervals have a wider prior of the noise and fewer degrees of freedom.
INTERVAL_NOISE_WIDTH, INTERVAL_DEGREES = 2 * NOISE_WIDTH, 4
OUTLIERS, OUTLIER_SCALE = 0.02, 12.0  # part of the blocks that scatter so many times as much
LEAST_LAST = 2  # blocks of the last candidate, before any other is measured
LEAST_EQUIVALENT = 4  # blocks of the last candidate, before it can be equivalent to the first one
LEAST_LEVEL, MOST_LEVEL = 1e-4, 4.0  # log-ratios of the grid, beside those near the data
MOST_OPTIONS = 12  # candidates of a gap that are considered for the next block
NEGLIGIBLE = 1e-4  # probability of a configuration that does not affect the choice
HERMITE = np.polynomial.hermite_e.hermegauss(9)
MOST_CHANGES = 2
MINOR = 0.25  # log-ratio of a change to that of a larger one, below which it does not matter which candidate it is
# Probability of a second change that is not minor, with which the search may end with one: at most this, and less before so
# many blocks. After few blocks, such an end is mostly due to noise that is larger than they show.
MOST_SEVERAL, FULL_BLOCKS = 0.02, 15
ORDER_BLOCKS = 4  # so many blocks without an effect of the order are added to those that show one
MOST_RESIDUAL = 3.0  # standard deviations, to which outliers are clipped


class BisectionEnd(StrEnum):
    """The results of a bisection."""

    FOUND = "FOUND"
    SEVERAL = "SEVERAL"
    NO_DIFFERENCE = "NO_DIFFERENCE"
    UNDECIDED = "UNDECIDED"


@dataclass(frozen=True, kw_only=True)
class BisectionPolicy(JsonData):
    """The confidence that a bisection must reach, and the number of blocks that it may run."""

    confidence: float = field(default=0.95, metadata=describe("Probability of the result", at_least=0.5, below=1))
    equivalence: float = field(
        default=0.01,
        metadata=describe("Largest difference of good and bad that is none, as a fraction", at_least=1e-6, below=1),
    )
    max_blocks: int = field(
        default=60, metadata=describe("Blocks of all candidates at most", at_least=LEAST_LAST, at_most=1000)
    )


@dataclass(frozen=True)
class Observation:
    """The log-ratio of one block's rates, a candidate's to candidate 0's."""

    candidate: int
    log_ratio: float
    reference_first: bool


@dataclass(frozen=True)
class Change:
    """A change of the rate, and where it is.

    Attributes:
        first, last: it is one of these candidates. They are several if those between could not be built, or before the end.
        ratio, low, high: of the rate after the change to the rate before it, with the interval of the policy's confidence.
    """

    first: int
    last: int
    ratio: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{change(self.ratio - 1)} ({change(self.low - 1)} to {change(self.high - 1)})"


@dataclass(frozen=True)
class _Configuration:
    """The gaps that contain a change: gap g is between the tested candidates g and g + 1."""

    gaps: tuple[int, ...]
    prior: float


class BisectionPosterior:
    """The probabilities of all configurations of changes, given the blocks.

    Args:
        count: number of candidates, of which 0 is good and the last one is bad.
        observations: blocks of any candidates but the first one.
        broken: candidates that cannot be built or do not run.
    """

    def __init__(self, count: int, observations: Sequence[Observation], broken: Collection[int] = ()) -> None:
        self.count = count
        self._broken = frozenset(broken)
        self.tested = sorted({0, count - 1, *(each.candidate for each in observations)})
        self._observations = observations
        self._levels, level_weights = self._make_grid()
        self._log_weights = np.log(level_weights)
        at_levels, at_zero = self._add_likelihoods()
        # Sums over the tested candidates 1..i, with axes (i, noise, level) and (i, noise).
        self._sums = np.cumsum(at_levels, axis=0)
        self._zeros = np.cumsum(at_zero, axis=0)
        distance = np.log(NOISES / USUAL_NOISE) / NOISE_WIDTH
        self._noise_prior = -(distance**2) / 2
        self._configurations = list(self._list_configurations())
        self._positions = {each.gaps: at for at, each in enumerate(self._configurations)}
        evidence = np.stack([self._compute_evidence(each.gaps) for each in self._configurations])  # (configuration, noise)
        joint = evidence + np.log([each.prior for each in self._configurations])[:, None]
        joint = np.exp(joint - joint.max())
        joint /= joint.sum()
        self._joint = joint
        self.probabilities: Array = joint.sum(axis=1)
        self._noise_weights = joint.sum(axis=0)

    @property
    def noise(self) -> float:
        """The standard deviation of a block's log-ratio, as far as it is known."""
        return float(np.exp(self._noise_weights @ np.log(NOISES)))

    @cached_property
    def changes(self) -> list[float]:
        """The probabilities of no change, of one, and of two or more."""
        numbers = np.array([len(each.gaps) for each in self._configurations])
        return [float(self.probabilities[numbers == each].sum()) for each in range(MOST_CHANGES + 1)]

    @cached_property
    def inclusion(self) -> Array:
        """The probability of each candidate that it is a change."""
        found = np.zeros(self.count)
        for probability, each in zip(self.probabilities, self._configurations, strict=True):
            for gap in each.gaps:
                first, last = self.tested[gap] + 1, self.tested[gap + 1]
                found[first : last + 1] += probability / (last + 1 - first)
        return found

    def fit_levels(self) -> Array:
        """Return the expected level of each tested candidate."""
        found = np.zeros(len(self.tested))
        for probability, each in zip(self.probabilities, self._configurations, strict=True):
            if probability > NEGLIGIBLE:
                for index in range(len(each.gaps)):
                    first, last = self._find_segment(each.gaps, index)
                    found[first + 1 : last + 1] += probability * self._find_mean(each.gaps, index)
        return found

    @property
    def best(self) -> tuple[int, ...]:
        """The gaps of the most probable configuration."""
        return self._configurations[int(np.argmax(self.probabilities))].gaps

    @property
    def best_probability(self) -> float:
        return float(self.probabilities.max())

    @cached_property
    def sole(self) -> Array:
        """The probability of each gap that it contains the only change, or the only one that is not minor."""
        found = np.zeros(len(self.tested) - 1)
        for probability, each in zip(self.probabilities, self._configurations, strict=True):
            if len(each.gaps) == 1:
                found[each.gaps[0]] += probability
            elif each.gaps and probability > NEGLIGIBLE / 100:
                for gap, share in zip(each.gaps, self._weigh_sizes(each.gaps), strict=True):
                    found[gap] += probability * share
        return found

    @property
    def several(self) -> float:
        """The probability of two changes of which none is minor."""
        return max(0.0, 1 - self.changes[0] - float(self.sole.sum()))

    def _weigh_sizes(self, gaps: tuple[int, ...]) -> tuple[float, float]:
        """Return the probabilities that the second of two changes is minor, and that the first one is."""
        before, after = self._weigh_level(gaps, 0), self._weigh_given_noise(*self._find_segment(gaps, 1))
        below = np.pad(np.cumsum(after, axis=1), ((0, 0), (1, 0)))  # (noise, number of levels below)

        def weigh_between(least: Indices, most: Indices) -> float:
            """Return the probability that the level after both is within these levels, for each level between them."""
            return float((before * (below[:, most] - below[:, least])).sum())

        size = np.abs(self._levels)
        return weigh_between(*self._find_within(MINOR * size)), 1 - weigh_between(*self._find_within(size / MINOR))

    def _find_within(self, width: Array) -> tuple[Indices, Indices]:
        """Return, for each level, the first one that is less than `width` from it, and the first one after these."""
        least = np.searchsorted(self._levels, self._levels - width, side="right")
        return least, np.searchsorted(self._levels, self._levels + width, side="left")

    def choose_gaps(self, confidence: float) -> tuple[int, ...]:
        """Return the gaps of the changes that are reported, of two if these are found, or more probable than any sole one."""
        pairs = [at for at, each in enumerate(self._configurations) if len(each.gaps) == MOST_CHANGES]
        if pairs:
            best = max(pairs, key=lambda at: self.probabilities[at])
            gaps = self._configurations[best].gaps
            is_found = self.probabilities[best] >= confidence and self.is_located(gaps)
            if is_found or self.several > self.sole.max():
                return gaps
        return (int(np.argmax(self.sole)),)

    def is_located(self, gaps: Sequence[int]) -> bool:
        """Return whether no candidate that can be built is left untested within the gaps."""
        return all(set(range(self.tested[gap] + 1, self.tested[gap + 1])) <= self._broken for gap in gaps)

    def is_equivalent(self, policy: BisectionPolicy) -> bool:
        """Return whether the last candidate differs from the first by no more than the equivalence."""
        last = self.count - 1
        if sum(each.candidate == last for each in self._observations) < LEAST_EQUIVALENT:
            return False
        near = np.abs(self._levels) <= -math.log1p(-policy.equivalence)
        inside = 0.0
        for probability, each in zip(self.probabilities, self._configurations, strict=True):
            if not each.gaps:
                inside += probability
            elif probability > NEGLIGIBLE:
                inside += probability * float(self._weigh_level(each.gaps, len(each.gaps) - 1)[:, near].sum())
        return inside >= policy.confidence

    def describe_changes(self, confidence: float) -> list[Change]:
        """Return the changes that `choose_gaps` reports, in order, with intervals of their effects.

        With the probability of `confidence`, all intervals contain their effects, if these candidates are the changes.
        """
        gaps = self.choose_gaps(confidence)
        return [self._describe_change(gap, gaps, 1 - (1 - confidence) / len(gaps)) for gap in gaps]

    def _describe_change(self, gap: int, gaps: tuple[int, ...], confidence: float) -> Change:
        """Return one of the reported changes. Its effect is that of all configurations with it, with or without a minor one."""
        parts = []
        for probability, each in zip(self.probabilities, self._configurations, strict=True):
            if each.gaps == gaps or (len(gaps) == 1 and gap in each.gaps and probability > NEGLIGIBLE):
                values, weights = self._weigh_difference(each.gaps, each.gaps.index(gap))
                parts.append((values, probability * weights))
        values, weights = (np.concatenate(each) for each in zip(*parts, strict=True))
        order = np.argsort(values)
        shares = np.cumsum(weights[order]) - weights[order] / 2
        ends = (1 - confidence) / 2, 0.5, (1 + confidence) / 2
        low, ratio, high = (math.exp(float(np.interp(end * weights.sum(), shares, values[order]))) for end in ends)
        return Change(self.tested[gap] + 1, self.tested[gap + 1], ratio, low, high)

    def choose_next(self, cost_s: Mapping[int, float], warm: Collection[int] = ()) -> int:
        """Return the candidate of the next block: the one with the most expected information for each second.

        Args:
            cost_s: what a block of each candidate costs, its build included if there is none yet.
            warm: candidates that need no build; of the others, some of each gap are considered.
        """
        last = self.count - 1
        if sum(each.candidate == last for each in self._observations) < LEAST_LAST:
            return last
        options = self._list_options(warm)
        gains = self._compute_information(options) / np.array([cost_s[each] for each in options])
        return options[int(np.argmax(gains))]

    def _list_options(self, warm: Collection[int]) -> list[int]:
        """Return candidates that can be measured: all that were or are warm, and some of each gap, evenly spread."""
        found = [each for each in [*self.tested[1:], *warm] if each and each not in self._broken]
        for before, after in zip(self.tested, self.tested[1:], strict=False):
            inside = [each for each in range(before + 1, after) if each not in self._broken]
            step = max(1, -(-len(inside) // MOST_OPTIONS))
            found += inside[step // 2 :: step]
        return found

    def _compute_information(self, options: Sequence[int]) -> Array:
        """Return what a block of each option shows of the changes, in nats: the entropy of its mixture, less that of noise."""
        levels, weights = [0.0], [np.zeros(len(options))]
        positions = np.array(options)
        for probability, each in zip(self.probabilities, self._configurations, strict=True):
            if probability < NEGLIGIBLE:
                continue
            after = np.ones(len(options))  # probability that no further change follows an option
            for index in range(len(each.gaps) - 1, -1, -1):
                gap = each.gaps[index]
                low, high = self.tested[gap], self.tested[gap + 1]
                passed = np.clip((positions - low) / (high - low), 0, 1)
                levels.append(self._find_mean(each.gaps, index))
                weights.append(probability * passed * after)
                after = after * (1 - passed)
            weights[0] = weights[0] + probability * after
        mixture, centres = np.stack(weights, axis=1), np.array(levels)
        mixture /= mixture.sum(axis=1, keepdims=True)
        nodes, node_weights = HERMITE[0], HERMITE[1] / HERMITE[1].sum()
        points = centres[:, None] + self.noise * nodes  # (component, node)
        density = np.exp(-(((points[None] - centres[:, None, None]) / self.noise) ** 2) / 2)  # (other, component, node)
        logs = np.log(np.maximum(np.tensordot(mixture, density, axes=1), 1e-300))  # (option, component, node)
        own = -(nodes**2) / 2
        found: Array = np.einsum("oc,ocn,n->o", mixture, own - logs, node_weights)
        return np.maximum(found, 0)

    def _make_grid(self) -> tuple[Array, Array]:
        """Return levels with their prior probabilities: dense near what was observed, and sparse elsewhere."""
        by_candidate = [[e.log_ratio for e in self._observations if e.candidate == each] for each in self.tested]
        squares = [(value - float(np.median(each))) ** 2 for each in by_candidate if len(each) > 1 for value in each]
        scale = min(max(math.sqrt(float(np.median(squares))) if squares else USUAL_NOISE, 3e-4), 0.1)
        outer = np.geomspace(LEAST_LEVEL, MOST_LEVEL, 30)
        near = [float(np.median(each)) + scale * np.linspace(-5, 5, 31) for each in by_candidate if each]
        levels = np.unique(np.concatenate([-outer, outer, *near]))
        edges = np.concatenate([levels[:1], (levels[1:] + levels[:-1]) / 2, levels[-1:]])
        shares = np.diff(np.arctan(edges / LEVEL_SCALE))
        return levels, np.maximum(shares, 1e-300) / shares.sum()

    def _add_likelihoods(self) -> tuple[Array, Array]:
        """Return the log-likelihoods of each tested candidate's blocks, at each noise and level, and at level 0."""
        at_levels = np.zeros((len(self.tested), len(NOISES), len(self._levels)))
        at_zero = np.zeros((len(self.tested), len(NOISES)))
        index = {candidate: at for at, candidate in enumerate(self.tested)}
        for each in self._observations:
            at_levels[index[each.candidate]] += _log_density(each.log_ratio - self._levels[None, :], NOISES[:, None])
            at_zero[index[each.candidate]] += _log_density(np.full(len(NOISES), each.log_ratio), NOISES)
        return at_levels, at_zero

    def _list_configurations(self) -> list[_Configuration]:
        """Return all configurations of changes with their prior probabilities."""
        widths = [after - before for before, after in zip(self.tested, self.tested[1:], strict=False)]
        positions = self.count - 1
        found = [_Configuration((), PRIOR[0])]
        found += [_Configuration((gap,), PRIOR[1] * width / positions) for gap, width in enumerate(widths)]
        pairs = positions * (positions - 1) / 2
        for gap, width in enumerate(widths):
            if not self.is_located([gap]):  # otherwise two changes in it look like one
                found.append(_Configuration((gap, gap), PRIOR[2] * width * (width - 1) / 2 / pairs))
            for other in range(gap + 1, len(widths)):
                found.append(_Configuration((gap, other), PRIOR[2] * width * widths[other] / pairs))
        return found

    def _compute_evidence(self, gaps: tuple[int, ...]) -> Array:
        """Return the log-probability of all blocks at each noise, with its prior."""
        total: Array = self._noise_prior + self._zeros[gaps[0] if gaps else -1]
        for index in range(len(gaps)):
            total = total + self._evidence_of_segment(*self._find_segment(gaps, index))
        return total

    def _find_segment(self, gaps: Sequence[int], index: int) -> tuple[int, int]:
        """Return the tested candidates (after the first, to the last) between a change and the next one."""
        return gaps[index], gaps[index + 1] if index + 1 < len(gaps) else len(self.tested) - 1

    def _evidence_of_segment(self, first: int, last: int) -> Array:
        if first == last:  # two changes between tested candidates: the level between them was never seen
            return np.zeros(len(NOISES))
        key = first, last
        if key not in self._segments:
            logs = self._sums[last] - self._sums[first] + self._log_weights
            top = logs.max(axis=1)
            self._segments[key] = top + np.log(np.exp(logs - top[:, None]).sum(axis=1))
        return self._segments[key]

    @cached_property
    def _segments(self) -> dict[tuple[int, int], Array]:
        return {}

    def _weigh_level(self, gaps: Sequence[int], index: int) -> Array:
        """Return the probabilities of noise and level after a change, with axes (noise, level), in this configuration."""
        key = tuple(gaps), index
        if key not in self._weights:
            first, last = self._find_segment(gaps, index)
            self._weights[key] = self._weigh_given_noise(first, last) * self._get_noise(tuple(gaps))[:, None]
        return self._weights[key]

    def _weigh_given_noise(self, first: int, last: int) -> Array:
        """Return the probabilities of the levels of a segment for each noise, with axes (noise, level)."""
        key = first, last
        if key not in self._weights_given_noise:
            logs = self._sums[last] - self._sums[first] + self._log_weights
            found = np.exp(logs - logs.max(axis=1, keepdims=True))
            self._weights_given_noise[key] = found / found.sum(axis=1, keepdims=True)
        return self._weights_given_noise[key]

    @cached_property
    def _weights_given_noise(self) -> dict[tuple[int, int], Array]:
        return {}

    def _find_mean(self, gaps: Sequence[int], index: int) -> float:
        """Return the expected level after a change, in this configuration."""
        return float(self._weigh_level(gaps, index).sum(axis=0) @ self._levels)

    @cached_property
    def _weights(self) -> dict[tuple[tuple[int, ...], int], Array]:
        return {}

    def _get_noise(self, gaps: tuple[int, ...]) -> Array:
        """Return the probabilities of the noises in a configuration."""
        position = self._positions[gaps]
        return np.asarray(self._joint[position] / max(self._joint[position].sum(), 1e-300))

    def _weigh_difference(self, gaps: Sequence[int], index: int) -> tuple[Array, Array]:
        """Return differences of the levels after and before a change, and their probabilities for an interval."""
        after = self._weigh_level(gaps, index) * _weigh_interval_noise()[:, None]
        after = after / after.sum()
        if index == 0:
            return self._levels, after.sum(axis=0)
        before = self._weigh_given_noise(*self._find_segment(gaps, index - 1))
        joint = np.einsum("na,nb->ab", after, before).ravel()
        values = (self._levels[:, None] - self._levels[None, :]).ravel()
        kept = joint > joint.max() * 1e-9
        return values[kept], joint[kept] / joint[kept].sum()


def _weigh_interval_noise() -> Array:
    """Return the weights of the noises in intervals, relative to those of the search."""
    distance = np.log(NOISES / USUAL_NOISE)
    wider = (1 / NOISE_WIDTH**2 - 1 / INTERVAL_NOISE_WIDTH**2) * distance**2 / 2
    return np.asarray(np.exp(wider + INTERVAL_DEGREES * distance))


def compute_posterior(count: int, observations: Sequence[Observation], broken: Collection[int] = ()) -> BisectionPosterior:
    """Return what blocks of both orders show, without the effect of the order.

    The effect is estimated from what a first posterior does not explain, and is taken to be small until many blocks show it.
    """
    first = BisectionPosterior(count, observations, broken)
    levels = dict(zip(first.tested, first.fit_levels(), strict=True))
    signs = [1 if each.reference_first else -1 for each in observations]
    rest = [each.log_ratio - float(levels[each.candidate]) for each in observations]
    clipped = [min(max(each, -MOST_RESIDUAL * first.noise), MOST_RESIDUAL * first.noise) for each in rest]
    effect = math.fsum(sign * each for sign, each in zip(signs, clipped, strict=True)) / (len(rest) + ORDER_BLOCKS)
    found = [replace(each, log_ratio=each.log_ratio - sign * effect) for sign, each in zip(signs, observations, strict=True)]
    return BisectionPosterior(count, found, broken)


@dataclass(frozen=True)
class BisectionDecision:
    """The result after some blocks, and whether further ones may change it."""

    end: BisectionEnd
    reason: str
    is_open: bool


def decide_bisection(posterior: BisectionPosterior, policy: BisectionPolicy, blocks: int) -> BisectionDecision:
    """Return the result after so many blocks."""
    probability, gaps = posterior.best_probability, posterior.best
    if len(gaps) > 1 and probability >= policy.confidence and posterior.is_located(gaps):
        return BisectionDecision(BisectionEnd.SEVERAL, f"with a probability of {percent(probability)}", False)
    gap = int(np.argmax(posterior.sole))
    probability = float(posterior.sole[gap])
    is_only = posterior.several <= MOST_SEVERAL * min(1.0, blocks / FULL_BLOCKS) ** 3
    if probability >= policy.confidence and is_only and posterior.is_located([gap]):
        text = f"with a probability of {percent(probability)}"
        if posterior.changes[MOST_CHANGES] > 1 - policy.confidence:
            text += f"; a second change of less than {100 * MINOR:g} % of its size is not excluded"
        return BisectionDecision(BisectionEnd.FOUND, text, False)
    if posterior.is_equivalent(policy):
        return BisectionDecision(
            BisectionEnd.NO_DIFFERENCE, f"good and bad differ by less than {policy.equivalence:.2g}", False
        )
    is_over = blocks >= policy.max_blocks
    if posterior.several >= policy.confidence:
        return BisectionDecision(BisectionEnd.SEVERAL, "there are two or more changes", not is_over)
    return BisectionDecision(BisectionEnd.UNDECIDED, "the blocks do not decide", not is_over)


def _log_density(deviation: Array, noise: Array) -> Array:
    """Return the log-density of normal noise, of which a part has a larger scale."""
    squares = (deviation / noise) ** 2 / 2
    usual = math.log(1 - OUTLIERS) - squares
    wide = math.log(OUTLIERS / OUTLIER_SCALE) - squares / OUTLIER_SCALE**2
    return np.logaddexp(usual, wide) - np.log(noise)
