"""Read the pages of the documentation as Markdown: blocks of code with their surroundings, headings and links."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

REPOSITORY = Path(__file__).parents[2]
# Without docs/reference/, which is made from the code when the site is built.
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    *(f"docs/{path.name}" for path in sorted((REPOSITORY / "docs").glob("*.md"))),
)

COMMENT = re.compile(r"<!-- *(?P<word>[a-z]+(?: [a-z]+)*): *(?P<value>.*?) *-->", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block, or an indented one, of a page."""

    page: str
    line: int
    language: str  # of its fence; empty if it is indented
    text: str
    notes: tuple[tuple[str, str], ...] = ()  # from the comment above it, `<!-- printed by: dtfperf history list -->`
    around: str = ""  # the paragraphs before and after it

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    def note(self, word: str) -> str | None:
        return dict(self.notes).get(word)


@cache
def source(page: str) -> str:
    return (REPOSITORY / page).read_text(encoding="utf-8")


@cache
def tokens(page: str) -> Sequence[Token]:
    return MarkdownIt("commonmark").enable("table").parse(source(page))


def blocks(page: str) -> Iterator[Block]:
    """Yield all blocks of a page, also those in lists."""
    found = tokens(page)
    for number, token in enumerate(found):
        if token.type in ("fence", "code_block"):
            assert token.map is not None
            above = found[number - 1] if number else None
            notes = COMMENT.findall(above.content) if above and above.type == "html_block" else []
            yield Block(page, token.map[0] + 1, token.info.strip(), token.content, tuple(notes), _get_neighbours(found, number))


def _get_neighbours(found: Sequence[Token], number: int) -> str:
    """Return the paragraphs before and after a block, within its section."""
    paragraphs = []
    for step in (-1, 1):
        at = number + step
        while 0 <= at < len(found) and found[at].type not in ("heading_open", "heading_close", "fence", "code_block"):
            if found[at].type == "inline":
                paragraphs.append(found[at].content)
                break
            at += step
    return "\n".join(paragraphs)


def links(page: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the target of each link and image of a page."""
    return links_of(tokens(page))


def links_of(found: Sequence[Token]) -> Iterator[tuple[int, str]]:
    for token in found:
        for child in token.children or ():
            target = child.attrs.get("href" if child.type == "link_open" else "src")
            if child.type in ("link_open", "image") and target:
                yield (token.map or [0])[0] + 1, str(target)


@cache
def anchors(page: str) -> frozenset[str]:
    """Return the anchors of a page's headings."""
    return anchors_of(tokens(page))


def anchors_of(found: Sequence[Token]) -> frozenset[str]:
    """Return the anchors of headings, as GitHub and MyST make them."""
    return frozenset(_slug(found[number + 1].content) for number, token in enumerate(found) if token.type == "heading_open")


def _slug(heading: str) -> str:
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
