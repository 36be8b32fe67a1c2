"""The keys of a cluster that SSH reaches. Pure: files that they name are read when hosts are requested."""

import re
from collections.abc import Iterable, Iterator, Mapping
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any

from pytest_dtfperf.clusters import file
from pytest_dtfperf.clusters.file import COUNT, NAMES, SECONDS, TEXT, TEXTS, HostListError, Validator, one_of
from pytest_dtfperf.errors import show_value

CONNECT_S = 30.0  # a sleeping laptop or a VPN takes some seconds; a machine that is off never answers
PARALLEL = 16  # sshd drops connections that wait for their login from the tenth on, also on a jump host (MaxStartups 10:30:100)
UV = "uv"

_ADDRESS = re.compile(r"[A-Za-z0-9_:][\w.:%-]*", re.ASCII)  # a name or an address; `%` is before an IPv6 address's interface
_HOST = re.compile(rf"(?:[\w.+\\-]+@)?{_ADDRESS.pattern}", re.ASCII)

HOSTS = Validator(
    'a list of hosts, or text like "node[01-16],login"',
    lambda value: TEXT.accepts(value) or NAMES.accepts(value),
)
PORT = Validator("a port, 1 to 65535", lambda value: type(value) is int and 1 <= value <= 65535)
PRIVATE_ADDRESS = Validator(
    'a network like "10.0.0.0/8", or a table of hosts and their addresses',
    lambda value: _is_network(value) or (isinstance(value, dict) and bool(value) and all(map(TEXT.accepts, value.values()))),
)
SETUP = Validator(f'a list of shell lines, or "{UV}"', lambda value: value == UV or TEXTS.accepts(value))

KEYS: Mapping[str, Validator] = {
    "hosts": HOSTS,
    "nodes_file": TEXT,
    "public_ips": TEXT,
    "private_ips": TEXT,
    "gpus_per_host": COUNT,
    "user": TEXT,
    "port": PORT,
    "identity_file": TEXT,
    "ssh_config": TEXT,
    "options": TEXTS,
    "private_address": PRIVATE_ADDRESS,
    "setup": SETUP,
    "connect_s": SECONDS,
    "parallel": COUNT,
    "network": one_of("trusted"),  # otherwise hosts with public addresses are refused where the firewall is not managed here
}

# Options that may not be in `options`, because a key sets them ...
_KEY_OF = {"user": "user", "port": "port", "identityfile": "identity_file", "connecttimeout": "connect_s"}
# ... or because they would accept a host with an unverified key ...
_WEAKENS = (
    "stricthostkeychecking", "nohostauthenticationforlocalhost", "verifyhostkeydns", "knownhostscommand",
    "updatehostkeys", "checkhostip",
)  # fmt: skip
# ... or because the connection needs its value: no questions, only the agent's lines in the stream, one connection
# per host that ends with its process, and no forwarding that the training does not need.
_SET_ALREADY = (
    "batchmode", "clearallforwardings", "connectionattempts", "controlmaster", "controlpath", "controlpersist",
    "dynamicforward", "escapechar", "exitonforwardfailure", "forkafterauthentication", "forwardagent", "forwardx11",
    "forwardx11timeout", "forwardx11trusted", "host", "hostname", "include", "localcommand", "localforward", "loglevel",
    "logverbose", "match", "permitlocalcommand", "permitremoteopen", "remotecommand", "remoteforward", "requesttty",
    "serveralivecountmax", "serveraliveinterval", "sessiontype", "stdinnull", "streamlocalbindmask",
    "streamlocalbindunlink", "syslogfacility", "tunnel", "tunneldevice", "visualhostkey", "xauthlocation",
)  # fmt: skip
_KNOWN_HOSTS = ("userknownhostsfile", "globalknownhostsfile")
_OPTION = re.compile(r"([A-Za-z0-9]+) *= *(\S.*)")


def validate(table: Mapping[str, Any]) -> str | None:
    """Return the first conflict between keys that are valid on their own; None if there is none."""
    if given := _find_source_problem(table):
        return given
    if "devices_per_host" not in table and "gpus_per_host" not in table:
        return (
            "must set how many devices a host has: gpus_per_host = 4, or on hosts without GPUs "
            "devices_per_host = 2, each of which is then half of a host's cores"
        )
    problems = *_find_host_problem(table), *_find_address_problem(table), *map(_find_option_problem, table.get("options", ()))
    return next(filter(None, problems), None)


def list_hosts(given: str | Iterable[str]) -> list[str]:
    """Return the hosts of the key `hosts`, with ranges expanded. Raises `HostListError`."""
    return [name.strip() for text in ([given] if isinstance(given, str) else given) for name in file.expand_hostlist(text)]


def split_files(value: str) -> list[str]:
    """Return the files in an option's value, split as ssh does: at blanks outside quotes."""
    return [quoted or bare for quoted, bare in re.findall(r'"([^"]*)"|([^\s"]+)', value)]


def is_host(text: str) -> bool:
    """Return whether ssh takes this for an alias, a name or an address, with an optional `user@`, and for nothing else."""
    return bool(_HOST.fullmatch(text))


def is_address(text: str) -> bool:
    """Return whether this can be a name or an address by which tasks reach each other."""
    return bool(_ADDRESS.fullmatch(text))


def parse_network(given: object) -> IPv4Network | IPv6Network | None:
    """Return the network of the key `private_address`; None if it is no network."""
    return ip_network(given) if isinstance(given, str) else None


def find_duplicate(names: Iterable[str]) -> str | None:
    """Return the first name that occurred before, ignoring case; None if there is none."""
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            return name
        seen.add(name.lower())
    return None


def _is_network(value: object) -> bool:
    try:
        return isinstance(value, str) and "/" in value and parse_network(value) is not None
    except ValueError:
        return False


def _find_source_problem(table: Mapping[str, Any]) -> str | None:
    ways = [key for key in ("hosts", "nodes_file") if key in table]
    ips = [key for key in ("public_ips", "private_ips") if key in table]
    if len(ips) == 1:
        missing = ({"public_ips", "private_ips"} - set(ips)).pop()
        return f"has {ips[0]} without {missing}: line i of both is the same machine"
    if not ways and not ips:
        return 'must set its hosts: hosts = "node[01-16]", nodes_file, or public_ips and private_ips'
    if len(ways) + bool(ips) > 1:
        return f"has {' and '.join([*ways, *ips[:1]])}: only one of them may set its hosts"
    for key in ("nodes_file", "private_ips"):
        if key in table and "private_address" in table:
            return f"has private_address and {key}, which contains the addresses, too: only one of them is allowed"
    return None


def _find_host_problem(table: Mapping[str, Any]) -> Iterator[str]:
    if "hosts" not in table:
        return
    try:
        names = list_hosts(table["hosts"])
    except HostListError as exc:
        given = table["hosts"]
        yield f"hosts = {show_value(given) if isinstance(given, str) else given} is no list of hosts: {exc}"
        return
    for name in names:
        if not is_host(name):
            yield f"hosts has {name!r}, which is no name for ssh: names are letters, digits and . - _ : %, perhaps after user@"
    if double := find_duplicate(names):
        yield f"hosts has {double!r} twice"


def _find_address_problem(table: Mapping[str, Any]) -> Iterator[str]:
    given = table.get("private_address")
    if not isinstance(given, dict) or "hosts" not in table:
        return
    try:
        names = set(list_hosts(table["hosts"]))
    except HostListError:  # reported by the check of `hosts`
        return
    for host, address in given.items():
        if host not in names:
            yield f"private_address has an address for {host!r}, which is not in hosts"
        if not is_address(address):
            yield f"private_address has {address!r} for {host!r}, which is neither a name nor an address"
    if double := find_duplicate(given.values()):
        yield f"private_address has {double!r} for two hosts"


def _find_option_problem(option: str) -> str | None:
    parts = _OPTION.fullmatch(option)
    if not parts:
        return f'options must be like "Key=Value" of ssh_config, not {option!r}'
    name, value = parts[1].lower(), parts[2]
    if value.count('"') % 2:
        return f"options must not hold {option!r}: a quote has no end"
    if name in _WEAKENS or (name in _KNOWN_HOSTS and not _are_files(value)):
        return f"options must not hold {option!r}: a host with an unknown key is refused. ssh-keyscan can add host keys"
    if name in _KEY_OF:
        return f"options must not hold {option!r}: use the key {_KEY_OF[name]}"
    if name in _SET_ALREADY:
        return f"options must not hold {option!r}: the backend sets it, or cannot work with it"
    return None  # ssh checks whether the option exists


def _are_files(value: str) -> bool:
    """Return whether these are files that can hold host keys."""
    return not any(each == "none" or each.startswith("/dev/") for each in split_files(value))
