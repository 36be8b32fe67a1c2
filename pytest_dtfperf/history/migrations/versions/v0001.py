"""The first version of a history: sessions, their measurements with runs and hosts, and events."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "tracks",
        sa.Column("series", sa.String(length=64), nullable=False),
        sa.Column("state", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("series", name=op.f("pk_tracks")),
    )
    op.create_table(
        "events",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("found", sa.String(length=64), nullable=False),
        sa.Column("found_at", sa.String(length=40), nullable=False),
        sa.Column("last_good", sa.String(length=64), nullable=False),
        sa.Column("last_good_at", sa.String(length=40), nullable=False),
        sa.Column("first_bad", sa.String(length=64), nullable=False),
        sa.Column("first_bad_at", sa.String(length=40), nullable=False),
        sa.Column("members", sa.JSON(), nullable=False),
        sa.Column("differences", sa.JSON(), nullable=False),
        sa.Column("promise", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
    )
    op.create_index(op.f("ix_events_first_bad_at"), "events", ["first_bad_at"], unique=False)
    op.create_table(
        "fingerprints",
        sa.Column("digest", sa.String(length=32), nullable=False),
        sa.Column("content", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_fingerprints")),
    )
    op.create_table(
        "sessions",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("started", sa.String(length=40), nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("wall_s", sa.Float(), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("command", sa.JSON(), nullable=False),
        sa.Column("versions", sa.JSON(), nullable=False),
        sa.Column("verdicts", sa.JSON(), nullable=False),
        sa.Column("commit", sa.String(length=64), nullable=True),
        sa.Column("usd", sa.Float(), nullable=True),
        sa.Column("folder", sa.Text(), nullable=False),
        sa.Column("content", sa.String(length=64), nullable=False),
        sa.Column("watched", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sessions")),
    )
    op.create_index(op.f("ix_sessions_started"), "sessions", ["started"], unique=False)
    op.create_table(
        "measurements",
        sa.Column("session", sa.String(length=64), nullable=False),
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("test", sa.Text(), nullable=False),
        sa.Column("spec_key", sa.Text(), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("batch_size", sa.Integer(), nullable=False),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("num_ps", sa.Integer(), nullable=False),
        sa.Column("variable_update", sa.Text(), nullable=False),
        sa.Column("system", sa.Text(), nullable=False),
        sa.Column("hosts", sa.Integer(), nullable=False),
        sa.Column("fingerprint", sa.String(length=32), nullable=False),
        sa.Column("program", sa.String(length=64), nullable=True),
        sa.Column("verdict", sa.String(length=32), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("runs", sa.Integer(), nullable=False),
        sa.Column("images_per_sec", sa.Float(), nullable=False),
        sa.Column("mean_log", sa.Float(), nullable=False),
        sa.Column("spread", sa.Float(), nullable=True),
        sa.Column("noise_run", sa.Float(), nullable=True),
        sa.Column("noise_session", sa.Float(), nullable=True),
        sa.Column("efficiency", sa.Float(), nullable=True),
        sa.Column("baseline", sa.Float(), nullable=True),
        sa.Column("change", sa.Float(), nullable=True),
        sa.Column("accepted", sa.Boolean(), nullable=False),
        sa.Column("in_series", sa.Boolean(), nullable=False),
        sa.Column("step_breakdown", sa.JSON(), nullable=True),
        sa.ForeignKeyConstraint(["fingerprint"], ["fingerprints.digest"], name=op.f("fk_measurements_fingerprint")),
        sa.ForeignKeyConstraint(["session"], ["sessions.id"], name=op.f("fk_measurements_session"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("session", "id", name=op.f("pk_measurements")),
    )
    op.create_index(op.f("ix_measurements_spec_key"), "measurements", ["spec_key"], unique=False)
    op.create_table(
        "hosts",
        sa.Column("session", sa.String(length=64), nullable=False),
        sa.Column("measurement", sa.String(length=64), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["session", "measurement"],
            ["measurements.session", "measurements.id"],
            name=op.f("fk_hosts_session_measurement"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("session", "measurement", "position", name=op.f("pk_hosts")),
    )
    op.create_table(
        "runs",
        sa.Column("session", sa.String(length=64), nullable=False),
        sa.Column("measurement", sa.String(length=64), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("images_per_sec", sa.Float(), nullable=False),
        sa.Column("elapsed_s", sa.Float(), nullable=False),
        sa.Column("wall_s", sa.Float(), nullable=False),
        sa.Column("accuracy", sa.Float(), nullable=True),
        sa.Column("disturbances", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["session", "measurement"],
            ["measurements.session", "measurements.id"],
            name=op.f("fk_runs_session_measurement"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("session", "measurement", "number", name=op.f("pk_runs")),
    )
