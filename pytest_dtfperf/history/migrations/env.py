"""The environment of Alembic: the caller's connection, within the caller's transaction."""

from alembic import context

from pytest_dtfperf.history.database import tables

context.configure(connection=context.config.attributes["connection"], target_metadata=tables)
context.run_migrations()
