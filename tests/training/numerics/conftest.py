"""What our graphs compute beside TensorFlow's own, found once for all tests of a process."""

import json
from typing import Any

import pytest

from tests.training.programs import told


@pytest.fixture(scope="session")
def beside(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What tests/training/numerics/beside_tensorflow.py prints."""
    module = "tests.training.numerics.beside_tensorflow"
    output = told(tmp_path_factory.mktemp("beside") / "log", "-m", module, CUDA_VISIBLE_DEVICES="")
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found
