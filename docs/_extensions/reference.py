"""A Sphinx extension that writes pages of reference from the code. They are written for every build, and not committed.

    reference/options.md     options of pytest on the command line and in its ini file, and arguments of the marker
    reference/commands.md    each command of dtfperf, by its own --help
    reference/files.md       keys of the files of sessions and baselines, and all fields of a spec: tables.py
    reference/clusters.md    types of the keys of clusters.toml: tables.py
    reference/modes.md       modes and inputs: tables.py

It also writes `llms.txt` beside the site: the subject of each page, for programs (https://llmstxt.org).
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
from pytest_dtfperf.cli.options import make_parser as everything
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
    """Write `llms.txt`: a line for each page, with its first sentence."""
    if error or app.builder.format != "html":
        return
    lines = [f"# {app.config.project}", "", f"> {metadata.metadata('pytest-dtfperf')['Summary']}", "", "## Pages", ""]
    for name in sorted(app.env.found_docs - {app.config.root_doc}):
        title = app.env.titles[name].astext()
        lines.append(f"- [{title}]({name}.html): {_first_sentence(Path(app.env.doc2path(name)))}")
    Path(app.outdir, "llms.txt").write_text("\n".join([*lines, ""]), encoding="utf-8")


def _first_sentence(page: Path) -> str:
    """Return the first sentence below a page's title, without its markup."""
    content = page.read_text(encoding="utf-8")
    if included := re.match(r"```\{include\} (\S+)", content):
        content = (page.parent / included[1]).read_text(encoding="utf-8")
    paragraphs = re.split(r"\n\n+", content)
    text = next((" ".join(each.split()) for each in paragraphs if re.match(r"[A-Z`*\[](?!``)", each)), "see there.")
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text).replace("**", "").replace("`", "")
    return re.split(r"(?<=\.)\s|:$", text)[0]


def options() -> str:
    """Return the page of options: a row for each, as the plugin registers it."""
    rows = [f"| `{_given(option)}` | {_cell(option.help)} | `dtfperf_{option.name.replace('-', '_')}` |" for option in OPTIONS]
    return "\n".join([OPTIONS_HEAD, "| Option | Description | Ini key |", "|---|---|---|", *rows, "", tables.marker()])


OPTIONS_HEAD = """# Options of pytest

Each option also exists as `--dtfperf-NAME`, which no other plugin can use. Options override the environment, which overrides
the ini file. Paths of the ini file are relative to that file. If another plugin or a conftest defines the same short name, its
option is used. `dtfperf_short_options = false` disables all short names. Describe a *cluster* (hosts, devices, its step counts)
in [clusters.toml](../clusters.md).
"""


def _given(option: Option) -> str:
    value = f"[={option.metavar}]" if option.bare else f" {option.metavar}"
    return f"--{option.name}{value}".replace("|", "\\|")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def commands() -> str:
    """Return the page of all commands and subcommands, with the output of --help."""
    os.environ["COLUMNS"] = COLUMNS
    endings = [f"| {code} | {text} |" for code, text in {**EXIT_CODES, **SIGNALS}.items()]
    head = COMMANDS_HEAD.format(endings="\n".join(endings))
    (found,) = (action for action in everything()._actions if isinstance(action, argparse._SubParsersAction))
    sections = [
        f"{'#' * depth} {each.prog}\n\n```text\n{each.format_help().strip()}\n```\n{_json(each)}"
        for depth, each in _all(found, 2)
    ]
    return "\n".join([head, *sections])


COMMANDS_HEAD = """# Commands of dtfperf

These are the commands besides running perf tests, each with the output of its `--help`.

## Exit codes

| Exit code | Description |
|---:|---|
{endings}

The last lines of a command's help describe its own exit codes. `dtfperf nightly` has those of pytest. `dtfperf launch`,
`notebook` and `ec2 ssh` have that of the program. Wrong arguments are one line on stderr, with the allowed ones and a
suggestion.

## JSON

With `--json` a command prints one JSON object on one line of stdout, and nothing else there: progress, remarks and errors go
to stderr. Commands with longer output (`run`, `judge`, `launch`, `history export`) print one object per line. The exit code is
the same as without `--json`. An error is one line on stderr with an exit code, as with gh, docker, kubectl and uv. Numbers are
those of the text output, without rounding. Unknown values are `null`. Later versions may add keys. Only a new major version
removes a key below or changes its meaning. Characters outside of ASCII are escaped.

`dtfperf completion` prints a shell program, and `dtfperf ec2 ssh` the output of the other machine: they have no `--json`.

## Colours

Tables have colours on a terminal. A non-empty `NO_COLOR` disables them; `FORCE_COLOR` enables them for files and pipes,
too. This holds for all commands and for pytest.
"""


def _json(parser: argparse.ArgumentParser) -> str:
    """Return the table of a command's JSON keys."""
    shape = parser.get_default("shape")
    if not shape:
        return ""
    rows = [f"| `{key}` | {_cell(text)} |" for key, text in _keys(shape, "")]
    return "\n".join(["| Key of --json | Description |", "|---|---|", *rows, ""])


def _keys(shape: Shape, before: str) -> Iterator[tuple[str, str]]:
    """Yield each key, as `hosts[].name`, with its description."""
    for key, description in shape.items():
        if isinstance(description, str):
            yield f"{before}{key}", description
        else:
            yield from _keys(
                description[0] if isinstance(description, list) else description,
                f"{before}{key}{'[]' if isinstance(description, list) else ''}.",
            )


def _all(commands: Commands[argparse.ArgumentParser], depth: int) -> Iterator[tuple[int, argparse.ArgumentParser]]:
    """Yield each command with its depth, followed by its subcommands."""
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
