"""Why arithmetic takes longer: no core, a lower clock, less memory, other software, or nothing else that is known."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from pytest_dtfperf.explain.case import Case, Reason
from pytest_dtfperf.explain.evidence import Evidence
from pytest_dtfperf.explain.model import Times
from pytest_dtfperf.explain.suspects import GROUPS
from pytest_dtfperf.explain.words import ms, percent_longer

_STARVED = 1.25  # times as long on the wall for the same CPU: what waits for a core computes nothing meanwhile
_SAME_WORK = 0.5  # of what became longer, that the CPU had to do, too: then it is the work and not the core


def reason(case: Case) -> Reason:
    before, after = case.seconds("compute")
    seconds = f"computes {ms(after)} ms of a step, {ms(before)} ms {case.before}"
    slower = f"{case.who} computes {percent_longer(before, after)} slower than {case.than}"
    evidence = [seconds, *_same_graph(case)]
    for kind in ("clock", "memory"):
        if found := case.strains(kind):
            return case.reason(kind, f"{slower}; {found[0]}", evidence, found)
    if case.suspect.location is None and case.now.software_changes:
        return of_software(case, slower, evidence)
    found = case.strains("compute", "others")
    return case.reason("compute", f"{slower}; {found[0]}" if found else slower, evidence, found)


def of_starved(case: Case) -> Reason:
    """Of what has no core: by its arithmetic where that tells, else by what the kernel has counted."""
    others = case.strains("others")
    longer = starved(case)
    words = f"{case.who} waits for its cores: {longer or next(iter(others), 'it was ready to work, and had none')}"
    evidence = ["it was ready to compute, and had no core"] if longer else []
    return case.reason("others", words, evidence, others if longer else others[1:] or others)


def of_decoding(case: Case) -> Reason:
    before, after = case.seconds("compute")
    probed = case.strains("input")
    words = f"{case.who} decodes its input on the cores that it computes with; {probed[0]}"
    longer = decodes_longer(case)  # of all of them together, of whom some may only wait for their batches
    evidence = [f"computes {ms(after)} ms of a step, {ms(before)} ms {case.before}", *([longer] if longer else [])]
    return case.reason("input", words, evidence, probed)


def decodes_longer(case: Case) -> str:
    """That the input needs more of the cores that compute: a probe says so, and the process has more of the CPU's time.

    Empty: it does not, or nobody knows.
    """
    now, then = (cpu_of_all(side, case.workers) for side in (case.now, case.then))
    before, after = case.seconds("compute")
    if case.both.basis == "peers" or not case.strains("input") or now is None or then is None:
        return ""
    return f"{ms(now)} ms of CPU for a step, {ms(then)} ms {case.before}" if now - then > _SAME_WORK * (after - before) else ""


def of_software(case: Case, words: str, evidence: Sequence[str]) -> Reason:
    """That versions differ is known, that they make it slower is not."""
    changed = ", ".join(case.now.software_changes)
    return replace(case.reason("software", f"{words}; versions differ: {changed}", evidence), confidence="low")


def starved(case: Case) -> str:
    """That the same arithmetic has waited for a core; empty: it has not, or nobody knows."""
    now = _stretch(case.both.now, case.now, case.workers)
    then = (
        _stretch(case.both.now, case.now, case.others)
        if case.both.basis == "peers"
        else _stretch(case.both.then, case.then, case.workers)
    )
    if now is None or then is None:
        return ""
    (wall, cpu), (usual_wall, usual_cpu) = now, then
    longer, more_work = wall / usual_wall - 1, cpu / usual_cpu - 1
    if more_work > _SAME_WORK * longer or wall / cpu < _STARVED * usual_wall / usual_cpu:
        return ""
    return f"{ms(wall)} ms of computing for {ms(cpu)} ms of CPU, {ms(usual_wall)} for {ms(usual_cpu)} ms {case.before}"


def _stretch(times: Times, side: Evidence, workers: Sequence[str]) -> tuple[float, float] | None:
    """Seconds of computing and of CPU, means of these workers; None: of one of them it is not known."""
    cpu = cpu_of_all(side, workers)
    wall = sum(times.seconds(worker, GROUPS["compute"]) for worker in workers)
    return (wall / len(workers), cpu) if cpu and wall else None


def cpu_of_all(side: Evidence, workers: Sequence[str]) -> float | None:
    """The mean of these workers; None: of one of them it is not known."""
    known = [cpu for worker in workers if (cpu := cpu_of(side, worker))]
    return sum(known) / len(known) if known and len(known) == len(workers) else None


def cpu_of(side: Evidence, worker: str) -> float | None:
    """Of a worker's process in a step; what was measured in all steps before what was traced in some."""
    score = side.scores.workers.get(worker) if side.scores else None
    if score and score.cpu_s is not None:
        return score.cpu_s
    task = side.anatomy.tasks.get(worker) if side.anatomy else None
    return task.cpu_s if task else None


def _same_graph(case: Case) -> Iterator[str]:
    if case.then.graph is not None and case.then.graph == case.now.graph and not case.now.program_changes:
        yield "the same graph with the same settings: it is its arithmetic that takes longer"
