"""Make the reference pages from the code, with docs/_extensions."""

import importlib
import os
import sys
from collections.abc import Mapping
from functools import cache

from tests.docs.pages import REPOSITORY


@cache
def make_pages() -> Mapping[str, str]:
    """Return the text of each reference page by its path. A build writes these files; they are not committed."""
    extensions = str(REPOSITORY / "docs" / "_extensions")  # as docs/conf.py does
    sys.path.insert(0, extensions)
    try:
        reference = importlib.import_module("reference")
    finally:
        sys.path.remove(extensions)
    columns = os.environ.get("COLUMNS")
    try:
        return {f"docs/reference/{name}": make() for name, make in reference.PAGES.items()}
    finally:  # the pages wrap help texts to another width
        if columns is None:
            os.environ.pop("COLUMNS", None)
        else:
            os.environ["COLUMNS"] = columns
