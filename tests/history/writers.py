"""A process that writes lines with its number, its process id and the id of a session, after a common start.

python -m tests.history.writers ADDRESS DIR...    a process for each folder of sessions; prints what each has committed
"""

import os
import sys
import tempfile
from pathlib import Path

from pytest_dtfperf.history.enter import enter, list_folders
from pytest_dtfperf.history.where import Address, parse_address


def main(url: str, *folders: str) -> None:
    """Each writes lines of its number, its process and a session's id; all begin when all that they import is there."""
    _import_all(Path(folders[0]))
    children = [os.fork() or _write(number, Path(folder), Address(url)) for number, folder in enumerate(folders)]
    for child in children:
        os.waitpid(child, 0)


def _import_all(root: Path) -> None:
    """SQLAlchemy, schemas and what else each of us would import come with a session that is entered elsewhere."""
    with tempfile.TemporaryDirectory() as elsewhere:
        address = parse_address(None, Path(elsewhere))
        assert address
        assert enter(list_folders(root)[0], address) is None


def _write(number: int, root: Path, address: Address) -> int:
    for folder in list_folders(root):
        os.write(1, f"{number} {os.getpid()} {enter(folder, address) or folder.id}\n".encode())
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
