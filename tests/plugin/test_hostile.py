"""Tests of pytest with a host that sends invalid messages: output and files are safe for terminals and parsers."""

import shlex
import sys
import uuid
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.plugin.conftest import REPOSITORY, PerfTests

AGENT = REPOSITORY / "tests" / "hostile" / "agent.py"
HOST = """
[lab]
backend = "local"
dedicated = false
python = "{python}"
devices_per_host = 2
device = "cpu"
training = {{ repeats = 1, batch_size = 8, warmup_steps = 0, steps = 3 }}
"""

# lie -> what is said of it
LIES = {
    "a log that is a path": "task must be the name of a task, not '../../log'",
    "last words that a terminal obeys": r"\x1b]0;title\x07\x1b[31mred\x9b31m\u202egnp\u2066\x00\ud800",
    "a signal of real time": r"was killed by SIGRTMIN+6",
    "junk without end": "sent more than 1 MiB of lines that are not messages",
    "memory that is no number": "fingerprint.hardware.memory_gib must be a whole number",
}


@pytest.mark.parametrize("lie", LIES)
def test_invalid_message_of_a_host_is_reported_safely(lie: str, perf: PerfTests) -> None:
    """The reason is shown, JUnit's file is XML, and all files are printable text without a secret of pytest's environment."""
    python = perf.folder / "python"
    python.write_text(f"#!/bin/sh\nexec {shlex.join([sys.executable, '-S', str(AGENT), lie])}\n")
    python.chmod(0o700)
    clusters = perf.folder / "perf" / "clusters.toml"
    clusters.write_text(clusters.read_text() + HOST.format(python=python))
    perf.write('def test_it(train):\n    train(model="trivial", gpus=1, num_ps=0)\n')
    before = set(perf.folder.rglob("*"))
    ended = perf.run("--cluster=lab", "--junit-xml=junit.xml", CANARY_TOKEN=(canary := uuid.uuid4().hex))
    assert ended.code == 1, ended.out
    assert "Traceback" not in ended.out + ended.err
    assert LIES[lie] in ended.out
    assert unseen(ended.out + ended.err) == set()
    ET.parse(perf.folder / "junit.xml")
    written = [path for path in perf.folder.rglob("*") if path.is_file() and path not in before]
    assert (perf.folder / "junit.xml") in written
    assert [path for path in written if unseen(text_of(path))] == []
    assert [path for path in written if canary in text_of(path)] == []


def unseen(text: str) -> set[str]:
    return {each for each in text if not each.isprintable()} - {"\n", "\t"}


def text_of(path: Path) -> str:
    return "" if path.suffix in (".pyc", ".db") else path.read_text(encoding="utf-8")
