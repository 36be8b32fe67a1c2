"""What a job says of itself in its comment: whose it is."""

import re

from pytest_dtfperf.clusters.owner import Owner

_COMMENT = re.compile(r"dtfperf session=(?P<session>\S+) owner=(?P<host>\S+):(?P<pid>\d+):(?P<started>\d+)")


def write_comment(session: str, owner: Owner) -> str:
    """For sbatch."""
    return f"dtfperf session={session} owner={owner.host}:{owner.pid}:{owner.started}"


def read_comment(comment: str) -> tuple[str, Owner] | None:
    """(session, owner), or None if the comment is none of ours."""
    match = _COMMENT.fullmatch(comment.strip())
    if not match:
        return None
    return match["session"], Owner(match["host"], int(match["pid"]), int(match["started"]))
