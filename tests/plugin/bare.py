"""A zygote without imports, for the tests of which processes share one, and when it ends.

`python -m tests.plugin.bare LISTENER LINE`, as `tests/plugin/warm.py`.
"""

import sys

from tests.plugin.serving import Kind, be_like, execute, serve

if __name__ == "__main__":
    if program := serve(Kind(lambda request: True, be_like), *map(int, sys.argv[1:])):
        execute(*program)
