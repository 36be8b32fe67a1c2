"""`dtfperf clusters`: what a file describes is listed, shown as it holds, and checked."""

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


def test_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """Each with its backend and size, as far as that is known, and the file that it is read from; `local` is always there."""
    assert main(["clusters", "list"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].startswith("From ")
    assert out.splitlines()[0].endswith("clusters.toml:")
    assert main(["clusters", "list", "--json"]) == 0
    rows = {row.pop("name"): row for row in json.loads(capsys.readouterr().out)["clusters"]}
    assert list(rows) == ["local", "lab", "files"]
    assert rows["lab"] == {"backend": "ssh", "hosts": 4, "devices_per_host": 2, "allocation": "session"}
    assert rows["files"]["hosts"] is None


def test_names_in_quotes_are_shown_in_quotes(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A cluster and a model of one's own may have dots and blanks in their names: what is shown is their table all the same."""
    table = '["p2.8xlarge big"]\nbackend = "local"\n["p2.8xlarge big".models."mine.cnn"]\nsteps = 7\n'
    (project / "clusters.toml").write_text(table)
    assert main(["clusters", "show", "p2.8xlarge big"]) == 0
    assert tomllib.loads(capsys.readouterr().out) == tomllib.loads(table)


def test_what_is_shown_is_what_the_file_says(capsys: pytest.CaptureFixture[str]) -> None:
    """The lines that are no comments are the cluster's table again; the others have the defaults, none twice."""
    assert main(["clusters", "show", "lab"]) == 0
    out = capsys.readouterr().out
    assert tomllib.loads(out) == {"lab": tomllib.loads(FILE)["lab"]}
    usual = tomllib.loads("\n".join(line[2:] for line in out.splitlines() if line.startswith("# ")))
    assert (usual["allocation"], usual["limits"]["silence_s"]) == ("session", 10.0)
    assert "ready_s" not in usual["limits"]
    assert main(["clusters", "show", "lab", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["defaults"] == usual


def test_limits_of_a_backend_are_shown_as_defaults(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A backend's own default limits are not shown as limits of the file, and the file overrides each of them."""
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


def test_what_cannot_be_used_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """A cluster with a missing file fails the check with the reason, and no other; an unknown name is refused."""
    assert main(["clusters", "check"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "lab: can be used"
    assert lines[2].startswith("files: cannot read ")
    assert lines[-1] == "dtfperf: 3 clusters, 1 cannot be used"
    assert main(["clusters", "check", "lab", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"clusters": [{"name": "lab", "problem": None}]}
    assert main(["clusters", "show", "labs"]) == 2
    assert "Did you mean 'lab'?" in capsys.readouterr().err


def test_without_a_file(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a file there is `local`, and a message about that."""
    (project / "clusters.toml").unlink()
    assert main(["clusters", "list"]) == 0
    assert "There is no clusters.toml" in capsys.readouterr().out
    assert main(["clusters", "show", "local"]) == 0
    assert capsys.readouterr().out.startswith("[local]  # no clusters.toml was found")
