"""Start a command in a container: check the runner and the image, and pass the digest of the image to the command.

    python -P -m pytest_dtfperf.node.container "apptainer exec --nv image.sif" python3 -P -m pytest_dtfperf.node.agent ...

The text is the beginning of a command line; its last word is the image. The runner replaces this process, so that it gets
signals and the end of stdin. The command gets `--container DIGEST` after its arguments.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import suppress

from pytest_dtfperf.node import boot
from pytest_dtfperf.node.files import replace_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

CANNOT_START = 127  # as a shell has it for a program that it cannot find
ENGINES = ("docker", "podman")  # they pass only variables that are named on the command line, and find images by name
# Variables of the controller that may contain passwords: neither hosts nor the records of a container engine get them.
SECRETS = frozenset(("DTFPERF_HISTORY", "DTFPERF_METRICS", "DTFPERF_NOTIFY"))
_FILE = re.compile(r"\.(sif|simg|sqsh|sqfs|squashfs|img)\Z")
_PASSED = re.compile(r"(DTFPERF_\w+|PYTHONPATH|TMPDIR|XDG_\w+|CUDA_\w+|TF_\w+|NCCL_\w+)\Z")
_INSPECT_S = 60.0


class ContainerError(Exception):
    """The container cannot be started; the message is one line."""


def main() -> None:
    text, *command = sys.argv[1:]
    try:
        argv = make_command(text, command, os.environ)
    except ContainerError as error:
        print(f"container: {error}", file=sys.stderr, flush=True)
        sys.exit(CANNOT_START)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [_get_package_folder(), os.environ.get("PYTHONPATH", "")]))
    os.execv(argv[0], argv)


def make_command(text: str, command: Iterable[str], environment: Mapping[str, str]) -> list[str]:
    """Return the whole command line, beginning with the path of the runner.

    Raises:
        ContainerError: there is no such runner, or no such image.
    """
    prefix = shlex.split(text)
    runner = shutil.which(prefix[0])
    if runner is None:
        raise ContainerError(f"this host has no program {prefix[0]}: install it, or change `container` in clusters.toml")
    image = next((word for word in reversed(prefix[1:]) if word != "--"), "")
    is_engine = os.path.basename(prefix[0]) in ENGINES
    found = inspect_image(runner, image) if is_engine else read_digest(image)
    if is_engine and len(prefix) > 2:
        names = sorted(name for name in {*environment, "PYTHONPATH"} if _PASSED.match(name) and name not in SECRETS)
        prefix[2:2] = [word for name in names for word in ("--env", name)]
    return [runner, *prefix[1:], *command, *(["--container", found] if found else [])]


def read_digest(image: str) -> str | None:
    """Return the digest of an image file or folder; None if the word names neither.

    Raises:
        ContainerError: the image of this name is missing, or cannot be read.
    """
    path = os.path.expanduser(image)
    if not os.path.exists(path):
        if _FILE.search(path) or os.path.isabs(path):
            raise ContainerError(f"this host has no image {image}")
        return None
    if path == os.sep:  # the host's own files, as bubblewrap has them
        return None
    try:
        if os.path.isdir(path):
            return f"folder sha256:{_digest_folder(path)}"
        return f"{os.path.basename(path)} sha256:{_digest_file_once(path)}"
    except OSError as error:
        raise ContainerError(f"the image {image} cannot be read: {error.strerror}") from error


def inspect_image(runner: str, image: str) -> str:
    """Return the digest of an image of Docker or Podman. Raises `ContainerError`."""
    command = [runner, "image", "inspect", "--format", "{{.Id}}", image]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_INSPECT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ContainerError(f"{runner} does not answer: {type(error).__name__}") from error
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"]
        raise ContainerError(f"{os.path.basename(runner)} has no image {image}: {lines[-1]}")
    return f"{image} {done.stdout.decode(errors='replace').strip()}"


def _digest_file_once(path: str) -> str:
    """Return the SHA-256 of a file. It is cached, so that gigabytes are read once while the file does not change."""
    seen = os.stat(path)
    key = [os.path.realpath(path), seen.st_size, seen.st_mtime_ns]
    name = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]
    kept = os.path.join(boot.get_cache_folder(), "images", f"{name}.json")
    with suppress(OSError, ValueError, KeyError, TypeError), open(kept, encoding="utf-8") as file:
        found = json.load(file)
        if found["key"] == key:
            return str(found["sha256"])
    with open(path, "rb") as image:
        sha256 = hashlib.file_digest(image, "sha256").hexdigest()
    with suppress(OSError):
        os.makedirs(os.path.dirname(kept), mode=0o700, exist_ok=True)
        with replace_file(kept) as out:
            out.write(json.dumps({"key": key, "sha256": sha256}).encode())
    return sha256


def _digest_folder(path: str) -> str:
    """Return the SHA-256 of the names, sizes and links of all files, as reading gigabytes would take minutes."""
    digest = hashlib.sha256()
    for folder, folders, files in os.walk(path):
        folders.sort()
        for name in sorted(files):
            where = os.path.join(folder, name)
            seen = os.lstat(where)
            target = os.readlink(where) if os.path.islink(where) else ""
            digest.update(f"{os.path.relpath(where, path)}\0{seen.st_size}\0{target}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _get_package_folder() -> str:
    """Return the folder that contains this package. The container must show it at the same path."""
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


if __name__ == "__main__":
    main()
