"""Of which version a database is, and how it becomes one of today's. What a newer version has made is left alone.

A new database is made as `tables` says; only an old one needs Alembic, which is imported then.
"""

from pathlib import Path

from sqlalchemy import Column, Connection, MetaData, String, Table, insert, inspect, select

from pytest_dtfperf.errors import HistoryError
from pytest_dtfperf.history.tables import tables

MIGRATIONS = Path(__file__).parent / "migrations"
VERSIONS = ("0001",)  # names of files in migrations/versions/, the oldest first
NEWEST = VERSIONS[-1]

_version = Table("alembic_version", MetaData(), Column("version_num", String(32), primary_key=True))  # as Alembic has it


def found(connection: Connection, where: str) -> str | None:
    """The version of a database; None: it is empty. Raises `HistoryError` where it is none of ours, or a newer one."""
    names = set(inspect(connection).get_table_names())
    if _version.name not in names:
        if names & set(tables.tables):
            raise HistoryError(f"the history {where} does not say of which version it is: is it another program's?")
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
    version = found(connection, where)
    if version is None:
        tables.create_all(connection)
        _version.create(connection)
        connection.execute(insert(_version).values(version_num=NEWEST))
    elif version != NEWEST:
        migrate(connection, NEWEST)


def migrate(connection: Connection, version: str) -> None:
    """By Alembic, within the caller's transaction."""
    from alembic import command
    from alembic.config import Config

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(MIGRATIONS))
    command.upgrade(config, version)
