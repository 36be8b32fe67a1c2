"""The backend that Keras uses on a host."""

from pathlib import Path

import pytest

from pytest_dtfperf.errors import SpecError
from pytest_dtfperf.training import own


@pytest.mark.parametrize(
    "variable, file, where",
    [
        ("tensorflow", '{"backend": "jax"}', None),
        ("torch", None, "KERAS_BACKEND defines that Keras' backend is 'torch'"),
        ("", '{"backend": "jax"}', "/keras.json defines that Keras' backend is 'jax'"),
        (None, '{"backend": "tensorflow"}', None),
        (None, '{"floatx": "float32"}', None),
        (None, "{", None),
        (None, "[]", None),
        (None, None, None),
    ],
)
def test_backend_is_read_as_keras_does(
    variable: str | None, file: str | None, where: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variable goes before the file, the default is TensorFlow, and the source of another backend is named."""
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    if variable is not None:
        monkeypatch.setenv("KERAS_BACKEND", variable)
    if file is not None:
        (tmp_path / "keras.json").write_text(file)
    if where is None:
        own.check_keras_backend("models.cnn")
    else:
        with pytest.raises(SpecError, match=f"^models.cnn: on this host .*{where}, and tasks train with tensorflow alone: "):
            own.check_keras_backend("models.cnn")
