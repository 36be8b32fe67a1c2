"""`dtfperf clusters`: clusters of a file are listed, shown and checked."""

import json
import tomllib
from pathlib import Path

import pytest

from pytest_dtfperf.cli import main

FILE = """
[lab]
backend = "ssh"
hosts = ["n[1-3]", "me@gate"]
gpus_per_host = 2
heartbeat_timeout_s = 30
limits = { ready_s = 60.5 }
training = { steps = 10 }
models.mnist = { batch_size = 32 }

[files]
backend = "ssh"
nodes_file = "nodes"
gpus_per_host = 1
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a valid cluster, and one with a missing file."""
    (tmp_path / "clusters.toml").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_clusters_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """`clusters list` has the file, each cluster with its backend and size, and `local`."""
    assert main(["clusters", "list"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].startswith("From ")
    assert out.splitlines()[0].endswith("clusters.toml:")
    assert main(["clusters", "list", "--json"]) == 0
    rows = {row.pop("name"): row for row in json.loads(capsys.readouterr().out)["clusters"]}
    assert list(rows) == ["local", "lab", "files"]
    assert rows["lab"] == {"backend": "ssh", "hosts": 4, "devices_per_host": 2, "allocation": "session"}
    assert rows["files"]["hosts"] is None


def test_quoted_names_are_shown_quoted(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names of clusters and models with dots and blanks are shown as a valid table."""
    table = '["p2.8xlarge big"]\nbackend = "local"\n["p2.8xlarge big".models."mine.cnn"]\nsteps = 7\n'
    (project / "clusters.toml").write_text(table)
    assert main(["clusters", "show", "p2.8xlarge big"]) == 0
    assert tomllib.loads(capsys.readouterr().out) == tomllib.loads(table)


def test_shown_table_is_that_of_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    """`clusters show` prints the cluster's table, and the defaults as comments without repeating a key."""
    assert main(["clusters", "show", "lab"]) == 0
    out = capsys.readouterr().out
    assert tomllib.loads(out) == {"lab": tomllib.loads(FILE)["lab"]}
    usual = tomllib.loads("\n".join(line[2:] for line in out.splitlines() if line.startswith("# ")))
    assert (usual["allocation"], usual["limits"]["silence_s"]) == ("session", 10.0)
    assert "ready_s" not in usual["limits"]
    assert main(["clusters", "show", "lab", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["defaults"] == usual


def test_limits_of_a_backend_are_shown_as_defaults(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A backend's own default limits are shown as defaults, and the file overrides each of them."""
    (project / "clusters.toml").write_text(
        '[sim]\nbackend = "simulated"\ngpus_per_host = 1\n'
        '[set]\nbackend = "simulated"\ngpus_per_host = 1\nlimits = { silence_s = 5 }\n'
    )
    found = {}
    for name in ("sim", "set"):
        assert main(["clusters", "show", name, "--json"]) == 0
        found[name] = json.loads(capsys.readouterr().out)
    assert "limits" not in found["sim"]["given"]
    assert found["sim"]["defaults"]["limits"]["silence_s"] == 600.0
    assert found["set"]["given"]["limits"] == {"silence_s": 5}


def test_unusable_cluster_fails_the_check(capsys: pytest.CaptureFixture[str]) -> None:
    """A cluster with a missing file fails the check with the reason, others pass; an unknown name is refused."""
    assert main(["clusters", "check"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "lab: can be used"
    assert lines[2].startswith("files: cannot read ")
    assert lines[-1] == "dtfperf: 3 clusters, 1 cannot be used"
    assert main(["clusters", "check", "lab", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"clusters": [{"name": "lab", "problem": None}]}
    assert main(["clusters", "show", "labs"]) == 2
    assert "Did you mean 'lab'?" in capsys.readouterr().err


def test_local_exists_without_a_file(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a file there is `local`, and a message."""
    (project / "clusters.toml").unlink()
    assert main(["clusters", "list"]) == 0
    assert "There is no clusters.toml" in capsys.readouterr().out
    assert main(["clusters", "show", "local"]) == 0
    assert capsys.readouterr().out.startswith("[local]  # no clusters.toml was found")
