"""The imports of a zygote before it forks tasks."""

import sys
from importlib.util import find_spec
from typing import Any


def test_optional_packages_of_keras_are_not_imported(state_after_import: dict[str, Any]) -> None:
    """The import of TensorFlow imports none of Keras' optional packages; they can be imported later."""
    assert state_after_import["imported"] == []
    assert state_after_import["later"] == [name for name in ("matplotlib", "pandas", "scipy", "sklearn") if find_spec(name)]


def test_other_keras_backend_does_not_affect_the_import(state_after_import: dict[str, Any]) -> None:
    """Another backend in the environment is not imported with TensorFlow, and stays set for later processes."""
    assert (state_after_import["backend"], state_after_import["asked_for"]) == ("tensorflow", "no_such_backend")


def test_test_process_does_not_import_tensorflow() -> None:
    """The tests' own process has not imported TensorFlow, which would take seconds in each of xdist's workers."""
    assert "tensorflow" not in sys.modules
