"""Templates, styles and scripts: how anything becomes a page that needs nothing beside itself and lets nothing in."""

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from pytest_dtfperf.printable import printable

FOLDERS = ("page", "site")  # of report/: each has `templates`; no name is in both
STYLE, SCRIPT = "style.css", "theme.js"  # of all pages; a page's own come behind them


def render_template(
    name: str, *, styles: Sequence[str] = (), scripts: Sequence[str] = (), root: str | None = None, **shown: Any
) -> str:
    """The template `name` with what it shows. `root`: the way to the site's first page; None: the page is none of a site."""
    script = "\n".join(map(read_template, (SCRIPT, *scripts)))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    style = "\n".join(map(read_template, (STYLE, *styles)))
    return (
        load_environment()
        .get_template(name)
        .render(**shown, root=root, style=Markup(style), script=Markup(script), digest=digest)
    )


@cache
def load_environment() -> Environment:
    """Templates are compiled once."""
    return Environment(
        loader=FunctionLoader(read_template),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_escape_value,
    )


def _escape_value(value: object) -> object:
    """Whatever a template puts out: nothing that a browser obeys and a reader does not see."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


@cache
def read_template(name: str) -> str:
    """A template, style or script. Raises `FileNotFoundError`."""
    report = resources.files("pytest_dtfperf.report")
    paths = (report.joinpath(folder, "templates", name) for folder in FOLDERS)
    found = next((path for path in paths if path.is_file()), None)
    if found is None:
        raise FileNotFoundError(name)
    return found.read_text(encoding="utf-8")
