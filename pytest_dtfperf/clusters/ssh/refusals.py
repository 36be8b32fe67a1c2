"""What a host that was reached says when it cannot go on, in words for people. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pytest_dtfperf.clusters.ssh.bootstrap import OLDEST_PYTHON

_NEEDED = f"Python {'.'.join(map(str, OLDEST_PYTHON))} or newer, with TensorFlow"


def read(words: Mapping[str, Any], setup: Sequence[str], python: str) -> tuple[str, str]:
    """What is the matter with the host, and how to go on."""
    match words:
        case {"failed": "setup", "line": number, "code": code}:
            what = f"failed at setup line {number} with exit code {code}: {setup[number - 1]}"
            return what, "correct `setup` in clusters.toml, or the host"
        case {"failed": "python"}:
            return f"has no {python}", f"name its interpreter with `python`, or make it known in `setup`: {_NEEDED}"
        case {"failed": "version", "version": version}:
            return f"has Python {version} as {python}", f"name another interpreter with `python`: {_NEEDED}"
        case {"failed": "bundle", "why": why}:
            return f"cannot keep what runs on hosts (1 MB): {why}", "make room there"
        case {"failed": "environment", "why": why, "hint": hint}:
            return f"has no environment for training: {why}", hint
        case {"failed": "program", "program": program}:
            return f"has no program {program}", "name its interpreter with `python`"
    return f"says {dict(words)}", "is something else there called python?"


def hints(last_words: Iterable[bytes], host: str) -> list[bytes]:
    """What an agent's last words do not say: how to go on."""
    if any(line.endswith((b"has no module 'tensorflow'", b"No module named 'tensorflow'")) for line in last_words):
        return [
            f"TensorFlow is missing on {host}: name an interpreter that has it with `python`, load it in `setup`, "
            'or say setup = "uv" to have it installed there'.encode()
        ]
    return []
