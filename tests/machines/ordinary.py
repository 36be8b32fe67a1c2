"""Commands of a user who is not root, on a machine with files that only root can read: `[*AS_USER(...), "python", ...]`."""

import os
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path

USER = 54321  # whom no machine's /etc/passwd knows
REPOSITORY = Path(__file__).parents[2]


def why_not() -> str | None:
    """Return why commands cannot be run as another user here, or None."""
    return "only root can become somebody else" if os.geteuid() else None


def as_user() -> list[str]:
    """Return the prefix of a command as this user. It sees Python and this repository, also below a folder of root's."""
    needed = [Path(sys.base_prefix), Path(sys.prefix), REPOSITORY]
    return ["unshare", "--mount", "sh", "-ec", _script(needed), "sh"]


def without_namespaces() -> list[str]:
    """Return the prefix of a command that may make no namespaces, as in many containers."""
    script = (
        'for kind in user net; do echo 0 >/proc/sys/user/max_${kind}_namespaces; done; exec setpriv --bounding-set=-all "$@"'
    )
    return ["unshare", "--user", "--map-root-user", "sh", "-ec", script, "sh"]


def _script(needed: Iterable[Path]) -> str:
    """Return a script that covers each closed folder by an open one with the needed files."""
    lines = []
    for closed in sorted({parent for path in needed for parent in path.resolve().parents if not _is_open(parent)}):
        below = [path for path in needed if closed in path.resolve().parents]
        for at, path in enumerate(below):
            lines += [f"mkdir -p /mnt/{at}", f"mount --bind {shlex.quote(str(path.resolve()))} /mnt/{at}"]
        lines.append(f"mount -t tmpfs -o mode=755 open {shlex.quote(str(closed))}")
        for at, path in enumerate(below):
            there = shlex.quote(str(path.resolve()))
            lines += [f"mkdir -p {there}", f"mount --bind /mnt/{at} {there}"]
        lines += [f"umount /mnt/{at}" for at in range(len(below))]
    mounts = ["mount -t tmpfs -o mode=755 scratch /mnt", *lines] if lines else []
    drop = f"exec setpriv --reuid {USER} --regid {USER} --clear-groups --inh-caps=-all"
    return "; ".join([*mounts, f'{drop} -- "$@"'])


def _is_open(folder: Path) -> bool:
    return bool(folder.stat().st_mode & 0o001)
