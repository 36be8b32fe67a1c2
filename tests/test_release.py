"""Tests of a release: its version is the tag's, its README has working links, and the workflow checks its files."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]
from packaging.version import Version
from readme_renderer import markdown

from tests.nightly.test_nightly import REPOSITORY

WORKFLOW = REPOSITORY / ".github" / "workflows" / "release.yml"
TAG = "v9.8.7"
WHERE = {
    "GITHUB_SERVER_URL": "https://github.example",
    "GITHUB_REPOSITORY": "somebody/perf",
    "GITHUB_REF_TYPE": "tag",
    "GITHUB_REF_NAME": TAG,
}
LINK = re.compile(r'(?:href|src)="([^"]*)"')


def clean(**more: str) -> dict[str, str]:
    """Return the environment without variables of the workflow that may run these tests."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("GITHUB_", "SETUPTOOLS_SCM"))} | more


def run(folder: Path, *command: str, **environment: str) -> str:
    done = subprocess.run(command, cwd=folder, env=clean(**environment), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.org", "-c", "advice.detachedHead=false"]
    return run(folder, "git", *identity, *words)


def version_of(folder: Path) -> str:
    return run(folder, sys.executable, "-m", "hatchling", "metadata", "version").strip()


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the current files of the repository, without git."""
    folder = tmp_path_factory.mktemp("tree")
    for name in git(REPOSITORY, "ls-files", "--cached", "--others", "--exclude-standard", "-z").rstrip("\0").split("\0"):
        if (REPOSITORY / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def clone(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a repository of these files with one commit."""
    folder = tmp_path_factory.mktemp("clone") / "perf"
    shutil.copytree(tree, folder)
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message=all of it")
    return folder


def wheel_of(folder: Path, out: Path, **environment: str) -> Message:
    """Build a wheel, and return its metadata."""
    run(folder, sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), ".", **environment)
    (wheel,) = out.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [each for each in archive.namelist() if each.endswith(".dist-info/METADATA")]
        return message_from_bytes(archive.read(name))


def links_of(metadata: Message) -> Iterator[str]:
    rendered = markdown.render(str(metadata.get_payload()))
    assert rendered
    return (found[1] for found in LINK.finditer(rendered) if not found[1].startswith("#"))  # those of its own headings


def test_version_comes_from_the_tag(tree: Path, clone: Path, tmp_path: Path) -> None:
    """The version at a tag is the tag's, and after it, without a tag, in a shallow clone and without git it is a development
    version."""
    assert version_of(tree) == "0.1.0.dev0"
    assert re.fullmatch(r"0\.1\.(?:0\.)?dev\d+", version_of(clone))
    git(clone, "tag", TAG)
    assert version_of(clone) == TAG.removeprefix("v")
    git(clone, "commit", "--quiet", "--allow-empty", "--message=more")
    assert re.fullmatch(r"9\.8\.8\.dev1", version_of(clone))
    git(tmp_path, "clone", "--quiet", "--depth=1", f"file://{clone}", "shallow")
    assert Version(version_of(tmp_path / "shallow")).is_devrelease
    inside = clone / "build" / "unpacked"  # git would tell of the repository around it
    shutil.copytree(tree, inside)
    assert version_of(inside) == "0.1.0.dev0"
    shutil.rmtree(clone / "build")
    git(clone, "reset", "--quiet", "--hard", TAG)


def test_wheel_of_an_unknown_repository_has_no_links(tree: Path, tmp_path: Path) -> None:
    """A wheel that is built without the address of the repository has no links in its README and no project URLs."""
    metadata = wheel_of(tree, tmp_path)
    assert list(links_of(metadata)) == []
    assert metadata.get_all("Project-URL") is None
    assert "docs/tutorial.md)" not in str(metadata.get_payload())


def test_release_links_to_its_tag(tree: Path, tmp_path: Path) -> None:
    """Each link and picture of a release is an absolute URL of a file at the tag, and the project URLs are beside the
    README."""
    metadata = wheel_of(tree, tmp_path, **WHERE)
    links = list(links_of(metadata))
    assert len(links) > 20
    for link in links:
        found = re.fullmatch(rf"https://github\.example/somebody/perf/(?:blob|raw)/{TAG}/([^#]+)(?:#.*)?", link)
        assert found, link
        assert (tree / found[1]).is_file(), link
    urls = dict(each.split(", ", 1) for each in metadata.get_all("Project-URL") or ())
    assert urls["Source"] == "https://github.example/somebody/perf"
    assert urls["Changelog"] == f"https://github.example/somebody/perf/blob/{TAG}/CHANGELOG.md"


def test_build_of_a_branch_has_no_links(tree: Path) -> None:
    """A build of a branch has no project URLs, since the linked files would change."""
    output = run(tree, sys.executable, "-m", "hatchling", "metadata", "urls", **{**WHERE, "GITHUB_REF_TYPE": "branch"})
    assert "github" not in output


def test_changelog_has_this_version_first() -> None:
    """Versions of the changelog descend, released ones have a date, and the first one is at least this version."""
    sections = re.findall(r"^## (\S+) \((.*)\)$", (REPOSITORY / "CHANGELOG.md").read_text(), re.MULTILINE)
    versions = [Version(version) for version, _ in sections]
    assert versions == sorted(versions, reverse=True)
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", day) for _, day in sections[1:])
    here = Version(version_of(REPOSITORY))
    assert versions[0] >= Version(here.base_version) or not here.is_devrelease
    assert here.is_devrelease or sections[0][1] != "unreleased"


def test_workflow_builds_and_checks_the_release(clone: Path, tmp_path: Path) -> None:
    """The workflow's steps in a clone at a tag fail while the changelog lacks the version, and then build two files."""
    steps = [step["run"] for step in yaml.safe_load(WORKFLOW.read_text())["jobs"]["build"]["steps"] if "run" in step]
    script = "\n".join(steps[2:])  # after uv and what uv brings
    assert "twine check --strict" in script
    folder = tmp_path / "perf"
    git(tmp_path, "clone", "--quiet", str(clone), "perf")
    (folder / ".venv").symlink_to(Path(sys.executable).parent.parent)
    git(folder, "tag", "--force", TAG)
    refused = subprocess.run(["sh", "-ec", script], cwd=folder, env=clean(**WHERE), capture_output=True, text=True, check=False)
    assert refused.returncode != 0
    assert "CHANGELOG.md says nothing of 9.8.7" in refused.stderr
    changelog = folder / "CHANGELOG.md"
    changelog.write_text(changelog.read_text().replace("## 0.1.0 (unreleased)", "## 9.8.7 (2026-01-31)"))
    git(folder, "commit", "--all", "--quiet", "--message=9.8.7")
    git(folder, "tag", "--force", TAG)
    run(folder, "sh", "-ec", script, **WHERE)
    assert sorted(path.name for path in (folder / "dist").iterdir()) == [
        "pytest_dtfperf-9.8.7-py3-none-any.whl",
        "pytest_dtfperf-9.8.7.tar.gz",
    ]


def test_publishing_job_alone_has_a_token() -> None:
    """The job that publishes runs in an environment of its own, has only the permission for a token, and runs no commands."""
    workflow = yaml.safe_load(WORKFLOW.read_text())
    assert workflow["permissions"] == {}
    build, publish = workflow["jobs"]["build"], workflow["jobs"]["publish"]
    assert build["permissions"] == {"contents": "read"}
    assert (publish["needs"], publish["environment"], publish["permissions"]) == ("build", "release", {"id-token": "write"})
    assert all("run" not in step for step in publish["steps"])
