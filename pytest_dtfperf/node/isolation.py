"""A network for the tasks of one session alone: a network namespace that has a loopback interface and nothing else.

TensorFlow's servers listen on all addresses of their host and execute whatever any client asks. In a namespace of
their own no other host connects, and tasks reach each other over its loopback as fast as over any other.

    pytest - starts -> this module, or of root a thread: makes the namespace, hands its files over and ends
           - starts, with the files -> agent - hands them on -> zygote - forks -> task: enters before it has a second thread

Only tasks enter. Agent and zygote stay outside and listen to no port: what they report of the host is then the host's, and the
next task can be an external command, which may need the world. The namespace goes with the last process and file that holds it.
Without root it needs a user namespace around it, in which the same user has the right to make networks; it is given up on
entering. Not every machine allows that to users.

    python -m pytest_dtfperf.node.isolation [FD]    make one, and send its files over this Unix socket, or the reason
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import socket
import struct
import sys
from collections.abc import MutableMapping
from contextlib import suppress

FILES = "DTFPERF_NETWORK"  # in an agent's environment: the numbers of both open files
NAMESPACES = ("user", "net")  # in the order in which they are entered
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000  # linux/sched.h
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1  # linux/sockios.h, linux/if.h
_IFREQ = "16sh22x"  # struct ifreq: the interface's name, its flags
_CAPABILITY_VERSION_3 = 0x20080522  # linux/capability.h

_libc = ctypes.CDLL(None, use_errno=True)


class IsolationUnavailable(Exception):
    """This machine does not let this user have it; the text has the reason."""


def make() -> None:
    """Move this process, which has one thread, into a new network with its loopback up. Raises `Impossible`."""
    try:
        if not (os.geteuid() == 0 and _unshare(_CLONE_NEWNET)):  # root in a container may have no right to either
            _unshare_as_user()
        _raise_loopback()
    except OSError as exc:
        raise IsolationUnavailable(_why_not(exc)) from exc


def made_in_a_thread() -> list[int]:
    """Return the files of a new network that root makes without a process for it, in a thread that ends; of others, none.

    A thread's network is its own, while users need a user namespace around it, which a process of several threads cannot enter.
    Raises `Impossible`.
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
        raise IsolationUnavailable(_why_not(failed[0])) from failed[0]
    return files


def enter(user: int, net: int) -> None:
    """Move this process, which has one thread, into the namespaces of these open files. Raises `OSError`."""
    as_user = not os.path.samestat(os.fstat(user), os.stat("/proc/self/ns/user"))
    if as_user:  # else its maker was root, and to enter one's own user namespace is refused
        _check(_libc.setns(user, _CLONE_NEWUSER))
    _check(_libc.setns(net, _CLONE_NEWNET))
    if as_user:
        _give_up_rights()


def files_given(environment: MutableMapping[str, str]) -> tuple[int, ...]:
    """Return the files that this process was started with, which it then keeps to itself; none, if it was not."""
    files = tuple(map(int, environment.pop(FILES, "").split()))
    for file in files:
        os.set_inheritable(file, False)
    return files


def _open_namespaces(process: str) -> list[int]:
    return [os.open(f"/proc/{process}/ns/{name}", os.O_RDONLY) for name in NAMESPACES]


def _unshare(flags: int) -> bool:
    """False where that is not allowed. Raises `OSError` for all else."""
    with suppress(PermissionError):
        _check(_libc.unshare(flags))
        return True
    return False


def _unshare_as_user() -> None:
    """Enter a user namespace as well, in which this user is the only one."""
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
    """Drop all capabilities. In a user namespace, a process has all: to change its network, and to write its user's files."""
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)  # of this process
    _check(_libc.capset(header, bytes(2 * 3 * 4)))  # no effective, permitted and inheritable ones, in two words each


def _check(code: int) -> None:
    if code:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _why_not(exc: OSError) -> str:
    """The kernel's word, and whom to ask."""
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
