"""Tests of an agent that lies, over the real channel of `local`: the run ends with a message that names the host."""

import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytest_dtfperf.clusters import named
from pytest_dtfperf.clusters.named import ClusterConfig, Limits
from pytest_dtfperf.clusters.protocol import Resources
from pytest_dtfperf.datamodel.measurement import Run
from pytest_dtfperf.errors import AllocationError, DtfPerfError, HostLost, InvalidMeasurement, TaskFailed
from pytest_dtfperf.launch.launcher import Launcher
from pytest_dtfperf.spec import Spec
from tests.hostile import agent
from tests.hostile.agent import HARMLESS, LIES

ROOT = Path(__file__).parents[2]
LIMITS = Limits(hello_s=30, ready_s=30, first_step_s=30, progress_s=30, silence_s=20, stop_s=20)
SPEC = Spec(model="trivial", batch_size=8, gpus=2, num_ps=1, warmup_steps=0, steps=3)

# Most cost the host; some are the task's own fault, or make a measurement that cannot be.
ENDS: dict[str, tuple[type[DtfPerfError], str]] = {
    "another version": (AllocationError, r"no word within 1 s from the agent on \S+-0"),
    "a step that takes no time": (InvalidMeasurement, "worker:0: a step took no time"),
    "no steps": (InvalidMeasurement, "worker:0 measured 0 steps, 3 were asked for"),
    "a device too many": (InvalidMeasurement, "3 devices trained where 2 were asked for"),
    "longer than it was": (InvalidMeasurement, r"the chief measured 3000.000 s, but the whole run took \d"),
    "ends without a report": (TaskFailed, r"worker:0 on \S+-0 ended without a report"),
    "a signal of real time": (TaskFailed, r"worker:0 on \S+-0 was killed by SIGRTMIN\+6"),
    "last words that a terminal obeys": (TaskFailed, r"worker:0 on \S+-0 left with exit code 3\n    \| \\x1b\]0;title\\x07"),
}
REASONS = {
    "a host that there is not": "sent a message of another host, number 7, but is number 0",
    "an unknown event": "sent an unknown message: event is 'reboot'",
    "junk without end": "sent more than 1 MiB of lines that are not messages",
    "brackets within brackets": "sent more than 1 MiB of lines that are not messages",
    "news without end": "sent 20000 messages faster than 1000 per second",
    "the other host's task": "sent a message about the task worker:1, which is not its own",
    "a report for somebody else": "sent a report of worker:1 as that of worker:0",
    "a report twice": "sent 'report' twice for worker:0",
    "a rate without bounds": "sent an invalid 'progress': images_per_sec must be a finite number >= 0 <= 1e+18 or null, not",
    "memory that is no number": "sent an invalid 'hello': fingerprint.hardware.memory_gib must be a whole number",
    "a log that is a path": "sent an invalid 'log': task must be the name of a task, not '../../log'",
}


@contextmanager
def start_hosts(lie: str, folder: Path, **limits: float) -> Iterator[Launcher]:
    """Start two hosts, of which the first one lies."""
    python = folder / "python"
    python.write_text(f"#!/bin/sh\nexec {shlex.join([sys.executable, '-S', str(ROOT / 'tests/hostile/agent.py'), lie])}\n")
    python.chmod(0o700)
    config = ClusterConfig(
        name="liars",
        python=str(python),
        device="cpu",
        devices_per_host=1,
        backend_keys={"hosts": 2},
        limits=Limits(**{**vars(LIMITS), **limits}),
    )
    resources = Resources(devices=2)
    with named.open_cluster(config).allocate(resources) as allocation, Launcher(allocation, config, resources) as launcher:
        yield launcher


def run_with_lie(lie: str, folder: Path, **limits: float) -> Run:
    with start_hosts(lie, folder, **limits) as launcher:
        return launcher.run(SPEC, log_dir=folder / "logs")


def is_visible(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


@pytest.mark.campaign(part=3)
@pytest.mark.parametrize("lie", LIES)
def test_lie_ends_the_run(lie: str, tmp_path: Path) -> None:
    """A lie ends the run with a printable message that names the host and the reason, and no unexpected file is written."""
    kind, words = ENDS.get(lie, (DtfPerfError, r"\S+-0"))
    with pytest.raises(kind, match=words) as raised:
        run_with_lie(lie, tmp_path, **({"hello_s": 1} if lie == "another version" else {}))
    output = str(raised.value)
    assert is_visible(output)
    assert len(output) < 3000
    if lie not in ENDS:
        assert isinstance(raised.value, (HostLost, AllocationError))
        assert REASONS.get(lie, "") in output
        assert re.match(
            r"host \S+-0 was disconnected because it |the agent on \S+-0 is gone: it sent more than 16 MiB", output
        ), output
    assert {path.name for path in tmp_path.iterdir()} <= {"python", "logs"}
    logs = tmp_path / "logs"
    assert {path.name for path in (logs.iterdir() if logs.exists() else [])} <= {"ps-0.log", "worker-0.log", "worker-1.log"}


@pytest.mark.parametrize("oddity", HARMLESS)
def test_harmless_oddity_is_ignored(oddity: str, tmp_path: Path) -> None:
    """A harmless oddity does not change the rate, and is only shown as printable text."""
    with start_hosts(oddity, tmp_path) as launcher:
        found = launcher.run(SPEC, log_dir=tmp_path / "logs")
        assert is_visible(str(launcher.fingerprint))
    assert found.images_per_sec == pytest.approx(2 * 8 / 0.01)
    assert set(found.state) == set(found.hosts)
    for log in (tmp_path / "logs").iterdir():
        assert is_visible(log.read_text(encoding="utf-8").replace("\t", ""))


def test_log_has_no_control_characters(tmp_path: Path) -> None:
    """A log keeps its lines and tabs, and control characters are written as escapes."""
    run_with_lie("a log that a terminal obeys", tmp_path)
    shown = r"\x1b]0;title\x07\x1b[31mred\x9b31m\u202egnp\u2066\x00\ud800"
    assert (tmp_path / "logs" / "worker-0.log").read_text(encoding="utf-8") == f"{shown}\n\tindented\n50 %\n100 %"


def test_tables_have_the_same_lies() -> None:
    """There are at least 33 lies, each expected end and reason belongs to one, and the version is current."""
    assert len(LIES) >= 33
    assert ENDS.keys() <= LIES.keys()
    assert REASONS.keys() <= LIES.keys()
    assert agent.VERSION == 2
