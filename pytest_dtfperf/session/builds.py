"""Build software stacks, and keep them between sessions: a commit in a worktree, versions of packages, or both.

~/.cache/dtfperf/stacks/1f0c9a.../
├── stack.json     the recipe, and the time of the build; a folder without it is incomplete, and is built again
├── tree/          the worktree of the commit
├── env/           an environment above that of the cluster's interpreter: what is installed here comes first
└── build.log

Hosts use these folders by their paths: those of other machines need the same file system.
"""

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import filelock

from pytest_dtfperf.errors import BuildFailed, UsageError
from pytest_dtfperf.node import boot
from pytest_dtfperf.node.files import replace_file
from pytest_dtfperf.node.processes import kill_group

GIT_S = 300.0
BUILD_S = 7200.0  # a build that takes longer hangs
LAST_LINES = 3  # of a failed build, in its message
_VERSION = re.compile(r"\d+(?:\.\d+)*")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The source of a stack.

    Attributes:
        repo, commit: the repository's folder and the full hash; empty for packages only.
        folder: of the repository, in which programs and set-up lines run; empty: its root.
        setup: shell lines that run in the worktree, with the environment's `python` and `pip` first in PATH.
        packages: requirements that are installed.
        python: the interpreter below the environment.
    """

    repo: str = ""
    folder: str = ""
    commit: str = ""
    setup: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    python: str = sys.executable

    @property
    def key(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:20]

    def __str__(self) -> str:
        return " ".join(filter(None, [self.commit[:12], *self.packages]))


@dataclass(frozen=True)
class BuiltStack:
    """A complete stack.

    Attributes:
        tree: the folder of its worktree in which programs run; None for packages only.
        python: its interpreter; None if it has no environment of its own.
        build_s: seconds that its build took.
    """

    folder: Path
    tree: Path | None
    python: str | None
    build_s: float


@dataclass(frozen=True)
class CachedStack:
    """A folder of the cache, complete or not."""

    folder: Path
    recipe: Mapping[str, Any]  # empty: incomplete
    built: str
    bytes: int


def stacks_folder() -> Path:
    return Path(boot.get_cache_folder()) / "stacks"


def find_commit(repo: Path, ref: str) -> str:
    """Return the hash of a commit. Raises `UsageError` if the repository has none of this name."""
    try:
        return _run_git(repo, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}").strip()
    except BuildFailed as error:
        if not repo.is_dir() or _run_git(repo, "rev-parse", "--git-dir", check=False) == "":
            raise UsageError(f"{repo} is no git repository") from error
        raise UsageError(f"git: {repo} has no commit {ref}") from error


def find_repository(folder: Path) -> tuple[str, str]:
    """Return the root of the repository that contains a folder, and the folder's path in it. Raises `UsageError`."""
    found = _run_git(folder, "rev-parse", "--show-toplevel", "--show-prefix", check=False)
    if not found:
        raise UsageError(f"{folder} has no files of a commit, as a bare repository: clone it, and name the clone")
    root, prefix = found.split("\n")[:2]
    return root, prefix.rstrip("/")


def list_commits(repo: Path, good: str, bad: str) -> list[str]:
    """Return the commits from `good` to `bad`, oldest first, of merges the first parents. Raises `UsageError`."""
    first, last = find_commit(repo, good), find_commit(repo, bad)
    listed = _run_git(repo, "rev-list", "--reverse", "--first-parent", "--ancestry-path", f"{first}..{last}").split()
    if not listed:
        listed = _run_git(repo, "rev-list", "--reverse", "--ancestry-path", f"{first}..{last}").split()
    if not listed:
        raise UsageError(f"{repo}: {bad} does not come after {good}: --good is an ancestor of --bad")
    return [first, *listed]


def describe_commit(repo: Path, commit: str) -> str:
    """Return the short hash and the subject of a commit."""
    return _run_git(repo, "log", "-1", "--format=%h %s", commit, check=False).strip() or commit[:12]


def list_files(repo: Path, before: str, after: str) -> list[str]:
    """Return the files that differ between two commits, each with its lines."""
    listed = _run_git(repo, "diff", "--stat=100", before, after, check=False).splitlines()
    return [line.strip() for line in listed[:-1]]


def list_versions(requirement: str, python: str) -> list[str]:
    """Return a requirement for each listed version of `NAME==1.0,1.2`, or for each version of the index in `NAME==1.0..1.2`.

    1.0 and 1.0.0 are one version (PEP 440).

    Raises:
        UsageError: the text has another form, a version is listed twice, or the versions cannot be listed.
    """
    name, equals, versions = requirement.partition("==")
    first, dots, last = versions.partition("..")
    named = versions.split(",")
    is_right = all(map(_VERSION.fullmatch, [first, last])) if dots else all(named)
    if not (name and equals and is_right):
        raise UsageError(f"--packages={requirement}: write NAME==1.0..1.2, or NAME==1.0,1.1,1.2")
    if not dots:
        _check_different(requirement, named)
        return [f"{name}=={each}" for each in named]
    low, high = _parse_version(first), tuple(map(int, last.split(".")))
    known = {each: _parse_version(each) for each in _ask_index(name, python)}
    found = [each for each, version in known.items() if low <= version and version[: len(high)] <= high]
    if not found:
        raise UsageError(f"--packages={requirement}: the index has no such version of {name}")
    return [f"{name}=={each}" for each in sorted(found, key=known.__getitem__)]


def _check_different(requirement: str, versions: Sequence[str]) -> None:
    seen: dict[tuple[int, ...] | str, str] = {}
    for each in versions:
        key = _parse_version(each) if _VERSION.fullmatch(each) else each
        if key in seen:
            same = "is there twice" if seen[key] == each else f"is the version {seen[key]}"
            raise UsageError(f"--packages={requirement}: {each} {same}: name each version once")
        seen[key] = each


def _parse_version(text: str) -> tuple[int, ...]:
    """Return the numbers of a version without zeros at its end, which are equal for equal versions."""
    return tuple(map(int, re.sub(r"(\.0+)+$", "", text).split(".")))


def _ask_index(name: str, python: str) -> list[str]:
    """Return the released versions of a package, as pip finds them."""
    pips = [[python, "-m", "pip"], *([[pip]] if (pip := shutil.which("pip")) else [])]
    last = "pip printed nothing"
    for pip_command in pips:
        argv = [*pip_command, "index", "versions", name]
        try:
            ended = subprocess.run(argv, capture_output=True, text=True, timeout=GIT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as exc:  # the hosts' Python may not be on this machine
            last = str(exc)
            continue
        if found := re.search(r"^Available versions: (.*)$", ended.stdout, re.MULTILINE):
            return [each for each in found[1].split(", ") if _VERSION.fullmatch(each)]
        last = (ended.stderr.strip().splitlines() or [last])[-1]
    raise UsageError(f"--packages: the versions of {name} cannot be listed: {last}. Write them: {name}==1.0,1.1")


class BuildCache:
    """The complete stacks of this user, in a folder."""

    def __init__(self, root: Path | None = None) -> None:
        self._root = root or stacks_folder()

    def find(self, recipe: Recipe) -> BuiltStack | None:
        """Return a stack that is complete, or None."""
        folder = self._root / recipe.key
        try:
            build_s = float(json.loads((folder / "stack.json").read_text())["build_s"])
        except (OSError, ValueError, KeyError):
            return None
        tree, python = folder / "tree" / recipe.folder, folder / "env" / "bin" / "python"
        if recipe.commit and not tree.is_dir():
            return None
        return BuiltStack(folder, tree if recipe.commit else None, str(python) if _has_environment(recipe) else None, build_s)

    def build(self, recipe: Recipe) -> BuiltStack:
        """Return the stack, after it was built if necessary. Raises `BuildFailed`."""
        folder = self._root / recipe.key
        self._root.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(f"{folder}.lock"):
            if found := self.find(recipe):
                return found
            _remove(folder)
            folder.mkdir()
            began_s = time.monotonic()
            _build(recipe, folder)
            content = {
                **asdict(recipe),
                "build_s": round(time.monotonic() - began_s, 3),
                "built": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            }
            with replace_file(folder / "stack.json") as file:
                file.write(json.dumps(content, indent=2).encode())
        found = self.find(recipe)
        assert found
        return found

    def list(self) -> "list[CachedStack]":
        """Return all stacks, complete or not."""
        found = []
        for folder in sorted(self._root.iterdir()) if self._root.is_dir() else []:
            if folder.is_dir():
                try:
                    recipe = json.loads((folder / "stack.json").read_text())
                except (OSError, ValueError):
                    recipe = {}
                size = sum(each.lstat().st_size for each in folder.rglob("*") if not each.is_symlink() and each.is_file())
                found.append(CachedStack(folder, recipe, str(recipe.get("built", "")), size))
        return found

    def clear(self) -> int:
        """Remove all stacks that no other session is building, and return how many."""
        removed = 0
        for each in self.list():
            with suppress(filelock.Timeout), filelock.FileLock(f"{each.folder}.lock", timeout=0):
                _remove(each.folder)
                removed += 1
                Path(f"{each.folder}.lock").unlink(missing_ok=True)
        return removed


def _has_environment(recipe: Recipe) -> bool:
    return bool(recipe.setup or recipe.packages)


def _build(recipe: Recipe, folder: Path) -> None:
    """Make the worktree and the environment, and run the set-up lines."""
    log = folder / "build.log"
    environment = dict(os.environ)
    tree = folder / "tree"
    if recipe.commit:
        _run_git(Path(recipe.repo), "worktree", "prune", check=False)
        _run_git(Path(recipe.repo), "worktree", "add", "--detach", "--force", str(tree), recipe.commit)
    if _has_environment(recipe):
        _make_environment(recipe.python, folder / "env", log)
        bin_folder = folder / "env" / "bin"
        environment |= {
            "PATH": os.pathsep.join([str(bin_folder), os.environ.get("PATH", os.defpath)]),
            "VIRTUAL_ENV": str(folder / "env"),
        }
        environment.pop("PYTHONHOME", None)
        if recipe.packages:
            _run_logged(["pip", "install", *recipe.packages], folder, environment, log, what="pip install")
        if recipe.setup:
            lines = ["bash", "-e", "-o", "pipefail", "-c", "\n".join(recipe.setup)]
            _run_logged(lines, tree / recipe.folder if recipe.commit else folder, environment, log, what="setup")


def _make_environment(python: str, folder: Path, log: Path) -> None:
    """Make an environment in which all packages of another one can be imported, and have it install with pip."""
    environment = {**os.environ, "PYTHONPATH": ""}
    _run_logged(
        [python, "-m", "venv", "--without-pip", "--system-site-packages", str(folder)],
        log.parent,
        environment,
        log,
        what="venv",
    )
    own = str(folder / "bin" / "python")
    paths = [_print_path(python), _print_path(own)]
    if paths[0] != paths[1]:
        (Path(paths[1]) / "_below.pth").write_text(f"import site; site.addsitedir({paths[0]!r})\n")
    pip = folder / "bin" / "pip"
    if subprocess.run([own, "-c", "import pip"], capture_output=True, check=False).returncode == 0:
        command = f"{shlex.quote(own)} -m pip"
    elif uv := shutil.which("uv"):
        command = f"{shlex.quote(uv)} pip"
    else:
        _run_logged([own, "-m", "ensurepip", "--default-pip"], log.parent, environment, log, what="ensurepip")
        return
    pip.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    pip.chmod(0o755)


def _print_path(python: str) -> str:
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def _run_logged(argv: Sequence[str], folder: Path, environment: Mapping[str, str], log: Path, *, what: str) -> None:
    """Run a program with its output in the log; an exception here ends the program's group. Raises `BuildFailed`."""
    with open(log, "ab") as output:
        output.write(f"\n$ {' '.join(map(_show, argv))}\n".encode())
        output.flush()
        program = shutil.which(argv[0], path=environment.get("PATH", os.defpath))
        if program is None:
            raise BuildFailed(f"{what}: there is no program {argv[0]} on this machine")
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", _GUARDED, program, *argv[1:]],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as exc:
            raise BuildFailed(f"{what}: {argv[0]} cannot be started: {exc.strerror}") from exc
        with _ending_group(process):
            code = process.wait(BUILD_S)
    if code:
        printed = log.read_text(errors="replace").rpartition("\n$ ")[2].splitlines()[1:]
        lines = [each.strip() for each in printed if each.strip()][-LAST_LINES:]
        raise BuildFailed(f"{what} ended with exit code {code}: {' | '.join(lines) or 'it printed nothing'}. Its log: {log}")


# Ends the program and all that it has started if this process is killed.
_GUARDED = """
import subprocess, sys
from pytest_dtfperf.node.processes import end_group_with_parent
end_group_with_parent()
sys.exit(subprocess.call(sys.argv[1:]) % 256)
"""


def _show(word: str) -> str:
    """Return a word of a command for the log, in one line."""
    return shlex.quote(word).replace("\n", "; ")


@contextmanager
def _ending_group(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    """Kill a process and its children if the context is left before it has ended."""
    try:
        yield
    except subprocess.TimeoutExpired as exc:
        raise BuildFailed(f"the build took longer than {BUILD_S:g} s") from exc
    finally:
        if process.poll() is None:
            kill_group(process.pid)
            process.wait()


def _remove(folder: Path) -> None:
    """Remove a stack, and its worktree from the repository."""
    tree = folder / "tree"
    if (tree / ".git").is_file():
        _run_git(tree, "worktree", "remove", "--force", str(tree), check=False)
    shutil.rmtree(folder, ignore_errors=True)


def _run_git(repo: Path, *arguments: str, check: bool = True) -> str:
    """Return the output of git. Raises `BuildFailed`."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        ended = subprocess.run(
            ["git", "-C", str(repo), *arguments],
            capture_output=True,
            text=True,
            timeout=GIT_S,
            env=environment,
            errors="replace",
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise BuildFailed(f"git cannot be run: {exc}") from exc
    if ended.returncode and check:
        raise BuildFailed(f"git {arguments[0]}: {(ended.stderr.strip().splitlines() or ['failed'])[-1]}")
    return ended.stdout if ended.returncode == 0 else ""
