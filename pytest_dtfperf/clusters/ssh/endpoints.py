"""The hosts of a cluster as ssh reaches them: read from clusters.toml and the files it names, and the command that connects.

Nothing here connects to a host.
"""

import math
import shlex
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from pytest_dtfperf.clusters import local
from pytest_dtfperf.clusters.capacity import require_hosts
from pytest_dtfperf.clusters.named import ClusterConfig, get_python
from pytest_dtfperf.clusters.protocol import Resources
from pytest_dtfperf.clusters.ssh import keys as keys
from pytest_dtfperf.clusters.ssh.bootstrap import get_connect_s
from pytest_dtfperf.errors import ClusterFileError, UsageError, describe_unknown_name
from pytest_dtfperf.formats import format_count
from pytest_dtfperf.node import interfaces
from pytest_dtfperf.node.files import read_text
from pytest_dtfperf.node.module_command import make_module_command

# Arguments before the user's files, because ssh takes the first value that it finds.
SSH_OPTIONS = (
    "-T",  # no terminal, which would change bytes
    "-x",
    "-o", "BatchMode=yes",  # no user is there to answer
    "-o", "StrictHostKeyChecking=yes",
    "-o", "NoHostAuthenticationForLocalhost=no",
    "-o", "UpdateHostKeys=no",  # many at once would write the user's file at once
    "-o", "ServerAliveInterval=5",
    "-o", "ServerAliveCountMax=3",  # a connection that is half open ends within 20 s
    "-o", "ConnectionAttempts=1",  # the caller decides whether to try again
    "-o", "ControlMaster=no",
    "-o", "ControlPath=none",
    "-o", "ClearAllForwardings=yes",
    "-o", "ForwardAgent=no",
    "-o", "Tunnel=no",
    "-o", "PermitLocalCommand=no",  # its output would mix with the host's
    "-o", "RequestTTY=no",
    "-o", "RemoteCommand=none",
    "-o", "VisualHostKey=no",
    "-o", "LogLevel=INFO",  # with less, ssh does not report that a connection was closed
)  # fmt: skip


@dataclass(frozen=True)
class Endpoint:
    """One machine: how ssh reaches it, and how tasks reach each other."""

    name: str  # for messages: the alias, or an instance's id
    target: str  # argument of ssh: [user@] alias, host name or address
    address: str | None = None  # by which the tasks reach each other; None: the host reports it
    options: tuple[str, ...] = ()  # further arguments of ssh: ("-p", "2201", "-o", "HostKeyAlias=i-0123")


def make_ssh_argv(endpoint: Endpoint, connect_s: float, command: str) -> list[str]:
    """Return the command that runs `command` in the host's login shell, its stdin and stdout connected with this one's."""
    return [
        "ssh",
        *SSH_OPTIONS,
        "-o",
        f"ConnectTimeout={max(1, math.ceil(connect_s))}",
        *endpoint.options,
        "--",
        endpoint.target,
        command,
    ]


def format_command(endpoint: Endpoint, command: str | None = None) -> str:
    """Return the command with which a user can try the same connection and answer its questions."""
    return shlex.join(["ssh", *endpoint.options, endpoint.target, *([command] if command else [])])


_AT_ONCE = 16  # processes of ssh that read its files, some milliseconds each
_READ_S = 10.0  # the user's files may run programs (Match exec)
_FILE_OPTIONS = ("userknownhostsfile", "globalknownhostsfile", "certificatefile", "revokedhostkeys")


_WHICH_HOSTS = ("hosts", "nodes_file", "public_ips", "private_ips")  # keys


def list_endpoints(config: ClusterConfig) -> list[Endpoint]:
    """Return all endpoints in their order. Reads the files that the cluster names. Raises `ClusterFileError`."""
    options = tuple(_make_options(config))
    return [replace(each, options=(*_make_user_options(config, each.target), *options)) for each in _read_endpoints(config)]


def select_hosts(config: ClusterConfig, names: str) -> ClusterConfig:
    """Return the cluster with only these hosts ("node03,node07"), in its own order. Raises `UsageError`, `ClusterFileError`."""
    wanted = [name.strip() for name in names.split(",")]
    machines = _read_endpoints(config)
    for name in wanted:
        if all(name not in (each.name, each.target) for each in machines):
            raise UsageError(describe_unknown_name(f"host of cluster {config.name!r}", name, [each.name for each in machines]))
    chosen = [each for each in machines if each.name in wanted or each.target in wanted]
    addresses = {each.target: each.address for each in chosen if each.address}
    others = {key: value for key, value in config.backend_keys.items() if key not in _WHICH_HOSTS}
    given = {"private_address": addresses} if addresses else {}
    return replace(config, backend_keys={**others, "hosts": [each.target for each in chosen], **given})


def count_hosts(config: ClusterConfig) -> int | None:
    """Return the number of hosts; None if it is not fixed. Raises `ClusterFileError` for a file without it."""
    return len(_read_endpoints(config))


def list_commands(config: ClusterConfig, resources: Resources) -> list[str]:
    """Return the commands that would run for these resources, for display."""
    wanted = require_hosts(config, resources, "hosts or gpus_per_host")
    program = " ".join(make_module_command(get_python(config), "pytest_dtfperf.node.agent"))
    start = make_ssh_argv(Endpoint("", ""), get_connect_s(config), "")[: -len(("--", "", ""))]
    return [
        f"SSH={shlex.quote(shlex.join(start))}",
        *(f"$SSH {shlex.join([*each.options, '--', each.target, program])}" for each in list_endpoints(config)[:wanted]),
    ]


def list_machines(config: ClusterConfig) -> list[str]:
    """Return the machines by address and port, independent of their names in clusters and in ssh's files."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return sorted(set(pool.map(_identify_machine, list_endpoints(config))))


@cache
def _identify_machine(endpoint: Endpoint) -> str:
    given = _read_ssh_config(endpoint)
    name, port = given.get("hostname", _strip_user(endpoint.target)).lower(), given.get("port", "22")
    if given.keys() & {"proxyjump", "proxycommand"}:  # the jump host resolves the name
        return f"host-{name}:{port}"
    address = _resolve_name(name)
    if port == "22" and (address in interfaces.list_addresses() or address.startswith("127.") or address == "::1"):
        return local.get_machine()[0]
    return f"host-{address}:{port}"


def _read_ssh_config(endpoint: Endpoint) -> dict[str, str]:
    """Return ssh's configuration of a target; empty if ssh reports none: connecting then shows the error."""
    try:
        argv = ["ssh", "-G", *endpoint.options, "--", endpoint.target]
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_READ_S, check=False)
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return {}
    return {key: value for key, _, value in (line.partition(" ") for line in done.stdout.splitlines()) if value != "none"}


def _resolve_name(name: str) -> str:
    try:
        return str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:  # connecting reports it
        return name


def _read_endpoints(config: ClusterConfig) -> list[Endpoint]:
    """Return the endpoints without options."""
    backend_keys = config.backend_keys
    if "nodes_file" in backend_keys:
        return _read_nodes_file(_resolve_path(config, backend_keys["nodes_file"]))
    if "public_ips" in backend_keys:
        return _read_ip_files(
            _resolve_path(config, backend_keys["public_ips"]), _resolve_path(config, backend_keys["private_ips"])
        )
    given = backend_keys.get("private_address")
    addresses = given if isinstance(given, dict) else {}
    return [Endpoint(_strip_user(each), each, addresses.get(each)) for each in keys.list_hosts(backend_keys["hosts"])]


def _read_nodes_file(path: Path) -> list[Endpoint]:
    """Read tfperftest's file: each line has the address for tasks, and ssh's name of the same machine."""
    lines: dict[int, list[str]] = {}
    for number, line in _read_lines(path):
        if parts := line.partition("#")[0].split():
            if len(parts) != 2:
                raise _make_line_error(
                    path, number, f'must be an address and what ssh calls the host, "10.0.0.3 node3", not {line!r}'
                )
            lines[number] = parts
    if not lines:
        raise ClusterFileError(f'{path} names no host: each line must be like "10.0.0.3 node3"')
    _check_names(path, {number: address for number, (address, _) in lines.items()}, keys.is_address)
    _check_names(path, {number: alias for number, (_, alias) in lines.items()}, keys.is_host)
    return [Endpoint(_strip_user(alias), alias, address) for address, alias in lines.values()]


def _read_ip_files(public: Path, private: Path) -> list[Endpoint]:
    """Read the two files of addresses: line i of both is the same machine."""
    outside, inside = _read_ip_file(public), _read_ip_file(private)
    if len(outside) != len(inside):
        raise ClusterFileError(
            f"{public} has {format_count(len(outside), 'line')} and {private} has {len(inside)}, "
            f"but line i of both is the same machine: line {min(len(outside), len(inside)) + 1} has no counterpart"
        )
    return [Endpoint(reached, reached, address) for reached, address in zip(outside, inside, strict=True)]


def _read_ip_file(path: Path) -> list[str]:
    """Read one address per line. Other content is an error, because it would shift the lines of the two files."""
    lines = dict(_read_lines(path))
    for number, line in lines.items():
        if not line.strip():
            raise _make_line_error(path, number, "is empty, but line i is machine i: remove it")
        if line != line.strip() or len(line.split()) > 1:
            raise _make_line_error(path, number, f"must be one address without blanks, not {line!r}")
    if not lines:
        raise ClusterFileError(f"{path} is empty: each line must be the address of one machine")
    _check_names(path, lines, keys.is_address)
    return list(lines.values())


def _read_lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        text = read_text(path, "utf-8-sig")  # some editors write a byte order mark
    except OSError as exc:
        raise ClusterFileError(f"cannot read {path}: {exc.strerror}") from exc
    return enumerate(text.splitlines(), start=1)


def _check_names(path: Path, names: Mapping[int, str], is_right: Callable[[str], bool]) -> None:
    """Check that each line's name is valid and unique."""
    seen: dict[str, int] = {}
    for number, name in names.items():
        if not is_right(name):
            raise _make_line_error(path, number, f"{name!r} is neither a name nor an address: letters, digits and . - _ : %")
        if name.lower() in seen:
            raise _make_line_error(path, number, f"{name!r} is in line {seen[name.lower()]} already")
        seen[name.lower()] = number


def _make_line_error(path: Path, number: int, what: str) -> ClusterFileError:
    return ClusterFileError(f"{path}, line {number}: {what}")


def _strip_user(target: str) -> str:
    return target.rpartition("@")[2]


def _make_user_options(config: ClusterConfig, target: str) -> tuple[str, ...]:
    """Return the options for the user; none if the host has its own in `user@`."""
    return ("-l", config.backend_keys["user"]) if "user" in config.backend_keys and "@" not in target else ()


def _make_options(config: ClusterConfig) -> Iterator[str]:
    backend_keys = config.backend_keys
    if "ssh_config" in backend_keys:
        yield from ("-F", str(_find_file(config, "ssh_config")))
    if "port" in backend_keys:
        yield from ("-p", str(backend_keys["port"]))
    for option in backend_keys.get("options", ()):
        yield from ("-o", _resolve_option(config, option))
    if "identity_file" in backend_keys:  # and no other key of an ssh-agent: sshd accepts six tries
        yield from ("-i", str(_find_file(config, "identity_file")), "-o", "IdentitiesOnly=yes")


def _find_file(config: ClusterConfig, key: str) -> Path:
    """Return the file of a key. Without this check, ssh goes on without the file and reports the host."""
    path = _resolve_path(config, config.backend_keys[key])
    if not path.is_file():
        raise ClusterFileError(f"cluster {config.name!r} has {key} = {config.backend_keys[key]!r}, but there is no file {path}")
    return path


def _resolve_path(config: ClusterConfig, given: str) -> Path:
    with suppress(RuntimeError):  # `~` of a user who does not exist here: a name like any other
        given = str(Path(given).expanduser())
    return (config.file.parent if config.file else Path()).absolute() / given


def _resolve_option(config: ClusterConfig, option: str) -> str:
    """Resolve an option's relative files against the cluster file's folder instead of the current one."""
    key, _, value = option.partition("=")
    if key.strip().lower() not in _FILE_OPTIONS:
        return option
    folder = str(_resolve_path(config, "")).replace("%", "%%")
    files = [each if each[:1] in "/~%$" or each == "none" else f"{folder}/{each}" for each in keys.split_files(value)]
    return f"{key.strip()}={' '.join(_quote_path(each) for each in files)}"


def _quote_path(path: str) -> str:
    return f'"{path}"' if " " in path else path
