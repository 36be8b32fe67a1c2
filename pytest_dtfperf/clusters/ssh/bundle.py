"""What travels to hosts: one zip of all that runs there, the same bytes for the same code, named by their hash."""

import hashlib
import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest_dtfperf

CONTENT = (
    "__init__.py",
    "errors.py",
    "extensions.py",
    "measurement.py",
    "node",
    "plain.py",
    "spec",
    "stamps.py",
    "staging/__init__.py",
    "staging/on_host",
    "steps.py",
    "traces.py",
    "training",
)
_EARLIEST = (1980, 1, 1, 0, 0, 0)  # that a zip can say; when a file was written is no part of what it holds


@dataclass(frozen=True)
class Bundle:
    """A zip file."""

    name: str
    data: bytes


@cache
def pack() -> Bundle:
    """This package's, as it lies here now: a session that is edited under way goes on with what it began."""
    return pack_folder(Path(pytest_dtfperf.__file__).parent)


def pack_folder(package: Path) -> Bundle:
    """The same of any such folder."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as bundle:
        for path in _files(package):
            info = zipfile.ZipInfo(f"{package.name}/{path.relative_to(package).as_posix()}", _EARLIEST)
            info.external_attr = 0o644 << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            bundle.writestr(info, path.read_bytes())
    data = file.getvalue()
    return Bundle(f"bundle-{hashlib.sha256(data).hexdigest()}", data)


def _files(package: Path) -> Iterator[Path]:
    for name in CONTENT:
        path = package / name
        if path.is_dir():
            yield from sorted(each for each in path.rglob("*.py") if "__pycache__" not in each.parts)
        else:
            yield path
