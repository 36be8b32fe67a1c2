"""One machine as ssh reaches it, and the command that does. Pure."""

import math
import shlex
from dataclasses import dataclass

# Before what the user's files say, and ssh takes the first that it finds.
ALWAYS = (
    "-T",  # no terminal: it would change bytes, and outlive nothing
    "-x",
    "-o", "BatchMode=yes",  # nobody is there to answer
    "-o", "StrictHostKeyChecking=yes",
    "-o", "NoHostAuthenticationForLocalhost=no",
    "-o", "UpdateHostKeys=no",  # many at once would write the user's file at once
    "-o", "ServerAliveInterval=5",
    "-o", "ServerAliveCountMax=3",  # a connection that is half open ends within 20 s
    "-o", "ConnectionAttempts=1",  # who starts it knows whether another helps
    "-o", "ControlMaster=no",
    "-o", "ControlPath=none",
    "-o", "ClearAllForwardings=yes",
    "-o", "ForwardAgent=no",
    "-o", "Tunnel=no",
    "-o", "PermitLocalCommand=no",  # what it prints would come out with what the host says
    "-o", "RequestTTY=no",
    "-o", "RemoteCommand=none",
    "-o", "VisualHostKey=no",
    "-o", "LogLevel=INFO",  # with less it does not say that a connection was closed
)  # fmt: skip


@dataclass(frozen=True)
class Endpoint:
    """One machine, as ssh reaches it and as tasks reach each other."""

    name: str  # for people: the alias, or an instance's id
    target: str  # what ssh is told: [user@] alias, host name or address
    address: str | None = None  # by which the tasks reach each other; None: found out from the host itself
    options: tuple[str, ...] = ()  # further arguments of ssh: ("-p", "2201", "-o", "HostKeyAlias=i-0123")


def ssh_argv(endpoint: Endpoint, connect_s: float, command: str) -> list[str]:
    """The command that runs `command` in the host's login shell, its stdin and stdout connected with this one's."""
    return [
        "ssh",
        *ALWAYS,
        "-o",
        f"ConnectTimeout={max(1, math.ceil(connect_s))}",
        *endpoint.options,
        "--",
        endpoint.target,
        command,
    ]


def by_hand(endpoint: Endpoint, command: str | None = None) -> str:
    """What a person would type to try the same connection, and answer its questions."""
    return shlex.join(["ssh", *endpoint.options, endpoint.target, *([command] if command else [])])
