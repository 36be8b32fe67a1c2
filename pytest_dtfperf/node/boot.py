"""The first program on a host without this package: fetch the bundle, and continue as the supervisor.

It arrives as text and is run by the Python that the host's set-up has chosen (`clusters/ssh/bootstrap.py` has checked its
version). It reads a line of JSON from stdin with the name of the bundle: a zip of all code for hosts, named by the hash of its
content. If the bundle is not in this user's cache, it is requested once.

Messages to the controller are lines on stdout that begin with MARK; the host may print other lines before.
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
PATIENCE_S = 300  # for the controller's next message during the handshake, so that this ends if the connection breaks
UNUSED_S = 30 * 86400.0  # bundles that were not used for so long are removed
_NEXT = "pytest_dtfperf.node.supervisor"  # by name: before the bundle is here, it cannot be imported
_NEXT_FILE = os.path.join(*_NEXT.split(".")) + ".py"  # every bundle contains it


def main() -> None:
    signal.alarm(PATIENCE_S)
    header = json.loads(read_line())
    try:
        os.environ.update(make_folders(header.get("folders", {})))
    except OSError as exc:
        fail("folder", folder=exc.filename, why=exc.strerror)
    tempfile.tempdir = None
    folder, temporary_folder = find_bundle(header["bundle"]) or receive_bundle(header["bundle"], header["bytes"])
    signal.alarm(0)
    sys.path.insert(0, folder)
    os.environ["PYTHONPATH"] = os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])
    import_module(_NEXT).main(header, temporary_folder)


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


def find_bundle(name: str) -> "tuple[str, None] | None":
    """Return the folder of a bundle and None, as nothing is to be removed; None if the bundle is not in the cache."""
    folder = os.path.join(get_cache_folder(), name)
    if not os.path.exists(os.path.join(folder, _NEXT_FILE)):
        return None
    _touch(folder)
    return folder, None


def receive_bundle(name: str, size: int) -> "tuple[str, str | None]":
    """Receive the bundle and unpack it.

    Returns:
        The folder, and the folder to remove at the end: None if it is in the cache.
    """
    report(at="bundle")
    data = _read_exactly(size)
    if name != f"bundle-{hashlib.sha256(data).hexdigest()}":
        fail("bundle", why="it was damaged on the way")
    try:
        return _unpack_into_cache(name, data), None
    except OSError as exc:
        first = f"{get_cache_folder()}: {exc.strerror}"
    try:  # a full or read-only cache does not prevent training
        folder = tempfile.mkdtemp(prefix="dtfperf-run-")  # as node/sweep.py has it
    except OSError as exc:
        fail("bundle", why=f"{first}; no folder for temporary files either: {exc.strerror}")
    try:
        _unpack(data, folder)
    except OSError as exc:
        shutil.rmtree(folder, ignore_errors=True)
        fail("bundle", why=f"{first}; {tempfile.gettempdir()}: {exc.strerror}")
    return folder, folder


def get_cache_folder() -> str:
    """Return this user's folder for all files that this package keeps on a host."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return os.path.join(home if os.path.isabs(home) else os.path.expanduser("~/.cache"), "dtfperf")


def report(**fields: "Any") -> None:
    """Send the controller a message, on a line of its own."""
    line = memoryview(f"\n{MARK}{json.dumps(fields)}\n".encode())
    while line:
        line = line[os.write(1, line) :]


def fail(what: str, **fields: "Any") -> "NoReturn":
    """Send the controller the reason of a failure, and exit."""
    report(failed=what, **fields)
    sys.exit(1)


def read_line() -> bytes:
    """Return the controller's next line. Exits at the end of input."""
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


def _unpack_into_cache(name: str, data: bytes) -> str:
    """Unpack the bundle into the cache in one step, so that concurrent sessions never see a part of it. Returns the folder."""
    cache = get_cache_folder()
    os.makedirs(cache, mode=0o700, exist_ok=True)
    _remove_unused_bundles(cache)
    folder = os.path.join(cache, name)
    fresh = tempfile.mkdtemp(prefix=f"{name}.", dir=cache)
    try:
        _unpack(data, fresh)
        try:
            os.rename(fresh, folder)
        except OSError:
            if find_bundle(name) is None:  # otherwise another process was faster
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


def _remove_unused_bundles(cache: str) -> None:
    for name in os.listdir(cache):
        folder = os.path.join(cache, name)
        with suppress(OSError):  # another host with the same home was faster
            if name.startswith("bundle-") and time.time() - os.stat(folder).st_mtime > UNUSED_S:
                shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
