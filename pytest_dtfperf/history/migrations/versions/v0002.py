"""Readings of hosts, by probes of sessions and by qualifications."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "host_readings",
        sa.Column("session", sa.String(length=64), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("conditions", sa.Text(), nullable=False),
        sa.Column("per_s", sa.Float(), nullable=False),
        sa.Column("verdict", sa.String(length=32), nullable=True),
        sa.ForeignKeyConstraint(["session"], ["sessions.id"], name=op.f("fk_host_readings_session"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("session", "position", name=op.f("pk_host_readings")),
    )
    op.create_index(op.f("ix_host_readings_host"), "host_readings", ["host"], unique=False)
