"""Where a session keeps what a test's tasks print: `logs/<test>/<n>/`, one folder for each of its runs."""

import hashlib
import os
import re
from contextlib import suppress
from pathlib import Path

_MOST_STEM_BYTES = 180  # a name has 255 at most, and what is written whole or not at all needs some before


def path_safe(test: str) -> str:
    """A folder name for a test's node id: readable, of plain characters, and different for different ids.

    What the readable part loses ("a/b" and "a_b" read alike) the digest keeps. Characters are those every file system and
    GitHub's artifact upload allow.
    """
    readable = re.sub(r"[^A-Za-z0-9_.=-]+", "_", test).strip("._-")[-120:].lstrip("._-")
    return f"{readable or 'test'}-{hashlib.sha256(test.encode()).hexdigest()[:16]}"


def file_stem(model: str, batch_size: int) -> str:
    """Return the begin of the names of a training's files: `trivial_b32`.

    The name of a program may be longer than a file's: then its begin stands there, and a digest of the whole.
    """
    stem, digest = f"{model}_b{batch_size}", hashlib.sha256(model.encode()).hexdigest()[:16]
    if len(os.fsencode(stem)) <= _MOST_STEM_BYTES:
        return stem
    return f"{os.fsencode(model)[: _MOST_STEM_BYTES - 40].decode(errors='ignore')}-{digest}_b{batch_size}"


def next_folder(folder: Path) -> Path:
    """Make `1` in it, then `2`, ..."""
    folder.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        with suppress(FileExistsError):  # another process may be making the same one: who makes it has it
            (folder / str(number)).mkdir()
            return folder / str(number)
        number += 1
