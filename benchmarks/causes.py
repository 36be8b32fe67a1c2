"""How often an explanation names what was really done to a training.

    python -m benchmarks.causes DIR                     # 250 cases without those that are known, each kept in DIR
    python -m benchmarks.causes DIR --only all_reduce   # those whose names have this, a regular expression
    python -m benchmarks.causes DIR --judge             # what is kept there, explained as the package does today: in seconds
    python -m benchmarks.causes DIR --judge held-out    # the third of it by which no rule was found; `found` is the rest
    python -m benchmarks.causes DIR --archive           # add it to benchmarks/causes.jsonl.xz

Known are cases in DIR, so that a campaign goes on where it was cut off, and in the archive, which `--judge` takes in place of
DIR, too.

In each case one thing is slowed down on machines of their own (`injected.py`): a link, a worker, a parameter server, the graph.
What the step has become longer by is measured, by rates; the explanation is held against what was done, and its seconds against
what was measured. Cases are drawn from a seed, so that a shorter campaign is a part of a longer one. How strongly something is
to be slowed down is found by trials, of which the last is the case's first run, and remembered for the next case of the same
cause and layout.

docs/causes.md has the confusion matrix. It needs root, some hundred cases an hour, and nothing else on the machine.
"""

import argparse
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from benchmarks.cases import LEAST_LONGER, NOTHING, Case, Told, drawn, line_of, matrix, summary
from benchmarks.injected import INJECTED, Changes, Good, Rig
from benchmarks.kept import ARCHIVE, PARTS, Kept, Sent, Side, archive, kept, path_of
from pytest_dtfperf.datamodel.measurement import Measurement, Run
from pytest_dtfperf.datamodel.probes import Probes
from pytest_dtfperf.errors import DtfPerfError
from pytest_dtfperf.session import signals
from pytest_dtfperf.spec import Spec
from tests.clusters.ssh import lab

RUNS = 2  # of each case; the first of a training that was changed brings its own warm-up
_TRIALS = 4  # of a strength, at most: the last one counts, whatever it is
_ENOUGH, _TOO_MUCH = 0.15, 1.2  # of a step, by which it is longer in a trial: a short one errs by some percents
_DRIFT = 0.05  # of a step, that it is shorter than before anything was injected: then "before" is measured anew
_LEAST_SEEN, _MOST_CHANGE = 0.03, 5.0  # what is less than the one is taken for that much; and how far one trial changes it

Calibration = tuple[tuple[str, int, int], str]  # layout, injected


class Trials:
    """How much stronger than meant each cause is to be injected, by layout. A case's own first run is the trial of it."""

    def __init__(self) -> None:
        self._factors: dict[Calibration, float] = {}
        self._weak: set[Calibration] = set()

    def is_weak(self, case: Case) -> bool:
        """Whether it has no strength and did next to nothing there: it would do no more the next time."""
        return _calibration(case) in self._weak

    def strength(self, case: Case) -> float:
        """With which a step becomes longer by about what the case wants, as far as is known."""
        return case.strength * self._factors.get(_calibration(case), 1.0)

    def note(self, case: Case, strength: float, longer: float) -> bool:
        """What a strength did to a step, as a part of it; whether that is enough and not too much."""
        if not INJECTED[case.injected].is_graded:
            if case.injected != NOTHING and longer < LEAST_LONGER / 2:
                self._weak.add(_calibration(case))
            return True
        enough = _ENOUGH <= longer <= _TOO_MUCH
        if not enough:
            change = case.strength / max(longer, _LEAST_SEEN)
            strength *= min(_MOST_CHANGE, max(1 / _MOST_CHANGE, change))
        self._factors[_calibration(case)] = strength / case.strength
        return enough


def _calibration(case: Case) -> Calibration:
    return case.layout, case.injected


def tried(cases: Iterable[Case], trials: Trials) -> Iterator[Kept | Told]:
    """Of each layout all cases on the same machines, one after another; what did not come to an end says why."""
    with tempfile.TemporaryDirectory() as logs:
        for (_, num_ps, workers), group in groupby(sorted(cases, key=lambda case: case.layout), key=lambda case: case.layout):
            with Rig(num_ps, workers, Path(logs)) as rig:
                good: dict[Spec, tuple[Good, Side]] = {}
                for case in group:
                    if trials.is_weak(case):
                        continue
                    if case.spec not in good:
                        INJECTED[case.injected].ready()
                        good[case.spec] = _good(rig, case.spec)
                    found = _tried(rig, *good[case.spec], case, trials)
                    if isinstance(found, Kept) and found.now.step_s < (1 - _DRIFT) * found.then.step_s:
                        del good[case.spec]
                    yield found


def _good(rig: Rig, spec: Spec) -> tuple[Good, Side]:
    rig.run(spec)  # the first on new machines has caches to fill
    runs, sent = _runs(rig, spec, Changes(), RUNS + 1)
    return Good(runs, spec), _side(rig, spec, runs, sent, rig.launcher.probe(spec, again=True))


def _tried(rig: Rig, good: Good, then: Side, case: Case, trials: Trials) -> Kept | Told:
    tries = (_measured(rig, good, then, case, trials, is_last=trial == _TRIALS) for trial in range(1, _TRIALS + 1))
    try:
        return next(filter(None, tries))
    except (DtfPerfError, OSError) as error:
        return Told(case, good.step_s, good.step_s, "", "", 0.0, error=str(error))


def _measured(rig: Rig, good: Good, then: Side, case: Case, trials: Trials, *, is_last: bool) -> Kept | None:
    """With what is known to be strong enough; None: it was not, by the first run, and it is to be tried again."""
    injected, strength = INJECTED[case.injected], trials.strength(case)
    changes = injected.change(good, strength)
    with injected.slow(rig, good, strength):
        first, first_sent = _runs(rig, case.spec, changes, 1)
        is_enough = trials.note(case, strength, Good(first, case.spec).step_s / good.step_s - 1)
        if not (is_enough or is_last):
            return None
        more, more_sent = _runs(rig, case.spec, changes, RUNS - 1)
        probes = rig.launcher.probe(case.spec, again=True)
    return Kept(
        case, strength, then, _side(rig, case.spec.replace(**changes.spec), first + more, first_sent + more_sent, probes)
    )


def _runs(rig: Rig, spec: Spec, changes: Changes, count: int) -> tuple[list[Run], list[Sent]]:
    sent: list[Sent] = []
    return [rig.run(spec, changes, on_sent=sent.append) for _ in range(count)], sent


def _side(rig: Rig, spec: Spec, runs: Sequence[Run], sent: Sequence[Sent], probes: Probes) -> Side:
    hosts = list(runs[-1].hosts)
    fingerprint = replace(rig.launcher.collect_fingerprint(hosts), program=runs[-1].program)
    found = Measurement(  # of injected sleeps it says nothing
        spec=spec, runs=tuple(runs), hosts=hosts, fingerprint=fingerprint, probes=probes
    )  # fmt: skip
    return Side(found, sent)


def recorded(folder: Path, cases: Sequence[Case], before: Path = ARCHIVE) -> Iterator[Told]:
    """Those that are neither there yet nor in an archive, as soon as each is known."""
    folder.mkdir(parents=True, exist_ok=True)
    there = _known(folder, before)
    trials, known = Trials(), Counter(each.case for each in there.values())
    for each in there.values():
        trials.note(each.case, each.strength, each.now.step_s / each.then.step_s - 1)
    number = max(there, default=-1)
    with signals.raise_exit():  # machines and their control groups go, however it ends
        for found in tried([case for case in cases if not _taken(known, case)], trials):
            if isinstance(found, Kept):
                number += 1
                found.write(path_of(folder, number))
            yield found.told if isinstance(found, Kept) else found


def _known(folder: Path, archived: Path) -> dict[int, Kept]:
    """Those of an archive, where there is one, and of a folder, by their numbers."""
    return dict(kept(archived) if archived.exists() else ()) | dict(kept(folder))


def _taken(known: Counter[Case], case: Case) -> bool:
    known[case] -= 1
    return known[case] >= 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="DIR", help="where cases are kept")
    parser.add_argument("--cases", type=int, default=250, help="how many; 250")
    parser.add_argument("--only", default="", metavar="REGEX", help="of these, those in whose names it is found")
    parser.add_argument("--judge", nargs="?", const="all", choices=PARTS, help="run nothing: explain what is kept there")
    parser.add_argument("--archive", action="store_true", help=f"run nothing: add what is kept there to {ARCHIVE.name}")
    args = parser.parse_args(arguments)
    if args.archive:
        archive(_known(args.folder, ARCHIVE).items(), ARCHIVE)
        return 0
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
