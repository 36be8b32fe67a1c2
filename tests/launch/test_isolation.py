"""Who reaches the servers of a training on this machine."""

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
from tests.launch import serving_toy
from tests.launch.isolated import TRAINING, servers, while_training
from tests.launch.stage import CONFIG, TWO_HOSTS, Stage, staged
from tests.launch.stranger import ANSWERED, REFUSED
from tests.machines import ordinary
from tests.machines.network import Network, why_not
from tests.real import imported


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Network]:
    """Another network namespace, from which this machine can be reached."""
    if reason := why_not():
        pytest.skip(reason)
    with Network() as network:
        network.ip(f"address add {network.address(1)} dev bridge")
        yield network


def heard_elsewhere(network: Network, ports: Iterable[int]) -> list[str]:
    """What becomes of a stranger there who calls this machine's ports."""
    here = network.address(253).partition("/")[0]
    command = ["nsenter", f"--net={network.namespace}", sys.executable, "-m", "tests.launch.stranger", here, *map(str, ports)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()


@pytest.mark.parametrize(
    "backend_keys, entry, answer",
    [({}, TRAINING.entry, REFUSED), ({"network": "host"}, serving_toy.ENTRY, ANSWERED)],
    ids=["by default", 'network = "host"'],
)
def test_strangers(elsewhere: Network, tmp_path: Path, backend_keys: dict[str, str], entry: str, answer: str) -> None:
    """From another network namespace nobody reaches the servers, unless the cluster file says that they are in the host's.

    Toys' servers there: that TensorFlow's answer who reaches them is seen below.
    """
    answers: set[str] = set()
    config = replace(TRAINING, backend_keys=backend_keys, entry=entry)
    if entry == TRAINING.entry:
        config = replace(config, python=imported.python())
    with staged(tmp_path, config) as stage:
        while_training(stage, lambda: answers.update(heard_elsewhere(elsewhere, servers(stage))))
    assert answers == {answer}


def inspected(*before: str) -> dict[str, Any]:
    """What `tests.launch.isolated` tells, with these words before its command."""
    with tempfile.TemporaryDirectory() as folder:  # pytest's own are closed to others
        Path(folder).chmod(0o777)
        command = [*before, sys.executable, "-m", "tests.launch.isolated", f"{folder}/stage"]
        ended = subprocess.run(command, stdout=subprocess.PIPE, env={**os.environ, "HOME": folder}, check=True)
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def test_an_ordinary_user_is_isolated() -> None:
    """Without root, too, tasks are out of reach; they have no rights more, are counted and found, and die with their agent."""
    if reason := ordinary.why_not():
        pytest.skip(reason)
    found = inspected(*ordinary.as_user())
    assert (found["warning"], found["servers"], found["answers"]) == (None, 3, [REFUSED])
    assert (found["user"], found["capabilities"]) == (ordinary.USER, 0)
    assert found["swept"] == 5, "agent, zygote and three tasks are found by their session"
    assert found["bytes_sent"] > 0
    assert found["loss"] == 5


def test_where_namespaces_are_forbidden_it_trains_and_says_so() -> None:
    """What cannot be isolated trains as ever, in reach of others, and there is a warning that says why."""
    if reason := ordinary.why_not():
        pytest.skip(reason)
    found = inspected(*ordinary.without_namespaces())
    assert found["warning"].startswith(
        "NOT ISOLATED: there may be no more namespaces (/proc/sys/user), so every host that reaches"
    )
    assert found["answers"] == [ANSWERED]
    assert (found["swept"], found["loss"]) == (5, 5)


def networks(stage: Stage, *tasks: str, **changes: Any) -> set[str]:
    """The networks of a run's tasks, told apart by their inodes: `net:[4026531840]`."""
    found: set[str] = set()
    while_training(stage, lambda: found.update(os.readlink(f"/proc/{stage.pid(task)}/ns/net") for task in tasks), **changes)
    return found


def test_hosts_of_a_session_share_a_network_that_two_sessions_do_not(tmp_path: Path) -> None:
    """Tasks of both hosts that are made of this machine are in one network; those of another session in another one."""
    with staged(tmp_path / "one", TWO_HOSTS) as one, staged(tmp_path / "other", TWO_HOSTS) as other:
        (first,) = networks(one, "ps:0", "worker:0", "worker:1")
        (second,) = networks(other, "ps:0", "worker:0", "worker:1")
    assert len({first, second, os.readlink("/proc/self/ns/net")}) == 3


def test_tasks_without_others_are_isolated_too(tmp_path: Path) -> None:
    """A lone process, which has no server, and one that imports everything anew are in their session's network."""
    with staged(tmp_path, CONFIG) as stage:
        lone = networks(stage, "worker:0", gpus=1, num_ps=0)
    with staged(tmp_path, replace(CONFIG, start="cold")) as stage:
        cold = networks(stage, "worker:0", gpus=1, num_ps=0)
    assert os.readlink("/proc/self/ns/net") not in lone | cold


@pytest.mark.parametrize(
    "changes, environment, isolated",
    [
        ({}, {}, True),
        ({"data": "zmq"}, {}, True),
        ({"data": "zmq"}, {exposure.ZMQ_PRODUCER: "/opt/feed --fast"}, False),
        ({}, {exposure.ZMQ_PRODUCER: "/opt/feed --fast"}, True),
        ({"command": ("python", "train.py"), "rate_pattern": "rate: (.*)"}, {}, False),
    ],
    ids=["our own", "our producer", "an external producer", "an external producer, unused", "an external command"],
)
def test_what_may_need_the_world_has_it(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], environment: dict[str, str], isolated: bool
) -> None:
    """Programs that are not ours are left in the machine's network: nobody knows what they need."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert exposure.may_be_isolated(Spec(model="trivial", batch_size=2, gpus=1, **changes)) is isolated


def test_a_session_leaves_no_network(tmp_path: Path) -> None:
    """A network is gone with its session: nobody holds a file of it."""
    with staged(tmp_path, CONFIG) as stage:
        (network,) = networks(stage, "ps:0", "worker:0")
    mine = {os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{fd}")}
    assert network not in mine


def test_an_external_command_is_in_the_machines_network(tmp_path: Path) -> None:
    """A program that is not ours has the network that pytest has, though agents of the same session isolate our own tasks."""
    script = "import os; print(os.readlink('/proc/self/ns/net'), 'rate: 1.5')"
    command = ("python", "-c", script)
    with staged(tmp_path, replace(CONFIG, entry="pytest_dtfperf.training.command:run")) as stage:
        spec = Spec(model="other", batch_size=0, gpus=1, command=command, rate_pattern=r"rate: ([\d.]+)")
        run = stage.launcher.run(spec, log_dir=stage.logs)
    assert run.images_per_sec == 1.5
    assert os.readlink("/proc/self/ns/net") in (stage.logs / "worker-0.log").read_text()
