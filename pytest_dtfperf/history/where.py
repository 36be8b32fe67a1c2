"""Where a history is kept: a file beside the session folders, or the database of a team. Pure; opens nothing."""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from pytest_dtfperf.errors import UsageError

VARIABLE = "DTFPERF_HISTORY"  # of the environment; says the same as --history, which goes before it
NEVER = "never"  # what says that sessions are entered nowhere
FILE = "history.sqlite"
SECRET = "***"  # stands for a password

# What a URL may begin with, and what SQLAlchemy is given for it.
SCHEMES = {"sqlite": "sqlite+pysqlite", "postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg"}

_USER_AND_PASSWORD = re.compile(r"(://[^:/?#\s]*):\S*@")  # to the last @: a password may have one
_IN_QUERY = re.compile(r"([?&](?:ssl)?password=)[^&\s]*", re.IGNORECASE)  # libpq's two: of the user, of the client's key


@dataclass(frozen=True)
class Address:
    """A database, by the URL that SQLAlchemy is given. Its `str` has no password in it."""

    url: str = field(repr=False)

    def __str__(self) -> str:
        return str(self.path) if self.path else masked(self.url.replace("postgresql+psycopg", "postgresql", 1))

    @property
    def path(self) -> Path | None:
        """The file; None where a server keeps it."""
        scheme, _, rest = self.url.partition(":///")
        return Path(rest) if scheme == SCHEMES["sqlite"] else None


def asked_for(given: str | Path | None) -> str | Path | None:
    """What --history says, else the environment."""
    return given or os.environ.get(VARIABLE)


def address_of(given: str | Path | None, results: Path) -> Address | None:
    """What --history says: a URL, a file, `never` (None), or nothing, which is a file in the folder of all sessions' folders.

    Raises `UsageError` for a URL that is none of ours.
    """
    if given is None or given == "":
        return _file(results / FILE)
    if given == NEVER:
        return None
    if isinstance(given, Path) or "://" not in given:
        return _file(Path(given))
    scheme, _, rest = given.partition("://")
    if scheme not in SCHEMES:
        raise UsageError(
            f"a history is kept in a file, or at sqlite:///FILE or postgresql://USER@HOST/NAME, not at {masked(given)!r}"
        )
    if scheme == "sqlite":
        if not rest.startswith("/") or rest == "/":
            raise UsageError(f"a history is kept in a file: sqlite:///FILE, not {given!r}")
        return _file(Path(rest[1:]))
    if not re.search(r"/[^/?]", rest):
        raise UsageError(f"{masked(given)!r} names no database: postgresql://USER@HOST/NAME")
    return Address(f"{SCHEMES[scheme]}://{rest}")


def masked(text: str) -> str:
    """The same text with no password of any URL in it."""
    return _IN_QUERY.sub(rf"\1{SECRET}", _USER_AND_PASSWORD.sub(rf"\1:{SECRET}@", text))


def _file(path: Path) -> Address:
    if "\0" in str(path):
        raise UsageError(f"--history takes a file or a URL, not {str(path)!r}")
    return Address(f"{SCHEMES['sqlite']}:///{path.absolute()}")
