"""Tests of the doctor on machines over SSH with separate networks: one is off, one has no TensorFlow, one has a slow link."""

import re
from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.clusters.named import Limits
from pytest_dtfperf.doctor import examination
from pytest_dtfperf.doctor.diagnosis import Diagnosis
from pytest_dtfperf.doctor.examination import examine, read_expectations
from pytest_dtfperf.doctor.findings import list_findings
from pytest_dtfperf.testing.backends import PATIENCE_S
from tests import campaign
from tests.clusters.ssh.lab import Lab, why_not
from tests.doctor.interpreters import SHORT_S, make_interpreter

MBIT = 1_000_000
CALM: dict[str, Any] = {"limits": Limits(hello_s=PATIENCE_S, silence_s=PATIENCE_S), "heartbeat_timeout_s": PATIENCE_S}
# m1's attempts to connect to m2, and nothing else, are dropped; what listens for ssh is reached.
FIREWALL = """\
table inet test {{
    chain in {{
        type filter hook input priority 0
        ip saddr {source} tcp dport != 22 tcp flags & (syn | ack) == syn drop
    }}
}}
"""


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> tuple[Diagnosis, list[str], list[str]]:
    """Examine five machines: m1 cannot connect to m2, m3 has a link of 100 Mbit/s, m4 has no TensorFlow, m5 is off.

    What was seen, what is wrong, and what is left in their homes.
    """
    if reason := why_not(namespaces=True):
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("pythons")
    run_it = '#!/bin/sh\nexec {} "$@"\n'
    with_it = run_it.format(make_interpreter(folder / "with", "2.99.0"))
    without = run_it.format(make_interpreter(folder / "without", None))
    each = {name: {"programs": {"python3": with_it}} for name in ("m1", "m2", "m3", "m5")}
    each["m3"]["rate"] = "100mbit"  # type: ignore[assignment]
    # Streams at this machine's own rate keep all of its cores busy. Only campaigns compare rates.
    rate, stream_s = (None, examination.STREAM_S) if campaign.WHOLE else ("100mbit", SHORT_S)
    with (
        pytest.MonkeyPatch.context() as patch,
        Lab(5, namespaces=True, each={**each, "m4": {"programs": {"python3": without}}}, rate=rate) as lab,
    ):
        patch.setattr(examination, "STREAM_S", stream_s)
        lab["m2"].run("nft", "-f", "-", text=FIREWALL.format(source=lab["m1"].address))
        lab["m5"].power_off()
        config = lab.config(python="python3", connect_s=15, **CALM)
        found = examine(config, None, lambda words: None)
        left = [str(path) for machine in lab.machines for path in machine.home.glob(".dtfperf-*")]
    return found, [str(finding) for finding in list_findings(found, read_expectations(config)) if finding.wrong], left


Findings = tuple[Diagnosis, list[str], list[str]]


def test_machine_that_is_off_is_named(findings: Findings) -> None:
    """The machine that is off is named in a problem, and all others have their facts."""
    diagnosis, wrong, _ = findings
    assert [host.missing is None for host in diagnosis.hosts] == [True, True, True, True, False]
    assert all(host.facts and host.offset for host in diagnosis.hosts[:4])
    (output,) = (output for output in wrong if "m5" in output)
    assert "m5" in output.partition("\n")[0]


def test_machine_without_tensorflow_is_named(findings: Findings) -> None:
    """TensorFlow is found on three machines, and the fourth is named alone."""
    diagnosis, wrong, _ = findings
    assert [host.trial and host.trial.version for host in diagnosis.hosts] == ["2.99.0", "2.99.0", "2.99.0", None, None]
    assert len([output for output in wrong if output.startswith("TensorFlow is missing on m4 (")]) == 1


def test_firewall_closes_one_direction(findings: Findings) -> None:
    """Only m1 cannot connect to m2, which is one problem."""
    diagnosis, wrong, _ = findings
    closed = {(each.source, each.target) for each in diagnosis.reached if each.error}
    assert closed == {(0, 1)}
    (output,) = (output for output in wrong if "cannot connect" in output)
    assert output.startswith("m1 -> m2 cannot connect. m1 to m2 (")
    assert "no answer within 5 s (a firewall drops it" in output


@pytest.mark.campaign(only=True)
def test_slow_link_has_its_rate(findings: Findings) -> None:
    """A link of 100 Mbit/s has a rate of 80 to 100 in both directions, with each other machine, and is a problem."""
    diagnosis, wrong, _ = findings
    rates = {(link.source, link.target): (link.bits_per_s or 0) / MBIT for link in diagnosis.links}
    slow = {pair: rate for pair, rate in rates.items() if 2 in pair}
    assert slow.keys() == {(0, 2), (1, 2), (3, 2), (2, 0), (2, 1), (2, 3)}
    assert max(slow.values()) <= 100
    assert max(rate for (_, target), rate in slow.items() if target == 2) >= 80
    assert max(rate for (source, _), rate in slow.items() if source == 2) >= 80
    assert all(rate > 200 for pair, rate in rates.items() if 2 not in pair)
    (output,) = (output for output in wrong if "far slower than the other links" in output)
    assert re.search(r"m3 is in (all|6) of them", output)  # a busy machine may make a seventh as slow


def test_machines_with_separate_homes_share_nothing(findings: Findings) -> None:
    """Each machine sees only its own file."""
    diagnosis, *_ = findings
    assert [host.sees for host in diagnosis.hosts[:4]] == [frozenset({i}) for i in range(4)]


def test_every_open_link_is_measured(findings: Findings) -> None:
    """All ordered pairs of the reachable machines, except for the closed one, have round trips."""
    diagnosis, *_ = findings
    assert len(diagnosis.links) == 11
    assert all(link.round_trip_s and link.echoes and link.error is None for link in diagnosis.links)


def test_no_file_is_left_on_the_machines(findings: Findings) -> None:
    """The machines have removed their files without trouble."""
    diagnosis, _, left = findings
    assert left == []
    assert not [trouble for host in diagnosis.hosts for trouble in host.troubles]


def test_unreachable_machine_is_named_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is reached over SSH, but by no other machine, is one problem."""
    monkeypatch.setattr(examination, "STREAM_S", SHORT_S)
    if reason := why_not(namespaces=True):
        pytest.skip(reason)
    python = make_interpreter(tmp_path / "venv", "2.99.0")
    with Lab(3, namespaces=True, programs={"python3": f'#!/bin/sh\nexec {python} "$@"\n'}, rate="100mbit") as lab:
        for other in ("m1", "m2"):
            text = FIREWALL.format(source=lab[other].address).replace("inet test", f"inet {other}")
            lab["m3"].run("nft", "-f", "-", text=text)
        config = lab.config(python="python3", **CALM)
        found = examine(config, None, lambda words: None)
    (output,) = (str(finding) for finding in list_findings(found, read_expectations(config)) if "reach" in finding.message)
    assert output.startswith("no host can reach m3 (")


def test_addresses_of_one_machine_are_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two addresses of this machine, without namespaces, are two hosts with links."""
    monkeypatch.setattr(examination, "STREAM_S", SHORT_S)
    if reason := why_not(namespaces=False):
        pytest.skip(reason)
    with Lab(2, namespaces=False) as lab:
        found = examine(lab.config(python=str(make_interpreter(tmp_path / "venv", "2.99.0")), **CALM), None, lambda words: None)
    assert [host.missing for host in found.hosts] == [None, None]
    assert len(found.links) == 2
