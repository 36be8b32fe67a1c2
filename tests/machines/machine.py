"""A machine for tests, in namespaces of its own: `with Network() as network, Machine("m1", network) as m1: m1.run("hostname")`.

It shares this machine's files, except for folders that are overlays on it (/etc by default), /run and the home of
its user. It has processes, a host name and addresses of its own, and a real sshd with a host key of its own. It ends when its
`with` block does, and when this process is killed.

To make something more of it (such as an instance of a cloud), derive from it or give it
    before      lines of shell that it runs when its network is up, before its sshd: `useradd`, `nft -f`, ...; they may start
                daemons of their own, with "&"
    overlays    the folders it may change, for itself: "/usr" to replace programs
    sshd        lines of sshd_config, which win over the usual ones
    addresses   instead of one that the network chooses, each with the length of its prefix; its sshd is looked for at the first
and, while it runs, use `run`, `popen` and `files`. A process on it that does `kill -TERM 1` switches it off: `ended()` is then
SWITCHED_OFF. Files in its `folder` may be written before `power_on`: authorized_keys, host_key (and host_key.pub), before.sh.
"""

import select
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pytest_dtfperf.node import processes
from pytest_dtfperf.testing.backends import PATIENCE_S, wait_until
from tests.machines import network as networks
from tests.machines import scripts
from tests.machines.network import PATH, MachineError, Network, list_missing

SWITCHED_OFF = 42
PORT = 22
_NAMESPACES = ("--net", "--pid", "--mount", "--uts", "--ipc", "--fork", "--kill-child", "--mount-proc")
_ENTER = {"--net": "net", "--mount": "mnt", "--uts": "uts", "--ipc": "ipc", "--pid": "pid_for_children"}
PACKAGES = {"sshd": "openssh-server", "ssh": "openssh-client", "ssh-keygen": "openssh-client"}
_BURST_S = 0.002  # of the full rate: a quarter of it halves a Gbit/s when the machine has other things to do
_LEAST_BURST = 16_000  # some frames at least
# So much TCP hands over at once, and a network card cuts it into frames. Where tbf must, for its burst is less, the cores do,
# and each frame is received by itself: that took more of them than the training of ResNet-50 whose bytes they were.
_SEGMENT = 80_000
_LONGEST_BURST_S = 0.01
_LAST_LINES = 12
_BIT_PER_S = {"gbit": 1_000_000_000, "mbit": 1_000_000, "kbit": 1_000}


def why_not() -> str | None:
    """Return why there cannot be such machines here, or None."""
    return list_missing(PACKAGES) or networks.why_not()


def make_key(path: Path, comment: str) -> str:
    """Write a new key, and return the line of its public half."""
    if not path.exists():
        networks.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path))
    return path.with_name(f"{path.name}.pub").read_text().strip()


def bit_per_s(rate: str) -> int:
    """Return the bit/s of a rate as tc writes it: "1gbit"."""
    return int(float(rate[:-4]) * _BIT_PER_S[rate[-4:]])


def compute_burst_bytes(rate_bit_per_s: float) -> int:
    """Return the bytes that a link of this rate may send at once."""
    whole = _SEGMENT if rate_bit_per_s * _LONGEST_BURST_S >= 8 * _SEGMENT else _LEAST_BURST
    return max(whole, round(rate_bit_per_s * _BURST_S / 8))


class Machine:
    """Run one machine, which is up within the `with` block, or from `power_on` to `close`."""

    can_be_cut_off = True  # that it has a link of its own

    def __init__(
        self,
        name: str,
        network: Network,
        addresses: Sequence[str] = (),
        *,
        authorized: Sequence[str] = (),
        hosts: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        programs: Mapping[str, str | None] | None = None,
        rate: str | None = None,
        disk: str | None = None,
        cpus: Sequence[int] = (),
        overlays: Sequence[str] = ("/etc",),
        before: str = "",
        sshd: Sequence[str] = (),
    ) -> None:
        """
        authorized   public keys of those who may log in
        hosts        other names with their addresses, which this machine shall know
        environment  what processes that come over ssh find in theirs, besides HOME, PATH and XDG_CACHE_HOME
        programs     name -> the text of an executable that comes first in PATH, or None: there is none of this name.
                     "python3" is this process's Python unless it stands here
        rate         what its link can do in each direction: "1gbit". None: whatever this machine can
        disk         the size of what its home is on, as mount takes it: "2m". None: this machine's disk
        cpus         which of this machine's cores it computes on; all, unless some are named
        """
        self.name = name
        self.network = network
        self.addresses = tuple(addresses) or (network.address(network.next_host()),)
        self.port = self._choose_port()
        self.user = self._choose_user()
        self.folder = network.path / name
        self.home = self.folder / "home"
        self.cache = self.home / ".cache"
        self.hosts: dict[str, str] = dict(hosts or {})
        self._authorized = authorized
        self._environment = environment or {}
        self._programs: dict[str, str | None] = {"python3": _run_instead(sys.executable), **(programs or {})}
        self._rate = rate
        self._disk = disk
        self._cpus = cpus
        hidden = [each for each, text in self._programs.items() if text is None]
        self._overlays = [*overlays, *(["/usr"] if hidden and "/usr" not in overlays else [])]
        self._before = "".join(f"rm -f /usr/bin/{each} /usr/local/bin/{each} /usr/sbin/{each}\n" for each in hidden) + before
        self._sshd = sshd
        self._shell: subprocess.Popen[bytes] | None = None
        self.first = 0  # its first process, by its id here
        self.link = f"{name[:8]}-{network.next_host() if addresses else self.address.rpartition('.')[2]}"
        self.folder.mkdir()
        self._write_files()

    @property
    def address(self) -> str:
        """Return the address of its sshd."""
        return self.addresses[0].partition("/")[0]

    @property
    def host_key(self) -> str:
        """Return its public host key: "ssh-ed25519 AAAA..."."""
        return " ".join((self.folder / "host_key.pub").read_text().split()[:2])

    @property
    def files(self) -> Path:
        """Return the root of all files as this machine has them."""
        return Path(f"/proc/{self.first}/root")

    # Up and down.

    def __enter__(self) -> Self:
        self.power_on()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def power_on(self) -> None:
        """Start it, and return when its sshd listens. It is the same machine as before, except for its overlays, which are
        new."""
        self.boot()
        self.wait_for_sshd()

    def boot(self) -> None:
        """Start it, and return when it is on the network, before its sshd listens."""
        self._write_changing_files()
        environment = {"PATH": PATH, "HOME": str(self.home), "LANG": "C.UTF-8"}
        with (self.folder / "console.log").open("ab") as log:
            self._shell = subprocess.Popen(
                [*self._on_cpus(), "unshare", *_NAMESPACES, "bash", f"{self.folder}/machine.sh", str(self.folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C in the terminal is for pytest
                bufsize=0,
            )
        assert self._shell.stdin
        try:
            self._read_progress("ready")
            (self.first,) = (
                child.pid for child in processes.list_descendants(self._shell.pid) if child.parent == self._shell.pid
            )
            self.network.ip(
                f"link add {self.link} type veth peer name eth0 address {_mac(self.address)} netns {self._shell.pid}",
                f"link set {self.link} master bridge up",
            )
            if self._rate:
                self.shape(self._rate)
            self._shell.stdin.write(b"go\n")
        except BaseException:
            self.power_off()
            raise

    def wait_for_sshd(self) -> None:
        self._read_progress("up")  # who asks for its address before it has one waits a second before asking again
        wait_until(f"sshd of {self.name} listens", self._listens)

    def power_off(self) -> None:
        """Unplug it, so that its end is not noticed on the network, and end everything on it."""
        if self._shell:
            self._silence()
            self._end()

    def close(self) -> None:
        """End everything on it, and remove its files."""
        if self._shell:
            self._end()
        shutil.rmtree(self.folder, ignore_errors=True)

    def begin_to_end(self) -> None:
        """Begin the end that `close` waits for, so that several machines can end at once."""
        if self._shell:
            self._shell.kill()

    def poll(self) -> int | None:
        """Return None while it is up, and SWITCHED_OFF if it switched itself off."""
        return self._shell.poll() if self._shell else -1

    # What tests do with it.

    def popen(self, *argv: str, **options: Any) -> subprocess.Popen[bytes]:
        """Start a command on it, as root, without ssh."""
        assert self._shell
        enter = ["nsenter", *(f"{option}=/proc/{self._shell.pid}/ns/{file}" for option, file in _ENTER.items()), "--"]
        environment = {"PATH": PATH, "HOME": str(self.home), "LANG": "C.UTF-8"}
        return subprocess.Popen([*enter, *argv], **{"stdin": subprocess.DEVNULL, "env": environment, **options})

    def run(self, *argv: str, text: str | None = None) -> str:
        """Run a command that must succeed on it, and return its output. `text` is its stdin."""
        pipe = subprocess.PIPE
        with self.popen(*argv, stdin=pipe, stdout=pipe, stderr=pipe) as process:
            out, err = process.communicate((text or "").encode(), timeout=PATIENCE_S)
        if process.returncode:
            raise self._error(f"{shlex.join(argv)} left with exit code {process.returncode}: {err.decode(errors='replace')}")
        return out.decode()

    def processes(self, pattern: str = "") -> list[int]:
        """Return its living processes, by their ids here, with the text in their command line or environment."""
        living = [process.pid for process in processes.list_descendants(self.first)]
        return [pid for pid in living if pattern in _text(pid, "cmdline") or pattern in _text(pid, "environ")]

    def sessions(self) -> list[int]:
        """Return the processes of logged-in users: all but the listening sshd."""
        living = processes.list_descendants(self.first)
        listeners = {each.pid for each in living if "[listener]" in _text(each.pid, "cmdline")}
        children = {each.pid for each in living if each.parent in listeners}  # who was just forked still has its parent's title
        return [each.pid for each in living if each.pid not in listeners - children]

    def link_down(self) -> None:
        """Pull the cable: nothing that is sent arrives, and no error is sent back."""
        self.network.ip(f"link set {self.link} down")

    def link_up(self) -> None:
        self.network.ip(f"link set {self.link} up")

    def shape(self, rate: str | float, *, inwards: bool = True, outwards: bool = True) -> None:
        """Limit its link to this rate, "1gbit" or so many bit/s, in each direction or in one."""
        bits = bit_per_s(rate) if isinstance(rate, str) else rate
        tbf = f"root tbf rate {bits:.0f}bit burst {compute_burst_bytes(bits)} latency 20ms"
        if inwards:
            self.network.tc(f"qdisc replace dev {self.link} {tbf}")
        if outwards:
            self.tc(f"qdisc replace dev eth0 {tbf}")

    def shape_towards(self, address: str, rate: str | float, usual: str) -> None:
        """Limit its link to `rate` for one address, and to `usual` for all others."""
        self.tc("qdisc replace dev eth0 root handle 1: htb default 10")
        for name, each in (("10", usual), ("20", rate)):
            bits = bit_per_s(each) if isinstance(each, str) else each
            burst = compute_burst_bytes(bits)
            self.tc(f"class add dev eth0 parent 1: classid 1:{name} htb rate {bits:.0f}bit burst {burst} cburst {burst}")
        self.tc(f"filter add dev eth0 parent 1: protocol ip prio 1 u32 match ip dst {address}/32 flowid 1:20")

    def tc(self, change: str) -> str:
        """Run `tc` with these words in its network, where its link is eth0, and return its output."""
        assert self._shell
        return networks.run("nsenter", f"--net=/proc/{self._shell.pid}/ns/net", "tc", *change.split())

    # What it is made of.

    def _write_files(self) -> None:
        for name in ("home", "skeleton", "layers", "bin"):
            (self.folder / name).mkdir()
        (self.folder / "machine.sh").write_text(scripts.MACHINE)
        make_key(self.folder / "host_key", self.name)
        (self.folder / "authorized_keys").write_text("".join(f"{key}\n" for key in self._authorized))
        for name, text in self._programs.items():
            if text is not None:
                _write_program(self.folder / "bin" / name, text)
        home = self.folder / ("skeleton" if self._disk else "home")
        # A login shell's /etc/profile forgets what sshd said.
        (home / ".profile").write_text(f'PATH="{self.folder}/bin:$PATH"\n')
        environment = {
            "HOME": str(self.home),
            "XDG_CACHE_HOME": str(self.cache),
            "PATH": f"{self.folder}/bin:/usr/local/bin:/usr/bin:/bin",
            **self._environment,
        }
        config = scripts.format_sshd_config(self.folder, self._listens_on(), self.port, environment, self._sshd)
        (self.folder / "sshd_config").write_text(config)

    def _on_cpus(self) -> list[str]:
        return ["taskset", "--cpu-list", ",".join(map(str, self._cpus))] if self._cpus else []

    def _choose_port(self) -> int:
        return PORT

    def _listens_on(self) -> str:
        return "0.0.0.0"  # of its own network

    def _choose_user(self) -> str:
        return "root"

    def _write_changing_files(self) -> None:
        names = {"localhost": "127.0.0.1", **self.hosts, self.name: self.address}
        (self.folder / "hosts").write_text("".join(f"{address} {name}\n" for name, address in names.items()))
        settings = {"name": self.name, "addresses": " ".join(self.addresses), "overlays": " ".join(self._overlays)}
        (self.folder / "settings").write_text(scripts.format_settings({**settings, "disk": self._disk or ""}))
        if self._before:
            (self.folder / "before.sh").write_text(self._before)

    def _read_progress(self, word: str) -> None:
        """Wait for the next line of its first process."""
        assert self._shell
        assert self._shell.stdout
        if (
            not select.select([self._shell.stdout], [], [], PATIENCE_S)[0]
            or self._shell.stdout.readline() != f"{word}\n".encode()
        ):
            raise self._error(f"it did not come as far as {word!r}")

    def _silence(self) -> None:
        try:
            self.network.ip(f"link delete {self.link}")
        except MachineError:  # it is about to end by itself
            return

    def _listens(self) -> bool:
        assert self._shell
        if self._shell.poll() is not None:
            raise self._error("it has ended")
        with socket.socket() as probe:
            probe.settimeout(1.0)
            return probe.connect_ex((self.address, self.port)) == 0

    def _end(self) -> None:
        assert self._shell
        self.begin_to_end()
        self._shell.wait()
        wait_until(f"everything on {self.name} has ended", lambda: _is_dead(self.first))
        self._let_go()

    def _let_go(self) -> None:
        assert self._shell
        assert self._shell.stdin
        assert self._shell.stdout
        self._shell.stdin.close()
        self._shell.stdout.close()
        self._shell = None

    def _error(self, what: str) -> MachineError:
        output = [f"{log.name}: {line}" for log in sorted(self.folder.glob("*.log")) for line in _last_lines(log)]
        return MachineError("\n".join([f"{self.name}: {what}", *output]))


def _is_dead(pid: int) -> bool:
    found = processes.inspect(pid)  # a zombie until this machine's first process, now its parent, cares
    return found is None or found.state == "Z"


def _mac(address: str) -> str:
    """A machine that is switched on again is known to the others by the same hardware address."""
    return "02:00:" + ":".join(f"{int(part):02x}" for part in address.split("."))


def _run_instead(program: str) -> str:
    return f'#!/bin/sh\nexec {shlex.quote(program)} "$@"\n'


def _write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def _last_lines(log: Path) -> list[str]:
    return log.read_text(errors="replace").splitlines()[-_LAST_LINES:]


def _text(pid: int, file: str) -> str:
    try:
        return Path(f"/proc/{pid}/{file}").read_text(errors="replace").replace("\0", " ")
    except OSError:  # it has just ended
        return ""
