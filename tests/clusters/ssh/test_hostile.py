"""A host over ssh with another program in place of Python, which prints arbitrary output."""

from pathlib import Path

import pytest

from pytest_dtfperf.clusters.protocol import Resources
from pytest_dtfperf.clusters.ssh.cluster import Ssh
from pytest_dtfperf.errors import AllocationError
from tests.clusters.ssh.lab import Lab

SAY = r"printf '\ndtfperf: %s\n'"
READY = '{"at": "ready", "hostname": "m1", "addresses": [], "reached_at": "127.0.0.1", "left": {}}'
# its program -> the message about it
LIES = {
    f"{SAY} '{READY.replace('{}', '[]')}'; exec cat": "sent an invalid 'ready': left must be an object",
    f"{SAY} '{READY.replace('m1', 'a b')}'; exec cat": "sent an invalid 'ready': hostname must be the name of",
    f'{SAY} \'{{"at": "ready"}}\'; exec cat': "did not send the description that was requested",
    f'{SAY} \'{{"at": "setup", "line": 7}}\'; exec cat': "sent a message about setup line 7, and there are 0",
    f'{SAY} \'{{"at": ["ready"]}}\'; exec cat': "sent an unknown message: at is ['ready']",
    f'{SAY} \'{{"failed": "setup", "line": 1, "code": 1e999}}\'; exec cat': "sent an invalid 'setup': code must be",
    f'{SAY} \'{{"failed": "bundle", "why": "\\u001b[2J"}}\'': r"cannot keep what runs on hosts (1 MB): \x1b[2J",
    "yes 'all work and no play'": "prints more than 1 MiB of other output",
    "tr '\\0' x </dev/zero": "prints more than 1 MiB of other output",
}


@pytest.mark.parametrize("does", LIES, ids=[words[:40] for words in LIES.values()])
def test_host_with_invalid_messages_is_refused(does: str, lab: Lab, tmp_path: Path) -> None:
    """A host with invalid messages is refused, and its output is quoted in printable text."""
    tmp_path.chmod(0o755)
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{does}\n")
    python.chmod(0o755)
    with pytest.raises(AllocationError) as raised, Ssh(lab.config(python=str(python))).allocate(Resources(devices=1)):
        pass
    output = str(raised.value)
    assert output.startswith("host m1 ")
    assert LIES[does] in output
    assert all(line.isprintable() for line in output.split("\n"))
    assert len(output) < 30_000
