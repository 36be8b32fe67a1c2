"""Sessions of a perf test on this machine, for real: without any change, and with a worker that is slower by 10 % of a step.

    python -m benchmarks.sessions /tmp/sessions --phase accept              # a baseline, and its noise calibrated
    python -m benchmarks.sessions /tmp/sessions --phase same --sessions 20  # none may turn red
    python -m benchmarks.sessions /tmp/sessions --phase slow --sessions 20  # all must, if the machine can tell so much
    python -m benchmarks.sessions /tmp/sessions --phase show

Each session borrows this machine anew and trains the deep MNIST network with two workers and a parameter server. Phases may be
run in pieces: the folder keeps all sessions. Nothing else should run on the machine meanwhile. All of it takes about a
quarter of an hour.

With `--training computed` the processor sets the pace, and worker 1 is slowed by an injected sleep. What calibration says of it
is what the machine can tell: on virtual machines, whose cores others use as well, it may be less than that. With `--training
fed` images come at a pace, as from a store, and worker 1's come 10 % later: then hardly anything but that sets the rate.
"""

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_dtfperf.baselines.entry import Entry
from pytest_dtfperf.baselines.judgement import Judgement
from pytest_dtfperf.baselines.store import BaselineStore
from pytest_dtfperf.cli import main as dtfperf
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.records.session import SessionFolder, session_folders
from pytest_dtfperf.records.stored import SessionInfo
from pytest_dtfperf.session import Session, Settings

PHASES = ("accept", "same", "slow", "show")
TRAININGS = {"computed": ("synthetic", 64), "fed": ("zmq", 16)}  # input and batch size
SLOWER = 0.10  # of a step: how long worker 1 sleeps in each
MARGIN = 0.05
STEPS, WARMUP_STEPS = 40, 10  # a window of about two seconds
RUNS_OF_BASELINE = 10
CALIBRATION = ("--sessions=5", "--repeats=4")
UNRULY = ("PYTEST_", "DTFPERF_")  # variables that would have a part in what is measured

PACE_S = 0.06  # from one batch to the next, when fed: several times what a step computes
PRODUCER = """\
import json, math, os, sys, time, zmq

wanted = json.loads(sys.stdin.readline())
pace_s = float(os.environ["PACE_S"]) * (1 + float(os.environ["LATER"]) * (wanted["first_tower"] == 1))
images = [wanted["batch_size"], *wanted["image_shape"]]
said = {"version": 1, "images": {"dtype": "uint8", "shape": images}, "labels": {"dtype": "int32", "shape": images[:1]}}
message = [json.dumps(said).encode(), os.urandom(math.prod(images)), bytes(4 * images[0])]
with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
    socket.sndhwm = 1
    socket.connect(wanted["endpoint"])
    due = time.monotonic()
    while True:
        due = max(due + pace_s, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))
        socket.send_multipart(message)
"""
CLUSTERS = f"""\
[local]
backend = "local"
devices_per_host = 2
device = "cpu"

[local.training]
warmup_steps = {WARMUP_STEPS}
steps = {STEPS}
margin = {MARGIN}
"""


@dataclass(frozen=True, kw_only=True)
class SessionResult:
    """What a session came to."""

    id: str
    verdict: str | None
    exit_code: int | None
    runs: int
    disturbed: int
    images_per_sec: float
    change: float | None  # against the baseline, as a part of it
    window_s: float  # the shortest
    wall_s: float  # from opening to closing
    is_slow: bool

    @classmethod
    def from_record(cls, session: SessionInfo, record: Record, *, is_slow: bool) -> "SessionResult":
        runs = record.measurement.runs
        return cls(
            id=session.id,
            verdict=record.verdict,
            exit_code=session.exit_code,
            runs=len(runs),
            disturbed=sum(bool(run.disturbances) for run in runs),
            images_per_sec=record.images_per_sec,
            change=record.change,
            window_s=min(run.elapsed_s for run in runs),
            wall_s=session.wall_s or 0.0,
            is_slow=is_slow,
        )

    @property
    def is_red(self) -> bool:
        return self.exit_code == 1

    def line(self) -> str:
        change = f"{self.change:+7.2%}" if self.change is not None else "      -"
        return (
            f"{self.id}  {'slow' if self.is_slow else 'same'}  {self.verdict or '-':12}  {self.runs:2} runs ({self.disturbed} "
            f"disturbed)  {self.images_per_sec:7.1f} images/s  {change}  windows of {self.window_s:.2f} s  {self.wall_s:5.1f} s"
        )


def summary(title: str, results: Sequence[SessionResult]) -> str:
    """`without change: 20 sessions, 0 red; PASSED 19, INCONCLUSIVE 1; runs 1 to 4, mean 1.6; 12.3 s each`"""
    if not results:
        return f"{title}: no sessions"
    verdicts = [one.verdict or "-" for one in results]
    counts = ", ".join(f"{verdict} {verdicts.count(verdict)}" for verdict in dict.fromkeys(verdicts))
    runs = [one.runs for one in results]
    red = sum(one.is_red for one in results)
    return (
        f"{title}: {len(results)} session{'s' * (len(results) != 1)}, {red} red; {counts}; runs {min(runs)} to {max(runs)}, "
        f"mean {sum(runs) / len(runs):.1f}; {sum(one.wall_s for one in results) / len(results):.1f} s each"
    )


def injected_sleep_s(baseline: Entry) -> float:
    """What worker 1 is to sleep in each step. Two devices share a step."""
    return SLOWER * 2 * TRAININGS["computed"][1] / baseline.images_per_sec


def main(arguments: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    folder: Path = args.folder.absolute()
    _lay_out(folder)
    _clear_environment(folder)
    if args.phase == "accept":
        return _accept(folder, args.training)
    if args.phase in ("same", "slow"):
        os.environ |= _make_slowdown(folder, args.training) if args.phase == "slow" else {}
        for number in range(1, args.sessions + 1):
            _, judgement = _session(folder, args.training, args.phase, Settings())
            print(f"{args.phase}: session {number} of {args.sessions}: {judgement.verdict}", flush=True)
    for phase, title in (("same", "without any change"), ("slow", f"worker 1 slower by {SLOWER:.0%} of a step")):
        results = [found for one in session_folders(folder / phase) if (found := _read_result(one, is_slow=phase == "slow"))]
        print(*(one.line() for one in results), sep="\n")
        print(summary(title, results))
    return 0


def _make_slowdown(folder: Path, training: str) -> dict[str, str]:
    """What makes worker 1 slow: variables of the environment."""
    if training == "fed":
        return {"LATER": str(SLOWER)}
    return {"DTFPERF_SLOWDOWN": f"worker:1={injected_sleep_s(_baseline(folder)):.6f}"}


def _session(folder: Path, training: str, results: str, settings: Settings) -> tuple[SessionFolder, Judgement]:
    """One session of one measurement, compared with its baseline."""
    source, batch_size = TRAININGS[training]
    with Session.open(
        clusters_file=folder / "clusters.toml", baselines=folder / "baselines", results=folder / results, settings=settings
    ) as session:
        wanted = {"gpus": 2, "num_ps": 1, "variable_update": "parameter_server", "data": source, "batch_size": batch_size}
        judgement = session.check(session.measure(session.spec("mnist", **wanted)))
    return session.folder, judgement


def _accept(folder: Path, training: str) -> int:
    accepted, _ = _session(folder, training, "accepted", Settings(update_baselines="all", repeats=RUNS_OF_BASELINE))
    where = [f"--baselines={folder / 'baselines'}", f"--results={folder / 'calibration'}"]
    like = [f"--like={accepted.path}", f"--clusters-file={folder / 'clusters.toml'}"]
    return dtfperf(["baselines", "calibrate", *CALIBRATION, *where, *like])


def _baseline(folder: Path) -> Entry:
    store = BaselineStore(folder / "baselines")
    found = [entry for system in store.systems() for entry in store.entries(system)]
    if len(found) != 1:
        raise SystemExit(f"{folder} has {len(found)} baselines; begin with --phase accept, in a folder of its own")
    return found[0]


def _read_result(folder: SessionFolder, *, is_slow: bool) -> SessionResult | None:
    records = folder.measurements()
    return SessionResult.from_record(folder.session, records[0], is_slow=is_slow) if records else None


def _lay_out(folder: Path) -> None:
    (folder / "baselines").mkdir(parents=True, exist_ok=True)
    (folder / "clusters.toml").write_text(CLUSTERS)
    (folder / "producer.py").write_text(PRODUCER)


def _clear_environment(folder: Path) -> None:
    """Leave this process no variable that would have a part in what is measured, but those that feed it."""
    for name in [name for name in os.environ if name.startswith(UNRULY)]:
        del os.environ[name]
    os.environ |= {
        "DTFPERF_ZMQ_PRODUCER": shlex.join([sys.executable, str(folder / "producer.py")]),
        "PACE_S": str(PACE_S),
        "LATER": "0",
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="for baselines and sessions; made if need be")
    parser.add_argument("--training", choices=TRAININGS, default="computed", help="what sets the pace (default %(default)s)")
    parser.add_argument("--phase", choices=PHASES, default="show", help="what to do (default %(default)s)")
    parser.add_argument("--sessions", type=int, default=1, metavar="N", help="of that phase (default %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
