"""Stacks that are built from commits and packages, with real repositories and environments."""

import os
import signal
import sys
from pathlib import Path

import pytest

from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.compare.variants import parse_variant
from pytest_dtfperf.errors import BuildFailed, UsageError
from pytest_dtfperf.node.processes import iterate_processes
from pytest_dtfperf.session.builds import BuildCache, Recipe, find_commit, find_repository, list_commits, list_versions
from pytest_dtfperf.session.stacks import check_variants
from pytest_dtfperf.testing.backends import wait_until
from tests.cli.test_bisect import make_repository, make_wheels, run_git
from tests.plugin import zygote

BUILDS = """
import sys
from pathlib import Path
from pytest_dtfperf.session.builds import BuildCache, Recipe

BuildCache(Path(sys.argv[1])).build(Recipe(repo=sys.argv[2], commit=sys.argv[3], setup=(sys.argv[4],)))
"""


@pytest.fixture
def cache(tmp_path: Path) -> BuildCache:
    return BuildCache(tmp_path / "stacks")


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    make_repository(tmp_path / "repo", [0.1, 0.2])
    return tmp_path / "repo"


def recipe_of(repo: Path, *setup: str, ref: str = "HEAD") -> Recipe:
    return Recipe(repo=str(repo), commit=find_commit(repo, ref), setup=setup)


def test_commit_is_built_once(cache: BuildCache, repo: Path) -> None:
    """A second build has the same folder; another commit and other set-up lines have folders of their own."""
    first = cache.build(recipe_of(repo, "echo built >> times"))
    again = cache.build(recipe_of(repo, "echo built >> times"))
    assert again == first
    assert first.tree
    assert (first.tree / "times").read_text() == "built\n"
    assert (first.tree / "speed.py").read_text() == "STEP_S = 0.2\n"
    assert cache.build(recipe_of(repo, ref="HEAD~1")).folder != first.folder
    assert cache.build(recipe_of(repo)).python is None
    assert len(cache.list()) == 3


def test_setup_lines_have_a_virtual_environment(cache: BuildCache, repo: Path) -> None:
    """`python` and `pip` are those of the environment, and packages of the interpreter can be imported."""
    built = cache.build(recipe_of(repo, "python -c 'import numpy, sys; print(sys.prefix)' > prefix", "pip --version > pip"))
    assert built.tree
    assert (built.tree / "prefix").read_text().strip() == str(built.folder / "env")
    assert built.python == str(built.folder / "env" / "bin" / "python")
    assert (built.tree / "pip").read_text().startswith(("pip ", "uv "))


def test_failed_build_has_its_last_lines(cache: BuildCache, repo: Path) -> None:
    """The error of a failed build has its exit code, last line and log; the next call builds again."""
    with pytest.raises(BuildFailed, match=r"setup ended with exit code 7: no compiler\. Its log: .*build\.log"):
        cache.build(recipe_of(repo, "echo no compiler", "exit 7"))
    (left,) = cache.list()
    assert not left.recipe
    with pytest.raises(BuildFailed, match="exit code 7"):
        cache.build(recipe_of(repo, "echo no compiler", "exit 7"))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_killed_build_is_made_again(cache: BuildCache, repo: Path, tmp_path: Path, number: int) -> None:
    """A killed build leaves no process, and its incomplete folder is not used."""
    recipe = recipe_of(repo, "test -e ../../again || sleep 612.5")
    arguments = [str(tmp_path / "stacks"), recipe.repo, recipe.commit, *recipe.setup]
    with zygote.start(["-c", BUILDS, *arguments], tmp_path, {**os.environ, **zygote.SEARCH_PATH}) as process:
        wait_until("the build runs", _is_sleeping)
        process.send_signal(number)
    wait_until("the build has ended", lambda: not _is_sleeping())
    assert cache.find(recipe) is None
    (tmp_path / "stacks" / "again").touch()
    assert cache.build(recipe).tree


def _is_sleeping() -> bool:
    for each in iterate_processes():
        try:
            if b"612.5" in Path(f"/proc/{each.pid}/cmdline").read_bytes().split(b"\0"):
                return True
        except OSError:
            continue
    return False


def test_clear_removes_worktrees_of_the_repository(cache: BuildCache, repo: Path) -> None:
    """`clear` removes all stacks and their worktrees."""
    cache.build(recipe_of(repo))
    assert len(run_git(repo, "worktree", "list").splitlines()) == 2
    assert cache.clear() == 1
    assert len(run_git(repo, "worktree", "list").splitlines()) == 1
    assert cache.list() == []


def test_build_runs_in_the_same_subfolder(cache: BuildCache, repo: Path) -> None:
    """A stack of a subfolder of a repository has the same subfolder of its worktree."""
    (repo / "below").mkdir()
    (repo / "below" / "here").touch()
    run_git(repo, "add", "-A")
    run_git(repo, "commit", "-qm", "A folder")
    root, folder = find_repository(repo / "below")
    built = cache.build(Recipe(repo=root, folder=folder, commit=find_commit(repo, "HEAD"), setup=("test -e here",)))
    assert built.tree == built.folder / "tree" / "below"


def test_commit_of_a_bare_repository_is_refused(repo: Path, tmp_path: Path) -> None:
    """A variant of a repository without a worktree is refused with the variant's name."""
    run_git(tmp_path, "clone", "-q", "--bare", str(repo), "bare")
    variants = [parse_variant("old:"), parse_variant(f"new: git=main repo={tmp_path / 'bare'}")]
    with pytest.raises(UsageError, match=r"variant new: .*/bare has no files of a commit, .*: clone it"):
        check_variants(variants, ClusterConfig(name="local"))


def test_commits_are_listed_in_order(repo: Path) -> None:
    """Commits are listed from the good to the bad one; a bad one before the good one is refused."""
    first, last = find_commit(repo, "HEAD~1"), find_commit(repo, "HEAD")
    assert list_commits(repo, "HEAD~1", "HEAD") == [first, last]
    with pytest.raises(UsageError, match="does not come after"):
        list_commits(repo, "HEAD", "HEAD~1")


def test_versions_of_a_range_are_those_of_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A range includes both ends, in the order of versions; a range without a version is refused."""
    make_wheels(tmp_path / "wheels", [0.1] * 12)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    found = list_versions("toyspeed==1.8.0..1.10", sys.executable)
    assert found == ["toyspeed==1.8", "toyspeed==1.9", "toyspeed==1.10"]
    with pytest.raises(UsageError, match="the index has no such version of toyspeed"):
        list_versions("toyspeed==2.0..2.9", sys.executable)


@pytest.mark.parametrize(
    ("versions", "message"),
    [
        ("1.0,1.1,1.0", r"1\.0 is there twice: name each version once"),
        ("1.0,1.1,1.0.0", r"1\.0\.0 is the version 1\.0: name each version once"),
        ("2.0rc1,2.0rc1", r"2\.0rc1 is there twice"),
        ("1,2,1", "1 is there twice"),
    ],
)
def test_equal_versions_are_refused(versions: str, message: str) -> None:
    """A version that is there twice, or is written in two ways, would be measured against itself."""
    with pytest.raises(UsageError, match=message):
        list_versions(f"toyspeed=={versions}", sys.executable)


def test_versions_are_those_of_another_pip_without_the_hosts_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hosts' Python may not be on this machine: another pip is asked, and without one, it is named."""
    python = str(tmp_path / "python")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=rf"the versions of toyspeed cannot be listed: .*{python}.*Write them"):
        list_versions("toyspeed==1.0..1.1", python)
    pip = tmp_path / "pip"
    pip.write_text("#!/bin/sh\necho Available versions: 1.2, 1.1, 1.0\n")
    pip.chmod(0o755)
    assert list_versions("toyspeed==1.0..1.1", python) == ["toyspeed==1.0", "toyspeed==1.1"]
