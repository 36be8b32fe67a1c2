"""Machines that one user can reach over ssh, with all that the user needs for it: `with Lab(2) as lab: lab.config()`.

They are called m1, m2, ... . Each has its own namespaces and network where this machine allows it; otherwise all are this
machine on addresses of 127.0.0.0/8. `lab.machines[0].can_be_cut_off` shows which. The files of a user who can log in to all of
them are

    lab.ssh_config    their names as aliases, with everything below in it; `more` stands before it
    lab.known_hosts   their host keys
    lab.identity      the private key (identity.pub is authorized on them)

Tests rewrite these to check the messages for a user with wrong files.
"""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pytest_dtfperf.clusters import named
from pytest_dtfperf.clusters.named import ClusterConfig
from tests.machines import loopback, machine
from tests.machines.loopback import LoopbackGround, LoopbackMachine
from tests.machines.machine import Machine, make_key
from tests.machines.network import Network


def why_not(namespaces: bool | None = None) -> str | None:
    """Why there can be no lab here, or None if there can; see `Lab` for the argument."""
    apart = machine.why_not() if namespaces is not False else None
    return apart if namespaces else loopback.why_not()


class Lab:
    """Up within the `with` block.

    namespaces   True: each machine in its own, or not at all; False: none; None: if this machine allows it
    each         arguments of `Machine` for some of them: {"m2": {"rate": "1gbit"}}; **of_all for all of them
    """

    def __init__(
        self,
        machines: int = 2,
        *,
        namespaces: bool | None = None,
        each: Mapping[str, Mapping[str, Any]] | None = None,
        more: str = "",
        **of_all: Any,
    ) -> None:
        apart = machine.why_not() is None if namespaces is None else namespaces
        self.network: Network | LoopbackGround = Network() if apart else LoopbackGround()
        self.folder = self.network.path
        self.identity = self.folder / "identity"
        self.known_hosts = self.folder / "known_hosts"
        self.ssh_config = self.folder / "ssh_config"
        try:
            key = make_key(self.identity, "user of the lab")
            kind = Machine if apart else LoopbackMachine
            self.machines: list[Machine] = []
            for name in (f"m{i}" for i in range(1, machines + 1)):
                arguments = {"authorized": [key], **of_all, **(each or {}).get(name, {})}
                self.machines.append(kind(name, self.network, **arguments))  # type: ignore[arg-type]
            addresses = {each.name: each.address for each in self.machines}
            for one in self.machines:
                one.hosts |= addresses
            self.known_hosts.write_text("".join(f"{_get_known_hosts_name(one)} {one.host_key}\n" for one in self.machines))
            self.ssh_config.write_text(more + self._aliases())
        except BaseException:
            self.network.close()
            raise

    @property
    def names(self) -> list[str]:
        return [each.name for each in self.machines]

    def __getitem__(self, name: str) -> Machine:
        return next(each for each in self.machines if each.name == name)

    def __enter__(self) -> Self:
        try:
            for each in self.machines:  # first all, then wait: they come up side by side
                each.boot()
            for each in self.machines:
                each.wait_for_sshd()
        except BaseException:  # Ctrl-C too: __exit__ is not called for what has not been entered
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        for each in self.machines:
            each.begin_to_end()
        for each in self.machines:
            each.close()
        self.network.close()

    # What tests do with it.

    def backend_keys(self) -> dict[str, Any]:
        """The keys of clusters.toml by which these machines are reached."""
        return {"hosts": self.names, "ssh_config": str(self.ssh_config)}

    def config(self, **keys: Any) -> ClusterConfig:
        """The cluster of these machines, with one device each; keys of clusters.toml are added, or replace those of the lab.

        None takes a key away.
        """
        usual = {"device": "cpu", "devices_per_host": 1, "python": sys.executable}
        given = {name: value for name, value in {**usual, **self.backend_keys(), **keys}.items() if value is not None}
        common = {name: value for name, value in given.items() if name in named.KEYS}
        backend_keys = {name: value for name, value in given.items() if name not in named.KEYS}
        return ClusterConfig(name="lab", backend="ssh", backend_keys=backend_keys, **common)

    def toml(self, *lines: str) -> str:
        """Return the same as a table of a cluster file; further lines of it replace the usual ones."""
        usual = {"device": "cpu", "devices_per_host": 1, "python": sys.executable, **self.backend_keys()}
        given = {line.partition("=")[0].strip() for line in lines}
        table = [f"{name} = {_toml(value)}" for name, value in usual.items() if name not in given]
        return "\n".join(["[lab]", 'backend = "ssh"', "dedicated = false", *table, *lines, ""])

    def ssh(self, name: str, command: str, *options: str) -> subprocess.CompletedProcess[str]:
        """Run `ssh` as a user does, and return its result."""
        argv = ["ssh", "-F", str(self.ssh_config), "-o", "BatchMode=yes", *options, name, command]
        return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)

    def _aliases(self) -> str:
        usual = {
            "IdentityFile": self.identity,
            "IdentitiesOnly": "yes",
            "IdentityAgent": "none",
            "UserKnownHostsFile": self.known_hosts,
            "GlobalKnownHostsFile": "/dev/null",
            "StrictHostKeyChecking": "yes",
        }
        hosts = [
            f"Host {each.name}\n    HostName {each.address}\n    Port {each.port}\n    User {each.user}\n"
            for each in self.machines
        ]
        return "".join(hosts) + "Host *\n" + "".join(f"    {name} {value}\n" for name, value in usual.items())


def _get_known_hosts_name(one: Machine) -> str:
    return one.address if one.port == machine.PORT else f"[{one.address}]:{one.port}"


def _toml(value: str | int | Sequence[str]) -> str:
    if isinstance(value, str | Path):
        return f'"{value}"'
    return str(value) if isinstance(value, int) else f"[{', '.join(map(_toml, value))}]"
