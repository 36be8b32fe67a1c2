"""A network for machines: a bridge in a namespace, joined with this machine's network by a pair of interfaces."""

import os
import random
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

from pytest_dtfperf.testing.backends import PATIENCE_S, wait_until
from tests.machines import scripts

PATH = os.environ.get("PATH", os.defpath) + ":/usr/local/sbin:/usr/sbin:/sbin"  # a user's PATH lacks the daemons' folders
# 198.18.0.0/15 is reserved for benchmarks. Slurm sites of the tests have its upper half.
SUBNETS = ("198.18.{x}.0/24",)
_THIS_MACHINE = 253
_PACKAGES = {"ip": "iproute2", "tc": "iproute2", "nsenter": "util-linux", "unshare": "util-linux"}


class MachineError(RuntimeError):
    """A machine or its network failed."""


def list_missing(packages: dict[str, str]) -> str | None:
    """Return the commands of these that are not installed, each with its Debian package."""
    for command, package in packages.items():
        if shutil.which(command, path=PATH) is None:
            return f"machines need {command} (Debian package {package})"
    return None


@cache
def why_not() -> str | None:
    """Return why this machine cannot have its own networks, or None. It is tried once in a process."""
    if reason := list_missing(_PACKAGES):
        return reason
    if os.geteuid() != 0:
        return "machines with a network each need root, for namespaces"
    overlay = "mount -t overlay overlay -o lowerdir=/etc,upperdir=/mnt/u,workdir=/mnt/w /etc"
    layers = f"mount -t tmpfs layers /mnt && mkdir /mnt/u /mnt/w && {overlay}"
    links = "ip link add trial0 type bridge && ip link add trial1 type veth peer name trial2"
    shaping = "tc qdisc add dev trial1 root tbf rate 1gbit burst 250000 latency 20ms"
    command = ["unshare", "--net", "--pid", "--mount", "--uts", "--ipc", "--fork", "--mount-proc", "sh", "-c"]
    tried = subprocess.run(
        [*command, f"hostname trial && {layers} && mount -t sysfs sysfs /sys && {links} && {shaping}"],
        env={"PATH": PATH}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return f"this machine refuses what machines need: {tried.stderr.strip()}" if tried.returncode else None


class Folder:
    """Make a folder that is removed at any end of this process."""

    _namespaces: Sequence[str] = ()

    def __init__(self, prefix: str = "machines-") -> None:
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        self.path.chmod(0o755)
        self._holder = subprocess.Popen(
            [*self._namespaces, "sh", "-c", scripts.HOLDER, "holder", str(self.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env={"PATH": PATH},
            start_new_session=True,  # Ctrl-C in the terminal is for pytest, which then closes the pipe
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        assert self._holder.stdin
        self._holder.stdin.close()
        try:
            self._holder.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._holder.kill()
            self._holder.wait()


class Network(Folder):
    """Make subnets on one bridge that no other network of machines has: `{x}` in them is a number of this network's own.

    This process's machine has the address .253 in each of them. All machines of a network hear each other.
    """

    _namespaces = ("unshare", "--net")

    def __init__(self, subnets: Sequence[str] = SUBNETS) -> None:
        super().__init__()
        self._taken = 0
        self.x = -1
        try:
            wait_until("the network has its namespace", self._is_apart)
            self.ip("link set lo up", "link add bridge type bridge", "link set bridge up")
            self.x, self._interface = self._plug_in()
            self.subnets = [subnet.format(x=self.x) for subnet in subnets]
            self.ip("link set uplink master bridge up")
            here = [f"address add {self.address(_THIS_MACHINE, i)} dev {self._interface}" for i in range(len(subnets))]
            _ip([], *here, f"link set {self._interface} up")
        except BaseException:
            self.close()
            raise

    def address(self, host: int, subnet: int = 0) -> str:
        """Return the host's address in a subnet, with the length of the prefix: "198.18.7.1/24"."""
        network, _, length = self.subnets[subnet].partition("/")
        return f"{network.rpartition('.')[0]}.{host}/{length}"

    def next_host(self) -> int:
        """Return a number that no machine has yet, from 1 on."""
        self._taken += 1
        if self._taken >= _THIS_MACHINE:
            raise MachineError(f"a network has at most {_THIS_MACHINE - 1} machines")
        return self._taken

    def ip(self, *changes: str) -> None:
        """Run these changes of `ip` where the bridge is."""
        _ip(["nsenter", f"--net={self.namespace}"], *changes)

    def tc(self, change: str) -> str:
        """Run `tc` with these words where the bridge is, and return its output."""
        return run("nsenter", f"--net={self.namespace}", "tc", *change.split())

    @property
    def namespace(self) -> str:
        return f"/proc/{self._holder.pid}/ns/net"

    def _is_apart(self) -> bool:
        return os.readlink(self.namespace) != os.readlink("/proc/self/ns/net")

    def close(self) -> None:
        if self.x >= 0:
            with suppress(MachineError):  # it goes with the namespace, too, but the kernel takes its time
                _ip([], f"link delete {self._interface}")
        super().close()

    def _plug_in(self) -> tuple[int, str]:
        """A number that no other network has, and this machine's interface to it: the interface's name is the lock."""
        for x in random.sample(range(256), 256):
            interface = f"lab{x}"
            try:
                _ip([], f"link add {interface} type veth peer name uplink netns {self._holder.pid}")
            except MachineError as exc:
                if "File exists" in str(exc):
                    continue
                raise
            return x, interface
        raise MachineError("all 256 networks for machines are taken")


def run(*argv: str, text: str | None = None) -> str:
    done = subprocess.run(argv, input=text, env={"PATH": PATH}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise MachineError(f"{' '.join(argv)}: {done.stderr.strip()}")
    return done.stdout


def _ip(before: Sequence[str], *changes: str) -> None:
    run(*before, "ip", "-batch", "-", text="".join(f"{change}\n" for change in changes))
