"""The first that comes to a host that has nothing of ours: it sees to the rest being there, and becomes the supervisor.

It arrives as text and is run by the Python that the host's set-up has chosen (`clusters/ssh/bootstrap.py`, which has checked
its version). Then it gets, in one line of JSON on stdin, the bundle that is wanted: a zip of all that runs on hosts, named by
its content's hash. It is in this user's cache since an earlier time, or it is asked for, once.

Messages to the controller are lines on stdout that begin with MARK: what a host may print before them is not part of them.
"""

import errno
import hashlib
import io
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import zipfile
from contextlib import suppress
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

MARK = "dtfperf: "
PATIENCE_S = (
    300  # for the next word of a controller that is in the middle of a handshake: one cut off must not leave this behind
)
UNUSED_S = 30 * 86400.0  # bundles that were not used for so long are removed
_NEXT = "pytest_dtfperf.node.supervisor"  # by name: until the bundle is here, there is no package to import from
_PROOF = os.path.join(*_NEXT.split(".")) + ".py"  # what every bundle has


def main() -> None:
    signal.alarm(PATIENCE_S)
    header = json.loads(read_line())
    try:
        os.environ.update(make_folders(header.get("folders", {})))
    except OSError as exc:
        fail("folder", folder=exc.filename, why=exc.strerror)
    tempfile.tempdir = None
    folder, borrowed = find(header["bundle"]) or receive(header["bundle"], header["bytes"])
    signal.alarm(0)
    sys.path.insert(0, folder)
    os.environ["PYTHONPATH"] = os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])
    import_module(_NEXT).main(header, borrowed)


def make_folders(folders: "dict[str, str]") -> "dict[str, str]":
    """Make folders that are missing, and return their paths by variable, with this host's variables in them.

    Raises `OSError` with the folder as its `filename`.
    """
    found = {}
    for name, given in folders.items():
        path = os.path.expanduser(os.path.expandvars(given))
        if not os.path.isabs(path) or "$" in path:
            raise OSError(errno.ENOENT, "a variable in it is not set on this host", given)
        try:
            os.makedirs(path, exist_ok=True)
        except OSError as exc:
            raise OSError(exc.errno, exc.strerror, path) from exc
        if not os.access(path, os.W_OK):
            raise OSError(errno.EACCES, "this user may not write there", path)
        found[name] = path
    return found


def find(name: str) -> "tuple[str, None] | None":
    """Return the bundle's folder in the cache, if it is there."""
    folder = os.path.join(cache_folder(), name)
    if not os.path.exists(os.path.join(folder, _PROOF)):
        return None
    _touch(folder)
    return folder, None


def receive(name: str, size: int) -> "tuple[str, str | None]":
    """The folder into which the bundle was unpacked, and, where that is not the cache, what must be removed at the end."""
    report(at="bundle")
    data = _read_exactly(size)
    if name != f"bundle-{hashlib.sha256(data).hexdigest()}":
        fail("bundle", why="it did not arrive as it was sent")
    try:
        return _keep(name, data), None
    except OSError as exc:
        first = f"{cache_folder()}: {exc.strerror}"
    try:  # a cache that is full or cannot be written is no reason not to train
        folder = tempfile.mkdtemp(prefix="dtfperf-run-")  # as node/run_folder.py has it
    except OSError as exc:
        fail("bundle", why=f"{first}; no folder for temporary files either: {exc.strerror}")
    try:
        _unpack(data, folder)
    except OSError as exc:
        shutil.rmtree(folder, ignore_errors=True)
        fail("bundle", why=f"{first}; {tempfile.gettempdir()}: {exc.strerror}")
    return folder, folder


def cache_folder() -> str:
    """Return this user's folder for all that we keep on a host."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return os.path.join(home if os.path.isabs(home) else os.path.expanduser("~/.cache"), "dtfperf")


def report(**fields: "Any") -> None:
    """Send the controller a message. It begins on a line of its own, after any other output."""
    line = memoryview(f"\n{MARK}{json.dumps(fields)}\n".encode())
    while line:
        line = line[os.write(1, line) :]


def fail(what: str, **fields: "Any") -> "NoReturn":
    """Send the controller the reason of a failure, and end."""
    report(failed=what, **fields)
    sys.exit(1)


def read_line() -> bytes:
    """Return the controller's next line; it sends no more before an answer. End this process where there is none."""
    line = b""
    while not line.endswith(b"\n"):
        data = os.read(0, 1 << 16)
        if not data:
            sys.exit(0)
        line += data
    return line


def _read_exactly(size: int) -> bytes:
    pieces = []
    while size:
        data = os.read(0, min(size, 1 << 20))
        if not data:
            sys.exit(0)
        pieces.append(data)
        size -= len(data)
    return b"".join(pieces)


def _keep(name: str, data: bytes) -> str:
    """Unpack into the cache: whole or not at all, also when two do so at once."""
    cache = cache_folder()
    os.makedirs(cache, mode=0o700, exist_ok=True)
    _throw_away_old_ones(cache)
    folder = os.path.join(cache, name)
    fresh = tempfile.mkdtemp(prefix=f"{name}.", dir=cache)
    try:
        _unpack(data, fresh)
        try:
            os.rename(fresh, folder)
        except OSError:
            if find(name) is None:  # else somebody else was faster
                raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return folder


def _unpack(data: bytes, folder: str) -> None:
    with zipfile.ZipFile(io.BytesIO(data)) as bundle:
        bundle.extractall(folder)


def _touch(folder: str) -> None:
    with suppress(OSError):  # a cache that cannot be written is not cleaned
        os.utime(folder)


def _throw_away_old_ones(cache: str) -> None:
    for name in os.listdir(cache):
        folder = os.path.join(cache, name)
        with suppress(OSError):  # another host with the same home was faster
            if name.startswith("bundle-") and time.time() - os.stat(folder).st_mtime > UNUSED_S:
                shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
