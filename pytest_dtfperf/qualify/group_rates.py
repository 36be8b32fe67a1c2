"""Groups of hosts: how hosts are divided into them, their rates, and the test of whether one is slower than others. Pure.

Each question is a sequential probability ratio test of "as fast as fit groups" against "slower by `smallest`" (A. Wald, Annals
of Mathematical Statistics 16, 1945, 117-186), on the logarithms of rates. The spread comes from groups that were trained
several times, and is widened by Student's t where few were. No run alone decides that a group is slow: its part of the log
likelihood ratio is limited.
"""

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from pytest_dtfperf.codec import JsonData, describe
from pytest_dtfperf.formats import percent
from pytest_dtfperf.launch.link_rounds import count_rounds, make_matching
from pytest_dtfperf.stats.comparison import convert_to_t
from pytest_dtfperf.stats.noise import Noise, sum_squares

Group = tuple[str, ...]

FEW_HOSTS = 8  # fewer train alone first: one slow host in each of two or three groups would leave nothing to compare with
MOST_IN_ALL_LAYOUTS = 16  # hosts: all layouts of them cost up to about 20 runs

UNKNOWN_NOISE = Noise(run=0.003)  # the least spread that is assumed, without any degree of freedom
LEAST_DEGREES = 2.0  # of freedom, below which no question is answered
MOST_OF_LIMIT = 0.75  # of the log likelihood ratio that is needed, which one run contributes at most
GROUPS_OF_MEDIAN = 4  # at least, for a median of their spreads
MOST_OF_USUAL = 6.0  # of a normal distribution with one degree of freedom, the median is two thirds of the deviation
PART_OF_LOSS, STANDARD_ERRORS = 0.8, 3.0  # that the mean of many groups must differ by, from that of others
DEGREES_TO_STOP = 6.0  # of freedom, from which the spread is known well enough to give up
TOO_MANY = 2  # times the allowed runs of a question
SLOW_PENALTY = 4.0  # log likelihood by which a group must be better explained as slow than as fit
SEARCH_ERROR = 0.02  # of a question that only leads to the next one


@dataclass(frozen=True, kw_only=True)
class SearchPolicy(JsonData):
    """What a search finds, and how often it may be wrong."""

    smallest: float = field(
        default=0.05, metadata=describe("Smallest loss that is searched for, as a fraction", at_least=0.001, below=1)
    )
    error: float = field(
        default=0.02, metadata=describe("Largest probability that any fit host or link is named", at_least=1e-9, below=0.5)
    )
    missed: float = field(
        default=0.02,
        metadata=describe("Largest probability that a slow group is taken for a fit one", at_least=1e-9, below=0.5),
    )
    most_repeats: int = field(default=12, metadata=describe("Runs of one group for one question", at_least=2, at_most=1000))
    layouts: int | None = field(
        default=None,
        metadata=describe(
            "Ways to divide all hosts into groups; 1: links between groups are not compared; null: 2, or all of few hosts",
            at_least=1,
        ),
    )


class TooNoisy(Exception):
    """Rates scatter so much that more runs than allowed would be needed."""


class GroupAnswer(StrEnum):
    """The possible answers to a question about a group of hosts."""

    SLOW = "slow"
    FIT = "fit"
    OPEN = "open"
    UNCERTAIN = "uncertain"  # after all allowed runs; fit is more probable


@dataclass(eq=False)
class GroupQuestion:
    """Whether a training with these hosts is slow: its runs up to now."""

    hosts: Group
    error: float = SEARCH_ERROR
    is_confirmation: bool = False
    is_step: bool = False  # it only leads to the next question, so that one run may decide it
    rates: list[float | None] = field(default_factory=list)  # logarithms; None: the training failed
    controls: list[float | None] = field(default_factory=list)  # of fit groups in the same rounds; None: there was none
    answer: GroupAnswer = GroupAnswer.OPEN

    @property
    def known(self) -> list[float]:
        return [each for each in self.rates if each is not None]


class GroupRates:
    """The rates of all groups that were trained, as logarithms."""

    def __init__(self, policy: SearchPolicy, noise: Noise) -> None:
        self.noise = noise
        self.by_group: dict[Group, list[float]] = {}
        self._policy = policy

    def find_fastest(self, questions: Sequence[GroupQuestion]) -> list[float]:
        """Return the runs of the groups that are fit together: as many of the fastest as one rate explains best."""
        spread = self._widened_spread(SEARCH_ERROR)
        ordered = sorted((each.known for each in questions if each.known), key=lambda rates: -statistics.fmean(rates))
        best, chosen = -math.inf, 0
        for count in range(1, len(ordered) + 1):
            runs = [rate for rates in ordered[:count] for rate in rates]
            centre = statistics.fmean(runs)
            misfit = sum(len(each) * (statistics.fmean(each) - centre) ** 2 for each in ordered[:count]) / (2 * spread**2)
            if (likelihood := -misfit - SLOW_PENALTY * (len(ordered) - count)) > best:
                best, chosen = likelihood, count
        return [rate for rates in ordered[:chosen] for rate in rates]

    def answer_question(self, question: GroupQuestion, reference: Sequence[float]) -> GroupAnswer:
        """Return whether the question's group is slow, by Wald's test."""
        _, degrees_of_freedom = self.pool_spread()
        if degrees_of_freedom < LEAST_DEGREES and len(question.rates) < self._policy.most_repeats:
            return GroupAnswer.OPEN
        slow_at = math.log((1 - self._policy.missed) / question.error)
        fit_at = math.log(self._policy.missed / (1 - question.error))
        delta = -math.log(1 - self._policy.smallest)
        spread = self._widened_spread(question.error)
        most = slow_at if question.is_step else MOST_OF_LIMIT * slow_at
        total = 0.0
        for difference, runs in self._list_differences(question, reference):
            ratio = math.inf if difference is None else delta * (-difference - delta / 2) / (spread**2 * runs)
            total += min(ratio, most)
        if total >= slow_at:
            return GroupAnswer.SLOW
        if total <= fit_at:
            return GroupAnswer.FIT
        if len(question.rates) < self._policy.most_repeats:
            return GroupAnswer.OPEN
        return GroupAnswer.SLOW if total > 0 and not question.is_confirmation else GroupAnswer.UNCERTAIN

    def _list_differences(self, question: GroupQuestion, reference: Sequence[float]) -> Iterator[tuple[float | None, float]]:
        """Yield each run's log-ratio to fit groups, None of a failed one, and its variance in those of one run."""
        centre = statistics.fmean(reference) if reference else None
        shared = 1 + len(question.rates) / len(reference) if reference else 1.0
        for at, rate in enumerate(question.rates):
            control = question.controls[at] if question.is_confirmation else None
            if rate is None:
                yield None, 1.0
            elif control is not None:
                yield rate - control, 2.0
            elif centre is not None:
                yield rate - centre, shared

    def compare(self, question: GroupQuestion, reference: Sequence[float]) -> tuple[float, int]:
        """Return the loss that a question's runs show, 1 if all failed, and their number."""
        known = [difference for difference, _ in self._list_differences(question, reference) if difference is not None]
        return (1 - math.exp(statistics.fmean(known)) if known else 1.0), len(question.rates)

    def is_slower(self, runs: Sequence[float], others: Sequence[float]) -> bool:
        """Return whether the mean of runs is lower than that of others, by most of the smallest loss, and clearly."""
        difference = statistics.fmean(others) - statistics.fmean(runs)
        spread = self._widened_spread(self._policy.error) * math.sqrt(1 / len(runs) + 1 / len(others))
        return difference > max(-PART_OF_LOSS * math.log(1 - self._policy.smallest), STANDARD_ERRORS * spread)

    def check_noise(self) -> None:
        """Raise `TooNoisy` if one question would take several times the runs that are allowed."""
        spread, degrees_of_freedom = self.pool_spread()
        if degrees_of_freedom < DEGREES_TO_STOP:
            return
        needed = 2 * math.log(1 / self._policy.missed) * spread**2  # over the square of the loss: mean runs of Wald's test
        if needed / math.log(1 - self._policy.smallest) ** 2 > TOO_MANY * self._policy.most_repeats:
            found = 1 - math.exp(-math.sqrt(needed / self._policy.most_repeats))
            raise TooNoisy(
                f"rates of the same hosts scatter by {percent(spread)}, and a loss of {percent(self._policy.smallest)} is "
                f"not found in that. Measure more steps, keep other work off, or search for losses of {percent(found)}"
            )

    def pool_spread(self) -> tuple[float, float]:
        """Return the spread of runs of the same group, and its degrees of freedom.

        A group counts with no more than `MOST_OF_USUAL` times the median group: one run in ten may be slow for no reason.
        """
        noise = self.noise
        repeated = [rates for rates in self.by_group.values() if len(rates) > 1]
        squares = [sum_squares(rates) for rates in repeated]
        spreads = [math.sqrt(each / (len(rates) - 1)) for each, rates in zip(squares, repeated, strict=True)]
        if noise.degrees_of_freedom or len(spreads) >= GROUPS_OF_MEDIAN:
            usual = max(statistics.median(spreads) if len(spreads) >= GROUPS_OF_MEDIAN else noise.run, noise.run)
            most = (MOST_OF_USUAL * usual) ** 2
            squares = [min(each, (len(rates) - 1) * most) for each, rates in zip(squares, repeated, strict=True)]
        degrees_of_freedom = noise.degrees_of_freedom + sum(len(rates) - 1 for rates in repeated)
        total = noise.degrees_of_freedom * noise.run**2 + sum(squares)
        spread = math.sqrt(total / degrees_of_freedom) if degrees_of_freedom else 0.0
        return max(spread, UNKNOWN_NOISE.run if noise.degrees_of_freedom else noise.run), degrees_of_freedom

    def _widened_spread(self, error: float) -> float:
        """Return the spread, multiplied by Student's quantile over the normal one."""
        spread, degrees_of_freedom = self.pool_spread()
        normal = statistics.NormalDist().inv_cdf(1 - error)
        return spread * convert_to_t(normal, max(1.0, degrees_of_freedom)) / normal


def choose_group_size(hosts: int) -> int:
    """Return the size of groups: about the square root of the number of hosts, with few hosts left over.

    There are at least three groups of eight hosts or more. One, two or three hosts train alone, because there would be no
    other group of two to compare with.
    """
    if hosts < FEW_HOSTS:
        return 1 if hosts < 4 else 2
    root = math.sqrt(hosts)
    sizes = [size for size in range(2, hosts // 3 + 1) if root / 1.7 <= size <= root * 1.4]
    return min(sizes, key=lambda size: (hosts % size) / size + abs(math.log(size / root)))


def choose_layouts(hosts: int) -> int:
    """Return in how many ways hosts are divided by default: few hosts in all ways, so that nearly each link trains."""
    size = choose_group_size(hosts)
    return (hosts if size == 2 else hosts // size + 1) if hosts <= MOST_IN_ALL_LAYOUTS else 2


def make_layout(hosts: Sequence[str], size: int, number: int) -> list[Group]:
    """Return groups of hosts of different rows. Layouts of different numbers bring other hosts together.

    Hosts are a grid of rows of `size`. A group takes one host of each column, `number` rows further in each. After as many
    layouts as there are rows come the columns themselves. With a prime number of rows, any two hosts meet exactly once.
    Groups of two are the rounds of a tournament.
    """
    if size == 2:
        return list(make_matching(hosts, number - 1)) if number <= count_rounds(len(hosts)) else []
    rows = len(hosts) // size
    if number < rows:
        return [
            tuple(hosts[(first + number * column) % rows * size + column] for column in range(size)) for first in range(rows)
        ]
    if number > rows:
        return []
    columns = [[hosts[row * size + column] for row in range(rows)] for column in range(size)]
    return [tuple(each[at : at + size]) for each in columns for at in range(0, rows - size + 1, size)]
