"""Cases of the campaign as files: all that each has measured, so that it can be judged again without being run again.

    DIR/017.json.gz     {"case": ..., "strength": ..., "then": ..., "now": ..., "sent": {"then": [...], "now": [...]}}

`then` and `now` are measurements as a session's records have them; `sent` is what tasks traced and timestamped in each of their
runs, as they sent it, so that steps are taken apart anew. Every third case is held out: rules are found on the others, and what
they are worth is told by those that nobody has looked at meanwhile.

`causes.jsonl.xz` beside this file has the campaign that docs/causes.md tells of, a line for each case, without `sent`: a tenth
of the size. Its steps stay as they were taken apart when it was made.
"""

import gzip
import json
import lzma
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.cases import Case, Told, told
from benchmarks.injected import INJECTED
from pytest_dtfperf.datamodel.explanation import Explanation
from pytest_dtfperf.datamodel.measurement import Measurement, Run
from pytest_dtfperf.explain.causes import explain
from pytest_dtfperf.launch.disturbance import find_disturbances
from pytest_dtfperf.launch.tracing import Scoring, Tracing, with_cpu
from pytest_dtfperf.node.files import replace_file
from pytest_dtfperf.session.explanation import add_changes, profile_measurement

HELD_OUT = 3  # one of so many
PARTS = ("all", "found", "held-out")
ARCHIVE = Path(__file__).with_name("causes.jsonl.xz")

Sent = Mapping[str, Mapping[str, str]]  # "traces", "timestamps" -> task -> text


@dataclass(frozen=True)
class Side:
    """A training before or after, with what its tasks have sent of each run."""

    measurement: Measurement
    sent: Sequence[Sent]

    @property
    def step_s(self) -> float:
        """Of the runs that count."""
        spec = self.measurement.spec
        return spec.gpus * (spec.batch_size or 0) / self.measurement.images_per_sec

    def again(self) -> Measurement:
        """Return the run with its breakdown and scores computed anew from `sent`; unchanged, where there is none."""
        if not self.sent:
            return self.measurement
        spec = self.measurement.spec
        runs = [_again(spec, run, sent) for run, sent in zip(self.measurement.runs, self.sent, strict=True)]
        return replace(self.measurement, runs=runs)

    def to_json(self) -> dict[str, Any]:
        return {"measurement": self.measurement.to_json()} | ({"sent": list(self.sent)} if self.sent else {})

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Side":
        # Stored disturbances have the form of the day on which they were recorded: they are found anew in the state of hosts.
        stored = [{name: value for name, value in run.items() if name != "disturbances"} for run in data["measurement"]["runs"]]
        found = Measurement.from_json({**data["measurement"], "runs": stored})
        runs = [replace(run, disturbances=find_disturbances(run.state)) for run in found.runs]
        return cls(replace(found, runs=runs), data.get("sent", ()))


def _again(spec: Any, run: Run, sent: Sent) -> Run:
    tracing, scoring = Tracing(spec, run.task_hosts, bool(sent["traces"])), Scoring(spec, run.task_hosts)
    for task, text in sent["traces"].items():
        tracing.receive(task, text, None)
    for task, text in sent["timestamps"].items():
        scoring.receive(task, text, None)
    (breakdown, unexplained), (scores, _) = tracing.outcome(), scoring.outcome()
    scores = with_cpu(scores, run.cpu_s, len(run.step_s["worker:0"]))
    return replace(run, step_breakdown=breakdown, unexplained=unexplained, worker_timings=scores)


@dataclass(frozen=True)
class Kept:
    """One case, and all that it has measured."""

    case: Case
    strength: float  # that it was injected with, for its effect to be the case's
    then: Side
    now: Side

    @property
    def explanation(self) -> Explanation | None:
        """As the package explains it today."""
        then, now = self.then.again(), self.now.again()
        return explain(profile_measurement(then), add_changes(profile_measurement(now), then.fingerprint, now.fingerprint))

    @cached_property
    def told(self) -> Told:
        return told(self.case, self.then.step_s, self.now.step_s, self.explanation, self.disturbed)

    @property
    def disturbed(self) -> str:
        """Who else was at work in all runs of a side, on cores where nothing was injected; empty: nobody."""
        tasks = INJECTED[self.case.injected].busy
        found = self.then.measurement.disturbances
        run = self.now.measurement.runs[-1]
        taken = {core for task in tasks for core in run.state[run.task_hosts[task]].core_numbers}
        for each in self.now.measurement.disturbances:
            if each.host and each.host in run.state and not taken & run.state[each.host].core_numbers:  # others tell of clocks
                found = [*found, each]
        return "; ".join(map(str, found))

    def to_json(self) -> dict[str, Any]:
        return {"case": asdict(self.case), "strength": self.strength, "then": self.then.to_json(), "now": self.now.to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Kept":
        return cls(Case(**data["case"]), data["strength"], Side.from_json(data["then"]), Side.from_json(data["now"]))

    def write(self, path: Path) -> None:
        with replace_file(path) as file:
            file.write(gzip.compress(json.dumps(self.to_json()).encode(), mtime=0))

    @classmethod
    def read(cls, path: Path) -> "Kept":
        return cls.from_json(json.loads(gzip.decompress(path.read_bytes())))


def path_of(folder: Path, number: int) -> Path:
    return folder / f"{number:03}.json.gz"


def numbers(folder: Path) -> list[int]:
    """Of the cases that are there."""
    return sorted(int(path.name[:3]) for path in folder.glob("[0-9][0-9][0-9].json.gz"))


def is_held_out(number: int) -> bool:
    return number % HELD_OUT == 0


def kept(source: Path, part: str = "all") -> Iterator[tuple[int, Kept]]:
    """Those of a folder, or of an archive, with their numbers."""
    for number, one in _in_folder(source) if source.is_dir() else _archived(source):
        if part == "all" or (part == "held-out") == is_held_out(number):
            yield number, one


def _in_folder(folder: Path) -> Iterator[tuple[int, Kept]]:
    for number in numbers(folder):
        yield number, Kept.read(path_of(folder, number))


def _archived(path: Path) -> Iterator[tuple[int, Kept]]:
    with lzma.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            data = json.loads(line)
            yield data["number"], Kept.from_json(data)


def archive(cases: Iterable[tuple[int, Kept]], path: Path) -> None:
    """Write them as one file, with steps as they are taken apart today and without what they were taken from."""
    lines = [json.dumps({"number": number, **_without_sent(one).to_json()}) + "\n" for number, one in cases]
    with replace_file(path) as file:
        file.write(lzma.compress("".join(lines).encode(), preset=9))


def _without_sent(one: Kept) -> Kept:
    return replace(one, then=Side(one.then.again(), ()), now=Side(one.now.again(), ()))
