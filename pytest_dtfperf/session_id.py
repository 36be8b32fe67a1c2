"""The name of a session: when it began, and something that tells two of one second apart."""

import secrets
from datetime import UTC, datetime


def new_session_id(started: datetime | None = None) -> str:
    """`20260131T021503Z-9f3c1a`: UTC, then six random hexadecimal digits."""
    return f"{(started or datetime.now(UTC)).astimezone(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
