"""Where a session keeps what a test's tasks print: `logs/<test>/<n>/`, one folder for each of its runs."""

import hashlib
import re
from contextlib import suppress
from pathlib import Path


def path_safe(test: str) -> str:
    """A folder name for a test's node id: readable, of plain characters, and different for different ids.

    What the readable part loses ("a/b" and "a_b" read alike) the digest keeps. Characters are those every file system and
    GitHub's artifact upload allow.
    """
    readable = re.sub(r"[^A-Za-z0-9_.=-]+", "_", test).strip("._-")[-120:].lstrip("._-")
    return f"{readable or 'test'}-{hashlib.sha256(test.encode()).hexdigest()[:16]}"


def next_folder(folder: Path) -> Path:
    """Make `1` in it, then `2`, ..."""
    folder.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        with suppress(FileExistsError):  # another process may be making the same one: who makes it has it
            (folder / str(number)).mkdir()
            return folder / str(number)
        number += 1
