"""An error out of somebody else's code, in one line."""

from pytest_dtfperf.errors import DtfPerfError

MOST_CHARACTERS = 300


def in_words(error: BaseException) -> str:
    """Its kind and the first line of what it says."""
    first = str(error).strip().partition("\n")[0][:MOST_CHARACTERS]
    return first if isinstance(error, DtfPerfError) else f"{type(error).__name__}: {first}".removesuffix(": ")
