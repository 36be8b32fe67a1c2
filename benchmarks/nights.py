"""Whole nights of many cases, judged with one budget of false alarms. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from benchmarks.simulation import HOLDS, WORSE, Bools, Counts, Floats, Trial, judged

CASES = 24
BUDGET = 0.05  # probability of a red night where no case is worse than its margin


@dataclass(frozen=True)
class Nights:
    """How every case of every night ended: (night, case)."""

    answers: Counts
    runs: Counts

    @property
    def red(self) -> float:
        """The part of the nights in which some case was found worse."""
        return float((self.answers == WORSE).any(axis=1).mean())

    @property
    def undecided(self) -> float:
        """The part of the cases that stayed without an answer."""
        return float((self.answers < WORSE).mean())

    @property
    def runs_of_a_night(self) -> float:
        return float(self.runs.sum(axis=1).mean())

    def found(self, case: int) -> float:
        return float((self.answers[:, case] == WORSE).mean())

    def passed(self, case: int) -> float:
        return float((self.answers[:, case] >= HOLDS).mean())


@dataclass(frozen=True, kw_only=True)
class NightPlan:
    """What is measured night by night. Each case has the trial's place and question, and a ratio of its own."""

    trial: Trial
    ratios: Sequence[float] = field(default_factory=lambda: [1.0] * CASES)
    budget: float = BUDGET
    is_holm: bool = True  # what was found worse leaves its part of the budget to the rest; otherwise each keeps its own

    def nights(self, random: np.random.Generator, nights: int, baselines: Floats | None = None) -> Nights:
        """`baselines`: (case, run), the same for all nights; None: each night is judged by ones that were drawn for it.

        What a session has in common is in common to all cases of a night, and of the one in which the baselines were measured.
        """
        tonight, then = (self._common(random, nights) for _ in range(2))
        noise_model = replace(self.trial.noise_model, session=0.0)
        found: list[Counts] = []
        runs: list[Counts] = []
        red = np.zeros(nights, dtype=np.int64)
        for case, ratio in enumerate(self.ratios):
            now = noise_model.sessions(random, nights, self.trial.question.most) + np.log(ratio) + tonight
            if baselines is None:
                before = noise_model.sessions(random, nights, self.trial.baseline) + then
            else:
                before = np.broadcast_to(baselines[case], (nights, baselines.shape[1]))
            answers, needed = self._judged(now, before, random, red)
            red += answers == WORSE
            found.append(answers)
            runs.append(needed)
        return Nights(np.stack(found, axis=1), np.stack(runs, axis=1))

    def baselines(self, random: np.random.Generator) -> Floats:
        """One baseline of each case, of one session."""
        noise_model = replace(self.trial.noise_model, session=0.0)
        return noise_model.sessions(random, len(self.ratios), self.trial.baseline) + self._common(random, 1)

    def _common(self, random: np.random.Generator, nights: int) -> Floats:
        return random.normal(0, 1, (nights, 1)) * self.trial.noise_model.session

    def _judged(self, now: Floats, then: Floats, random: np.random.Generator, red: Counts) -> tuple[Counts, Counts]:
        known = self.trial.known(random, len(now))
        answers, runs = np.empty(len(now), dtype=np.int64), np.empty(len(now), dtype=np.int64)
        for before in np.unique(red):
            here: Bools = red == before
            level = self.budget / (len(self.ratios) - (int(before) if self.is_holm else 0))
            ended = judged(now[here], then[here], known.of(here), replace(self.trial.question, false_alarm=level))
            answers[here], runs[here] = ended.answers, ended.runs
        return answers, runs
