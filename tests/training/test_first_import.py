"""What a zygote imports before it forks tasks."""

import sys
from importlib.util import find_spec
from typing import Any


def test_what_training_has_no_use_for_is_not_imported(anew: dict[str, Any]) -> None:
    """With TensorFlow come none of the packages that Keras looks for, however many are installed; later they can be had."""
    assert anew["imported"] == []
    assert anew["later"] == [name for name in ("matplotlib", "pandas", "scipy", "sklearn") if find_spec(name)]


def test_another_backend_of_keras_keeps_nobody_from_tensorflow(anew: dict[str, Any]) -> None:
    """Whatever the environment says, it is not imported with TensorFlow, and stays as it is for what is started later."""
    assert (anew["backend"], anew["asked_for"]) == ("tensorflow", "no_such_backend")


def test_who_runs_the_tests_imports_none() -> None:
    """TensorFlow takes seconds to import, and every one of xdist's workers would: what needs it runs in programs of its own."""
    assert "tensorflow" not in sys.modules
