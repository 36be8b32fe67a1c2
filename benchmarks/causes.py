"""Count how often an explanation names the cause that was injected into a training.

    python -m benchmarks.causes DIR                     # run 250 cases except for known ones, and store each in DIR
    python -m benchmarks.causes DIR --only all_reduce   # only the cases with names that match this regular expression
    python -m benchmarks.causes DIR --judge             # explain the cases in DIR by the current code, in seconds
    python -m benchmarks.causes DIR --judge held-out    # only the third of them from which no rule was found; `found`: the rest
    python -m benchmarks.causes DIR --archive           # add them to benchmarks/causes.jsonl.xz

Cases in DIR or in the archive are known, so that an interrupted campaign continues where it ended. `--judge` also accepts the
path of the archive instead of DIR.

Each case slows down one thing on separate machines (`injected.py`): a link, a worker, a parameter server or the graph. The
increase of the step is measured from rates. The cause of the explanation is compared with the injected one, its seconds with
the measured increase. A fixed seed selects the cases, so that a shorter campaign is a part of a longer one. Trials find how
strongly to slow down. The last trial is the first run of the case, and the next case of the same cause and layout starts with
its strength.

docs/causes.md has the confusion matrix. A campaign needs root and an otherwise idle machine. An hour is enough for some hundred
cases.
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

from benchmarks.cases import MIN_INCREASE, NOTHING, Case, CaseResult, draw_cases, format_line, matrix, summary
from benchmarks.injected import INJECTED, Changes, Good, Rig
from benchmarks.stored_cases import ARCHIVE, PARTS, Sent, Side, StoredCase, archive, load_cases, path_of
from pytest_dtfperf.datamodel.measurement import Measurement, Run
from pytest_dtfperf.datamodel.probes import Probes
from pytest_dtfperf.errors import DtfPerfError
from pytest_dtfperf.session import signals
from pytest_dtfperf.spec import Spec
from tests.clusters.ssh import lab

RUNS = 2  # of each case; the first one of a changed training includes its own warm-up
_TRIALS = 4  # at most, for each strength; the last one counts in any case
_ENOUGH, _TOO_MUCH = (
    0.15,
    1.2,
)  # fractions of a step: accepted increases in a trial, which errs by some percents
_DRIFT = 0.05  # fraction of a step: if a case is faster than its baseline by more, the baseline is measured again
_MIN_INCREASE_IN_TRIAL, _MAX_CHANGE = 0.03, 5.0  # a smaller increase counts as this one; the largest factor from trial to trial

Calibration = tuple[tuple[str, int, int], str]  # layout, injected


class Trials:
    """The factors from a case's strength to the strength that has this effect, by cause and layout."""

    def __init__(self) -> None:
        self._factors: dict[Calibration, float] = {}
        self._weak: set[Calibration] = set()

    def is_weak(self, case: Case) -> bool:
        """Whether the cause has only one strength and had nearly no effect on this layout, so that another run is useless."""
        return _calibration(case) in self._weak

    def strength(self, case: Case) -> float:
        """Return the strength that increases a step by about that of the case, as far as trials have shown it."""
        return case.strength * self._factors.get(_calibration(case), 1.0)

    def note(self, case: Case, strength: float, increase: float) -> bool:
        """Store the increase of a step, a fraction of it, by a strength; return whether it is within the accepted range."""
        if not INJECTED[case.injected].is_graded:
            if case.injected != NOTHING and increase < MIN_INCREASE / 2:
                self._weak.add(_calibration(case))
            return True
        enough = _ENOUGH <= increase <= _TOO_MUCH
        if not enough:
            change = case.strength / max(increase, _MIN_INCREASE_IN_TRIAL)
            strength *= min(_MAX_CHANGE, max(1 / _MAX_CHANGE, change))
        self._factors[_calibration(case)] = strength / case.strength
        return enough


def _calibration(case: Case) -> Calibration:
    return case.layout, case.injected


def run_cases(cases: Iterable[Case], trials: Trials) -> Iterator[StoredCase | CaseResult]:
    """Yield each case with its measurements, or a result with the error. Cases of one layout share machines."""
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
                    found = _run_case(rig, *good[case.spec], case, trials)
                    if isinstance(found, StoredCase) and found.current.step_s < (1 - _DRIFT) * found.baseline.step_s:
                        del good[case.spec]
                    yield found


def _good(rig: Rig, spec: Spec) -> tuple[Good, Side]:
    rig.run(spec)  # the first run on new machines fills caches
    runs, sent = _runs(rig, spec, Changes(), RUNS + 1)
    return Good(runs, spec), _side(rig, spec, runs, sent, rig.launcher.probe(spec, again=True))


def _run_case(rig: Rig, good: Good, baseline: Side, case: Case, trials: Trials) -> StoredCase | CaseResult:
    tries = (_measure(rig, good, baseline, case, trials, is_last=trial == _TRIALS) for trial in range(1, _TRIALS + 1))
    try:
        return next(filter(None, tries))
    except (DtfPerfError, OSError) as error:
        return CaseResult(case, good.step_s, good.step_s, "", "", 0.0, error=str(error))


def _measure(rig: Rig, good: Good, baseline: Side, case: Case, trials: Trials, *, is_last: bool) -> StoredCase | None:
    """Return a case with its measurements, or None if its first run had too small or too large an effect."""
    injected, strength = INJECTED[case.injected], trials.strength(case)
    changes = injected.change(good, strength)
    with injected.slow(rig, good, strength):
        first, first_sent = _runs(rig, case.spec, changes, 1)
        is_enough = trials.note(case, strength, Good(first, case.spec).step_s / good.step_s - 1)
        if not (is_enough or is_last):
            return None
        more, more_sent = _runs(rig, case.spec, changes, RUNS - 1)
        probes = rig.launcher.probe(case.spec, again=True)
    return StoredCase(
        case, strength, baseline, _side(rig, case.spec.replace(**changes.spec), first + more, first_sent + more_sent, probes)
    )


def _runs(rig: Rig, spec: Spec, changes: Changes, count: int) -> tuple[list[Run], list[Sent]]:
    sent: list[Sent] = []
    return [rig.run(spec, changes, on_sent=sent.append) for _ in range(count)], sent


def _side(rig: Rig, spec: Spec, runs: Sequence[Run], sent: Sequence[Sent], probes: Probes) -> Side:
    hosts = list(runs[-1].hosts)
    fingerprint = replace(rig.launcher.collect_fingerprint(hosts), program=runs[-1].program)
    found = Measurement(  # without the injected sleeps
        spec=spec, runs=tuple(runs), hosts=hosts, fingerprint=fingerprint, probes=probes
    )  # fmt: skip
    return Side(found, sent)


def record_cases(folder: Path, cases: Sequence[Case], archived: Path = ARCHIVE) -> Iterator[CaseResult]:
    """Run the cases that are neither in the folder nor in the archive, store them, and yield the result of each."""
    folder.mkdir(parents=True, exist_ok=True)
    stored = _load_known(folder, archived)
    trials, known = Trials(), Counter(each.case for each in stored.values())
    for each in stored.values():
        trials.note(each.case, each.strength, each.current.step_s / each.baseline.step_s - 1)
    number = max(stored, default=-1)
    with signals.raise_exit():  # so that a signal, too, removes machines and control groups
        for found in run_cases([case for case in cases if not _take_known(known, case)], trials):
            if isinstance(found, StoredCase):
                number += 1
                found.write(path_of(folder, number))
            yield found.result if isinstance(found, StoredCase) else found


def _load_known(folder: Path, archived: Path) -> dict[int, StoredCase]:
    """Return the cases of an archive, if it exists, and of a folder, by their numbers."""
    return dict(load_cases(archived) if archived.exists() else ()) | dict(load_cases(folder))


def _take_known(known: Counter[Case], case: Case) -> bool:
    """Remove one occurrence of a case from the known ones, and return whether there was one."""
    known[case] -= 1
    return known[case] >= 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="DIR", help="the folder of stored cases")
    parser.add_argument("--cases", type=int, default=250, help="the number of cases; default %(default)s")
    parser.add_argument("--only", default="", metavar="REGEX", help="only cases with names that match")
    parser.add_argument("--judge", nargs="?", const="all", choices=PARTS, help="run nothing: explain the stored cases")
    parser.add_argument("--archive", action="store_true", help=f"run nothing: add the stored cases to {ARCHIVE.name}")
    args = parser.parse_args(arguments)
    if args.archive:
        archive(_load_known(args.folder, ARCHIVE).items(), ARCHIVE)
        return 0
    if args.judge:
        results = []
        for number, each in load_cases(args.folder, args.judge):
            if re.search(args.only, each.case.name):
                results.append(each.result)
                print(f"{number:03} {format_line(results[-1])}")
    else:
        if reason := lab.why_not(namespaces=True):
            sys.exit(f"no machines: {reason}")
        results = []
        for found in record_cases(args.folder, [case for case in draw_cases(args.cases) if re.search(args.only, case.name)]):
            results.append(found)
            print(format_line(found), flush=True)
    print(matrix(results), *summary(results), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
