"""A release: its version is the tag's, its README can be read on a package index, and what is published was checked."""

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
    """Of whoever runs these tests, a workflow perhaps, nothing is known."""
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
    """The files that git has, as they are now, without git."""
    folder = tmp_path_factory.mktemp("tree")
    for name in git(REPOSITORY, "ls-files", "--cached", "--others", "--exclude-standard", "-z").rstrip("\0").split("\0"):
        if (REPOSITORY / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def clone(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of them with one commit."""
    folder = tmp_path_factory.mktemp("clone") / "perf"
    shutil.copytree(tree, folder)
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message=all of it")
    return folder


def wheel_of(folder: Path, out: Path, **environment: str) -> Message:
    """What the wheel says of itself."""
    run(folder, sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), ".", **environment)
    (wheel,) = out.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [each for each in archive.namelist() if each.endswith(".dist-info/METADATA")]
        return message_from_bytes(archive.read(name))


def links_of(metadata: Message) -> Iterator[str]:
    rendered = markdown.render(str(metadata.get_payload()))
    assert rendered
    return (found[1] for found in LINK.finditer(rendered) if not found[1].startswith("#"))  # those of its own headings


def test_versions_come_from_tags(tree: Path, clone: Path, tmp_path: Path) -> None:
    """A tag is the version; behind it, before the first one, in a shallow clone and without git there is one of development."""
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


def test_a_wheel_from_nowhere_has_no_links(tree: Path, tmp_path: Path) -> None:
    """Where nobody knows where the project is kept, the README's links are their words, and no address is invented."""
    metadata = wheel_of(tree, tmp_path)
    assert list(links_of(metadata)) == []
    assert metadata.get_all("Project-URL") is None
    assert "docs/tutorial.md)" not in str(metadata.get_payload())


def test_a_release_has_links_to_its_tag(tree: Path, tmp_path: Path) -> None:
    """Every link and picture is absolute, and of a file that the tag has; the project's URLs stand beside the README."""
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


def test_a_branch_is_no_place_to_link_to(tree: Path) -> None:
    """A workflow that builds a branch writes no links: what they show would change under them."""
    told = run(tree, sys.executable, "-m", "hatchling", "metadata", "urls", **{**WHERE, "GITHUB_REF_TYPE": "branch"})
    assert "github" not in told


def test_the_changelog_is_of_this_version() -> None:
    """Its first section is the version that is worked on, or the one that was released last; the versions go down."""
    sections = re.findall(r"^## (\S+) \((.*)\)$", (REPOSITORY / "CHANGELOG.md").read_text(), re.MULTILINE)
    versions = [Version(version) for version, _ in sections]
    assert versions == sorted(versions, reverse=True)
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", day) for _, day in sections[1:])
    here = Version(version_of(REPOSITORY))
    assert versions[0] >= Version(here.base_version) or not here.is_devrelease
    assert here.is_devrelease or sections[0][1] != "unreleased"


def test_the_workflow_builds_what_it_checks(clone: Path, tmp_path: Path) -> None:
    """Its own steps, run in a clone at a tag: refused while the changelog lacks the version, then built and checked."""
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


def test_only_the_job_that_publishes_is_trusted() -> None:
    """It runs in an environment that people can guard, reads nothing of the repository, and runs nothing of ours."""
    workflow = yaml.safe_load(WORKFLOW.read_text())
    assert workflow["permissions"] == {}
    build, publish = workflow["jobs"]["build"], workflow["jobs"]["publish"]
    assert build["permissions"] == {"contents": "read"}
    assert (publish["needs"], publish["environment"], publish["permissions"]) == ("build", "release", {"id-token": "write"})
    assert all("run" not in step for step in publish["steps"])
