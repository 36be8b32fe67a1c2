"""The programs that run on hosts besides training. Each start of an agent imports them, on up to 128 hosts at once.

Therefore modules that import a large part of the standard library (typing, dataclasses, argparse, tempfile, subprocess,
importlib.metadata) are imported where they are needed, or not at all: an agent and its zygote start in 25 ms of CPU time
instead of 110 ms. Types are for mypy, which takes a constant named TYPE_CHECKING for true.
"""
