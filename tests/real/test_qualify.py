"""`dtfperf qualify` with its real probes, on machines with links of known rates: a campaign of slow links, and of none."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.clusters.ssh.lab import Lab, why_not
from tests.plugin.conftest import REPOSITORY

USUAL = "100mbit"  # of every link: slow enough that other load on this machine does not limit it
USUAL_BIT_PER_S = 1e8
ENDS_S = 1800
KINDS = ("into a host", "out of a host", "between two hosts", "into two hosts")
HOSTS, LOSSES = (4, 6, 8), (0.4, 0.6, 0.8)  # losses below 10 % of a link are tolerated, and those from 25 % on are found
TWO = "into two hosts"  # of more than four: two of four leave no majority, and nothing is judged
SLOW_CASES = [
    (kind, hosts, loss, draw)
    for kind, hosts, loss in product(KINDS, HOSTS, LOSSES)
    for draw in range(2)
    if kind != TWO or hosts > 4
]
QUIET_CASES = [(hosts, draw) for hosts in HOSTS for draw in range(12)]


def qualify(lab: Lab, folder: Path) -> Mapping[str, Any]:
    """Return the result of a qualification of all machines."""
    (folder / "clusters.toml").write_text(lab.toml("connect_s = 300"))
    done = subprocess.run(
        [sys.executable, "-m", "pytest_dtfperf.cli", "qualify", "--cluster=lab", "--no-training", "--history=never", "--json"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=ENDS_S,
        check=False,
    )
    assert done.stdout, f"exit code {done.returncode}"
    found: Mapping[str, Any] = json.loads(done.stdout)
    return found


def list_slow_links(found: Mapping[str, Any]) -> set[str]:
    """Return the capacities of links that are slow, as `m3: link in`, and slow pairs, as `m1>m2`."""
    capacities = {
        f"{host}: {name}"
        for host, result in found["hosts"].items()
        for name, each in result["capacities"].items()
        if each["verdict"] == "SLOW" and name.startswith("link")
    }
    return capacities | {">".join(pair["hosts"]) for pair in found["pairs"] if pair["verdict"] == "SLOW"}


def slow_down(lab: Lab, kind: str, loss: float, draw: int) -> set[str]:
    """Make links slow, and return what a qualification must name."""
    rate = (1 - loss) * USUAL_BIT_PER_S
    one, other = Random(f"{kind} {len(lab.names)} {loss} {draw}").sample(lab.names, 2)
    if kind == "between two hosts":
        lab[one].shape_towards(lab[other].address, rate, USUAL)
        return {f"{one}>{other}"}
    is_out = kind == "out of a host"
    slow = [one, other] if kind == TWO else [one]
    for name in slow:
        lab[name].shape(rate, inwards=not is_out, outwards=is_out)
    return {f"{name}: link {'out' if is_out else 'in'}" for name in slow}


@pytest.mark.campaign(only=True)
@pytest.mark.parametrize(("kind", "hosts", "loss", "draw"), SLOW_CASES)
def test_qualify_names_slow_links(kind: str, hosts: int, loss: float, draw: int, tmp_path: Path) -> None:
    """Exactly the slow links are named, with their direction."""
    if reason := why_not(namespaces=True):
        pytest.skip(reason)
    with Lab(hosts, namespaces=True, rate=USUAL) as lab:
        expected = slow_down(lab, kind, loss, draw)
        assert list_slow_links(qualify(lab, tmp_path)) == expected


@pytest.mark.campaign(only=True)
@pytest.mark.parametrize(("hosts", "draw"), QUIET_CASES)
def test_qualify_names_nothing_among_equal_links(hosts: int, draw: int, tmp_path: Path) -> None:
    """No link and no host is named where all machines are equal."""
    if reason := why_not(namespaces=True):
        pytest.skip(reason)
    with Lab(hosts, namespaces=True, rate=USUAL) as lab:
        found = qualify(lab, tmp_path)
    assert not list_slow_links(found)
    assert not [host for host, result in found["hosts"].items() if result["verdict"] == "SLOW"]
