"""The database of a history: opened, made or upgraded, written to by whole transactions. What goes wrong is a `HistoryError`.

SQLite: a write-ahead log, so that a reader does not wait for a writer; a writer takes the lock at the begin of a
transaction, and so never has to give up what it has read. PostgreSQL: an advisory lock does what SQLite's does.

A new database is made as `tables` defines it. Only an old one needs Alembic, which is imported then. A newer one is left alone.
"""

import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar
from urllib.parse import quote

import sqlalchemy
from sqlalchemy import Column, Connection, Engine, MetaData, NullPool, String, Table, event, insert, inspect, select, text
from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError

from pytest_dtfperf.errors import HistoryError
from pytest_dtfperf.formats import printable
from pytest_dtfperf.history.tables import tables
from pytest_dtfperf.history.where import Address, mask_passwords
from pytest_dtfperf.node.files import format_kind
from pytest_dtfperf.node.retry import compute_pause_s

MIGRATIONS = Path(__file__).parent / "migrations"
VERSIONS = ("0001",)  # names of files in migrations/versions/, the oldest first
NEWEST = VERSIONS[-1]

_version = Table("alembic_version", MetaData(), Column("version_num", String(32), primary_key=True))  # as Alembic has it


def find_version(connection: Connection, where: str) -> str | None:
    """Return the version of a database; None: it is empty. Raises `HistoryError` where it is none of ours, or a newer one."""
    names = set(inspect(connection).get_table_names())
    if _version.name not in names:
        if names & set(tables.tables):
            raise HistoryError(f"the history {where} has no version: is it another program's?")
        return None
    version: str | None = connection.scalar(select(_version.c.version_num))
    if version not in VERSIONS:
        raise HistoryError(
            f"the history {where} was written by a newer version of pytest-dtfperf, or by another program (its schema is "
            f"{version}, this version reads {VERSIONS[0]} to {NEWEST}); install that: pip install --upgrade pytest-dtfperf"
        )
    return version


def upgrade(connection: Connection, where: str) -> None:
    """Make the tables, or make them what they are today; nothing where another process has just done so."""
    version = find_version(connection, where)
    if version is None:
        tables.create_all(connection)
        _version.create(connection)
        connection.execute(insert(_version).values(version_num=NEWEST))
    elif version != NEWEST:
        migrate(connection, NEWEST)


def migrate(connection: Connection, version: str) -> None:
    """Migrate by Alembic, within the caller's transaction."""
    from alembic import command
    from alembic.config import Config

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(MIGRATIONS))
    command.upgrade(config, version)


T = TypeVar("T")
BUSY_S = 30.0  # for another writer of the same file, which needs milliseconds; a bulk import, seconds
CONNECT_S = 10  # for a server to answer at all
PATIENCE_S = 10.0  # for a server that is started anew
FIRST_PAUSE_S, MOST_PAUSE_S = 0.1, 1.0
LOCK = 0x6474667065726600  # "dtfperf", of all locks that there may be in a team's database
REFUSALS = ("authentication failed", "no pg_hba.conf entry", "does not exist")  # libpq has no codes for these while it connects
LEAST_ROOM_BYTES = 64 << 10  # SQLite's index of a log takes 32 KiB at once
SHOWN = 200  # characters of a database's message

SQLITE_MESSAGES = {  # by the begin of the name that SQLite gives to the error
    "SQLITE_FULL": "its disk is full",
    "SQLITE_READONLY": "it may not be written to",
    "SQLITE_CANTOPEN": "it cannot be opened, nor made",
    "SQLITE_BUSY": f"another process has held it for {BUSY_S:.0f} s",
    "SQLITE_NOTADB": "it is no SQLite file",
    "SQLITE_CORRUPT": "it is damaged",
}


@dataclass(frozen=True)
class Database:
    """Holds no connection: each transaction has one of its own, so that a session of hours keeps none open."""

    address: Address
    _engine: Engine

    @classmethod
    def open(cls, address: Address, *, make: bool = False) -> Self:
        """Return the database, in the form of this version. `make`: it is made where there is none. Raises `HistoryError`."""
        is_there = address.path is None or _is_there(address.path)
        if not is_there and not make:
            hint = "sessions are entered when they end, and with: dtfperf history import DIR"
            raise HistoryError(f"there is no history {address}; {hint}")
        database = cls(address, _engine(address))
        if not database._is_newest():
            database.write(lambda connection: upgrade(connection, str(address)))
        return database

    def _is_newest(self) -> bool:
        with _translate_errors(self.address):
            return self._persistently(self._has_newest)

    def _has_newest(self, connection: Connection) -> bool:
        return find_version(connection, str(self.address)) == NEWEST

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that sees one state of all tables."""
        with _translate_errors(self.address), self._engine.connect() as connection, connection.begin():
            yield connection

    def write(self, change: Callable[[Connection], T]) -> T:
        """Return what `change` returns, once it is committed. It is called again where a server was gone in between.

        So it must be idempotent. One writer at a time. Raises `HistoryError`.
        """
        with _translate_errors(self.address):
            return self._persistently(change, writes=True)

    def _persistently(self, work: Callable[[Connection], T], *, writes: bool = False) -> T:
        until_s, asked = time.monotonic() + PATIENCE_S, 0
        while True:
            try:
                with self._engine.connect().execution_options(writes=writes) as connection, connection.begin():
                    if writes and connection.dialect.name == "postgresql":
                        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK})
                    return work(connection)
            except OperationalError as exc:
                if self.address.path or time.monotonic() >= until_s or _has_refused(exc):
                    raise
            asked += 1
            time.sleep(compute_pause_s(asked, FIRST_PAUSE_S, MOST_PAUSE_S, spread=0.5))


def _is_there(path: Path) -> bool:
    """Return whether the file exists. Raise `HistoryError` where that cannot be checked, or where it is no regular file."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as exc:
        raise HistoryError(f"the history {path} cannot be used: {exc.strerror}") from exc
    if not stat.S_ISREG(found.st_mode):
        raise HistoryError(f"the history {path} cannot be used: it is {format_kind(found.st_mode)}, not a regular file")
    return True


def _engine(address: Address) -> Engine:
    path = address.path
    if path:
        engine = sqlalchemy.create_engine("sqlite+pysqlite://", creator=lambda: _connect_sqlite(path), poolclass=NullPool)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    try:
        with _translate_errors(address):
            return sqlalchemy.create_engine(address.url, connect_args={"connect_timeout": CONNECT_S}, poolclass=NullPool)
    except ImportError as exc:
        hint = "pip install 'pytest-dtfperf[postgres]' brings what is missing"
        raise HistoryError(f"the history {address} needs a driver: {exc}; {hint}") from exc


def _connect_sqlite(path: Path) -> sqlite3.Connection:
    """Have transactions begin when SQLAlchemy begins them, and not when Python's module does.

    A file in a folder that may not be written to is taken as it is: SQLite's log beside it could not be made. Where one is
    there, of a process that is writing or was killed, it has the latest sessions, and is read, too.
    """
    may_write = os.access(path if path.exists() else path.parent, os.W_OK) and os.access(path.parent, os.W_OK)
    as_it_is = "?mode=ro" if os.path.exists(f"{path}-wal") else "?immutable=1"
    given = f"file:{quote(os.fsencode(path))}" + ("" if may_write or not path.exists() else as_it_is)
    connection = sqlite3.connect(given, uri=True, timeout=BUSY_S, isolation_level=None)
    connection.execute("PRAGMA foreign_keys = ON")
    if may_write:
        with suppress(sqlite3.OperationalError):  # another process is just doing the same
            connection.execute("PRAGMA journal_mode = WAL")
    return connection


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get("writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


@contextmanager
def _translate_errors(address: Address) -> Iterator[None]:
    try:
        yield
    except SQLAlchemyError as exc:
        raise HistoryError(f"the history {address} cannot be used: {_format_error(exc, address.path)}") from exc


def _is_full(folder: Path) -> bool:
    """Return whether there is no room for what SQLite makes beside a file: on a full disk it reports an error of the disk."""
    with suppress(OSError):
        disk = os.statvfs(folder)
        return disk.f_bavail * disk.f_frsize < LEAST_ROOM_BYTES
    return False


def _has_refused(exc: OperationalError) -> bool:
    """Return whether a server has refused for a lasting reason. After other errors it is asked again."""
    return any(refusal in str(exc.orig) for refusal in REFUSALS)


def _format_error(exc: SQLAlchemyError, path: Path | None) -> str:
    origin = exc.orig if isinstance(exc, DBAPIError) else exc
    name = getattr(origin, "sqlite_errorname", "")
    if path and name.startswith("SQLITE_IOERR"):
        return SQLITE_MESSAGES["SQLITE_FULL"] if _is_full(path.parent) else f"its disk gives errors ({name})"
    message = next((message for begin, message in SQLITE_MESSAGES.items() if name.startswith(begin)), None)
    return message or printable(mask_passwords(" ".join(str(origin).split())))[:SHOWN]
