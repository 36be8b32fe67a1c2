"""One srun as the channel to every node: tests without Slurm."""

import os
import random
import sys
import time

import pytest

from pytest_dtfperf.clusters.protocol import LossReason, Lost
from pytest_dtfperf.clusters.slurm.channel import PIECE, LabelledLines, SrunChannel
from pytest_dtfperf.clusters.slurm.request import ENDED, STARTED
from pytest_dtfperf.errors import AllocationError, HostLost
from pytest_dtfperf.messages import JUNK_BYTES


def label_line(task: int, line: bytes, width: int = 1) -> bytes:
    """Return a line as `srun --label` prints it: cut into pieces, with an empty one after a full last one."""
    cuts = range(0, len(line) + 1, PIECE)
    return b"".join(b"%*d: %s\n" % (width, task, line[at : at + PIECE]) for at in cuts)


@pytest.mark.parametrize("length", [0, 1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 300_000])
def test_a_line_of_any_length_is_one_line(length: int) -> None:
    """Full pieces are to be continued, so that a line's length, a multiple of a piece's or not, never cuts or joins lines."""
    line = b"x" * length
    assert LabelledLines().feed(label_line(3, line) + label_line(3, b"next")) == [(3, line), (3, b"next")]


def test_pieces_of_several_tasks_may_be_mixed() -> None:
    """Each task's line is put together by itself, however the tasks' pieces and the reads fall."""
    shuffle = random.Random(1)
    lines = {task: b"%d" % task * (700 * task + 400) for task in range(4)}
    queues = [label_line(task, line, width=2).splitlines(keepends=True) for task, line in lines.items()]
    stream = b""
    while queues := [queue for queue in queues if queue]:
        stream += shuffle.choice(queues).pop(0)
    pieces = LabelledLines()
    found = []
    while stream:
        cut = shuffle.randint(1, 900)
        found += pieces.feed(stream[:cut])
        stream = stream[cut:]
    assert sorted(found, key=str) == sorted(lines.items(), key=str)


def test_lines_without_a_label_belong_to_srun() -> None:
    """srun's messages appear between the labelled lines, and belong to no task."""
    text = b"srun: error: n2: task 1: Exited with exit code 3\n0: hello: world\n"
    assert LabelledLines().feed(text) == [(None, b"srun: error: n2: task 1: Exited with exit code 3"), (0, b"hello: world")]


# Both nodes' agents have started; the first goes on to give signs of life, the second one never does.
SRUN = f"""
echo "0: {STARTED.decode()}"; echo "1: {STARTED.decode()}"
while sleep 0.2; do echo "0: beat"; done &
beats=$!
read -r _
kill $beats
"""


def test_one_ended_agent_triggers_one_query_of_slurm() -> None:
    """When a job ends, both agents are lost for Slurm's reason, even if one ends before the other notices."""
    asked: list[float] = []

    def why_over(failed: object) -> str:
        asked.append(time.monotonic())
        return "Slurm job 17 was cancelled"

    channel = SrunChannel(
        ["sh", "-c", SRUN], dict(os.environ), ["n1", "n2"], why_over=why_over, clean_up=lambda: None, start_s=60.0
    )
    lost: dict[int, Lost] = {}
    try:
        while len(lost) < 2:
            arrived = channel.receive(60.0)
            assert arrived, "no word for a minute"
            host, line = arrived
            if isinstance(line, Lost):
                lost[host] = line
    finally:
        channel.close()
    assert lost == dict.fromkeys((0, 1), Lost(LossReason.TAKEN_BACK, "Slurm job 17 was cancelled"))
    assert len(asked) == 1


LAST_WORDS = f"""
import os
line = (b"0: " + b"x" * {PIECE} + b"\\n") * 200 + b"0: \\n"
os.write(1, b"0: {STARTED.decode()}\\n")
for _ in range(100):
    os.write(2, line)
os.write(1, b"0: {ENDED.decode()}137\\n")
"""


def test_long_stderr_does_not_hide_the_exit() -> None:
    """An agent that writes megabytes to stderr before its death is reported with the last of them, in cut lines."""
    argv = [sys.executable, "-c", LAST_WORDS]
    channel = SrunChannel(argv, dict(os.environ), ["n1"], why_over=lambda _: None, clean_up=lambda: None, start_s=60.0)
    words = []
    try:
        while not isinstance(line := (channel.receive(60.0) or (0, b""))[1], Lost):
            words.append(line)
    finally:
        channel.close()
    assert line == Lost(LossReason.ENDED, "the agent was killed by SIGKILL")
    assert sum(map(len, words)) < JUNK_BYTES
    assert {len(each) for each in words if each} == {4096}


def test_order_to_lost_agents_raises_the_reason() -> None:
    """An order or a receive after the loss of all agents raises an error with its reason."""
    words = "Slurm job 17 ended by itself"
    channel = SrunChannel(
        ["sh", "-c", SRUN], dict(os.environ), ["n1", "n2"], why_over=lambda _: words, clean_up=lambda: None, start_s=60.0
    )
    try:
        assert channel.explain_silence(1) == Lost(LossReason.TAKEN_BACK, words)
        while not isinstance((channel.receive(60.0) or (0, b""))[1], Lost):
            pass
        with pytest.raises(HostLost, match=f"^no agent is left on n1, n2: {words}$"):
            channel.send(b"order")
    finally:
        channel.close()


# srun as it ends a step that it cannot start on the first and the third of four nodes: the others' tasks end, too.
FAILED_LAUNCH = f"""
for task in 1 3; do echo "$task: {STARTED.decode()}"; done
for node in n1 n3; do
    echo "srun: error: Task launch for StepId=1.0 failed on node $node: Communication connection failure" >&2
done
echo "srun: error: Application launch failed: Communication connection failure" >&2
for task in 1 3; do echo "$task: {ENDED.decode()}143"; done
exit 1
"""


def test_failed_launch_has_the_nodes_that_srun_names() -> None:
    """If srun cannot start a step on some nodes, the error has these nodes, and not those of tasks that end because of it."""
    with pytest.raises(AllocationError, match=r"the agent on n1, n3 could not be started\n.*n1: Communication") as caught:
        SrunChannel(
            ["sh", "-c", FAILED_LAUNCH],
            dict(os.environ),
            ["n1", "n2", "n3", "n4"],
            why_over=lambda _: None,
            clean_up=lambda: None,
            start_s=60.0,
        )
    assert (caught.value.host, caught.value.hosts) == ("n1", ["n1", "n3"])


def test_late_start_has_the_nodes_that_did_not_start() -> None:
    """If nodes start nothing in time, the error has all of them."""
    with pytest.raises(AllocationError, match="srun has started nothing on n1, n2 within 0 s") as caught:
        SrunChannel(
            ["sh", "-c", "read -r _"],
            dict(os.environ),
            ["n1", "n2"],
            why_over=lambda _: None,
            clean_up=lambda: None,
            start_s=0.0,
        )
    assert caught.value.hosts == ["n1", "n2"]
