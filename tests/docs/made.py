"""The pages of reference that are made from the code, as docs/_extensions makes them."""

import importlib
import os
import sys
from collections.abc import Mapping
from functools import cache

from tests.docs.pages import REPOSITORY


@cache
def made() -> Mapping[str, str]:
    """By their names in the repository, where they are made for a build and not kept."""
    extensions = str(REPOSITORY / "docs" / "_extensions")  # docs/conf.py tells Sphinx the same
    sys.path.insert(0, extensions)
    try:
        reference = importlib.import_module("reference")
    finally:
        sys.path.remove(extensions)
    columns = os.environ.get("COLUMNS")
    try:
        return {f"docs/reference/{name}": make() for name, make in reference.PAGES.items()}
    finally:  # helps are wrapped to another width there
        if columns is None:
            os.environ.pop("COLUMNS", None)
        else:
            os.environ["COLUMNS"] = columns
