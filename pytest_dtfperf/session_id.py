"""The name of a session: when it began. Names sort as sessions began, those of one second too."""

import secrets
from datetime import UTC, datetime


def new_session_id(started: datetime | None = None) -> str:
    """`20260131T021503Z-9f3c1a`: UTC, then five hexadecimal digits of the microsecond and a random one."""
    began = (started or datetime.now(UTC)).astimezone(UTC)
    return f"{began:%Y%m%dT%H%M%SZ}-{began.microsecond:05x}{secrets.token_hex(1)[0]}"
