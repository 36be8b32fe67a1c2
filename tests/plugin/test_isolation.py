"""The first lines of a session on the isolation of trainings on this machine."""

import subprocess

import pytest

from tests.machines import ordinary
from tests.plugin.conftest import PerfTests

WARNING = "NOT ISOLATED"


# Two sessions in one process, which imports everything once.
TWO_SESSIONS = """
import pytest, sys
for cluster in ("local", "open"):
    assert pytest.main([*sys.argv[1:], f"--cluster={cluster}"]) == 0
    print("END OF SESSION", flush=True)
"""


def test_missing_isolation_is_one_warning(perf: PerfTests) -> None:
    """If namespaces are forbidden, one line of the header has the reason and the page of the docs, but no line if the cluster
    file sets the host network."""
    if reason := ordinary.why_not():
        pytest.skip(reason)
    clusters = perf.folder / "perf" / "clusters.toml"
    local = clusters.read_text()
    clusters.write_text(local + local.replace("[local", "[open").replace("[open]", '[open]\nnetwork = "host"'))
    python, _, _, *arguments = perf.command("perf", "--gpus=1")
    command = [*ordinary.without_namespaces(), python, "-c", TWO_SESSIONS, *arguments]
    ended = subprocess.run(command, cwd=perf.folder, env=perf.environ(), capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    text, host_network, _ = ended.stdout.split("END OF SESSION\n")
    assert "dtfperf: cluster open (local, " in host_network
    assert WARNING not in host_network
    (line,) = (line for line in text.splitlines() if WARNING in line)
    assert line.startswith("dtfperf: cluster local (local, ")
    assert "there may be no more namespaces (/proc/sys/user), so every host that reaches its ports" in line
    assert "docs/security.md" in line


def test_isolated_machine_has_no_warning(perf: PerfTests) -> None:
    """The header has a warning only on a machine that cannot isolate tasks."""
    allowed = subprocess.run([*perf.command()[:1], "-m", "pytest_dtfperf.node.isolation"], capture_output=True, check=False)
    assert (WARNING in perf.run("--gpus=1").out) == bool(allowed.returncode)


def test_dry_run_does_not_check_isolation(perf: PerfTests) -> None:
    """A dry run has no warning, since it starts nothing."""
    text = perf.run("--dry-run", "--gpus=1").out
    assert "DRY RUN: nothing is started" in text
    assert WARNING not in text
