"""A Sphinx extension: pages that say what the code says of itself. They are written anew for every build, and not kept.

    reference/options.md     what pytest takes on the command line and in its ini file, and what the marker may say
    reference/commands.md    each command of dtfperf, by its own --help
    reference/files.md       what sessions and baselines are kept in, and all fields of a spec: tables.py
    reference/clusters.md    what each key of clusters.toml must be: tables.py
    reference/modes.md       modes and inputs: tables.py

And `llms.txt` beside the site: what each page is about, for programs that read (https://llmstxt.org).
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import tables
from sphinx.application import Sphinx

from pytest_dtfperf.cli.options import EXIT_CODES, SIGNALS, Commands, Shape
from pytest_dtfperf.cli.parser import make_parser as everything
from pytest_dtfperf.plugin.options import OPTIONS, Option

COLUMNS = "100"  # that helps are wrapped to


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", write)
    app.connect("build-finished", list_pages)
    return {"parallel_read_safe": True}


def write(app: Sphinx) -> None:
    folder = Path(app.srcdir, "reference")
    folder.mkdir(exist_ok=True)
    for name, made in PAGES.items():
        path, text = folder / name, made()
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
    return "\n".join([OPTIONS_HEAD, "| option | meaning | ini key |", "|---|---|---|", *rows, "", tables.marker()])


OPTIONS_HEAD = """# Options of pytest

Each also exists as `--dtfperf-NAME`, which no other plugin can take. An option goes before the environment, that before the ini
file. Paths of the ini file begin at that file. A short name that another plugin or a conftest wants is theirs;
`dtfperf_short_options = false` leaves all of them to others. What describes a *cluster* (hosts, devices, step counts that suit
it) belongs in [clusters.toml](../clusters.md).
"""


def _given(option: Option) -> str:
    value = f"[={option.metavar}]" if option.bare else f" {option.metavar}"
    return f"--{option.name}{value}".replace("|", "\\|")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def commands() -> str:
    """All of them, and theirs, by what --help prints."""
    os.environ["COLUMNS"] = COLUMNS
    endings = [f"| {code} | {words} |" for code, words in {**EXIT_CODES, **SIGNALS}.items()]
    head = COMMANDS_HEAD.format(endings="\n".join(endings))
    (found,) = (action for action in everything()._actions if isinstance(action, argparse._SubParsersAction))
    sections = [
        f"{'#' * depth} {each.prog}\n\n```text\n{each.format_help().strip()}\n```\n{_json(each)}"
        for depth, each in _all(found, 2)
    ]
    return "\n".join([head, *sections])


COMMANDS_HEAD = """# Commands of dtfperf

What there is to do besides running perf tests. What each prints with `--help` stands below.

## Exit codes

| code | meaning |
|---:|---|
{endings}

What 0, 1 and 2 mean to a command, and which others it has, its help says in its last lines. `dtfperf nightly` has those of
pytest, and `dtfperf launch`, `notebook` and `ec2 ssh` that of the program. Wrong arguments are one line on stderr: what is
allowed, and what was meant perhaps.

## JSON

With `--json` a command prints one JSON object on one line of stdout, and nothing else there: progress, remarks and errors go
to stderr. Where that may go on for long (`run`, `judge`, `launch`, `history export`) it is an object on a line for each. The
exit code is the same as without. An error is told as without, too: one line on stderr, and an exit code, as gh, docker,
kubectl and uv have it. Numbers are those that are shown in words, not rounded. What is not known is `null`. Keys may be added
in later versions; none of those below goes or changes its meaning without a new major version. What is not ASCII is escaped.

`dtfperf completion` prints a shell's program, and `dtfperf ec2 ssh` what the other machine prints: they have no `--json`.

## Colours

Tables have colours on a terminal. `NO_COLOR`, if it is not empty, takes them away; `FORCE_COLOR` has them written to files and
pipes, too. It is the same for all commands and for pytest.
"""


def _json(parser: argparse.ArgumentParser) -> str:
    """What its keys mean."""
    shape = parser.get_default("shape")
    if not shape:
        return ""
    rows = [f"| `{key}` | {_cell(words)} |" for key, words in _keys(shape, "")]
    return "\n".join(["| key of --json | meaning |", "|---|---|", *rows, ""])


def _keys(shape: Shape, before: str) -> Iterator[tuple[str, str]]:
    """`hosts[].name` and what it is."""
    for key, of in shape.items():
        if isinstance(of, str):
            yield f"{before}{key}", of
        else:
            yield from _keys(of[0] if isinstance(of, list) else of, f"{before}{key}{'[]' if isinstance(of, list) else ''}.")


def _all(commands: Commands[argparse.ArgumentParser], depth: int) -> Iterator[tuple[int, argparse.ArgumentParser]]:
    """Each command with its depth, its own right after it."""
    for parser in dict.fromkeys(commands.choices.values()):
        yield depth, parser
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                yield from _all(action, depth + 1)


PAGES = {
    "options.md": options,
    "commands.md": commands,
    "files.md": tables.files,
    "clusters.md": tables.clusters,
    "modes.md": tables.modes,
}
