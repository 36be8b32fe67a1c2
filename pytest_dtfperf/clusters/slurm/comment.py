"""What a job says of itself in its comment: whose it is."""

import re

from pytest_dtfperf.node.owner import Owner

_COMMENT = re.compile(r"dtfperf session=(\S+) owner=(\S+)")


def write_comment(session: str, owner: Owner) -> str:
    """For sbatch."""
    return f"dtfperf session={session} owner={owner.text}"


def read_comment(comment: str) -> tuple[str, Owner] | None:
    """(session, owner), or None if the comment is none of ours."""
    found = _COMMENT.fullmatch(comment.strip())
    owner = Owner.read(found[2]) if found else None
    return (found[1], owner) if found and owner else None
