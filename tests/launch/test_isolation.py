"""Tests of the network isolation of a training on this machine."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.launch import exposure
from pytest_dtfperf.spec import Spec
from pytest_dtfperf.spec.checks import ZMQ_PRODUCER
from tests.launch import serving_toy
from tests.launch.isolated import TRAINING, list_server_ports, while_training
from tests.launch.stage import CONFIG, TWO_HOSTS, Stage, start_stage
from tests.launch.stranger import ANSWERED, REFUSED
from tests.machines import ordinary
from tests.machines.network import Network, why_not
from tests.real import imported


@pytest.fixture(scope="module")
def other_network() -> Iterator[Network]:
    """Make another network namespace, from which this machine can be reached."""
    if reason := why_not():
        pytest.skip(reason)
    with Network() as network:
        network.ip(f"address add {network.address(1)} dev bridge")
        yield network


def call_from_elsewhere(network: Network, ports: Iterable[int]) -> list[str]:
    """Return the answers to a program there that calls this machine's ports."""
    here = network.address(253).partition("/")[0]
    command = ["nsenter", f"--net={network.namespace}", sys.executable, "-m", "tests.launch.stranger", here, *map(str, ports)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()


@pytest.mark.parametrize(
    "backend_keys, entry, answer",
    [({}, TRAINING.entry, REFUSED), ({"network": "host"}, serving_toy.ENTRY, ANSWERED)],
    ids=["by default", 'network = "host"'],
)
def test_servers_are_reached_only_in_the_host_s_network(
    other_network: Network, tmp_path: Path, backend_keys: dict[str, str], entry: str, answer: str
) -> None:
    """From another network namespace the servers are refused by default, and answer with `network = "host"`.

    Toys' servers there: that TensorFlow's answer who reaches them is seen below.
    """
    answers: set[str] = set()
    config = replace(TRAINING, backend_keys=backend_keys, entry=entry)
    if entry == TRAINING.entry:
        config = replace(config, python=imported.python())
    with start_stage(tmp_path, config) as stage:
        while_training(stage, lambda: answers.update(call_from_elsewhere(other_network, list_server_ports(stage))))
    assert answers == {answer}


def inspect_training(*before: str) -> dict[str, Any]:
    """Return the report of `tests.launch.isolated`, run with this prefix of its command."""
    with tempfile.TemporaryDirectory() as folder:  # pytest's own are closed to others
        Path(folder).chmod(0o777)
        command = [*before, sys.executable, "-m", "tests.launch.isolated", f"{folder}/stage"]
        ended = subprocess.run(command, stdout=subprocess.PIPE, env={**os.environ, "HOME": folder}, check=True)
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def test_user_without_root_is_isolated() -> None:
    """Without root the servers are unreachable, tasks have no further rights, and their processes are found by the session."""
    if reason := ordinary.why_not():
        pytest.skip(reason)
    found = inspect_training(*ordinary.as_user())
    assert (found["warning"], found["servers"], found["answers"]) == (None, 3, [REFUSED])
    assert (found["user"], found["capabilities"]) == (ordinary.USER, 0)
    assert found["swept"] == 5, "agent, zygote and three tasks are found by their session"
    assert found["bytes_sent"] > 0
    assert found["loss"] == 5


def test_forbidden_namespaces_give_a_warning() -> None:
    """Without namespaces a training runs, is reachable, and has a warning with the reason."""
    if reason := ordinary.why_not():
        pytest.skip(reason)
    found = inspect_training(*ordinary.without_namespaces())
    assert found["warning"].startswith(
        "NOT ISOLATED: there may be no more namespaces (/proc/sys/user), so every host that reaches"
    )
    assert found["answers"] == [ANSWERED]
    assert (found["swept"], found["loss"]) == (5, 5)


def find_networks(stage: Stage, *tasks: str, **changes: Any) -> set[str]:
    """Return the networks of a run's tasks, by their inodes: `net:[4026531840]`."""
    found: set[str] = set()
    while_training(stage, lambda: found.update(os.readlink(f"/proc/{stage.pid(task)}/ns/net") for task in tasks), **changes)
    return found


def test_each_session_has_its_own_network(tmp_path: Path) -> None:
    """All tasks of a session on this machine are in one network, and those of another session in another one."""
    with start_stage(tmp_path / "one", TWO_HOSTS) as one, start_stage(tmp_path / "other", TWO_HOSTS) as other:
        (first,) = find_networks(one, "ps:0", "worker:0", "worker:1")
        (second,) = find_networks(other, "ps:0", "worker:0", "worker:1")
    assert len({first, second, os.readlink("/proc/self/ns/net")}) == 3


def test_single_and_cold_tasks_are_isolated(tmp_path: Path) -> None:
    """A single task without a server, and a task of a cold start, are not in the machine's network."""
    with start_stage(tmp_path, CONFIG) as stage:
        lone = find_networks(stage, "worker:0", gpus=1, num_ps=0)
    with start_stage(tmp_path, replace(CONFIG, start="cold")) as stage:
        cold = find_networks(stage, "worker:0", gpus=1, num_ps=0)
    assert os.readlink("/proc/self/ns/net") not in lone | cold


@pytest.mark.parametrize(
    "changes, environment, isolated",
    [
        ({}, {}, True),
        ({"data": "zmq"}, {}, True),
        ({"data": "zmq"}, {ZMQ_PRODUCER: "/opt/feed --fast"}, False),
        ({}, {ZMQ_PRODUCER: "/opt/feed --fast"}, True),
        ({"command": ("python", "train.py"), "rate_pattern": "rate: (.*)"}, {}, False),
    ],
    ids=["our own", "our producer", "an external producer", "an external producer, unused", "an external command"],
)
def test_external_programs_are_not_isolated(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], environment: dict[str, str], isolated: bool
) -> None:
    """A training with an external producer or command is not isolated, and other trainings are."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert exposure.may_be_isolated(Spec(model="trivial", batch_size=2, gpus=1, **changes)) is isolated


def test_network_is_released_after_the_session(tmp_path: Path) -> None:
    """This process holds no file of the network after the session."""
    with start_stage(tmp_path, CONFIG) as stage:
        (network,) = find_networks(stage, "ps:0", "worker:0")
    mine = {os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{fd}")}
    assert network not in mine


def test_external_command_is_in_the_machine_s_network(tmp_path: Path) -> None:
    """An external command has this machine's network."""
    script = "import os; print(os.readlink('/proc/self/ns/net'), 'rate: 1.5')"
    command = ("python", "-c", script)
    with start_stage(tmp_path, replace(CONFIG, entry="pytest_dtfperf.training.command:run")) as stage:
        spec = Spec(model="other", batch_size=0, gpus=1, command=command, rate_pattern=r"rate: ([\d.]+)")
        run = stage.launcher.run(spec, log_dir=stage.logs)
    assert run.images_per_sec == 1.5
    assert os.readlink("/proc/self/ns/net") in (stage.logs / "worker-0.log").read_text()
