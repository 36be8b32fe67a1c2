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


def test_missing_isolation_is_one_warning(perf: PerfTests) -> None:
    """If namespaces are forbidden, one line of the header has the reason and the page of the docs."""
    if reason := ordinary.why_not():
        pytest.skip(reason)
    text = output(perf, *ordinary.without_namespaces())
    (line,) = (line for line in text.splitlines() if WARNING in line)
    assert line.startswith("dtfperf: cluster local (local, ")
    assert "there may be no more namespaces (/proc/sys/user), so every host that reaches its ports" in line
    assert "docs/security.md" in line


def test_chosen_host_network_has_no_warning(perf: PerfTests) -> None:
    """There is no warning if the cluster file sets the host network and namespaces are forbidden."""
    if reason := ordinary.why_not():
        pytest.skip(reason)
    host_network(perf)
    assert WARNING not in output(perf, *ordinary.without_namespaces())


def test_isolated_machine_has_no_warning(perf: PerfTests) -> None:
    """The header has a warning only on a machine that cannot isolate tasks."""
    allowed = subprocess.run([*perf.command()[:1], "-m", "pytest_dtfperf.node.isolation"], capture_output=True, check=False)
    assert (WARNING in output(perf)) == bool(allowed.returncode)


def test_dry_run_does_not_check_isolation(perf: PerfTests) -> None:
    """A dry run has no warning, since it starts nothing."""
    text = perf.run("--dry-run", "--gpus=1").out
    assert "DRY RUN: nothing is started" in text
    assert WARNING not in text
