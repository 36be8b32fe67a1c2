"""The results of the package's graphs and of TensorFlow's own, computed once for all tests of a process."""

import json
from typing import Any

import pytest

from tests.training.programs import run_program


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the output of tests/training/numerics/beside_tensorflow.py."""
    module = "tests.training.numerics.beside_tensorflow"
    output = run_program(tmp_path_factory.mktemp("beside") / "log", "-m", module, CUDA_VISIBLE_DEVICES="")
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found
