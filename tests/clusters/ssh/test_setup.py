"""Preparation of hosts: set-up lines, uv, and the time for both."""

import re
from pathlib import Path

from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.clusters.ssh import bootstrap

ROOT = Path(__file__).parents[3]


def config(**backend_keys: object) -> ClusterConfig:
    return ClusterConfig(name="hosts", backend="ssh", backend_keys=backend_keys)


def test_lines() -> None:
    """Shell lines are run as they are, within the time that a host has to answer."""
    given = config(setup=["module load x"], connect_s=12)
    assert (bootstrap.get_setup_lines(given), bootstrap.get_uv_environment(given), bootstrap.get_limit_s(given)) == (
        ["module load x"],
        None,
        12,
    )


def test_no_setup() -> None:
    """Hosts without a set-up have no lines, and a limit of 30 s."""
    assert (bootstrap.get_setup_lines(config()), bootstrap.get_uv_environment(config()), bootstrap.get_limit_s(config())) == (
        (),
        None,
        30,
    )


def test_uv() -> None:
    """A set-up with uv has no lines, an environment named by its locked requirements, and a limit of at least 20 minutes."""
    given = config(setup="uv", connect_s=12)
    wanted = bootstrap.get_uv_environment(given)
    assert wanted
    assert bootstrap.get_setup_lines(given) == ()
    assert bootstrap.get_limit_s(given) >= 20 * 60
    for kind in ("cpu", "cuda"):
        made = wanted["kinds"][kind]
        assert made["name"].startswith(f"uv-{kind}-")
        assert "tensorflow" in made["requirements"]
        assert "--hash=sha256:" in made["requirements"]
    assert wanted["kinds"]["cpu"]["name"] != wanted["kinds"]["cuda"]["name"]


def test_programs_run_in_the_environment() -> None:
    """Commands of the cluster's Python run in uv's environment; other commands stay unchanged."""
    with_uv = ClusterConfig(name="hosts", backend="ssh", backend_keys={"setup": "uv"}, python="/opt/python3.12")
    assert bootstrap.adapt_argv(with_uv, ["/opt/python3.12", "-m", "x"]) == ["python3", "-m", "x"]
    assert bootstrap.adapt_argv(with_uv, ["other", "-m", "x"]) == ["other", "-m", "x"]
    without = ClusterConfig(name="hosts", backend="ssh", python="/opt/python3.12")
    assert bootstrap.adapt_argv(without, ["/opt/python3.12", "-m", "x"]) == ["/opt/python3.12", "-m", "x"]


def test_uv_is_fetched_by_its_hashes() -> None:
    """Hosts and ci/setup get one uv, the same, and no other file than one of those that were published when it was chosen."""
    wanted = bootstrap.get_uv_environment(config(setup="uv"))
    assert wanted
    version, requirements = wanted["uv"]["version"], wanted["uv"]["requirements"]
    assert re.fullmatch(rf"uv=={re.escape(version)}(?: \\\n    --hash=sha256:[0-9a-f]{{64}}){{10,}}\n", requirements)
    script = (ROOT / "ci" / "setup").read_text()
    assert '--require-hashes --requirement "$uv"' in script
    (used,) = re.findall(r"^uv=(\S+)", script, re.MULTILINE)
    assert (ROOT / used).read_text() == requirements
