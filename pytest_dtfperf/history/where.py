"""The location of a history: a file beside the session folders, or a team's database. Pure; opens nothing."""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs

from pytest_dtfperf.errors import UNEXPANDED, UsageError, show_value

VARIABLE = "DTFPERF_HISTORY"  # environment variable with the same meaning as --history, which has priority
NEVER = "never"  # sessions are not entered
FILE = "history.sqlite"
SIMULATED_SUFFIX = ".simulated"  # before the last suffix: history.simulated.sqlite
SECRET = "***"  # replaces passwords
# The schemes of URLs, and SQLAlchemy's name of each.
SCHEMES = {"sqlite": "sqlite+pysqlite", "postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg"}
_HINT = ", a variable that was not expanded"
# A name, an IPv4 address, or an IPv6 address in brackets; empty for libpq's socket.
_SERVER = re.compile(r"(\[[0-9A-Fa-f:.]+(%[\w.-]+)?\]|[\w.%-]*)(:(?P<port>[^:]*))?")
_USER_AND_PASSWORD = re.compile(r"(://[^:/?#\s]*):\S*@")  # to the last @: a password may have one
_IN_QUERY = re.compile(r"([?&](?:ssl)?password=)[^&\s]*", re.IGNORECASE)  # libpq's two: of the user, of the client's key


@dataclass(frozen=True)
class Address:
    """A database, by its URL for SQLAlchemy. `str` hides passwords."""

    url: str = field(repr=False)

    def __str__(self) -> str:
        return str(self.path) if self.path else mask_passwords(self.url.replace("postgresql+psycopg", "postgresql", 1))

    @property
    def path(self) -> Path | None:
        """The file; None for a database on a server."""
        scheme, _, rest = self.url.partition(":///")
        return Path(rest) if scheme == SCHEMES["sqlite"] else None


def choose_address(given: Address, *, is_simulated: bool | None) -> Address:
    """Return the address for sessions on simulated hosts, which are a file beside that of sessions on real hosts.

    The noise of nights and the limit of false alarms are those of all series of a history together, so both never share one.

    Args:
        given: The address in the settings.
        is_simulated: Whether the hosts are simulated; None if nothing was measured.

    Raises:
        UsageError: The address is of a server and the hosts are simulated, or it is for simulated hosts and they are real.
    """
    path = given.path
    is_for_simulated = path is not None and SIMULATED_SUFFIX in path.suffixes
    if is_simulated is None or is_simulated == is_for_simulated:
        return given
    if not is_simulated:
        raise UsageError(f"{path} is a history of simulated hosts, and these are real: name another file")
    if path is None:
        raise UsageError(f"{given} is on a server, and simulated hosts have a history in a file: give --history=FILE")
    return _make_file_address(path.with_name(f"{path.stem}{SIMULATED_SUFFIX}{path.suffix}"))


def get_requested(given: str | Path | None) -> str | Path | None:
    """Return the value of --history, or else of the environment variable."""
    return given or os.environ.get(VARIABLE)


def parse_address(given: str | Path | None, results: Path) -> Address | None:
    """Parse --history: a URL, a file, `never` (None), or nothing, which is a file in the folder of session folders.

    Raises:
        UsageError: The URL is not one of a history.
    """
    if given is None or given == "":
        return _make_file_address(results / FILE)
    if given == NEVER:
        return None
    if isinstance(given, Path) or "://" not in given:
        return _make_file_address(Path(given))
    scheme, _, rest = given.partition("://")
    if scheme not in SCHEMES:
        raise UsageError(
            "a history is kept in a file, or at sqlite:///FILE or postgresql://USER@HOST/NAME, not at "
            f"{mask_passwords(given)!r}"
        )
    if scheme == "sqlite":
        if not rest.startswith("/") or rest == "/":
            raise UsageError(f"a history is kept in a file: sqlite:///FILE, not {given!r}")
        return _make_file_address(Path(rest[1:]))
    if not re.search(r"/[^/?]", rest):
        raise UsageError(f"{mask_passwords(given)!r} names no database: postgresql://USER@HOST/NAME")
    if problem := _find_server_problem(rest):
        raise UsageError(f"{mask_passwords(given)!r} {problem}: a history is kept at postgresql://USER@HOST:PORT/NAME")
    return Address(f"{SCHEMES[scheme]}://{rest}")


def _find_server_problem(rest: str) -> str | None:
    """Return what is wrong with USER:PASSWORD@HOST:PORT/NAME?QUERY, so that the session fails early; None if valid."""
    before, _, query = rest.partition("?")
    user, _, behind = before.rpartition("@")
    server, _, name = behind.partition("/")
    found = _SERVER.fullmatch(server)
    ports = [found["port"]] if found and found["port"] is not None else []
    for key, values in parse_qs(query, keep_blank_values=True).items():
        hosts = [host for value in values for host in value.split(",")]
        if key == "port":
            ports += hosts
        elif key == "host":
            ports += [port for host in hosts if not host.startswith("/") for port in re.findall(r":([^:\]]*)$", host)]
    if wrong := next((port for port in ports if not (re.fullmatch("[0-9]{1,5}", port) and 0 < int(port) < 1 << 16)), None):
        return f"has the port {show_value(wrong)}, which is not a number from 1 to 65535{_HINT if '$' in wrong else ''}"
    if "" in ports:
        return "has a colon after its host, but no port"
    if not found:
        return f"has an invalid host: {show_value(server)}" + (
            "; an IPv6 address is in brackets, [::1]" if {"[", "]", ":"} & {*server} else _HINT if "$" in server else ""
        )
    if word := next((each for each in (user.partition(":")[0], name) if UNEXPANDED.match(each)), None):
        return f"has {show_value(word)}{_HINT}"
    return None


def mask_passwords(text: str) -> str:
    """Return the text without the passwords of URLs."""
    return _IN_QUERY.sub(rf"\1{SECRET}", _USER_AND_PASSWORD.sub(rf"\1:{SECRET}@", text))


def _make_file_address(path: Path) -> Address:
    if "\0" in str(path):
        raise UsageError(f"--history takes a file or a URL, not {str(path)!r}")
    if UNEXPANDED.match(str(path)):
        raise UsageError(f"a history is kept in a file, not in {str(path)!r}: ~ and $NAME are not expanded. Give the full path")
    return Address(f"{SCHEMES['sqlite']}:///{path.absolute()}")
