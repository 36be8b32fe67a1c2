"""What a zygote imports before it forks tasks."""

import subprocess
import sys
from importlib.util import find_spec

PROGRAM = """
import sys
import pytest_dtfperf.training.task
hidden = pytest_dtfperf.training.first_import.HIDDEN
print(*(name for name in hidden if name in sys.modules), sep=" ")
for name in sys.argv[1:]:
    __import__(name)
"""


def test_what_training_has_no_use_for_is_not_imported() -> None:
    """With TensorFlow come none of the packages that Keras looks for, however many are installed; later they can be had."""
    installed = [name for name in ("matplotlib", "pandas", "scipy", "sklearn") if find_spec(name)]
    ended = subprocess.run([sys.executable, "-c", PROGRAM, *installed], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "\n"), ended.stderr[-2000:]


def test_who_runs_the_tests_imports_none() -> None:
    """TensorFlow takes seconds to import, and every one of xdist's workers would: what needs it runs in programs of its own."""
    assert "tensorflow" not in sys.modules
