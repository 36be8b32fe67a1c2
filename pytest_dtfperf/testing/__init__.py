"""Contracts of what other packages may add (docs/extending.md): test classes to be derived from."""
