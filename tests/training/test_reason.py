"""The quoted reason of a failed task: a few lines, without TensorFlow's description of the graph."""

import json

import pytest

from tests.training.programs import run_program

PROGRAM = """
import json
import tensorflow as tf
from pytest_dtfperf.errors import DataError
from pytest_dtfperf.training.reason import format_reason

v1 = tf.compat.v1
LONG = tf.zeros([2000], tf.int32).numpy()


def deep(labels, depth=12):
    if depth:
        return deep(labels, depth - 1)
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=tf.zeros([len(labels), 10]))


def in_a_session():
    with tf.Graph().as_default(), v1.Session() as session:
        session.run(deep([3, 12]))


def in_a_pipeline(content):
    def parse(example):
        return tf.io.parse_single_example(example, {"label": tf.io.FixedLenFeature((), tf.int64)})

    with tf.Graph().as_default(), v1.Session() as session:
        iterator = v1.data.make_initializable_iterator(tf.data.Dataset.from_tensors(content).map(parse))
        batch = iterator.get_next()
        session.run(iterator.initializer)
        session.run(batch)


def of_long_words():
    tf.debugging.Assert(False, [LONG], summarize=2000)


def of_ours():
    raise DataError(f"/data/train-00000-of-00001: the record at byte 9 is bad.\\nIt is {[*range(9000)]}")


def of_a_bug():
    {}["no such key"]


CASES = {
    "session": in_a_session,
    "function": tf.function(lambda: deep([3, 12])),
    "bytes": lambda: in_a_pipeline(b"\\xff\\xfe"),
    "long": of_long_words,
    "ours": of_ours,
    "bug": of_a_bug,
}
found = {}
for name, fail in CASES.items():
    try:
        fail()
    except Exception as error:
        found[name] = format_reason(error)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def reasons(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Return the reasons of errors by their source, from a process with TensorFlow."""
    found: dict[str, list[str]] = json.loads(run_program(tmp_path_factory.mktemp("reasons") / "log", "-c", PROGRAM))
    return found


@pytest.mark.parametrize("where", ["session", "function"])
def test_reason_is_tensorflows_message(reasons: dict[str, list[str]], where: str) -> None:
    """The reason has TensorFlow's message, without the names of nodes and the calls that made them."""
    (line,) = reasons[where]
    assert line.startswith("InvalidArgumentError: Received a label value of 12 which is outside the valid range of [0, 10).")


def test_invalid_utf_8_is_escaped(reasons: dict[str, list[str]]) -> None:
    """Bytes of a file in TensorFlow's message are escaped, and the rest of the message is kept."""
    assert r"Could not parse example input, value: '\xff\xfe" in reasons["bytes"][0]


def test_long_lines_are_cut(reasons: dict[str, list[str]]) -> None:
    """A line with two thousand numbers is cut."""
    assert max(map(len, reasons["long"])) < 600
    assert len(reasons["long"]) <= 8


def test_own_errors_keep_their_lines(reasons: dict[str, list[str]]) -> None:
    """The package's own errors keep their kind and lines, which are cut if they are very long."""
    first, second = reasons["ours"]
    assert first == "DataError: /data/train-00000-of-00001: the record at byte 9 is bad."
    assert second.startswith("It is [0, 1, 2, ")
    assert len(second) < 2100


def test_unexpected_error_has_no_reason(reasons: dict[str, list[str]]) -> None:
    """An unexpected error has no reason, so that the last lines of the log are shown."""
    assert reasons["bug"] == []
