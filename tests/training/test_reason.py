"""What a failed task is quoted with: a few lines, whatever TensorFlow tells of the graph around them."""

import json

import pytest

from tests.training.programs import told

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
    """Of errors, by where they come from: told by a process with TensorFlow, for this one has none."""
    found: dict[str, list[str]] = json.loads(told(tmp_path_factory.mktemp("reasons") / "log", "-c", PROGRAM))
    return found


@pytest.mark.parametrize("where", ["session", "function"])
def test_tensorflow_s_message_is_left(reasons: dict[str, list[str]], where: str) -> None:
    """Without the nodes it names, and without the calls by which these were made."""
    (line,) = reasons[where]
    assert line.startswith("InvalidArgumentError: Received a label value of 12 which is outside the valid range of [0, 10).")


def test_words_that_are_no_utf_8_can_be_read(reasons: dict[str, list[str]]) -> None:
    """Where TensorFlow quotes a file's bytes, the rest of what it says is not lost."""
    assert r"Could not parse example input, value: '\xff\xfe" in reasons["bytes"][0]


def test_long_lines_are_cut(reasons: dict[str, list[str]]) -> None:
    """Nobody reads two thousand numbers."""
    assert max(map(len, reasons["long"])) < 600
    assert len(reasons["long"]) <= 8


def test_our_own_errors_are_shown_as_they_are(reasons: dict[str, list[str]]) -> None:
    """By their kind and in their own lines, none of which is without end."""
    first, second = reasons["ours"]
    assert first == "DataError: /data/train-00000-of-00001: the record at byte 9 is bad."
    assert second.startswith("It is [0, 1, 2, ")
    assert len(second) < 2100


def test_of_a_bug_the_traceback_is_wanted(reasons: dict[str, list[str]]) -> None:
    """It has no reason in a few lines: the log's last ones are shown."""
    assert reasons["bug"] == []
