"""The pytest plugin: an adapter of `pytest_dtfperf.session`.

Every pytest run on the machine loads its hooks. Their late imports must work in a process with a search path that others have
extended: see `installed_first`.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# Before pytest and conftest.py files add the project's folders; `python -m pytest` has added the working folder by then.
_INSTALLED = {*sys.path} - {"", os.getcwd()}


@contextmanager
def installed_first() -> Iterator[None]:
    """Search the project's folders last during late imports of this package.

    pytest searches the tests' folder first. A statistics.py or numpy.py there would replace the intended module.
    """
    given = list(sys.path)
    sys.path.sort(key=lambda folder: folder not in _INSTALLED)
    try:
        yield
    finally:
        sys.path[:] = [*(folder for folder in sys.path if folder not in given), *given]
