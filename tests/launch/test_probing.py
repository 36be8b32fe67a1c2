"""Tests of probes on hosts of this machine, with tasks that send given readings."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_dtfperf.launch.probing import Deadlines
from pytest_dtfperf.spec import Spec
from tests.launch.stage import TWO_HOSTS, Stage, start_stage

SPEC = Spec(model="trivial", batch_size=8, gpus=2, num_ps=1, warmup_steps=0, steps=3)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with start_stage(tmp_path, TWO_HOSTS) as found:
        yield found


def test_probe_between_two_runs_has_hosts_and_links(stage: Stage) -> None:
    """A probe between two runs has each host and each link of the training, requested pairs are added, and the next run
    succeeds."""
    stage.run(num_ps=1)
    first, second = stage.launcher.hosts
    found = stage.launcher.probe(SPEC)
    assert {name: host.readings["core.matmul"].per_s for name, host in found.hosts.items()} == {first: 1e9, second: 1e9}
    assert found.hosts[first].unknown == {"memory": "this is a toy"}
    assert {name: link.per_s for name, link in found.links.items()} == pytest.approx({f"*>{first}": 1e8, f"{first}>*": 1e8})
    assert found.unknown == {}

    more = stage.launcher.probe(dataclasses.replace(SPEC, num_ps=2), pairs=True)
    assert more.links.keys() == {
        *(f"*>{each}" for each in (first, second)), *(f"{each}>*" for each in (first, second)),
        f"{first}>{second}", f"{second}>{first}",
    }  # fmt: skip
    assert stage.launcher.probe(SPEC).links.keys() == found.links.keys()
    stage.run(num_ps=1)


def test_link_is_measured_again_with_other_connections(stage: Stage) -> None:
    """A link is measured again only for a training with another number of connections."""
    first, _ = stage.launcher.hosts
    name = f"*>{first}"
    counts = []
    for servers in (1, 3, 3, 1):
        found = stage.launcher.probe(dataclasses.replace(SPEC, num_ps=servers))
        counts.append(found.links[name].how["streams"])
    assert counts == [1, 3, 3, 1]


def test_hosts_for_external_commands_are_not_probed(tmp_path: Path) -> None:
    """Hosts for external commands alone are not probed, and have the reason."""
    with start_stage(tmp_path, dataclasses.replace(TWO_HOSTS, entry="pytest_dtfperf.training.command:run")) as stage:
        found = stage.launcher.probe(dataclasses.replace(SPEC, gpus=1))
    assert found.hosts == {}
    (why,) = found.unknown.values()
    assert "what a host can do is measured with TensorFlow" in why


def test_single_host_has_no_link(stage: Stage) -> None:
    """A training on one host has a probe of this host, and no link."""
    found = stage.launcher.probe(dataclasses.replace(SPEC, gpus=1))
    assert found.hosts.keys() == {stage.launcher.hosts[0]}
    assert found.links == {}


def test_probe_measures_only_the_given_families(stage: Stage) -> None:
    """A probe without families of readings measures links, and computes on no host."""
    found = stage.launcher.probe(SPEC, families=())
    assert found.hosts == {}
    assert found.links
    assert found.unknown == {}


@pytest.mark.parametrize(
    "script, words, readings",
    [
        ({"at": "compute", "do": "exit", "what": 3}, "its task ended early (exit code 3): leaving early", False),
        ({"at": "compute", "do": "signal", "what": 9}, "its task ended early (signal 9): without a word", False),
        ({"at": "listen", "do": "hang"}, "no answer within 1 s (listen)", True),
        ({"at": "round", "do": "hang"}, "no answer within 1 s (round 0)", True),
        ({"at": "round", "do": "lie"}, "disconnected because it reported a 'core.matmul' that was not requested", False),
    ],
    ids=["a task that leaves", "one that is killed", "one that never listens", "one that never sends", "one that tells twice"],
)
def test_failed_probe_does_not_prevent_training(
    script: dict[str, object], words: str, readings: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed probe keeps earlier readings, has the reason for the rest, and the next run succeeds."""
    monkeypatch.setenv("TOY_PROBE", json.dumps(script))
    with start_stage(tmp_path, TWO_HOSTS) as stage:
        found = stage.launcher.probe(SPEC, deadlines=Deadlines(listen_s=1, round_s=1))
        assert words in set(found.unknown.values())
        assert bool(found.hosts) is readings
        assert found.links == {}
        stage.run(num_ps=1)
