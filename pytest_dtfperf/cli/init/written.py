"""Files are written where none is, whole or not at all."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pytest_dtfperf.cli.init.files import File
from pytest_dtfperf.errors import UsageError
from pytest_dtfperf.node.files import replacing


@dataclass(frozen=True)
class Written:
    path: str
    is_new: bool  # False: there was one, which stays
    note: str


def write(folder: Path, files: Iterable[File]) -> list[Written]:
    """Raises `UsageError` where one cannot be written; what was written before it stays."""
    return [_write(folder / file.path, file) for file in files]


def _write(path: Path, file: File) -> Written:
    try:
        if file.content is None or path.exists() or path.is_symlink():
            return Written(file.path, is_new=False, note=file.if_kept)
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as opened:
            opened.write(file.content.encode())
    except OSError as exc:
        raise UsageError(f"{path} cannot be written: {exc.strerror or exc}") from exc
    return Written(file.path, is_new=True, note=file.note)
