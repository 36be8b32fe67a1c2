"""From the tables' strings to the code that they name."""

import importlib
from typing import Any


def load(implementation: str) -> Any:
    """Return what "module:name" names."""
    module, _, name = implementation.partition(":")
    return getattr(importlib.import_module(module), name)
