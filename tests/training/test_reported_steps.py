"""The steps that an external command reports: its file is read, and impossible values are refused."""

import json
import os
import runpy
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf import steps as steps_file
from pytest_dtfperf.steps import VARIABLE, Steps
from pytest_dtfperf.traces import pack_timestamps, unpack_timestamps
from pytest_dtfperf.training.output import ReportedSteps


def line(began: Any, ended: Any, **changes: Any) -> bytes:
    return json.dumps({"pid": 7, "began": began, "ended": ended, "images": 4, "warmup": False, **changes}).encode()


def read_steps(*lines: bytes, images: int | None = None) -> ReportedSteps:
    """Return the steps of a program that was started at 100 s, at the time 200 s."""
    times = iter([100.0])
    found = ReportedSteps(images, clock=lambda: next(times, 200.0))
    for each in lines:
        found.take_line(each)
    found.end()
    return found


def test_pauses_between_steps_are_not_counted() -> None:
    """Steps of 1 and 2 s with a pause of 7 s are 3 s, in a window that begins after the warm-up."""
    found = read_steps(line(110, 115, warmup=True), line(116, 117), line(124, 126, images=2))
    assert found.wrong is None
    assert (found.step_s, found.images, found.window_s, found.window_at_s) == ([1, 2], 6, 11, 15)


def test_timestamps_are_begin_and_end_alone() -> None:
    """The timestamps of a step are its duration and the time since the step before; others are unknown."""
    found = read_steps(line(110, 115, warmup=True), line(116, 117), line(124, 126)).timestamps("worker:1")
    assert (found.worker, found.end_us, found.between_us) == ("worker:1", [1_000_000, 2_000_000], [1_000_000, 7_000_000])
    assert found.python_us == found.variables_us == found.gradients_us == found.cpu_us == [None, None]
    assert unpack_timestamps(pack_timestamps([found])) == [found]
    assert read_steps(line(116, 117), line(124, 126)).timestamps("worker:1").between_us == [None, 7_000_000]


IMPOSSIBLE: Mapping[str, tuple[list[bytes], str]] = {
    "backwards": ([line(120, 119)], "step 1 took -1 s"),
    "no time": ([line(120, 120)], "step 1 took 0 s"),
    "overlapping": ([line(110, 112), line(111, 113)], "step 2 began 1 s before the one before it had ended"),
    "before its start": ([line(99, 101)], "outside of the time in which the program ran"),
    "in the future": ([line(110, 201)], "outside of the time in which the program ran"),
    "not finite": ([line(110, float("nan"))], "'ended' that is no number"),
    "huge": ([line(110, 10**400)], "'ended' that is no number"),
    "a flag": ([line(True, 120)], "'began' that is no number"),
    "no number of images": ([line(110, 111, images="many")], "'images' that is no number"),
    "fewer than none": ([line(110, 111, images=-4)], "has -4 images"),
    "unknown images": ([line(110, 111, images=None)], "has no number of images"),
    "two processes": ([line(110, 111), line(112, 113, pid=8)], "step 2 is of a second process"),
    "warm-up later": ([line(110, 111), line(112, 113, warmup=True)], "is warm-up after a measured one"),
    "all warm-up": ([line(110, 111, warmup=True)], "all of its 1 steps were warm-up"),
    "another key": ([line(110, 111, more=1)], "is not as pytest_dtfperf.steps writes it"),
    "no JSON": ([b"\xff{"], "is not as pytest_dtfperf.steps writes it"),
    "deep": ([b"[" * 100_000], "is not as pytest_dtfperf.steps writes it"),
}


@pytest.mark.parametrize("lines, words", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_impossible_steps_are_refused(lines: list[bytes], words: str) -> None:
    """Impossible steps are refused with the reason, independent of later valid ones."""
    assert words in (read_steps(*lines, line(150, 151)) if "all" not in words else read_steps(*lines)).wrong  # type: ignore[operator]


def test_images_are_those_of_one_task() -> None:
    """The perf test's number of images per step is used, and a larger reported number is refused."""
    assert read_steps(line(110, 111, images=None), line(112, 113, images=3), images=8).images == 11
    assert "images_per_step is of one task, not of all" in (read_steps(line(110, 111, images=16), images=8).wrong or "")


def test_fewer_images_than_set_are_refused() -> None:
    """Some steps may have fewer images, as the last of an epoch, but not all of them."""
    assert read_steps(line(110, 111, images=8), line(112, 113, images=3), images=8).wrong is None
    assert read_steps(line(110, 111, images=8, warmup=True), line(112, 113, images=3), images=8).wrong is None
    found = read_steps(line(110, 111, images=4), line(112, 113, images=3), images=8).wrong
    assert found is not None
    assert "no step has more than 4 images, and the perf test's batch_size makes 8" in found


@pytest.mark.parametrize("warmup", [-1, 1.5, True, "1", None])
def test_invalid_warmup_is_refused(warmup: Any) -> None:
    """An invalid number of warm-up steps is refused in the program, with and without a listener."""
    with pytest.raises(ValueError, match="warmup must be a whole number of steps, 0 or more"):
        Steps(4, warmup=warmup)
    assert Steps(4, warmup=0)


def test_copied_file_reports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A copy of the file reports like the package's own, and a failing step is not counted."""
    (tmp_path / "copied.py").write_text(Path(steps_file.__file__).read_text())
    found = ReportedSteps(None)
    monkeypatch.setenv(VARIABLE, found.path)
    steps = runpy.run_path(str(tmp_path / "copied.py"))["Steps"](4)
    for _ in range(3):
        with steps:
            steps.wait_for(lambda: time.sleep(0.001))
    with pytest.raises(ValueError, match="lost"), steps:
        raise ValueError("lost")
    found.end()
    assert found.wrong is None
    assert len(found.step_s) == 2
    assert found.images == 8
    assert min(found.step_s) >= 0.001


def test_steps_without_a_listener_do_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program without a listener does not wait for its devices, and opens no file."""
    monkeypatch.delenv(VARIABLE, raising=False)
    before = os.listdir("/proc/self/fd")
    steps = Steps(4)
    with steps:
        steps.wait_for(lambda: sys.exit("waited"))
    assert not steps.measured
    assert os.listdir("/proc/self/fd") == before
