"""The first lines of a session on the isolation of trainings on this machine."""

import subprocess

import pytest

from tests.machines import ordinary
from tests.plugin.conftest import PerfTests

WARNING = "NOT ISOLATED"


def output(perf: PerfTests, *before: str) -> str:
    """Return the output of pytest, started with these arguments before its command."""
    if not before:
        return perf.run("--gpus=1").out
    command = [*before, *perf.command("perf", "--gpus=1")]
    ended = subprocess.run(command, cwd=perf.folder, env=perf.environ(), capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def host_network(perf: PerfTests) -> None:
    clusters = perf.folder / "perf" / "clusters.toml"
    clusters.write_text(clusters.read_text().replace("[local]", '[local]\nnetwork = "host"', 1))


def test_what_cannot_be_isolated_is_said_once(perf: PerfTests) -> None:
    """If namespaces are forbidden, the header has the reason and the page to read, and nothing else."""
    if reason := ordinary.why_not():
        pytest.skip(reason)
    text = output(perf, *ordinary.without_namespaces())
    (line,) = (line for line in text.splitlines() if WARNING in line)
    assert line.startswith("dtfperf: cluster local (local, ")
    assert "there may be no more namespaces (/proc/sys/user), so every host that reaches its ports" in line
    assert "docs/security.md" in line


def test_what_was_chosen_is_not_warned_of(perf: PerfTests) -> None:
    """There is no message if the cluster file sets the machine's network for tasks, whether or not isolation is possible."""
    if reason := ordinary.why_not():
        pytest.skip(reason)
    host_network(perf)
    assert WARNING not in output(perf, *ordinary.without_namespaces())


def test_what_is_isolated_needs_no_words(perf: PerfTests) -> None:
    """If this machine supports isolation, the header is as short as usual."""
    allowed = subprocess.run([*perf.command()[:1], "-m", "pytest_dtfperf.node.isolation"], capture_output=True, check=False)
    assert (WARNING in output(perf)) == bool(allowed.returncode)


def test_a_dry_run_tries_nothing(perf: PerfTests) -> None:
    """A dry run starts nothing, and so does not find out."""
    text = perf.run("--dry-run", "--gpus=1").out
    assert "DRY RUN: nothing is started" in text
    assert WARNING not in text
