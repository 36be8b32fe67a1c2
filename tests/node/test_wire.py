"""Messages as lines: encoding, decoding, and pipes."""

import math
import os

import pytest

from pytest_dtfperf.node import wire


def test_message_is_decoded_as_encoded() -> None:
    """A message is decoded as it was encoded, without its version, on one line, also with NaN."""
    line = wire.encode({"kind": "report", "loss": [1.5, math.nan], "text": "two\nlines, ümlaut"})
    message = wire.decode(line)
    assert b"\n" not in line
    assert message["kind"] == "report"
    assert message["text"] == "two\nlines, ümlaut"
    assert math.isnan(message["loss"][1])
    assert "v" not in message


@pytest.mark.parametrize("line", [b"hello", b"[1]", b'{"order": "ping"}', b'{"v": 1, "order": "ping"}'])
def test_other_lines_are_refused(line: bytes) -> None:
    """Free text, other JSON and other versions are no messages."""
    with pytest.raises(wire.WireError):
        wire.decode(line)


def test_lines_are_put_together() -> None:
    """Lines that come in pieces come out whole, in order, without empty ones."""
    lines = wire.Lines()
    assert lines.feed(b"on") == []
    assert lines.feed(b"e\ntwo\n\nthr") == [b"one", b"two"]
    assert lines.feed(b"ee\n") == [b"three"]


def test_full_pipe_does_not_block() -> None:
    """A writer into a pipe without a reader goes on at once, and loses nothing."""
    reader, writer = os.pipe()
    outbox = wire.Outbox(writer)
    lines = [str(i).encode() * 1000 for i in range(200)]
    for line in lines:
        outbox.put(line)
    assert outbox
    arrived = b""
    while outbox:
        arrived += os.read(reader, 1 << 20)
        outbox.flush()
    os.close(writer)
    while data := os.read(reader, 1 << 20):
        arrived += data
    os.close(reader)
    assert arrived.split() == lines


def test_closed_pipe_is_an_error() -> None:
    """A writer to a controller that is gone gets an error."""
    reader, writer = os.pipe()
    os.close(reader)
    with pytest.raises(BrokenPipeError):
        wire.Outbox(writer).put(b"is anybody there?")
    os.close(writer)
