"""A plugin of sessions that are forks: the workers of pytest-xdist are forks, too, and no new Pythons.

Such a session collects no garbage at its end, as none in pytest's own tests does: its process ends there, too.
"""

import os

import pytest
from _pytest import unraisableexception

from tests.plugin.fork import PYTHON


def pytest_configure(config: pytest.Config) -> None:
    option, python = config.option, os.environ.get(PYTHON)
    if python and getattr(option, "tx", None):
        option.tx = [f"popen//python={python}" if each == "popen" else each for each in option.tx]
    vars(unraisableexception)["gc_collect_harder"] = lambda *iterations: None
