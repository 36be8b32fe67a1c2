"""Keep other hosts from the ports of tasks: by a network namespace, or by a firewall.

TensorFlow's servers listen on all addresses of their host and execute the requests of any client. Tasks on one machine get a
network namespace with a loopback interface and nothing else: no other host can connect, and tasks reach each other over its
loopback as fast as over the host's.

    pytest - starts -> this module, or as root a thread: makes the namespace, passes its files on and ends
           - starts, with the files -> agent - passes them on -> zygote - forks -> task: enters before it has a second thread

Only tasks enter. Agent and zygote stay outside and listen on no port: their reports are those of the host, and the next task
may be an external command, which may need the network. The namespace ends with the last process and file that refers to it.
Other users than root need a user namespace around it, in which the user may create networks; tasks give up that right when they
enter. Not every machine allows this.

    python -m pytest_dtfperf.node.isolation [FD]    make one, and send its files over this Unix socket, or fail with the reason

Tasks on several hosts get a firewall on each: while it exists, only the run's hosts connect to the ports. It is a table of
nftables with `flags owner`: the kernel removes it when the process that made it ends, so that nothing must be cleaned up. The
host's own rules are not changed: packets that this table accepts, they may still drop. Only root may create it, and
libnftables, which comes with the program nft, must be installed.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import socket
import struct
import sys
from collections.abc import Iterable, MutableMapping, Sequence
from contextlib import suppress

FILES = "DTFPERF_NETWORK"  # in an agent's environment: the numbers of both open files
NAMESPACES = ("user", "net")  # in the order in which they are entered
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000  # linux/sched.h
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1  # linux/sockios.h, linux/if.h
_IFREQ = "16sh22x"  # struct ifreq: the interface's name, its flags
_CAPABILITY_VERSION_3 = 0x20080522  # linux/capability.h

_libc = ctypes.CDLL(None, use_errno=True)


class IsolationUnavailable(Exception):
    """This machine does not allow this user a network namespace; the message has the reason."""


def make() -> None:
    """Move this process, which has one thread, into a new network with a loopback. Raises `IsolationUnavailable`."""
    try:
        if not (os.geteuid() == 0 and _unshare(_CLONE_NEWNET)):  # root in a container may have no right to either
            _unshare_as_user()
        _raise_loopback()
    except OSError as exc:
        raise IsolationUnavailable(_explain(exc)) from exc


def make_in_thread() -> list[int]:
    """Return the files of a new network that root creates in a short-lived thread; empty for other users.

    A thread can have its own network. Other users need a user namespace around it, which a process with several threads cannot
    enter.

    Raises:
        IsolationUnavailable: The kernel refuses.
    """
    import threading  # no agent needs it

    files: list[int] = []
    failed: list[OSError] = []

    def work() -> None:
        try:
            if os.geteuid() == 0 and _unshare(_CLONE_NEWNET):
                _raise_loopback()
                files.extend(_open_namespaces("thread-self"))
        except OSError as exc:
            failed.append(exc)

    thread = threading.Thread(target=work, name="dtfperf-isolation")
    thread.start()
    thread.join()
    if failed:
        raise IsolationUnavailable(_explain(failed[0])) from failed[0]
    return files


def enter(user: int, net: int) -> None:
    """Move this process, which has one thread, into the namespaces of these open files. Raises `OSError`."""
    as_user = not os.path.samestat(os.fstat(user), os.stat("/proc/self/ns/user"))
    if as_user:  # else its maker was root, and to enter one's own user namespace is refused
        _check(_libc.setns(user, _CLONE_NEWUSER))
    _check(_libc.setns(net, _CLONE_NEWNET))
    if as_user:
        _give_up_rights()


def take_inherited_files(environment: MutableMapping[str, str]) -> tuple[int, ...]:
    """Return the namespace files that this process was started with, which its children do not inherit; empty if none."""
    files = tuple(map(int, environment.pop(FILES, "").split()))
    for file in files:
        os.set_inheritable(file, False)
    return files


def _open_namespaces(process: str) -> list[int]:
    return [os.open(f"/proc/{process}/ns/{name}", os.O_RDONLY) for name in NAMESPACES]


def _unshare(flags: int) -> bool:
    """Return whether the kernel allows these new namespaces. Raises `OSError` for other failures."""
    with suppress(PermissionError):
        _check(_libc.unshare(flags))
        return True
    return False


def _unshare_as_user() -> None:
    """Enter a user namespace with only this user, and a network namespace in it."""
    user, group = os.geteuid(), os.getegid()
    _check(_libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET))
    # Without "deny", a user could leave a group that keeps files from its members: only then may users map groups.
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        seen = fcntl.ioctl(any_socket, _SIOCGIFFLAGS, struct.pack(_IFREQ, b"lo", 0))
        _, flags = struct.unpack(_IFREQ, seen)
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack(_IFREQ, b"lo", flags | _IFF_UP))


def _give_up_rights() -> None:
    """Drop all capabilities, with which the process could change its network and write all its user's files."""
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)  # of this process
    _check(_libc.capset(header, bytes(2 * 3 * 4)))  # no effective, permitted and inheritable ones, in two words each


def _check(code: int) -> None:
    if code:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _explain(exc: OSError) -> str:
    """Return the reason of a failure, for messages."""
    if exc.errno == errno.ENOSPC:
        return "there may be no more namespaces (/proc/sys/user)"
    if exc.errno in (errno.EPERM, errno.EACCES):
        return "namespaces are not allowed to this user" if os.geteuid() else "namespaces are not allowed in this container"
    return f"this kernel makes no namespaces: {exc.strerror or exc}"


def main() -> None:
    try:
        make()
    except IsolationUnavailable as exc:
        raise SystemExit(str(exc)) from None
    if len(sys.argv) > 1:
        with socket.socket(fileno=int(sys.argv[1])) as line:
            socket.send_fds(line, [b"made"], _open_namespaces("self"))


if __name__ == "__main__":
    main()


TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LIBRARY = "libnftables.so.1"
# Before the host's own filter at priority 0. To accept a packet here only means to ask the next table.
_TABLE = """
table inet {name} {{
    flags owner;
    set ports {{ type inet_service; {ports} }}
    set peers4 {{ type ipv4_addr; {peers4} }}
    set peers6 {{ type ipv6_addr; {peers6} }}
    chain guard {{
        type filter hook input priority -10; policy accept;
        iif lo accept
        ip saddr != @peers4 tcp dport @ports drop
        ip6 saddr != @peers6 tcp dport @ports drop
    }}
}}
"""


class FirewallUnavailable(Exception):
    """The firewall cannot be set up here; the message has the reason."""


class Firewall:
    """A firewall, set up when it is created and removed by `close` or at this process's end."""

    def __init__(self, run: str, ports: Sequence[int], peers: Iterable[str]) -> None:
        """Set up the firewall.

        Args:
            run: The id of the run.
            ports: The ports to protect.
            peers: Addresses that may connect, IPv4 and IPv6. This host may always connect over its loopback.

        Raises:
            FirewallUnavailable: This process may not, or nftables is not installed or refuses.
        """
        if os.geteuid() != 0:
            raise FirewallUnavailable("only root may set up nftables")
        self._nftables = _load_library()
        self._context = self._nftables.nft_ctx_new(0)
        if not self._context:
            raise FirewallUnavailable("nftables does not answer")
        self._nftables.nft_ctx_buffer_error(self._context)
        if self._nftables.nft_run_cmd_from_buffer(self._context, _make_table(run, ports, peers).encode()):
            output = self._nftables.nft_ctx_get_error_buffer(self._context).decode(errors="replace")
            self.close()
            raise FirewallUnavailable(f"nftables refuses: {' '.join(output.split())}")

    def close(self) -> None:
        context, self._context = self._context, None
        if context:
            self._nftables.nft_ctx_free(context)


def explain_missing_firewall() -> str | None:
    """Return why this process cannot set up a firewall, or None after a successful trial."""
    try:
        Firewall("trial", [], []).close()
    except FirewallUnavailable as exc:
        return str(exc)
    return None


def _make_table(run: str, ports: Iterable[int], peers: Iterable[str]) -> str:
    """Return the rules. Ports and addresses are parsed first: other hosts report the peers, and root runs this program."""
    import ipaddress

    found = {ipaddress.ip_address(peer.partition("%")[0]) for peer in peers}
    return _TABLE.format(
        # In containers of one host, agents may have the same process id.
        name=f"dtfperf_{os.getpid()}_{''.join(letter for letter in run if letter.isalnum())}_{os.urandom(4).hex()}",
        ports=_format_elements(map(int, ports)),
        peers4=_format_elements(sorted(each for each in found if each.version == 4)),
        peers6=_format_elements(sorted(each for each in found if each.version == 6)),
    )


def _format_elements(values: Iterable[object]) -> str:
    listed = ", ".join(map(str, values))
    return f"elements = {{ {listed} }}" if listed else ""


def _load_library() -> Any:
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError as exc:
        raise FirewallUnavailable(f"{_LIBRARY} is not installed (Debian package nftables)") from exc
    library.nft_ctx_new.restype = ctypes.c_void_p
    library.nft_ctx_new.argtypes = [ctypes.c_uint32]
    for name in ("nft_ctx_buffer_error", "nft_ctx_free", "nft_ctx_get_error_buffer"):
        getattr(library, name).argtypes = [ctypes.c_void_p]
    library.nft_ctx_get_error_buffer.restype = ctypes.c_char_p
    library.nft_run_cmd_from_buffer.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    return library
