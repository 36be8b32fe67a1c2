"""Draining slow nodes of a real Slurm, and the health check of docs/, which drains none on which dtfperf fails."""

import os
import pwd
import re
import sys
from pathlib import Path

import pytest

from pytest_dtfperf.clusters.slurm.client import SlurmClient
from pytest_dtfperf.errors import UsageError
from pytest_dtfperf.testing.backends import wait_until
from tests.clusters.slurm.conftest import NewSite
from tests.clusters.slurm.site import Site

SCRIPT = Path(__file__).parents[3] / "docs" / "examples" / "slurm-health-check.sh"
NOBODY = pwd.getpwnam("nobody").pw_uid
FAILURES = {"traceback": "python3 -c 1/0", "signal": "kill -9 $$", "hang": "trap '' TERM; sleep 60", "not judged": "exit 3"}


def get_state(site: Site, node: str) -> str:
    return site.run("scontrol", "--oneliner", "show", "node", node)


def test_drained_node_has_the_reason_and_gets_no_job(new_site: NewSite) -> None:
    """A drained node shows the reason, and jobs that exclude the slow hosts, or name none, run on the other one."""
    site = new_site(nodes=2)
    client = SlurmClient(dict(os.environ) | site.environment)
    client.check_can_drain()
    assert site.run("srun", "--nodes=1", "--exclude=n2", "printenv", "SLURMD_NODENAME").strip() == "n1"
    client.drain("n1", 'memory: 11.8 % slower\nthan its "peers"; it\'s slow')
    state = get_state(site, "n1")
    assert "DRAIN" in state
    assert 'Reason=dtfperf: memory: 11.8 % slower than its "peers"; it\'s slow' in state
    assert site.run("srun", "--nodes=1", "printenv", "SLURMD_NODENAME").strip() == "n2"


def test_health_check_drains_no_node_where_dtfperf_fails(new_site: NewSite, tmp_path: Path) -> None:
    """The health check, as a prolog, drains no node and lets jobs run if dtfperf is missing, fails, is killed or hangs."""
    folder, programs = tmp_path / "state", tmp_path / "bin"
    folder.mkdir()
    programs.mkdir()
    text = SCRIPT.read_text().replace("/var/lib/dtfperf", str(folder)).replace("/opt/dtfperf/bin", str(programs))
    script = tmp_path / "prolog"
    script.write_text(re.sub(r"LIMIT_S=\d+", "LIMIT_S=2", text))
    script.chmod(0o755)
    tmp_path.chmod(0o755)
    site = new_site(nodes=1, slurm_conf=f"Prolog={script}\n")
    for what in ("missing", *FAILURES):
        if what in FAILURES:
            (programs / "dtfperf").write_text(f"#!/bin/bash\necho called: {what} $*\n{FAILURES[what]}\n")
            (programs / "dtfperf").chmod(0o755)
        assert site.run("srun", "--nodes=1", "echo", "ran").strip() == "ran"
        wait_until("the node is idle", lambda: "State=IDLE " in get_state(site, "n1"))
    log = (folder / "qualify.log").read_text()
    assert [what for what in FAILURES if f"called: {what} qualify --host --drain" not in log] == [], log


def test_draining_needs_a_permission(new_site: NewSite) -> None:
    """A user other than root, Slurm's own user and operators is refused before any measurement."""
    site = new_site(nodes=1)
    client = SlurmClient(dict(os.environ) | site.environment)
    os.seteuid(NOBODY)
    try:
        with pytest.raises(UsageError, match="lets only root, its own user and operators drain nodes, and nobody is none"):
            client.check_can_drain()
    finally:
        os.seteuid(0)


DRAIN = """
import os
from pytest_dtfperf.cli.slow_hosts import _get_node_name
from pytest_dtfperf.clusters.slurm.client import SlurmClient

if _get_node_name() == "n2":
    SlurmClient().check_can_drain()
    SlurmClient().drain(_get_node_name(), "memory: 11.8 % slower than in its own 9 sessions before")
"""


def test_health_check_program_drains_the_slow_node_only(new_site: NewSite, tmp_path: Path) -> None:
    """Slurm's HealthCheckProgram finds dtfperf, the node's name and scontrol, and the slow node is drained with its reason."""
    folder, programs = tmp_path / "state", tmp_path / "bin"
    folder.mkdir()
    programs.mkdir()
    dtfperf, script = programs / "dtfperf", tmp_path / "health-check"
    dtfperf.write_text(f"#!/bin/bash\ncd {Path(__file__).parents[3]} && exec {sys.executable} -c '{DRAIN}'\n")
    script.write_text("#!/bin/bash\n")
    for path in (dtfperf, script, tmp_path):
        path.chmod(0o755)
    site = new_site(nodes=2, slurm_conf=f"HealthCheckProgram={script}\nHealthCheckInterval=1\n")
    text = SCRIPT.read_text().replace("/var/lib/dtfperf", str(folder)).replace("/opt/dtfperf/bin", str(programs))
    commented = "# export SLURM_CONF=/etc/slurm/slurm.conf"
    assert commented in text
    script.write_text(text.replace(commented, f"export SLURM_CONF={site.environment['SLURM_CONF']}"))
    wait_until("the slow node is drained", lambda: "DRAIN" in get_state(site, "n2"))
    assert "Reason=dtfperf: memory: 11.8 % slower than in its own 9 sessions before" in get_state(site, "n2")
    assert "DRAIN" not in get_state(site, "n1"), (folder / "qualify.log").read_text()
    assert site.run("srun", "--nodes=1", "printenv", "SLURMD_NODENAME").strip() == "n1"
