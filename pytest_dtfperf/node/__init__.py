"""What runs on the hosts beside training. Every start of an agent pays for what is imported here, on 128 hosts at once.

So what half of Python's own library drags in (typing, dataclasses, argparse, tempfile, subprocess, importlib.metadata) is
imported where it is needed, if at all: an agent and its zygote start in 25 ms of CPU instead of 110 ms. Types are for mypy,
which takes any constant of the name TYPE_CHECKING for true.
"""
