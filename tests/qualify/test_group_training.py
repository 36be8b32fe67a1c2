"""Groups that train side by side: hosts that are left out, and their reasons."""

from pathlib import Path

import pytest

from pytest_dtfperf.clusters import named
from pytest_dtfperf.clusters.named import ClusterConfig, Limits
from pytest_dtfperf.clusters.protocol import Resources
from pytest_dtfperf.errors import AllocationError
from pytest_dtfperf.launch.agents import Agents
from pytest_dtfperf.qualify.group_training import format_reasons


def test_silent_agents_are_reported_together(tmp_path: Path) -> None:
    """If agents on several hosts do not report in time, one error has all these hosts, so that they are left out at once."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 600\n")
    python.chmod(0o700)
    config = ClusterConfig(
        name="silent", backend="local", backend_keys={"hosts": 2}, python=str(python), limits=Limits(hello_s=0.5)
    )
    with named.open_cluster(config).allocate(Resources(devices=2)) as allocation:
        with pytest.raises(AllocationError, match=r"no word within 0\.5 s from the agent on \S+-0, \S+-1$") as caught:
            Agents(allocation, config)
        assert caught.value.hosts == [host.name for host in allocation.hosts]


def test_reasons_of_several_hosts_are_one_line_each() -> None:
    """Hosts share a line if their reason is one text, or differs only in their own name and address."""
    together = "no word within 180 s from the agent on n1, n2"
    reasons = {"n1": together, "n2": together, "n3": "n3 (10.0.0.3) is off", "n4": "n4 (10.0.0.4) is off"}
    assert format_reasons(reasons) == [f"n1, n2: {together}", "n3, n4: n3 (10.0.0.3) is off"]
