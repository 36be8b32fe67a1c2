"""Train the user's own models: Keras models, and functions of tensors."""

from pytest_dtfperf.errors import DtfPerfError

MOST_CHARACTERS = 300


def describe_error(error: BaseException) -> str:
    """Return the kind of an error of the user's code and the first line of its message."""
    first = str(error).strip().partition("\n")[0][:MOST_CHARACTERS]
    return first if isinstance(error, DtfPerfError) else f"{type(error).__name__}: {first}".removesuffix(": ")
