"""A machine for tests where namespaces are not to be had: an sshd of this user's on an address of 127.0.0.0/8.

It has the interface of `Machine`, with this machine's own files, host name and processes: it cannot be shaped, unplugged, or
lack a program.
"""

import getpass
import os
import random
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from pytest_dtfperf.testing.backends import wait_until
from tests.machines.machine import PACKAGES, Machine
from tests.machines.network import PATH, Folder, list_missing

# sshd of root wants this folder, which only the daemon's own start makes.
_WITH_RUN_SSHD = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs run /run && mkdir /run/sshd && exec "$@"', "sh")


def why_not() -> str | None:
    """Return why there cannot be such machines here, or None."""
    return list_missing(PACKAGES)


class LoopbackGround(Folder):
    """Hold what such machines have instead of a network: a folder, and a part of 127.0.0.0/8."""

    def __init__(self) -> None:
        super().__init__()
        self.x = random.randrange(256)  # two may have the same: their ports are not
        self._taken = 0

    def address(self, host: int, subnet: int = 0) -> str:
        return f"127.{90 + subnet}.{self.x}.{host}/32"

    def next_host(self) -> int:
        self._taken += 1
        return self._taken


class LoopbackMachine(Machine):
    """Run one sshd, and everything below it."""

    can_be_cut_off = False

    def _choose_port(self) -> int:
        """Return a port of its address that no other process gets while it is bound here. sshd can listen on it
        nevertheless."""
        self._port_holder = socket.socket()
        self._port_holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._port_holder.bind((self.address, 0))
        port: int = self._port_holder.getsockname()[1]
        return port

    def _listens_on(self) -> str:
        return self.address

    def _choose_user(self) -> str:
        return getpass.getuser()

    def boot(self) -> None:
        sshd = ["/usr/sbin/sshd", "-D", "-f", f"{self.folder}/sshd_config", "-E", f"{self.folder}/sshd.log"]
        with (self.folder / "console.log").open("ab") as log:
            self._shell = subprocess.Popen(
                [
                    *self._on_cpus(),
                    sys.executable,
                    "-m",
                    "tests.machines.keep",
                    *(_WITH_RUN_SSHD if os.geteuid() == 0 else ()),
                    *sshd,
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PATH": PATH},
                start_new_session=True,  # Ctrl-C in the terminal is for pytest
                bufsize=0,
            )
        self.first = self._shell.pid

    def wait_for_sshd(self) -> None:
        wait_until(f"sshd of {self.name} listens", self._listens)

    def begin_to_end(self) -> None:
        if self._shell and self._shell.stdin:
            self._shell.stdin.close()

    def _silence(self) -> None:
        pass  # whoever is connected hears it

    def close(self) -> None:
        super().close()
        self._port_holder.close()

    def popen(self, *argv: str, **options: Any) -> subprocess.Popen[bytes]:
        environment = {"PATH": PATH, "HOME": str(self.home), "LANG": "C.UTF-8"}
        return subprocess.Popen(argv, **{"stdin": subprocess.DEVNULL, "env": environment, **options})

    @property
    def files(self) -> Path:
        return Path("/")

    def link_down(self) -> None:
        raise NotImplementedError("a machine on 127.0.0.0/8 has no link of its own")

    link_up = link_down

    def shape(self, rate: str | float, *, inwards: bool = True, outwards: bool = True) -> None:
        raise NotImplementedError("a machine on 127.0.0.0/8 has no link of its own")
