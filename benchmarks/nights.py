"""Simulate nights of many cases that are judged with one budget of false alarms."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from benchmarks.simulation import HOLDS, WORSE, Bools, Counts, Floats, Trial, judge

CASES = 24
BUDGET = 0.05  # probability of a red night where no case is worse than its margin


@dataclass(frozen=True)
class Nights:
    """The answer and the number of runs of every case of every night: (night, case)."""

    answers: Counts
    runs: Counts

    @property
    def fraction_red(self) -> float:
        """The fraction of nights in which at least one case was found worse."""
        return float((self.answers == WORSE).any(axis=1).mean())

    @property
    def fraction_undecided(self) -> float:
        """The fraction of cases without a final answer."""
        return float((self.answers < WORSE).mean())

    @property
    def runs_of_a_night(self) -> float:
        return float(self.runs.sum(axis=1).mean())

    def fraction_found(self, case: int) -> float:
        return float((self.answers[:, case] == WORSE).mean())

    def fraction_passed(self, case: int) -> float:
        return float((self.answers[:, case] >= HOLDS).mean())


@dataclass(frozen=True, kw_only=True)
class NightPlan:
    """The cases of each night. All have the trial's noise and question, and each has its own true ratio."""

    trial: Trial
    ratios: Sequence[float] = field(default_factory=lambda: [1.0] * CASES)
    budget: float = BUDGET
    is_holm: bool = True  # a case found worse leaves its share of the budget to the others; otherwise each keeps its own

    def nights(self, random: np.random.Generator, nights: int, baselines: Floats | None = None) -> Nights:
        """Simulate nights, each with one session, and one session that measured the baselines.

        Args:
            random: The generator of random numbers.
            nights: Their number.
            baselines: (case, run), the same for all nights; None: each night has its own.
        """
        current_shift, baseline_shift = (self._common(random, nights) for _ in range(2))
        noise_model = replace(self.trial.noise_model, session=0.0)
        found: list[Counts] = []
        runs: list[Counts] = []
        red = np.zeros(nights, dtype=np.int64)
        for case, ratio in enumerate(self.ratios):
            current = noise_model.draw_sessions(random, nights, self.trial.question.most) + np.log(ratio) + current_shift
            if baselines is None:
                baseline = noise_model.draw_sessions(random, nights, self.trial.baseline_runs) + baseline_shift
            else:
                baseline = np.broadcast_to(baselines[case], (nights, baselines.shape[1]))
            answers, needed = self._judge(current, baseline, random, red)
            red += answers == WORSE
            found.append(answers)
            runs.append(needed)
        return Nights(np.stack(found, axis=1), np.stack(runs, axis=1))

    def baselines(self, random: np.random.Generator) -> Floats:
        """Return a baseline of each case from one session."""
        noise_model = replace(self.trial.noise_model, session=0.0)
        return noise_model.draw_sessions(random, len(self.ratios), self.trial.baseline_runs) + self._common(random, 1)

    def _common(self, random: np.random.Generator, nights: int) -> Floats:
        return random.normal(0, 1, (nights, 1)) * self.trial.noise_model.session

    def _judge(self, current: Floats, baseline: Floats, random: np.random.Generator, red: Counts) -> tuple[Counts, Counts]:
        noises = self.trial.draw_noises(random, len(current))
        answers, runs = np.empty(len(current), dtype=np.int64), np.empty(len(current), dtype=np.int64)
        for red_before in np.unique(red):
            here: Bools = red == red_before
            level = self.budget / (len(self.ratios) - (int(red_before) if self.is_holm else 0))
            ended = judge(current[here], baseline[here], noises.select(here), replace(self.trial.question, false_alarm=level))
            answers[here], runs[here] = ended.answers, ended.runs
        return answers, runs
