"""Check links of the pages to files and headings. `make linkcheck` checks links to other sites."""

import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from markdown_it import MarkdownIt

from tests.docs.made import make_pages
from tests.docs.pages import PAGES, REPOSITORY, anchors, anchors_of, links, links_of, source

PACKAGE = sorted((REPOSITORY / "pytest_dtfperf").rglob("*.py"))


def anchors_at(path: str) -> frozenset[str]:
    if path in make_pages():
        return anchors_of(MarkdownIt("commonmark").parse(make_pages()[path]))
    if path.endswith(".md") and (included := re.match(r"```\{include\} \.\./(\S+)", source(path))):
        path = included[1]
    return anchors(path) if path.endswith(".md") else frozenset()


def wrong(page: str, target: str) -> str | None:
    """Return the problem of a link of a page, or None."""
    if urlsplit(target).scheme:
        return None if urlsplit(target).scheme == "https" and urlsplit(target).hostname else "is neither https nor a file"
    name, _, anchor = target.partition("#")
    path = Path(page).parent / name if name else Path(page)
    found = (REPOSITORY / path).resolve()
    path_here = found.relative_to(REPOSITORY).as_posix()
    if not found.exists() and path_here not in make_pages():
        return "leads to no file"
    if page == "README.md" and path_here in make_pages():
        return "leads to a page that only the site has"
    return f"leads to no heading of {path_here}" if anchor and anchor not in anchors_at(path_here) else None


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    """Every link leads to an existing file and heading, or to another site by https."""
    problems = [f"{page}:{line}: {target} {problem}" for line, target in links(page) if (problem := wrong(page, target))]
    assert problems == []


@pytest.mark.parametrize("page", PAGES)
def test_files_exist(page: str) -> None:
    """Every path of the repository in code style exists."""
    folders = (REPOSITORY / page).parent, REPOSITORY, REPOSITORY / "pytest_dtfperf"
    paths = re.findall(r"`((?:[a-z_]+/)+[a-z_0-9]+\.(?:py|toml|yml))`", source(page))
    assert [path for path in paths if not any((folder / path).exists() for folder in folders)] == []


def test_pages_made_from_the_code_lead_somewhere() -> None:
    """Every link of the reference pages leads to an existing file and heading."""
    problems = [
        f"{page}: {target} {problem}"
        for page, text in make_pages().items()
        for _, target in links_of(MarkdownIt("commonmark").enable("table").parse(text))
        if (problem := wrong(page, target))
    ]
    assert problems == []


def test_code_names_pages_that_there_are() -> None:
    """Docstrings, comments and messages name only existing pages and headings of docs/."""
    problems = []
    for path in PACKAGE:
        for name, anchor in re.findall(r"\b(docs/[a-z0-9-]+\.(?:md|json))(?:#([a-z0-9-]+))?", path.read_text()):
            if not (REPOSITORY / name).exists() or (anchor and anchor not in anchors(name)):
                problems.append(f"{path}: {name}#{anchor}")
    assert problems == []
