"""Import code by its name in a table."""

import importlib
from typing import Any


def load(implementation: str) -> Any:
    """Return the object that "module:name" names."""
    module, _, name = implementation.partition(":")
    return getattr(importlib.import_module(module), name)
