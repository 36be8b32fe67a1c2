"""Files that somebody asks a command for."""

import sys
from pathlib import Path

from pytest_dtfperf.errors import UsageError
from pytest_dtfperf.node.files import replacing


def write_file(path: Path, content: bytes) -> None:
    """Whole or not at all, and said on stderr, for stdout is for other programs. Raises `UsageError`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():  # a pipe or a device is written to, and stays what it is
            path.write_bytes(content)
        else:
            with replacing(path) as file:
                file.write(content)
    except OSError as exc:
        raise UsageError(f"{path} cannot be written: {exc.strerror or exc}") from exc
    print(f"dtfperf: written: {path}", file=sys.stderr)
