"""Which commit of a repository was at work."""

import subprocess
from pathlib import Path

GIT_TIMEOUT_S = 10.0  # a commit is worth a line, not a hanging session


def commit_of(root: Path) -> str | None:
    """The commit of the repository that `root` is in, if it is in one."""
    try:
        found = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None if found.returncode == 0 else None
