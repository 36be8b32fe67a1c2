"""Whether a file holds what it should: by its whole content, or by parts, as Amazon S3 says it of what was uploaded in parts.

A checksum is one text: "sha256:<hex>" of all bytes; "sha256/8388608:<hex>" of the digests of so many bytes each, joined.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterator

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class Hash(Protocol):
        """What all of them can do."""

        def update(self, data: bytes, /) -> None: ...

        def digest(self) -> bytes: ...


CHUNK_BYTES = 1 << 20
_CRC64_NVME = 0x9A6C9329AC4BC9B5  # the polynomial, bits reversed: NVM Express Base Specification 2.0, section 5.2.1.3.4


class Stopped(Exception):
    """Nobody wants to know any more."""


def matches(path: str, checksum: str, stopped: Callable[[], bool] = lambda: False) -> bool:
    """Whether the file's content has this checksum. Raises `OSError`, `ValueError` for an unknown kind, `Stopped`."""
    kind, _, expected = checksum.partition(":")
    name, _, part_bytes = kind.partition("/")
    with open(path, "rb") as file:
        if not part_bytes:
            found, _ = _digest(name, _chunks(file.read, None, stopped))
        else:
            found = _of_parts(name, file.read, int(part_bytes), stopped)
    return found.hex() == expected


def _of_parts(name: str, read: Callable[[int], bytes], part_bytes: int, stopped: Callable[[], bool]) -> bytes:
    digests = []
    while True:
        digest, length = _digest(name, _chunks(read, part_bytes, stopped))
        if length:
            digests.append(digest)
        if length < part_bytes:
            return _digest(name, iter([b"".join(digests)]))[0]


def _digest(name: str, chunks: Iterator[bytes]) -> tuple[bytes, int]:
    """Of all chunks, and how many bytes they were."""
    made, length = _KINDS[name](), 0
    for chunk in chunks:
        made.update(chunk)
        length += len(chunk)
    return made.digest(), length


def _chunks(read: Callable[[int], bytes], limit: int | None, stopped: Callable[[], bool]) -> Iterator[bytes]:
    """What is read, up to a limit."""
    rest = limit
    while rest != 0 and (chunk := read(CHUNK_BYTES if rest is None else min(CHUNK_BYTES, rest))):
        if stopped():
            raise Stopped
        rest = None if rest is None else rest - len(chunk)
        yield chunk


class _Crc32:
    """Zip's."""

    def __init__(self) -> None:
        self._value = 0

    def update(self, data: bytes) -> None:
        self._value = zlib.crc32(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(4, "big")


class _Crc64Nvme:
    """What S3 computes for whoever uploads without saying a checksum. In Python some 10 MB/s, so it is the last resort."""

    _table: tuple[int, ...] = ()

    def __init__(self) -> None:
        self._value = (1 << 64) - 1
        if not self._table:
            type(self)._table = tuple(map(_crc64_of_byte, range(256)))

    def update(self, data: bytes) -> None:
        value, table = self._value, self._table
        for byte in data:
            value = table[(value ^ byte) & 0xFF] ^ (value >> 8)
        self._value = value

    def digest(self) -> bytes:
        return (self._value ^ ((1 << 64) - 1)).to_bytes(8, "big")


def _crc64_of_byte(value: int) -> int:
    for _ in range(8):
        value = (value >> 1) ^ (_CRC64_NVME if value & 1 else 0)
    return value


_KINDS: dict[str, Callable[[], Hash]] = {
    "sha256": hashlib.sha256,
    "sha1": lambda: hashlib.sha1(usedforsecurity=False),
    "md5": lambda: hashlib.md5(usedforsecurity=False),
    "crc32": _Crc32,
    "crc64nvme": _Crc64Nvme,
}
KINDS = tuple(_KINDS)
