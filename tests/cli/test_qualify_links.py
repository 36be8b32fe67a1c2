"""Tests of `dtfperf qualify` where links between hosts are not measured: a host is lost, a link fails, the time is over."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_dtfperf.datamodel.probes import Probes
from pytest_dtfperf.datamodel.qualification import HostVerdict, Qualification
from pytest_dtfperf.errors import InfrastructureError
from pytest_dtfperf.launch.launcher import Launcher
from pytest_dtfperf.qualify import qualification
from tests.cli.table import read
from tests.cli.test_qualify import folder, run_qualify

__all__ = ["folder"]

LOST = "sim-0002"
WHY = "no answer within 10 s (round 0)"


def change_probes(monkeypatch: pytest.MonkeyPatch, change: Callable[[Probes, bool], Probes]) -> None:
    """Change the result of each probe. The function is also given whether only links were probed, after the rounds."""
    measure = Launcher.probe

    def probe(self: Launcher, *args: Any, **options: Any) -> Probes:
        return change(measure(self, *args, **options), not options["families"])

    monkeypatch.setattr(Launcher, "probe", probe)


def leave_links_out(probes: Probes, failed: dict[str, str], why: dict[str, str]) -> Probes:
    """Return the probes without links, as a probe has them that could not measure these."""
    links = {name: link for name, link in probes.links.items() if name not in failed}
    return replace(probes, links=links, unknown={**probes.unknown, **failed, **why})


@pytest.mark.parametrize("how", ["does not answer", "agent ends"])
def test_host_that_is_lost_in_the_last_pairs_is_not_judged(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    """A host that is lost while the pairs that have not met are measured is not fit, although all were decided before."""

    def lose(probes: Probes, only_links: bool) -> Probes:
        if not only_links or LOST not in str(probes.links):
            return probes
        if how == "agent ends":
            raise InfrastructureError(WHY, host=LOST)
        return leave_links_out(probes, {name: f"{name}: {WHY}" for name in probes.links if LOST in name}, {LOST: WHY})

    change_probes(monkeypatch, lose)
    assert run_qualify(folder, "", "--hosts=8", "--no-training", "--json") == 3
    printed = capsys.readouterr()
    found = Qualification.from_json(read("qualify", printed.out))
    assert found.list_hosts(HostVerdict.NOT_JUDGED) == [LOST]
    assert WHY in found.hosts[LOST].reason
    assert f"{LOST} is left out from now on" in printed.err
    assert not found.unknown_links


def test_link_that_cannot_be_measured_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two fit hosts that never reach each other are named with the reason, and the exit code is 3."""
    failed = {f"sim-000{here}>sim-000{there}": "connection refused" for here, there in ((0, 1), (1, 0))}
    whole = {name: f"{name}: {why}" for name, why in failed.items()}

    def refuse(probes: Probes, only_links: bool) -> Probes:
        return leave_links_out(probes, {name: why for name, why in whole.items() if name in probes.links}, {})

    change_probes(monkeypatch, refuse)
    assert run_qualify(folder, "", "--hosts=4", "--no-training") == 3
    out = capsys.readouterr().out
    assert "4 fit, 0 slow, 0 not judged" in out
    assert "links that were not measured: sim-0000>sim-0001, sim-0001>sim-0000: connection refused\n" in out
    (path,) = (folder / "perf_results").glob("*/qualification.json")
    assert json.loads(path.read_text())["unknown_links"] == failed


def test_links_that_the_time_limit_leaves_are_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If the time is over when all hosts are decided, the links between hosts that have not met are named, a few of many."""
    monkeypatch.setattr(qualification, "time", SimpleNamespace(monotonic=count(0.0, 10.0).__next__))
    assert run_qualify(folder, "", "--hosts=8", "--no-training", "--time-limit=65s") == 3
    out = capsys.readouterr().out
    assert "8 fit, 0 slow, 0 not judged" in out
    assert "links that were not measured: " in out
    assert " more: the time limit was reached\n" in out
