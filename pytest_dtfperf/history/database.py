"""The database of a history: tables, how it is opened, created or upgraded, and transactions. Errors are `HistoryError`.

The tables are those of this version. docs/history.md describes them for users of SQL. A change of a table is a new file in
migrations/versions/, too; a test compares what those make with these tables.

SQLite uses a write-ahead log, so that readers do not wait for a writer. A writer takes the lock at the beginning of its
transaction, and so never has to repeat its reads. For PostgreSQL, an advisory lock does the same.

A new database is created from `tables`. Only an old one needs Alembic, which is imported then. A newer one is not changed.
"""

import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Self, TypeVar
from urllib.parse import quote

import sqlalchemy
from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Connection,
    Engine,
    Float,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    NullPool,
    String,
    Table,
    Text,
    event,
    insert,
    inspect,
    select,
    text,
)
from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError

from pytest_dtfperf.errors import HistoryError
from pytest_dtfperf.formats import printable
from pytest_dtfperf.history.where import Address, mask_passwords
from pytest_dtfperf.node.files import format_kind
from pytest_dtfperf.node.retry import compute_pause_s

tables = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

sessions = Table(
    "sessions",
    tables,
    Column("id", String(64), primary_key=True),
    Column("started", String(40), nullable=False),  # UTC, ISO 8601, so that texts sort as times do
    Column("cluster", Text, nullable=False),
    Column("wall_s", Float),  # None: it was ended before it could finish
    Column("exit_code", Integer),
    Column("command", JSON, nullable=False),
    Column("versions", JSON, nullable=False),  # of this package and what it runs on: name to version
    Column("verdicts", JSON, nullable=False),  # verdict to number of tests
    Column("commit", String(64)),  # of the repository that held the tests, if it was one
    Column("usd", Float),  # what its hosts have cost, estimated; None: they had no price
    Column("folder", Text, nullable=False),  # where it was when it was entered
    Column("content", String(64), nullable=False),  # digest of what was entered: the same is not entered again
    Column("watched", Boolean, nullable=False),  # whether its rates have been searched for changes
    Index(None, "started"),
)

fingerprints = Table(
    "fingerprints",
    tables,
    Column("digest", String(32), primary_key=True),
    Column("content", JSON, nullable=False),  # hardware, software and program, each once, for nights are alike
)

measurements = Table(
    "measurements",
    tables,
    Column("session", String(64), primary_key=True),
    Column("id", String(64), primary_key=True),
    Column("position", Integer, nullable=False),  # in its session, from 0
    Column("test", Text, nullable=False),
    Column("spec_key", Text, nullable=False),  # what a rate depends on; what a baseline is stored under
    Column("label", Text, nullable=False),
    Column("spec", JSON, nullable=False),  # what is not as usual
    Column("model", Text, nullable=False),
    Column("batch_size", Integer, nullable=False),
    Column("gpus", Integer, nullable=False),
    Column("num_ps", Integer, nullable=False),
    Column("variable_update", Text, nullable=False),
    Column("system", Text, nullable=False),
    Column("hosts", Integer, nullable=False),
    Column("fingerprint", String(32), nullable=False),
    Column("program", String(64)),  # hash of the graphs that were trained
    Column("verdict", String(32)),
    Column("reason", Text),
    Column("runs", Integer, nullable=False),  # those that its rate rests on
    Column("images_per_sec", Float, nullable=False),  # their median
    Column("mean_log", Float, nullable=False),  # mean of the natural logarithms of their rates
    Column("spread", Float),  # standard deviation of these; None: it was one run
    Column("noise_run", Float),  # as calibrated with its baseline; None: it was not
    Column("noise_session", Float),
    Column("efficiency", Float),
    Column("baseline", Float),  # images/sec
    Column("change", Float),  # measured / baseline - 1, of the geometric means of their runs
    Column("accepted", Boolean, nullable=False),  # its session has made it a baseline
    Column("in_series", Boolean, nullable=False),  # its numbers may be compared with other nights'
    Column("step_breakdown", JSON),  # of a step, of the last run that was traced
    ForeignKeyConstraint(["session"], ["sessions.id"], ondelete="CASCADE"),
    ForeignKeyConstraint(["fingerprint"], ["fingerprints.digest"]),
    Index(None, "spec_key"),
)

_OF_A_MEASUREMENT = ["measurements.session", "measurements.id"]

runs = Table(
    "runs",
    tables,
    Column("session", String(64), primary_key=True),
    Column("measurement", String(64), primary_key=True),
    Column("number", Integer, primary_key=True),  # from 1
    Column("images_per_sec", Float, nullable=False),
    Column("elapsed_s", Float, nullable=False),
    Column("wall_s", Float, nullable=False),
    Column("accuracy", Float),
    Column("disturbances", JSON, nullable=False),  # by whom or what; empty: it may be believed
    ForeignKeyConstraint(["session", "measurement"], _OF_A_MEASUREMENT, ondelete="CASCADE"),
)

hosts = Table(
    "hosts",
    tables,
    Column("session", String(64), primary_key=True),
    Column("measurement", String(64), primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("name", Text, nullable=False),
    ForeignKeyConstraint(["session", "measurement"], _OF_A_MEASUREMENT, ondelete="CASCADE"),
)

host_readings = Table(
    "host_readings",
    tables,
    Column("session", String(64), primary_key=True),
    Column("position", Integer, primary_key=True),  # in its session, from 0
    Column("host", Text, nullable=False),
    Column("kind", Text, nullable=False),  # its hardware
    Column("name", Text, nullable=False),  # of the capacity
    Column("conditions", Text, nullable=False),  # readings that differ in it are not compared
    Column("per_s", Float, nullable=False),
    Column("verdict", String(32)),  # of a qualification
    ForeignKeyConstraint(["session"], ["sessions.id"], ondelete="CASCADE"),
    Index(None, "host"),
)

tracks = Table(
    "tracks",
    tables,
    Column("series", String(64), primary_key=True),  # digest of what its measurements have in common
    Column("state", JSON, nullable=False),  # what the search for changes goes on with
)

events = Table(
    "events",
    tables,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("kind", String(16), nullable=False),  # step, drift
    Column("state", String(16), nullable=False),  # confirmed, reverted
    Column("found", String(64), nullable=False),  # the session with the rates that confirmed it
    Column("found_at", String(40), nullable=False),
    Column("last_good", String(64), nullable=False),  # the last session before it, and when that began
    Column("last_good_at", String(40), nullable=False),
    Column("first_bad", String(64), nullable=False),  # the first session of the other rate; of a drift, its begin
    Column("first_bad_at", String(40), nullable=False),
    Column("members", JSON, nullable=False),  # of each series: what it is, and by how much its rate is another
    Column("differences", JSON, nullable=False),  # of what is only noted, between these two sessions
    Column("promise", JSON, nullable=False),  # what was promised of false events when it was found
    Index(None, "first_bad_at"),
)


MIGRATIONS = Path(__file__).parent / "migrations"
VERSIONS = ("0001", "0002")  # names of files in migrations/versions/, the oldest first
NEWEST = VERSIONS[-1]

_version = Table("alembic_version", MetaData(), Column("version_num", String(32), primary_key=True))  # as Alembic has it


def find_version(connection: Connection, where: str) -> str | None:
    """Return the version of a database; None if it is empty.

    Raises:
        HistoryError: It is another program's, or has a newer version.
    """
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
    """Create the tables, or migrate them to this version; do nothing if another process has just done so."""
    version = find_version(connection, where)
    if version is None:
        tables.create_all(connection)
        _version.create(connection)
        connection.execute(insert(_version).values(version_num=NEWEST))
    elif version != NEWEST:
        migrate(connection, NEWEST)


def migrate(connection: Connection, version: str) -> None:
    """Migrate with Alembic, within the caller's transaction."""
    from alembic import command
    from alembic.config import Config

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(MIGRATIONS))
    command.upgrade(config, version)


T = TypeVar("T")
BUSY_S = 30.0  # wait for another writer of the same file, which needs milliseconds, or seconds for an import
CONNECT_S = 10  # wait for a server's first answer
PATIENCE_S = 10.0  # wait for a server that restarts
FIRST_PAUSE_S, MOST_PAUSE_S = 0.1, 1.0
LOCK = 0x6474667065726600  # "dtfperf", of all locks that there may be in a team's database
REFUSALS = ("authentication failed", "no pg_hba.conf entry", "does not exist")  # libpq has no codes for these while it connects
LEAST_ROOM_BYTES = 64 << 10  # SQLite's index of a log takes 32 KiB at once
SHOWN = 200  # characters of a database's message

SQLITE_MESSAGES = {  # by the prefix of SQLite's name of the error
    "SQLITE_FULL": "its disk is full",
    "SQLITE_READONLY": "it is read-only",
    "SQLITE_CANTOPEN": "it cannot be opened or created",
    "SQLITE_BUSY": f"another process has held it for {BUSY_S:.0f} s",
    "SQLITE_NOTADB": "it is not an SQLite file",
    "SQLITE_CORRUPT": "it is damaged",
}


@dataclass(frozen=True)
class Database:
    """A database without an open connection: each transaction opens its own, so that none stays open for hours."""

    address: Address
    _engine: Engine

    @classmethod
    def open(cls, address: Address, *, make: bool = False) -> Self:
        """Open the database, and upgrade it to this version. `make` creates a missing one. Raises `HistoryError`."""
        is_there = address.path is None or _exists(address.path)
        if not is_there and not make:
            hint = "sessions are entered when they end, and with: dtfperf history import DIR"
            raise HistoryError(f"there is no history {address}; {hint}")
        database = cls(address, _make_engine(address))
        if not database._is_newest():
            database.write(lambda connection: upgrade(connection, str(address)))
        return database

    def _is_newest(self) -> bool:
        with _translate_errors(self.address):
            return self._retry(self._has_newest)

    def _has_newest(self, connection: Connection) -> bool:
        return find_version(connection, str(self.address)) == NEWEST

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Open a transaction that sees a consistent state of all tables."""
        with _translate_errors(self.address), self._engine.connect() as connection, connection.begin():
            yield connection

    def write(self, change: Callable[[Connection], T]) -> T:
        """Return the result of `change` after its commit.

        `change` must be idempotent: it is repeated if the connection to a server is lost. There is one writer at a time.

        Raises:
            HistoryError: The database cannot be used.
        """
        with _translate_errors(self.address):
            return self._retry(change, writes=True)

    def _retry(self, work: Callable[[Connection], T], *, writes: bool = False) -> T:
        until_s, attempts = time.monotonic() + PATIENCE_S, 0
        while True:
            try:
                with self._engine.connect().execution_options(writes=writes) as connection, connection.begin():
                    if writes and connection.dialect.name == "postgresql":
                        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK})
                    return work(connection)
            except OperationalError as exc:
                if self.address.path or time.monotonic() >= until_s or _has_refused(exc):
                    raise
            attempts += 1
            time.sleep(compute_pause_s(attempts, FIRST_PAUSE_S, MOST_PAUSE_S, spread=0.5))


def _exists(path: Path) -> bool:
    """Return whether the file exists. Raises `HistoryError` if that cannot be checked, or if it is not a regular file."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as exc:
        raise HistoryError(f"the history {path} cannot be used: {exc.strerror}") from exc
    if not stat.S_ISREG(found.st_mode):
        raise HistoryError(f"the history {path} cannot be used: it is {format_kind(found.st_mode)}, not a regular file")
    return True


@lru_cache(maxsize=16)  # it keeps the compiled statements
def _make_engine(address: Address) -> Engine:
    path = address.path
    if path:
        engine = sqlalchemy.create_engine("sqlite+pysqlite://", creator=lambda: _connect_sqlite(path), poolclass=NullPool)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    try:
        with _translate_errors(address):
            return sqlalchemy.create_engine(address.url, connect_args={"connect_timeout": CONNECT_S}, poolclass=NullPool)
    except ImportError as exc:
        hint = "install it: pip install 'pytest-dtfperf[postgres]'"
        raise HistoryError(f"the history {address} needs a driver: {exc}; {hint}") from exc


def _connect_sqlite(path: Path) -> sqlite3.Connection:
    """Connect, so that transactions begin when SQLAlchemy begins them and not when Python's module does.

    A file in a read-only folder is opened as immutable, because SQLite's log beside it cannot be created. If there is a log, of
    a process that is writing or was killed, it has the latest sessions, and is read, too.
    """
    may_write = os.access(path if path.exists() else path.parent, os.W_OK) and os.access(path.parent, os.W_OK)
    as_it_is = "?mode=ro" if os.path.exists(f"{path}-wal") else "?immutable=1"
    given = f"file:{quote(os.fsencode(path))}" + ("" if may_write or not path.exists() else as_it_is)
    connection = sqlite3.connect(given, uri=True, timeout=BUSY_S, isolation_level=None)
    connection.execute("PRAGMA foreign_keys = ON")
    if may_write:
        with suppress(sqlite3.OperationalError):  # another process does the same
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
    """Return whether the disk has no room for SQLite's files, which SQLite reports as an I/O error."""
    with suppress(OSError):
        disk = os.statvfs(folder)
        return disk.f_bavail * disk.f_frsize < LEAST_ROOM_BYTES
    return False


def _has_refused(exc: OperationalError) -> bool:
    """Return whether a server refuses permanently. After other errors, the transaction is repeated."""
    return any(refusal in str(exc.orig) for refusal in REFUSALS)


def _format_error(exc: SQLAlchemyError, path: Path | None) -> str:
    origin = exc.orig if isinstance(exc, DBAPIError) else exc
    name = getattr(origin, "sqlite_errorname", "")
    if path and name.startswith("SQLITE_IOERR"):
        return SQLITE_MESSAGES["SQLITE_FULL"] if _is_full(path.parent) else f"its disk gives errors ({name})"
    message = next((message for begin, message in SQLITE_MESSAGES.items() if name.startswith(begin)), None)
    return message or printable(mask_passwords(" ".join(str(origin).split())))[:SHOWN]
