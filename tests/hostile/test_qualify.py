"""Tests of a host that lies during `dtfperf qualify`, over the real channel of `local`."""

import shlex
import sys
from pathlib import Path

import pytest

from pytest_dtfperf.cli import main
from pytest_dtfperf.datamodel.qualification import HostVerdict, Qualification
from pytest_dtfperf.testing.backends import wait_until
from tests.cli.table import read
from tests.hostile.agent import PROBE_LIES

AGENT = Path(__file__).with_name("agent.py")
HOSTS = 4


def find_processes(text: str) -> list[str]:
    """Return the command lines of processes that contain a text."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return [each for each in found if text in each]


def run_qualify(folder: Path, *arguments: str) -> int:
    """Run the command on hosts with the agent of these tests, and return its exit code."""
    python = folder / "python"
    python.write_text(f"#!/bin/sh\nexec {shlex.join([sys.executable, '-S', str(AGENT), *arguments])}\n")
    python.chmod(0o700)
    lines = [f"hosts = {HOSTS}", 'device = "cpu"', "devices_per_host = 1", f'python = "{python}"']
    (folder / "clusters.toml").write_text("\n".join(["[agents]", 'backend = "local"', *lines, ""]))
    return main(["qualify", "trivial", "--cluster=agents", "--no-training", "--history=never", "--json"])


@pytest.mark.campaign(part=3)
@pytest.mark.parametrize("lie", PROBE_LIES)
def test_qualify_leaves_out_a_host_that_lies(
    lie: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A host that lies is not judged, with the reason, the other hosts are fit, and no agent is left."""
    monkeypatch.chdir(tmp_path)
    assert run_qualify(tmp_path, lie, str(tmp_path / "lied")) == 3
    printed = capsys.readouterr()
    hosts = Qualification.from_json(read("qualify", printed.out)).hosts
    (liar,) = [name for name, host in hosts.items() if host.verdict is HostVerdict.NOT_JUDGED]
    assert liar.endswith("-0")
    assert PROBE_LIES[lie][1] in hosts[liar].reason
    assert f"{liar} is left out from now on" in printed.err
    assert [host.verdict for name, host in hosts.items() if name != liar] == [HostVerdict.FIT] * (HOSTS - 1)
    wait_until("no agent is left", lambda: not find_processes(str(tmp_path / "lied")))


def test_qualify_finds_honest_hosts_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All hosts are fit if none of them lies."""
    monkeypatch.chdir(tmp_path)
    assert run_qualify(tmp_path, "nothing") == 0
    hosts = Qualification.from_json(read("qualify", capsys.readouterr().out)).hosts
    assert [host.verdict for host in hosts.values()] == [HostVerdict.FIT] * HOSTS
