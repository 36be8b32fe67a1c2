"""How large a loss each number of runs finds in 95 of 100 cases: the table of `stats.comparison.runs_needed`.

`python -m benchmarks.power` simulates it with the plugin's defaults and writes pytest_dtfperf/stats/power.json; some minutes.
"""

import json
from pathlib import Path

import numpy as np

from benchmarks.simulation import ASSUMED, WORSE, CaseNoises, NoiseModel, judge
from pytest_dtfperf.stats import comparison
from pytest_dtfperf.stats.comparison import Question
from pytest_dtfperf.stats.noise import runs_to_confirm

SEED = 20_261
CASES = 2_000
FOUND = 0.955  # of the simulated cases, where 0.95 is stated: chance adds or takes 0.005
LEVELS = (0.05, 0.005, 0.0005, 0.00005)
RUNS = (3, 5, 10, 20)
BASELINES = (2, 5, 10)
TABLE = Path(comparison.__file__).with_name("power.json")
SPREAD = ASSUMED.run  # the least that is assumed, which makes the interval widest where nothing was calibrated


def find_smallest_loss(calibrated: bool, baseline_runs: int, runs: int, level: float) -> float:
    """Return the loss beyond the margin that is found in 95 of 100 cases, in standard errors of the difference of means."""
    random = np.random.default_rng(SEED)
    model = NoiseModel(cv=SPREAD)
    baseline, current = model.draw_sessions(random, CASES, baseline_runs), model.draw_sessions(random, CASES, runs)
    noises = CaseNoises.repeat(ASSUMED, CASES)
    if calibrated:
        noises = model.calibrate(random, CASES)
        noises = CaseNoises(noises.run, np.zeros(CASES), noises.degrees)
    question = Question(floor=0.95, false_alarm=level, least=1 if calibrated else 2, most=runs)
    error = SPREAD * np.sqrt(1 / runs + 1 / baseline_runs)
    low, high = 2.0, 40.0
    while high > 1.02 * low:
        middle = float(np.sqrt(low * high))
        ended = judge(current + np.log(question.floor) - middle * error, baseline, noises, question)
        low, high = (low, middle) if ended.fraction(WORSE) >= FOUND else (middle, high)
    return round(high, 2)


def main() -> None:
    rows = [
        {
            "calibrated": calibrated,
            "baseline": baseline,
            "runs": runs,
            "false_alarm": level,
            "errors": find_smallest_loss(calibrated, baseline, runs, level),
        }
        for calibrated in (True, False)
        for baseline in BASELINES
        for runs in RUNS
        for level in LEVELS
        if runs_to_confirm(level) <= runs
    ]
    text = ",\n  ".join(json.dumps(row) for row in rows)
    TABLE.write_text(f"[\n  {text}\n]\n")


if __name__ == "__main__":
    main()
