"""Commands that run a Python module with the standard library first on the search path.

`python -m MODULE` searches the working folder before the standard library, so that a file `types.py` or `json.py` beside the
tests would replace that module. `-P` leaves out only the working folder: PYTHONPATH, the user's site-packages and all other
variables of Python still apply.

    python -P -m pytest_dtfperf.node.module_command MODULE ARGUMENT ...    runs MODULE, and searches the working folder last
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress


def make_module_command(python: str, module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of this package, without the working folder on the search path."""
    return [python, "-P", "-m", module, *arguments]


def make_project_command(python: str, module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module for the project in the working folder, which is searched last."""
    return make_module_command(python, __name__, module, *arguments)


def search_working_folder_last() -> None:
    """Append the working folder to the search path, for modules of the project that nothing else provides."""
    with suppress(OSError):  # the folder was removed
        sys.path.append(os.getcwd())


def main() -> None:
    import runpy

    search_working_folder_last()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
