"""The cases of the campaign (`causes.py`): what is trained and what is done to it, and what was said of it."""

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
# Of workers that a coordinator gives steps it is counted how many each has done: of 15 by two workers one more or less is 7 %.
STEPS = {False: 15, True: 60}
NOTHING = "nothing"
QUIET = 1 / 5  # of all cases have nothing injected
LEAST_LONGER = 0.1  # of a step: what was to be injected and made less than this says nothing about explanations
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
        """Of the task at which it is injected, a server or worker:1, if it talks to but one other."""
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
class Told:
    """One case, and what was said of it."""

    case: Case
    then_s: float  # of a step
    now_s: float
    named: str  # the kind of the top cause; "" if none is claimed
    location: str
    seconds: float  # of that cause
    error: str = ""  # why there was no explanation
    disturbed: str = ""  # by whom else, where nothing was injected

    @property
    def longer(self) -> float:
        """As a part of the step."""
        return self.now_s / self.then_s - 1

    @property
    def counts(self) -> bool:
        """Whether what was injected made any difference, and nobody else did: else there is nothing to explain, or more."""
        return not self.disturbed and (self.case.injected == NOTHING or self.longer >= LEAST_LONGER)

    @property
    def is_right(self) -> bool:
        """Whether the top cause is of the kind that was injected, or none is claimed where nothing was."""
        kinds = INJECTED[self.case.injected].kinds
        return self.named in kinds if kinds else not self.named

    @property
    def is_there(self) -> bool:
        """Whether it is named where it was injected: by its tasks, or their hosts. A task that talks to one
        other alone has a link that is its pair with that one."""
        where = INJECTED[self.case.injected].where
        named = {self.case.hosts.get(end, end) for end in re.split("[<>]+", self.location) if end}
        missing, more = set(where) - named, named - set(where)
        allowed: tuple[set[str] | None, ...] = (set(), self.case.only_peer)
        return not where or (bool(named) and missing in allowed and more in allowed)

    @property
    def is_within(self) -> bool:
        true_s = self.now_s - self.then_s
        return abs(self.seconds - true_s) <= WITHIN * true_s


def told(case: Case, then_s: float, now_s: float, found: Explanation | None, disturbed: str = "") -> Told:
    if found is None:
        return Told(case, then_s, now_s, "", "", 0.0, error="no explanation")
    if not found.causes:
        return Told(case, then_s, now_s, "", "", 0.0, disturbed=disturbed)
    top = found.causes[0]
    return Told(case, then_s, now_s, top.kind, top.location or "", top.seconds, disturbed=disturbed)


def drawn(count: int) -> list[Case]:
    """The first so many of all cases there may be, in the order of a seed: each cause, mode and strength among them."""
    draw = random.Random(SEED)
    causes = [name for name in INJECTED if name != NOTHING]
    cases: list[Case] = []
    while len(cases) < count:
        mode, num_ps, workers = LAYOUTS[len(cases) % len(LAYOUTS)]
        possible = [name for name in causes if INJECTED[name].is_possible(mode, num_ps, workers)]
        injected = NOTHING if draw.random() < QUIET else possible[draw.randrange(len(possible))]
        cases.append(Case(mode, num_ps, workers, injected, draw.choice(STRENGTHS)))
    return cases


# -- what came of it


def matrix(told: Sequence[Told]) -> str:
    """Return a line for each injected slow-down with the counts of the named causes, as Markdown."""
    counted = [each for each in told if each.counts and not each.error]
    named = sorted({each.named for each in counted})
    lines = [
        "| Injected | Cases | "
        + " | ".join(name or "no cause" for name in named)
        + " | Right kind | And location | Seconds within 20 % |",
        "|---|---:|" + "---:|" * (len(named) + 3),
    ]
    for injected in INJECTED:
        of_it = [each for each in counted if each.case.injected == injected]
        if of_it:
            count = Counter(each.named for each in of_it)
            right = [each for each in of_it if each.is_right]
            within = f"{sum(each.is_within for each in right)} of {len(right)}" if INJECTED[injected].kinds else ""
            cells = [str(count[name] or "") for name in named]
            lines.append(
                f"| {injected} | {len(of_it)} | "
                + " | ".join(cells)
                + f" | {len(right)} | {sum(each.is_there for each in right)} | {within} |"
            )
    return "\n".join(lines)


def summary(told: Sequence[Told]) -> Iterator[str]:
    injected = [each for each in told if each.counts and not each.error and INJECTED[each.case.injected].kinds]
    quiet = [each for each in told if each.counts and not each.error and not INJECTED[each.case.injected].kinds]
    right = [each for each in injected if each.is_right]
    yield f"right kind: {_share(len(right), len(injected))}"
    yield f"right location, of those: {_share(sum(each.is_there for each in right), len(right))}"
    yield f"seconds within 20 %, of those: {_share(sum(each.is_within for each in right), len(right))}"
    yield f"no injection and no cause: {_share(sum(each.is_right for each in quiet), len(quiet))}"
    for mode in dict.fromkeys(mode for mode, _, _ in LAYOUTS):
        of_mode = [each for each in injected if each.case.mode == mode]
        if of_mode:
            yield f"  {mode}: right kind {_share(sum(each.is_right for each in of_mode), len(of_mode))}"
    broken = [each for each in told if each.error]
    disturbed = [each for each in told if each.disturbed and not each.error]
    weak = [each for each in told if not (each.counts or each.error or each.disturbed)]
    yield (
        f"left out: {len(weak)} with a step less than 10 % longer, {len(disturbed)} with a disturbance, "
        f"{len(broken)} without an end"
    )


def line_of(told: Told) -> str:
    """Return a line for one case."""
    case, true_s = told.case, told.now_s - told.then_s
    right = "right" if told.is_right and told.is_there else "right, not there" if told.is_right else "WRONG"
    found = f"{told.named} {told.location} {1000 * told.seconds:.0f} of {1000 * true_s:.0f} ms" if told.named else "no cause"
    words = told.error or (f"{found}: {right}" if told.counts else f"{found}: left out{', disturbed' * bool(told.disturbed)}")
    return f"{case.injected:18} {case.mode} {case.num_ps}+{case.workers} {told.longer:+.0%}: {words}"


def _share(count: int, of: int) -> str:
    return f"{count} of {of}" + (f" ({100 * count / of:.1f} %)" if of else "")
