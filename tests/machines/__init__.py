"""Machines for tests: in network namespaces of their own where this user may make them, else this one at other addresses."""
