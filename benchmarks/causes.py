"""How often an explanation names what was really done to a training.

    python -m benchmarks.causes DIR                     # 250 cases, each kept in DIR; goes on where it was cut off
    python -m benchmarks.causes DIR --only all_reduce   # those whose names have this, a regular expression
    python -m benchmarks.causes DIR --judge             # what is kept there, explained as the package does today: in seconds
    python -m benchmarks.causes DIR --judge held-out    # the third of it by which no rule was found; `found` is the rest

In each case one thing is slowed down on machines of their own (`injected.py`): a link, a worker, a parameter server, the graph.
What the step has become longer by is measured, by rates; the explanation is held against what was done, and its seconds against
what was measured. Cases are drawn from a seed, so that a shorter campaign is a part of a longer one. How strongly something is
to be slowed down is found by short trials, and remembered for the next case of the same cause and layout.

docs/causes.md has the confusion matrix. It needs root, some hundred cases an hour, and nothing else on the machine.
"""

import argparse
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from benchmarks.cases import Case, Told, drawn, line_of, matrix, summary
from benchmarks.injected import INJECTED, Changes, Good, Rig
from benchmarks.kept import PARTS, Kept, Sent, Side, kept, numbers, path_of
from pytest_dtfperf.errors import DtfPerfError
from pytest_dtfperf.explain.probes import Probes
from pytest_dtfperf.measurement import Measurement, Run
from pytest_dtfperf.session import signals
from pytest_dtfperf.spec import Spec
from tests.clusters.ssh import lab

RUNS = 2  # of each case; the first of a training that was changed brings its own warm-up
_TRIALS = 3  # of a strength, at most
_TRIAL_STEPS = 20  # at most: of fewer than are measured the rate is another one
_ENOUGH, _TOO_MUCH = 0.15, 1.2  # of a step, by which it is longer in a trial: a short one errs by some percents
_LEAST_SEEN, _MOST_CHANGE = 0.03, 5.0  # what is less than the one is taken for that much; and how far one trial changes it

Calibration = tuple[tuple[str, int, int], str]  # layout, injected


class Trials:
    """How much stronger than meant each cause is to be injected, by layout."""

    def __init__(self, factors: Mapping[Calibration, float]) -> None:
        self._factors = dict(factors)

    def strength(self, rig: Rig, good: Good, case: Case) -> float:
        """With which a step becomes longer by about what the case wants."""
        injected, key = INJECTED[case.injected], (case.layout, case.injected)
        strength = case.strength * self._factors.get(key, 1.0)
        if not injected.is_graded:
            return strength
        for _ in range(_TRIALS):
            longer = _longer(rig, good, case, strength)
            if _ENOUGH <= longer <= _TOO_MUCH:
                break
            change = case.strength / max(longer, _LEAST_SEEN)
            strength *= min(_MOST_CHANGE, max(1 / _MOST_CHANGE, change))
        self._factors[key] = strength / case.strength
        return strength


def _longer(rig: Rig, good: Good, case: Case, strength: float) -> float:
    """As a part of a step, by a short training."""
    injected = INJECTED[case.injected]
    changes = injected.change(good, strength)
    spec = case.spec.but(steps=min(_TRIAL_STEPS, case.spec.steps))
    with injected.slow(rig, good, strength):
        return _step_s(spec, [rig.run(spec, changes, explain=False)]) / good.step_s - 1


def tried(cases: Iterable[Case], trials: Trials) -> Iterator[Kept | Told]:
    """Of each layout all cases on the same machines, one after another; what did not come to an end says why."""
    with tempfile.TemporaryDirectory() as logs:
        for (_, num_ps, workers), group in groupby(sorted(cases, key=lambda case: case.layout), key=lambda case: case.layout):
            with Rig(num_ps, workers, Path(logs)) as rig:
                good: dict[Spec, tuple[Good, Side]] = {}
                for case in group:
                    if case.spec not in good:
                        INJECTED[case.injected].ready()
                        good[case.spec] = _good(rig, case.spec)
                    yield _tried(rig, *good[case.spec], case, trials)


def _good(rig: Rig, spec: Spec) -> tuple[Good, Side]:
    rig.run(spec)  # the first on new machines has caches to fill
    runs, sent = _runs(rig, spec, Changes(), RUNS + 1)
    return Good(runs, spec), _side(rig, spec, runs, sent, rig.launcher.probe(spec, again=True))


def _tried(rig: Rig, good: Good, then: Side, case: Case, trials: Trials) -> Kept | Told:
    injected = INJECTED[case.injected]
    try:
        strength = trials.strength(rig, good, case)
        changes = injected.change(good, strength)
        with injected.slow(rig, good, strength):
            runs, sent = _runs(rig, case.spec, changes, RUNS)
            probes = rig.launcher.probe(case.spec, again=True)
    except (DtfPerfError, OSError) as error:
        return Told(case, good.step_s, good.step_s, "", "", 0.0, error=str(error))
    return Kept(case, strength, then, _side(rig, case.spec.but(**changes.spec), runs, sent, probes))


def _runs(rig: Rig, spec: Spec, changes: Changes, count: int) -> tuple[list[Run], list[Sent]]:
    sent: list[Sent] = []
    return [rig.run(spec, changes, on_sent=sent.append) for _ in range(count)], sent


def _side(rig: Rig, spec: Spec, runs: Sequence[Run], sent: Sequence[Sent], probes: Probes) -> Side:
    hosts = list(runs[-1].hosts)
    fingerprint = {**rig.launcher.fingerprint_of(hosts), "program": runs[-1].program}
    found = Measurement(  # of injected sleeps it says nothing
        spec=spec, runs=tuple(runs), hosts=hosts, fingerprint=fingerprint, probes=probes.to_json()
    )  # fmt: skip
    return Side(found, sent)


def _step_s(spec: Spec, runs: Sequence[Run]) -> float:
    return Good(runs, spec).step_s


def _factors(found: Iterable[Kept]) -> dict[Calibration, float]:
    """As the cases that are kept have it."""
    return {(each.case.layout, each.case.injected): each.strength / each.case.strength for each in found}


def recorded(folder: Path, cases: Sequence[Case]) -> Iterator[Told]:
    """Those that are not there yet, as soon as each is known."""
    folder.mkdir(parents=True, exist_ok=True)
    there = [each for _, each in kept(folder)]
    trials, known = Trials(_factors(there)), Counter(each.case for each in there)
    with signals.leaving():  # machines and their control groups go, however it ends
        for found in tried([case for case in cases if not _taken(known, case)], trials):
            if isinstance(found, Kept):
                found.write(path_of(folder, max(numbers(folder), default=-1) + 1))
            yield found.told if isinstance(found, Kept) else found


def _taken(known: Counter[Case], case: Case) -> bool:
    known[case] -= 1
    return known[case] >= 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="DIR", help="where cases are kept")
    parser.add_argument("--cases", type=int, default=250, help="how many; 250")
    parser.add_argument("--only", default="", metavar="REGEX", help="of these, those in whose names it is found")
    parser.add_argument("--judge", nargs="?", const="all", choices=PARTS, help="run nothing: explain what is kept there")
    args = parser.parse_args(arguments)
    if args.judge:
        told = []
        for number, each in kept(args.folder, args.judge):
            if re.search(args.only, each.case.name):
                told.append(each.told)
                print(f"{number:03} {line_of(told[-1])}")
    else:
        if reason := lab.why_not(namespaces=True):
            sys.exit(f"no machines: {reason}")
        told = []
        for found in recorded(args.folder, [case for case in drawn(args.cases) if re.search(args.only, case.name)]):
            told.append(found)
            print(line_of(found), flush=True)
    print(matrix(told), *summary(told), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
