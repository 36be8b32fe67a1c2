"""A PID namespace of its own for a command, as a container has one: same host name, same home, same network."""

import functools
import subprocess


def in_pid_namespace(*, own_proc: bool = True) -> list[str]:
    """Return the prefix of a command. With `own_proc` its /proc shows the new namespace, as a container's does."""
    return ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", *(["--mount-proc"] if own_proc else [])]


@functools.cache
def why_not() -> str | None:
    """Why there can be none here; None: there can."""
    try:
        tried = subprocess.run([*in_pid_namespace(), "true"], capture_output=True, text=True, check=False)
    except FileNotFoundError as exc:
        return str(exc)
    return f"no PID namespaces here: {tried.stderr.strip()}" if tried.returncode else None


def hide_others(how: int) -> list[str]:
    """Return root's prefix of a command with a /proc of this `hidepid`, which hides processes of other users."""
    mounted = f'mount -t proc -o hidepid={how} proc /proc && "$@"; exit $?'
    return ["unshare", "--pid", "--mount", "--fork", "--kill-child", "sh", "-c", mounted, "sh"]
