"""Format the reason of a task's failure in a few lines, which a run's failure quotes. The task's log has the rest."""

import re
from collections.abc import Iterator

import tensorflow as tf

from pytest_dtfperf.errors import DtfPerfError

MOST_LINES = 8
MOST_CHARACTERS = 500  # of a line: TensorFlow quotes whole tensors
MOST_OF_OURS = 2000  # of a line of this package's errors

# Lines of TensorFlow's with the place in the graph of an error and the calls that made it, and those that count errors.
_ABOUT_THE_GRAPH = re.compile(
    r"\s*(\[\[|File \"|Detected at node|Node: |Graph execution error|Original stack trace|Errors may have originated|"
    r"Input Source operations|<stack traces unavailable>|\d+ (root error|successful operation|derived error)|"
    r"Additional GRPC error information|:\w+:Error received from peer)"
)
_NODES = re.compile(r"\{\{(?:function_)?node .*?\}\}\s*|\[\[\{\{node .*?\}\}\]\]|\[Op:[^\]]*\]")
_NUMBER = re.compile(r"^\s*\(\d+\) (?=[A-Z_]+: )")


def format_reason(error: BaseException) -> list[str]:
    """Return the reason of an error of this package or TensorFlow's in lines; none of others, which need their traceback."""
    if isinstance(error, DtfPerfError):
        return [_cut(line, MOST_OF_OURS) for line in f"{type(error).__name__}: {error}".splitlines()[:MOST_LINES]]
    if isinstance(error, tf.errors.OpError | UnicodeDecodeError):
        lines = list(dict.fromkeys(_iterate_essential_lines(get_message(error))))
        return [f"{type(error).__name__}: {lines[0]}", *lines[1:MOST_LINES]] if lines else []
    return []


def get_message(error: BaseException) -> str:
    """Return TensorFlow's message without the calls that made the graph.

    Where it quotes bytes of a file, its message may be no UTF-8, and become another exception.
    """
    if isinstance(error, UnicodeDecodeError):
        return error.object.decode(errors="backslashreplace")
    while isinstance(error, tf.errors.OpError) and isinstance(error.__context__, tf.errors.OpError):
        error = error.__context__
    return str(error.message if isinstance(error, tf.errors.OpError) else error)


def _iterate_essential_lines(message: str) -> Iterator[str]:
    for line in message.splitlines():
        if line.strip() and not _ABOUT_THE_GRAPH.match(line):
            essence = _NUMBER.sub("", _NODES.sub("", line)).strip()
            if essence:
                yield _cut(essence, MOST_CHARACTERS)


def _cut(line: str, most: int) -> str:
    return line if len(line) <= most else f"{line[:most]}..."
