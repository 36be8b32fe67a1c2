"""`setup = "uv"` on the host: an environment with the locked TensorFlow, made once in this user's cache and used again.

The first session makes it under a lock, and the others wait. It gets its name when it is complete, so that a folder with that
name always is. uv is the host's own, or is installed with pip, which checks its hashes.
"""

from __future__ import annotations

import fcntl
import glob
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence

from pytest_dtfperf.node import boot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NVIDIA_DRIVERS = ("/proc/driver/nvidia/version", "/usr/lib/wsl/lib/nvidia-smi")  # the latter on WSL2
# uv uses the host's certificates, which may include a company's, only with these variables: the name depends on its version.
_SYSTEM_CERTIFICATES = {"UV_SYSTEM_CERTS": "true", "UV_NATIVE_TLS": "true"}
_BY_HAND = 'install TensorFlow yourself, and name its interpreter with `python` instead of setup = "uv"'
_TOO_FULL = ("No space left on device", "Disk quota exceeded")


def make(wanted: Mapping[str, Any]) -> None:
    """Make the environment if it is missing. Reports progress to the controller, and exits after a failure."""
    kind = _choose_kind(wanted)
    folder = _get_folder(kind["name"])
    if _is_there(folder):
        return
    boot.report(at="environment", doing="waiting for another process that is installing TensorFlow there")
    try:
        os.makedirs(boot.get_cache_folder(), mode=0o700, exist_ok=True)
        with open(f"{folder}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _is_there(folder):
                _make(folder, kind["requirements"], _find_uv(wanted["uv"]))
    except OSError as exc:
        boot.fail(
            "environment",
            why=f"{boot.get_cache_folder()}: {exc.strerror}",
            hint="make room there, or set `cache_dir` in clusters.toml",
        )


def enter(wanted: Mapping[str, Any]) -> None:
    """Put the environment's interpreter first on the PATH of this process and its children."""
    folder = _get_folder(_choose_kind(wanted)["name"])
    os.environ["VIRTUAL_ENV"] = folder
    os.environ["PATH"] = os.pathsep.join([os.path.join(folder, "bin"), os.environ.get("PATH", os.defpath)])


def _choose_kind(wanted: Mapping[str, Any]) -> Mapping[str, str]:
    kind: Mapping[str, str] = wanted["kinds"]["cuda" if any(map(os.path.exists, NVIDIA_DRIVERS)) else "cpu"]
    return kind


def _get_folder(name: str) -> str:
    """Return the environment's folder. Its name has the Python version and the architecture, as machines may share a home."""
    return os.path.join(boot.get_cache_folder(), f"{name}-{sys.version_info[0]}.{sys.version_info[1]}-{os.uname().machine}")


def _is_there(folder: str) -> bool:
    return os.path.exists(os.path.join(folder, "bin", "python3"))


def _make(folder: str, requirements: str, uv: str) -> None:
    for incomplete in glob.glob(f"{glob.escape(folder)}.[0-9]*"):  # of killed processes, as this one has the lock
        _remove(incomplete)
    fresh = f"{folder}.{os.getpid()}"
    listed = f"{folder}.txt"
    with open(listed, "w") as file:
        file.write(requirements)
    try:
        boot.report(at="environment", doing="making an environment")
        _run([uv, "venv", "--quiet", "--relocatable", "--python", sys.executable, fresh])
        boot.report(at="environment", doing="installing TensorFlow")
        interpreter = os.path.join(fresh, "bin", "python")
        _run([uv, "pip", "install", "--quiet", "--require-hashes", "--python", interpreter, "--requirement", listed])
        _remove(folder)  # its interpreter no longer exists
        os.rename(fresh, folder)
    finally:
        _remove(fresh)
        _remove(listed)


def _find_uv(wanted: Mapping[str, str]) -> str:
    """Return the path of uv: the host's own, that of an earlier session, or one that is fetched now."""
    version = wanted["version"]
    for found in (*_find_programs("uv"), _fetch_uv(version)):
        if os.path.isfile(found) and _read_version(found) >= _parse_numbers(version)[:2]:
            return found
    boot.report(at="environment", doing=f"fetching uv {version}")
    target = os.path.dirname(os.path.dirname(_fetch_uv(version)))
    _remove(target)
    listed = f"{target}.txt"
    with open(listed, "w") as file:
        file.write(wanted["requirements"])
    pip = [sys.executable, "-P", "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet"]
    try:
        _run(
            [*pip, "--require-hashes", "--target", target, "--requirement", listed],
            hint="install uv on the host, or pip (python3-pip) and a way to its index",
        )
    finally:
        _remove(listed)
    return _fetch_uv(version)


def _fetch_uv(version: str) -> str:
    return os.path.join(boot.get_cache_folder(), f"uv-{version}-{os.uname().machine}", "bin", "uv")


def _find_programs(program: str) -> list[str]:
    folders = [*os.environ.get("PATH", "").split(os.pathsep), os.path.expanduser("~/.local/bin")]
    return [path for each in folders if os.access(path := os.path.join(each, program), os.X_OK)]


def _read_version(uv: str) -> tuple[int, ...]:
    """Return the version; empty if it cannot run here, such as a program for another architecture in a shared home."""
    try:
        output = subprocess.run([uv, "--version"], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    except OSError:
        return ()
    return _parse_numbers(output.stdout.decode(errors="replace"))[:2]


def _parse_numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)))


def _run(argv: Sequence[str], hint: str = _BY_HAND) -> None:
    done = subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",  # uv's encoding in any locale
        errors="replace",
        env={**_SYSTEM_CERTIFICATES, **os.environ},
        check=False,
    )
    if done.returncode:
        os.write(2, done.stdout[-4000:].encode())
        if any(each in done.stdout for each in _TOO_FULL):
            hint = f"make room in {boot.get_cache_folder()}, or set `cache_dir` in clusters.toml"
        boot.fail("environment", why=f"`{' '.join(map(os.path.basename, argv[:2]))} ...` failed", hint=hint)


def _remove(path: str) -> None:
    import shutil

    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    elif os.path.lexists(path):
        os.unlink(path)
