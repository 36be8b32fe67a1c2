"""Set up Sphinx for the site of these pages: `make docs`. _extensions/reference.py makes the reference from the code."""

import sys
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_extensions"), str(HERE.parent)]

project = "pytest-dtfperf"
author = "The pytest-dtfperf developers"
copyright = author  # noqa: A001
version = release = metadata.version("pytest-dtfperf")

extensions = ["myst_parser", "sphinx.ext.autodoc", "reference"]
exclude_patterns = ["_build"]
nitpicky = True

html_theme = "furo"
html_title = f"pytest-dtfperf {version}"
html_theme_options = {"source_edit_link": "", "navigation_with_keys": True}
html_static_path: list[str] = []
html_show_copyright = False
html_copy_source = False

# `make linkcheck`: one slow site must neither fail nor delay the others.
linkcheck_timeout = 15
linkcheck_retries = 2
linkcheck_workers = 8
linkcheck_exclude_documents = ["changelog"]  # its old links may no longer exist

myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]

default_role = "code"  # `names` in docstrings are code, not links
autodoc_typehints = "none"  # types are in the signatures
autodoc_member_order = "bysource"
nitpick_ignore_regex = [("py:.*", ".*")]  # of types in signatures: most have no page
