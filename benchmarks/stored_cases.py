"""Store the cases of the campaign with all their measurements, so that they can be explained again without another run.

    DIR/017.json.gz     {"case": ..., "strength": ..., "then": {"measurement": ..., "sent": [...]}, "now": {...}}

`then` is the baseline and `now` the current training. `measurement` has the form of a session's records. `sent` has the traces
and step timestamps of each run as the tasks sent them, from which step breakdowns are computed again. Every third case is held
out: rules are developed on the other cases and evaluated on these.

`causes.jsonl.xz` beside this file has the campaign of docs/causes.md: a line for each case, without `sent`, in a tenth of the
size. Its step breakdowns are those of the day on which it was written.
"""

import gzip
import json
import lzma
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.cases import Case, CaseResult, make_result
from benchmarks.injected import INJECTED
from pytest_dtfperf.datamodel.explanation import Explanation
from pytest_dtfperf.datamodel.measurement import Measurement, Run
from pytest_dtfperf.explain.causes import explain
from pytest_dtfperf.launch.disturbance import find_disturbances
from pytest_dtfperf.launch.tracing import TimestampCollector, TraceCollector, with_cpu
from pytest_dtfperf.node.files import replace_file
from pytest_dtfperf.session.explanation import add_changes, profile_measurement

HELD_OUT = 3  # one of so many
PARTS = ("all", "found", "held-out")
ARCHIVE = Path(__file__).with_name("causes.jsonl.xz")

Sent = Mapping[str, Mapping[str, str]]  # "traces", "timestamps" -> task -> text


@dataclass(frozen=True)
class Side:
    """A training before or after the injection, with the traces and timestamps that its tasks sent in each run."""

    measurement: Measurement
    sent: Sequence[Sent]

    @property
    def step_s(self) -> float:
        """The seconds of a step, from the rate of the measurement."""
        spec = self.measurement.spec
        return spec.gpus * (spec.batch_size or 0) / self.measurement.images_per_sec

    def recompute(self) -> Measurement:
        """Return the measurement with breakdowns and worker timings computed from `sent`, or unchanged if there is none."""
        if not self.sent:
            return self.measurement
        spec = self.measurement.spec
        runs = [_recompute_run(spec, run, sent) for run, sent in zip(self.measurement.runs, self.sent, strict=True)]
        return replace(self.measurement, runs=runs)

    def to_json(self) -> dict[str, Any]:
        return {"measurement": self.measurement.to_json()} | ({"sent": list(self.sent)} if self.sent else {})

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Side":
        # Stored disturbances have the form of an older version. They are computed again from the state of hosts.
        stored = [{name: value for name, value in run.items() if name != "disturbances"} for run in data["measurement"]["runs"]]
        found = Measurement.from_json({**data["measurement"], "runs": stored})
        runs = [replace(run, disturbances=find_disturbances(run.state)) for run in found.runs]
        return cls(replace(found, runs=runs), data.get("sent", ()))


def _recompute_run(spec: Any, run: Run, sent: Sent) -> Run:
    tracing, scoring = TraceCollector(spec, run.task_hosts, bool(sent["traces"])), TimestampCollector(spec, run.task_hosts)
    for task, text in sent["traces"].items():
        tracing.receive(task, text, None)
    for task, text in sent["timestamps"].items():
        scoring.receive(task, text, None)
    (breakdown, unexplained), (scores, _) = tracing.outcome(), scoring.outcome()
    scores = with_cpu(scores, run.cpu_s, len(run.step_s["worker:0"]))
    return replace(run, step_breakdown=breakdown, unexplained=unexplained, worker_timings=scores)


@dataclass(frozen=True)
class StoredCase:
    """A case and its measurements."""

    case: Case
    strength: float  # with which the cause was injected, to have the effect of the case
    baseline: Side
    current: Side

    @property
    def explanation(self) -> Explanation | None:
        """The explanation by the current code."""
        baseline, current = self.baseline.recompute(), self.current.recompute()
        profile = add_changes(profile_measurement(current), baseline.fingerprint, current.fingerprint)
        return explain(profile_measurement(baseline), profile)

    @cached_property
    def result(self) -> CaseResult:
        return make_result(self.case, self.baseline.step_s, self.current.step_s, self.explanation, self.disturbance)

    @property
    def disturbance(self) -> str:
        """The other load in all runs of a side, on cores without an injected load; empty if there was none."""
        tasks = INJECTED[self.case.injected].busy
        found = self.baseline.measurement.disturbances
        run = self.current.measurement.runs[-1]
        taken = {core for task in tasks for core in run.state[run.task_hosts[task]].core_numbers}
        for each in self.current.measurement.disturbances:
            if each.host and each.host in run.state and not taken & run.state[each.host].core_numbers:  # others are of clocks
                found = [*found, each]
        return "; ".join(map(str, found))

    def to_json(self) -> dict[str, Any]:
        sides = {"then": self.baseline.to_json(), "now": self.current.to_json()}
        return {"case": asdict(self.case), "strength": self.strength, **sides}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "StoredCase":
        return cls(Case(**data["case"]), data["strength"], Side.from_json(data["then"]), Side.from_json(data["now"]))

    def write(self, path: Path) -> None:
        with replace_file(path) as file:
            file.write(gzip.compress(json.dumps(self.to_json()).encode(), mtime=0))

    @classmethod
    def read(cls, path: Path) -> "StoredCase":
        return cls.from_json(json.loads(gzip.decompress(path.read_bytes())))


def path_of(folder: Path, number: int) -> Path:
    return folder / f"{number:03}.json.gz"


def list_numbers(folder: Path) -> list[int]:
    """Return the numbers of the cases in a folder."""
    return sorted(int(path.name[:3]) for path in folder.glob("[0-9][0-9][0-9].json.gz"))


def is_held_out(number: int) -> bool:
    return number % HELD_OUT == 0


def load_cases(source: Path, part: str = "all") -> Iterator[tuple[int, StoredCase]]:
    """Yield the number and content of each case in a folder or archive."""
    for number, one in _load_folder(source) if source.is_dir() else _load_archive(source):
        if part == "all" or (part == "held-out") == is_held_out(number):
            yield number, one


def _load_folder(folder: Path) -> Iterator[tuple[int, StoredCase]]:
    for number in list_numbers(folder):
        yield number, StoredCase.read(path_of(folder, number))


def _load_archive(path: Path) -> Iterator[tuple[int, StoredCase]]:
    with lzma.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            data = json.loads(line)
            yield data["number"], StoredCase.from_json(data)


def archive(cases: Iterable[tuple[int, StoredCase]], path: Path) -> None:
    """Write cases as one file, with step breakdowns by the current code and without what tasks sent."""
    lines = [json.dumps({"number": number, **_without_sent(one).to_json()}) + "\n" for number, one in cases]
    with replace_file(path) as file:
        file.write(lzma.compress("".join(lines).encode(), preset=9))


def _without_sent(one: StoredCase) -> StoredCase:
    return replace(one, baseline=Side(one.baseline.recompute(), ()), current=Side(one.current.recompute(), ()))
