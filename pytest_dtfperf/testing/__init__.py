"""Contracts for extensions of other packages (docs/extending.md): test classes to derive from."""
