"""The part of the submitting user's environment that reaches a real Slurm."""

import uuid
from pathlib import Path

import pytest

from pytest_dtfperf.clusters import named
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.clusters.protocol import Resources
from pytest_dtfperf.testing.backends import start_parrots
from tests.clusters.slurm.site import Site

SECRETS = ("AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "CANARY")


def test_no_secret_reaches_slurm(login_site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A secret variable is in no process or file of the site and in no answer of Slurm; requested variables are."""
    canary, wanted = uuid.uuid4().hex, uuid.uuid4().hex
    for name in SECRETS:
        monkeypatch.setenv(name, canary)
    monkeypatch.setenv("WANTED_HERE", wanted)
    tmp_path.chmod(0o755)
    backend_keys = {"nodes": 2, "gpus_per_node": 1, "time_limit": 5, "shared": str(tmp_path)}
    config = ClusterConfig(name="twins", backend="slurm", backend_keys=backend_keys, environment=("WANTED_*", "SAID=so"))
    with named.open_cluster(config).allocate(Resources(devices=2)) as allocation, start_parrots(allocation) as parrots:
        assert parrots.receive_answers("environment CANARY") == [b"(unset)"] * 2
        assert parrots.receive_answers("environment WANTED_HERE") == [wanted.encode()] * 2
        assert parrots.receive_answers("environment SAID") == [b"so"] * 2
        assert login_site.processes(wanted)
        assert login_site.processes(canary) == []
        (job,) = login_site.jobs()
        shown = login_site.run("scontrol", "show", "job", "-dd", job) + login_site.run(
            "scontrol", "write", "batch_script", job, "-"
        )
        assert "the keep-alive step" in shown
        assert canary not in shown
        kept = {path: path.read_bytes() for path in login_site.folder.rglob("*") if path.is_file()}
        kept |= {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        assert any(wanted.encode() in content for content in kept.values())  # the controller's state is among them
        assert [str(path) for path, content in kept.items() if canary.encode() in content] == []
