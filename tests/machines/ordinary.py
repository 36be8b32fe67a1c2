"""Commands as somebody who is not root, on a machine where only root's files are at hand: `[*AS_USER(...), "python", ...]`."""

import os
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path

USER = 54321  # whom no machine's /etc/passwd knows
REPOSITORY = Path(__file__).parents[2]


def why_not() -> str | None:
    """Why nobody else can be played here, or None if it can."""
    return "only root can become somebody else" if os.geteuid() else None


def as_user() -> list[str]:
    """What to write before a command. It sees Python and this repository, also where they are below a folder of root's own."""
    needed = [Path(sys.base_prefix), Path(sys.prefix), REPOSITORY]
    return ["unshare", "--mount", "sh", "-ec", _script(needed), "sh"]


def without_namespaces() -> list[str]:
    """What to write before a command that may make no namespaces, as in many containers: its root has no power."""
    script = (
        'for kind in user net; do echo 0 >/proc/sys/user/max_${kind}_namespaces; done; exec setpriv --bounding-set=-all "$@"'
    )
    return ["unshare", "--user", "--map-root-user", "sh", "-ec", script, "sh"]


def _script(needed: Iterable[Path]) -> str:
    """Over every folder that is closed to others lies an empty one that is not, with what is needed bound into it."""
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
