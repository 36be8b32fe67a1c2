"""The output of an external command: lines as a terminal shows them, and the last rate."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.spec.command import RATE_PATTERN
from pytest_dtfperf.training import output as module
from pytest_dtfperf.training.output import LINE_BYTES, Output, split_lines


class Unheard:
    """A connection of which nothing is read."""

    def send(self, kind: str, **data: Any) -> None: ...

    def wait(self) -> str:
        return "leave"

    def counters(self) -> Any: ...


@pytest.fixture(autouse=True)
def _log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The task's log is a file of its own."""
    log = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    monkeypatch.setattr(module, "_STDOUT", log)
    yield
    os.close(log)


def read_output(*data: bytes, pattern: str = RATE_PATTERN) -> Output:
    output = Output(pattern, Unheard())
    for each in data:
        output.take(each)
    output.end()
    return output


SEEN = {
    "colours": (b"total \x1b[1mimages\x1b[0m/sec: \x1b[32m12\x1b[1;31m34.5\x1b[0m", ["total images/sec: 1234.5"]),
    "colours of 8 bits": (b"\xc2\x9b32m12\x9b1m34\xc2\x9b0m", ["1234"]),
    "link": (b"a \x1b]8;;http://x/5\x1b\\link\x1b]8;;\x07 b", ["a link b"]),
    "title": (b"\x1b]0;total images/sec: 9\x07\xc2\x9d0;x\xc2\x9ctrains", ["trains"]),
    "title without an end": (b"a\x1b]0;total images/sec: 9", ["a"]),
    "device control": (b"\x1bPq1;2\x1b\\x", ["x"]),
    "character set": (b"\x1b(Bhi", ["hi"]),
    "cut sequence": (b"12\x1b[1;3", ["12"]),
    "backspaces": (b"10\b\b12.5", ["12.5"]),
    "backspaces over more": (b"1234\b\b5", ["1254"]),
    "backspaces beyond the beginning": (b"\b\b1", ["1"]),
    "erased": (b"12345\x1b[3D\x1b[K6", ["126"]),
    "skipped": (b"12\x1b[2C34", ["12  34"]),
    "elsewhere": (b"images: 12\x1b[5;1H34 steps", ["images: 12", "34 steps"]),
    "begins again": (b"12\x1b[2K\x1b[1G34", ["12", "34"]),
    "no sign": (b"t\0o\0\x07", ["to"]),
    "no width": ("1\u200b2\u00ad3\ufeff4".encode(), ["1234"]),
    "no UTF-8": (b"12\xff34", ["12\ufffd34"]),
    "other ends of lines": ("a\vb\u2028c\x85d".encode(), ["a", "b", "c", "d"]),
    "plain": ("2\u00a0345 images \u00b1 5 \u4e2d".encode(), ["2\u00a0345 images \u00b1 5 \u4e2d"]),
}


@pytest.mark.parametrize("data, seen", SEEN.values(), ids=SEEN)
def test_a_line_is_read_as_a_terminal_shows_it(data: bytes, seen: list[str]) -> None:
    """Sequences that draw nothing are left out, and what moves the cursor moves it or ends the line."""
    assert split_lines(data) == seen


RATES: dict[str, tuple[list[bytes], str | None]] = {
    "split anywhere": ([b"total imag", b"es/sec: 1", b",23", b"4.5", b"6\ntotal"], "1,234.56"),
    "split in a character": ([b"total images/sec: 12\xc2", b"\xa0345,6\n"], "12 345,6"),
    "split in a sequence": ([b"total images/sec: 12\x1b[", b"1m34\x1b[0m\n"], "1234"),
    "carriage returns": ([b"total images/sec: 10\rtotal images/sec: 12\r\n"], "12"),
    "drawn over": ([b"total images/sec: 1234\rtotal images/sec: 99  \r"], "99"),
    "without an end": ([b"total images/sec: 12.5"], "12.5"),
    "last line": ([b"total images/sec: 10\ntotal images/sec: 12\nbye\n"], "12"),
    "later clear": ([b"total images/sec: 1,234\ntotal images/sec: 12\n"], "12"),
    "later unclear": ([b"total images/sec: 12\ntotal images/sec: 1,234\n"], None),
    "bytes that are no text": ([b"\xfe\xff total images/sec: 12\xe9 \n"], None),
}


@pytest.mark.parametrize("data, rate", RATES.values(), ids=RATES)
def test_the_last_rate_counts(data: list[bytes], rate: str | None) -> None:
    """However output is cut into reads, the last rate is read whole; where it cannot be, its line is kept."""
    output = read_output(*data)
    assert output.rate == rate
    assert (output.unclear is None) == (rate is not None)
    if output.unclear:
        assert output.unclear[1].startswith(("total images/sec: 1,234", "\ufffd\ufffd total images/sec: 12\ufffd"))


@pytest.mark.parametrize("before", [*range(LINE_BYTES - 40, LINE_BYTES + 8, 3), 3 * LINE_BYTES - 10])
def test_a_very_long_line_cuts_no_number(before: int) -> None:
    """A line that is longer than what is read at once has its number whole, wherever in it that is."""
    line = b"x" * before + b" total images/sec: 1,234.56 and more" + b"y" * LINE_BYTES + b"\n"
    for size in (1 << 16, 5000):
        output = read_output(*(line[at : at + size] for at in range(0, len(line), size)))
        assert (output.rate, output.unclear) == ("1,234.56", None)


def test_long_line_is_quoted_around_its_number() -> None:
    """The quotation of a very long line has the text around its number."""
    output = read_output(b"x" * 9000 + b" total images/sec: 1,234 " + b"y" * 9000 + b"\n")
    assert output.unclear
    assert len(output.unclear[1]) < 500
    assert " total images/sec: 1,234 yyy" in output.unclear[1]
