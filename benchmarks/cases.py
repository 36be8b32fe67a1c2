"""The cases of the campaign (`causes.py`): the training and the injected cause of each, and the result of its explanation."""

import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.injected import INJECTED, tasks_of
from pytest_dtfperf.datamodel.explanation import Explanation
from pytest_dtfperf.spec import VARIABLE_UPDATES, Spec

SEED = 2017
STRENGTHS = (0.25, 0.5, 0.9)  # of a step, by which it is to become longer
LAYOUTS = (  # mode, parameter servers, workers
    ("parameter_server", 1, 1),
    ("parameter_server", 1, 2),
    ("parameter_server", 2, 2),
    ("parameter_server", 2, 4),
    ("distributed_replicated", 1, 2),
    ("distributed_replicated", 2, 3),
    ("collective_all_reduce", 0, 2),
    ("collective_all_reduce", 0, 3),
    ("distributed_all_reduce", 0, 2),
    ("parameter_server_v2", 1, 2),
)
# More steps, by whether a coordinator distributes them: of 15 steps of two workers, one step more or less is 7 %.
STEPS = {False: 15, True: 60}
NOTHING = "nothing"
QUIET = 1 / 5  # of all cases have nothing injected
MIN_INCREASE = 0.1  # fraction of a step: a case whose injected cause had less effect is left out
WITHIN = 0.2  # of the measured seconds


@dataclass(frozen=True)
class Case:
    mode: str
    num_ps: int
    workers: int
    injected: str
    strength: float

    @property
    def layout(self) -> tuple[str, int, int]:
        return self.mode, self.num_ps, self.workers

    @property
    def name(self) -> str:
        """`distributed_replicated 2+3 one pair 0.5`"""
        return f"{self.mode} {self.num_ps}+{self.workers} {self.injected} {self.strength:g}"

    @property
    def only_peer(self) -> set[str] | None:
        """The only task that the server or worker:1 with the injected cause communicates with; None if there are several."""
        servers, workers = {f"ps:{i}" for i in range(self.num_ps)}, {f"worker:{i}" for i in range(self.workers)}
        where = set(INJECTED[self.injected].where)
        peers = workers if where <= servers else servers or workers - {"worker:1"}
        return peers if len(peers) == 1 else None

    @property
    def hosts(self) -> dict[str, str]:
        """Host -> its task."""
        tasks = tasks_of(self.num_ps, self.workers)
        return {f"m{number}": task for number, task in enumerate(tasks, start=1)}

    @property
    def spec(self) -> Spec:
        steps = STEPS[VARIABLE_UPDATES[self.mode].coordinated]
        given = {"model": "mnist", "batch_size": 16, "warmup_steps": 3, "steps": steps, **INJECTED[self.injected].training}
        return Spec(
            gpus=self.workers,
            num_ps=self.num_ps,
            variable_update=self.mode,
            cross_replica_sync=VARIABLE_UPDATES[self.mode].synchronous,
            **given,
        )


@dataclass(frozen=True)
class CaseResult:
    """A case, with the top cause of its explanation."""

    case: Case
    baseline_s: float  # of a step
    current_s: float
    cause_kind: str  # the kind of the top cause; "" if none is claimed
    location: str
    seconds: float  # of that cause
    error: str = ""  # why there was no explanation
    disturbance: str = ""  # other load, where nothing was injected

    @property
    def increase(self) -> float:
        """The increase of the step's time, as a fraction of the baseline's."""
        return self.current_s / self.baseline_s - 1

    @property
    def counts(self) -> bool:
        """Whether the injected cause had an effect and nothing else disturbed the runs: an answer can be right only then."""
        return not self.disturbance and (self.case.injected == NOTHING or self.increase >= MIN_INCREASE)

    @property
    def is_right(self) -> bool:
        """Whether the top cause is of the kind that was injected, or none is claimed where nothing was."""
        kinds = INJECTED[self.case.injected].kinds
        return self.cause_kind in kinds if kinds else not self.cause_kind

    @property
    def is_there(self) -> bool:
        """Whether the location of the top cause has the tasks of the injected one, or their hosts.

        The link of a task that communicates with only one other task is their pair.
        """
        where = INJECTED[self.case.injected].where
        named = {self.case.hosts.get(end, end) for end in re.split("[<>]+", self.location) if end}
        missing, more = set(where) - named, named - set(where)
        allowed: tuple[set[str] | None, ...] = (set(), self.case.only_peer)
        return not where or (bool(named) and missing in allowed and more in allowed)

    @property
    def is_within(self) -> bool:
        """Whether the seconds of the top cause are close to the measured increase."""
        true_s = self.current_s - self.baseline_s
        return abs(self.seconds - true_s) <= WITHIN * true_s


def make_result(
    case: Case, baseline_s: float, current_s: float, explanation: Explanation | None, disturbance: str = ""
) -> CaseResult:
    """Return the result of a case from its explanation."""
    if explanation is None:
        return CaseResult(case, baseline_s, current_s, "", "", 0.0, error="no explanation")
    if not explanation.causes:
        return CaseResult(case, baseline_s, current_s, "", "", 0.0, disturbance=disturbance)
    top = explanation.causes[0]
    return CaseResult(case, baseline_s, current_s, top.kind, top.location or "", top.seconds, disturbance=disturbance)


def draw_cases(count: int) -> list[Case]:
    """Return the first `count` cases of a random sequence with a fixed seed: a shorter campaign is a part of a longer one."""
    draw = random.Random(SEED)
    causes = [name for name in INJECTED if name != NOTHING]
    cases: list[Case] = []
    while len(cases) < count:
        mode, num_ps, workers = LAYOUTS[len(cases) % len(LAYOUTS)]
        possible = [name for name in causes if INJECTED[name].is_possible(mode, num_ps, workers)]
        injected = NOTHING if draw.random() < QUIET else possible[draw.randrange(len(possible))]
        cases.append(Case(mode, num_ps, workers, injected, draw.choice(STRENGTHS)))
    return cases


# -- the results of all cases


def matrix(results: Sequence[CaseResult]) -> str:
    """Return a line for each injected slow-down with the counts of the named causes, as Markdown."""
    counted = [each for each in results if each.counts and not each.error]
    named = sorted({each.cause_kind for each in counted})
    lines = [
        "| Injected | Cases | "
        + " | ".join(name or "no cause" for name in named)
        + " | Right kind | And location | Seconds within 20 % |",
        "|---|---:|" + "---:|" * (len(named) + 3),
    ]
    for injected in INJECTED:
        of_it = [each for each in counted if each.case.injected == injected]
        if of_it:
            count = Counter(each.cause_kind for each in of_it)
            right = [each for each in of_it if each.is_right]
            within = f"{sum(each.is_within for each in right)} of {len(right)}" if INJECTED[injected].kinds else ""
            cells = [str(count[name] or "") for name in named]
            lines.append(
                f"| {injected} | {len(of_it)} | "
                + " | ".join(cells)
                + f" | {len(right)} | {sum(each.is_there for each in right)} | {within} |"
            )
    return "\n".join(lines)


def summary(results: Sequence[CaseResult]) -> Iterator[str]:
    injected = [each for each in results if each.counts and not each.error and INJECTED[each.case.injected].kinds]
    quiet = [each for each in results if each.counts and not each.error and not INJECTED[each.case.injected].kinds]
    right = [each for each in injected if each.is_right]
    yield f"right kind: {_share(len(right), len(injected))}"
    yield f"right location, of those: {_share(sum(each.is_there for each in right), len(right))}"
    yield f"seconds within 20 %, of those: {_share(sum(each.is_within for each in right), len(right))}"
    yield f"no injection and no cause: {_share(sum(each.is_right for each in quiet), len(quiet))}"
    for mode in dict.fromkeys(mode for mode, _, _ in LAYOUTS):
        of_mode = [each for each in injected if each.case.mode == mode]
        if of_mode:
            yield f"  {mode}: right kind {_share(sum(each.is_right for each in of_mode), len(of_mode))}"
    broken = [each for each in results if each.error]
    disturbed = [each for each in results if each.disturbance and not each.error]
    weak = [each for each in results if not (each.counts or each.error or each.disturbance)]
    yield (
        f"left out: {len(weak)} with a step less than 10 % longer, {len(disturbed)} with a disturbance, "
        f"{len(broken)} without an end"
    )


def format_line(result: CaseResult) -> str:
    """Return a line for one case."""
    case, true_s = result.case, result.current_s - result.baseline_s
    answer = "no cause"
    if result.cause_kind:
        answer = f"{result.cause_kind} {result.location} {1000 * result.seconds:.0f} of {1000 * true_s:.0f} ms"
    if not result.counts:
        rating = f"left out{', disturbed' * bool(result.disturbance)}"
    else:
        rating = "right" if result.is_right and result.is_there else "right, not there" if result.is_right else "WRONG"
    return (
        f"{case.injected:18} {case.mode} {case.num_ps}+{case.workers} {result.increase:+.0%}: "
        f"{result.error or f'{answer}: {rating}'}"
    )


def _share(count: int, total: int) -> str:
    return f"{count} of {total}" + (f" ({100 * count / total:.1f} %)" if total else "")
