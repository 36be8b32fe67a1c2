"""Stacks that are built from commits and packages, with real repositories and environments."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_dtfperf.errors import BuildFailed, UsageError
from pytest_dtfperf.node.processes import iterate_processes
from pytest_dtfperf.session.builds import BuildCache, Recipe, find_commit, find_repository, list_commits, list_versions
from pytest_dtfperf.testing.backends import wait_until
from tests.cli.test_bisect import git, make_repository, make_wheels

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


def test_a_commit_is_built_once(cache: BuildCache, repo: Path) -> None:
    """The second build is the first one's folder; another commit, or other set-up lines, have one of their own."""
    first = cache.build(recipe_of(repo, "echo built >> times"))
    again = cache.build(recipe_of(repo, "echo built >> times"))
    assert again == first
    assert first.tree
    assert (first.tree / "times").read_text() == "built\n"
    assert (first.tree / "speed.py").read_text() == "STEP_S = 0.2\n"
    assert cache.build(recipe_of(repo, ref="HEAD~1")).folder != first.folder
    assert cache.build(recipe_of(repo)).python is None
    assert len(cache.list()) == 3


def test_set_up_lines_have_an_environment_above_the_interpreter(cache: BuildCache, repo: Path) -> None:
    """`python` and `pip` are the environment's, and the packages of the interpreter below can be imported."""
    built = cache.build(recipe_of(repo, "python -c 'import numpy, sys; print(sys.prefix)' > prefix", "pip --version > pip"))
    assert built.tree
    assert (built.tree / "prefix").read_text().strip() == str(built.folder / "env")
    assert built.python == str(built.folder / "env" / "bin" / "python")
    assert (built.tree / "pip").read_text().startswith(("pip ", "uv "))


def test_a_build_that_fails_shows_its_last_lines(cache: BuildCache, repo: Path) -> None:
    """The message has the exit code, what was printed last, and the log; the next call builds again."""
    with pytest.raises(BuildFailed, match=r"setup ended with exit code 7: no compiler\. Its log: .*build\.log"):
        cache.build(recipe_of(repo, "echo no compiler", "exit 7"))
    (left,) = cache.list()
    assert not left.recipe
    with pytest.raises(BuildFailed, match="exit code 7"):
        cache.build(recipe_of(repo, "echo no compiler", "exit 7"))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_build_leaves_no_process_and_is_made_again(cache: BuildCache, repo: Path, tmp_path: Path, number: int) -> None:
    """What the set-up lines have started ends with the session, and an incomplete folder is not used."""
    recipe = recipe_of(repo, "test -e ../../again || sleep 612.5")
    arguments = [str(tmp_path / "stacks"), recipe.repo, recipe.commit, *recipe.setup]
    with subprocess.Popen([sys.executable, "-c", BUILDS, *arguments], stderr=subprocess.DEVNULL) as process:
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


def test_clearing_removes_worktrees_from_their_repository(cache: BuildCache, repo: Path) -> None:
    """The repository has no worktrees and no branches afterwards."""
    cache.build(recipe_of(repo))
    assert len(git(repo, "worktree", "list").splitlines()) == 2
    assert cache.clear() == 1
    assert len(git(repo, "worktree", "list").splitlines()) == 1
    assert cache.list() == []


def test_a_folder_of_a_repository_is_the_folder_of_its_worktree(cache: BuildCache, repo: Path) -> None:
    """Programs and set-up lines run in the same folder."""
    (repo / "below").mkdir()
    (repo / "below" / "here").touch()
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "A folder")
    root, folder = find_repository(repo / "below")
    built = cache.build(Recipe(repo=root, folder=folder, commit=find_commit(repo, "HEAD"), setup=("test -e here",)))
    assert built.tree == built.folder / "tree" / "below"


def test_commits_are_listed_in_order(repo: Path) -> None:
    """The good commit is first, the bad one last; one that does not come after it is refused."""
    first, last = find_commit(repo, "HEAD~1"), find_commit(repo, "HEAD")
    assert list_commits(repo, "HEAD~1", "HEAD") == [first, last]
    with pytest.raises(UsageError, match="does not come after"):
        list_commits(repo, "HEAD", "HEAD~1")


def test_versions_of_a_range_are_those_of_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A range has both ends, in the order of versions; 1.9 comes before 1.10."""
    make_wheels(tmp_path / "wheels", [0.1] * 12)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    found = list_versions("toyspeed==1.8..1.10", sys.executable)
    assert found == ["toyspeed==1.8", "toyspeed==1.9", "toyspeed==1.10"]
    with pytest.raises(UsageError, match="the index has no such version of toyspeed"):
        list_versions("toyspeed==2.0..2.9", sys.executable)
