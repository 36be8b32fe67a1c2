"""A Sphinx extension: pages that say what the code says of itself. They are written anew for every build, and not kept.

    reference/options.md     what pytest takes on the command line, and in its ini file
    reference/commands.md    each command of dtfperf, by its own --help

And `llms.txt` beside the site: what each page is about, for programs that read (https://llmstxt.org).
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator
from importlib import import_module, metadata
from pathlib import Path

from sphinx.application import Sphinx

from pytest_dtfperf.cli.terms import COMMANDS, Commands
from pytest_dtfperf.plugin.options import OPTIONS, Option

COLUMNS = "100"  # that helps are wrapped to


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", write)
    app.connect("build-finished", list_pages)
    return {"parallel_read_safe": True}


def write(app: Sphinx) -> None:
    folder = Path(app.srcdir, "reference")
    folder.mkdir(exist_ok=True)
    for name, text in (("options.md", options()), ("commands.md", commands())):
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:  # or Sphinx would read it anew
            path.write_text(text, encoding="utf-8")


def list_pages(app: Sphinx, error: Exception | None) -> None:
    """`llms.txt`: a line for each page, with its first words."""
    if error or app.builder.format != "html":
        return
    lines = [f"# {app.config.project}", "", f"> {metadata.metadata('pytest-dtfperf')['Summary']}", "", "## Pages", ""]
    for name in sorted(app.env.found_docs - {app.config.root_doc}):
        title = app.env.titles[name].astext()
        lines.append(f"- [{title}]({name}.html): {_first_words(Path(app.env.doc2path(name)))}")
    Path(app.outdir, "llms.txt").write_text("\n".join([*lines, ""]), encoding="utf-8")


def _first_words(page: Path) -> str:
    """The first sentence below a page's title, without its marks."""
    content = page.read_text(encoding="utf-8")
    if included := re.match(r"```\{include\} (\S+)", content):
        content = (page.parent / included[1]).read_text(encoding="utf-8")
    paragraphs = re.split(r"\n\n+", content)
    text = next((" ".join(each.split()) for each in paragraphs if re.match(r"[A-Z`*\[](?!``)", each)), "see there.")
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text).replace("**", "").replace("`", "")
    return re.split(r"(?<=\.)\s|:$", text)[0]


def options() -> str:
    """A row for each, as the plugin registers it."""
    rows = [f"| `{_given(option)}` | {_cell(option.help)} | `dtfperf_{option.name.replace('-', '_')}` |" for option in OPTIONS]
    return "\n".join([OPTIONS_HEAD, "| option | meaning | ini key |", "|---|---|---|", *rows, ""])


OPTIONS_HEAD = """# Options of pytest

Each also exists as `--dtfperf-NAME`, which no other plugin can take. An option goes before the environment, that before the ini
file. Paths of the ini file begin at that file.
"""


def _given(option: Option) -> str:
    value = f"[={option.metavar}]" if option.bare else f" {option.metavar}"
    return f"--{option.name}{value}".replace("|", "\\|")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def commands() -> str:
    """All of them, and theirs, by what --help prints."""
    os.environ["COLUMNS"] = COLUMNS
    parser = argparse.ArgumentParser(prog="dtfperf")
    found = parser.add_subparsers()
    for module in COMMANDS:
        import_module(f"pytest_dtfperf.cli.{module}").add(found)
    sections = [f"{'#' * depth} {each.prog}\n\n```text\n{each.format_help().strip()}\n```\n" for depth, each in _all(found, 2)]
    return "\n".join([COMMANDS_HEAD, *sections])


COMMANDS_HEAD = """# Commands of dtfperf

What there is to do besides running perf tests. What each prints with `--help`:
"""


def _all(commands: Commands[argparse.ArgumentParser], depth: int) -> Iterator[tuple[int, argparse.ArgumentParser]]:
    """Each command with its depth, its own right after it."""
    for parser in dict.fromkeys(commands.choices.values()):
        yield depth, parser
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                yield from _all(action, depth + 1)
