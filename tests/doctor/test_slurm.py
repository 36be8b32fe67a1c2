"""Tests of the doctor on the nodes of a job, with a real Slurm and nodes on this machine."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.clusters.named import ClusterConfig, Limits
from pytest_dtfperf.doctor import examination
from pytest_dtfperf.doctor.examination import examine, read_expectations
from pytest_dtfperf.doctor.findings import list_findings
from pytest_dtfperf.testing.backends import PATIENCE_S, wait_until
from tests.clusters.slurm.site import Site, why_not
from tests.doctor.interpreters import SHORT_S, make_interpreter

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """Make a site with two nodes, with this process on the login node."""
    if reason := why_not():
        pytest.skip(reason)
    with Site(nodes=2, gpus=4) as site:
        monkeypatch.delenv("SLURM_JOB_ID", raising=False)
        monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
        monkeypatch.setattr(examination, "STREAM_S", SHORT_S)
        for name, value in site.environment.items():
            monkeypatch.setenv(name, value)
        yield site


def test_nodes_of_a_job_are_examined(site: Site, tmp_path: Path) -> None:
    """The nodes of a job are examined without a problem, and no file and no job is left."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    python = make_interpreter(tmp_path / "venv", "2.99.0")
    backend_keys = {"nodes": 2, "shared": str(scratch)}
    calm: dict[str, Any] = {"limits": Limits(hello_s=PATIENCE_S, silence_s=PATIENCE_S), "heartbeat_timeout_s": PATIENCE_S}
    config = ClusterConfig(
        name="site", backend="slurm", backend_keys=backend_keys, devices_per_host=1, device="cpu", python=str(python), **calm
    )
    seen = examine(config, None, lambda words: None)
    assert [str(finding) for finding in list_findings(seen, read_expectations(config)) if finding.wrong] == []
    assert [host.missing for host in seen.hosts] == [None, None]
    assert seen.folder == str(scratch)
    assert [host.sees for host in seen.hosts] == [frozenset({0, 1})] * 2
    assert len(seen.links) == 2
    assert not [path for path in scratch.iterdir() if path.name.startswith(".dtfperf-")]
    wait_until("no job is left", lambda: site.jobs() == [])
