"""What a program's line looks like on a terminal. Pure.

Colours, titles and links are left out, backspaces take back, and what moves the cursor elsewhere begins another line.
"""

import re
import unicodedata

_PLAIN = re.compile(
    r"[^\x00-\x08\x0a-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\udc80-\udcff]*"
)
# ECMA-48: a control sequence, with its parameters and its final character; a control string, to its end; any other escape.
# C1 controls are one character, too; as one byte, which is no UTF-8, only colours are known by what they are.
_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)(?P<parameters>[0-?]*)[ -/]*(?P<final>[@-~]|$)"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c|(?=\x1b)|$)"
    r"|\udc9b[0-9;]*m"
    r"|\x1b[ -/]*(?P<escape>[0-~])"
)
_STAYS = "mhlnqtrcu"  # finals that draw and move nothing
_OTHER_LINE = "\n\v\f\x84\x85\x8d\u2028\u2029"
_WIDEST = 4096  # columns that a sequence may skip


def lines(data: bytes) -> list[str]:
    """Return what is seen of a line of bytes: one line, or several in the order of writing, where it moves the cursor."""
    text = data.decode(errors="surrogateescape")
    if _PLAIN.fullmatch(text):
        return [text]
    found, at = _Lines(), 0
    for sequence in _SEQUENCE.finditer(text):
        found.write(text[at : sequence.start()])
        found.obey(sequence)
        at = sequence.end()
    found.write(text[at:])
    return found.end()


class _Lines:
    def __init__(self) -> None:
        self._done: list[str] = []
        self._line: list[str] = []
        self._column = 0

    def write(self, text: str) -> None:
        if self._column == len(self._line) and _PLAIN.fullmatch(text):
            self._line.extend(text)
            self._column += len(text)
            return
        for each in text:
            if each == "\b":
                self._column = max(0, self._column - 1)
            elif each in _OTHER_LINE:
                self._begin()
            elif "\udc80" <= each <= "\udcff":
                self._put("\ufffd")
            elif each == "\t" or unicodedata.category(each) not in ("Cc", "Cf"):
                self._put(each)

    def obey(self, sequence: re.Match[str]) -> None:
        final = sequence["final"]
        if final is None:
            if sequence["escape"] and len(sequence[0]) == 2:
                self._begin()
            return
        number = re.match("[0-9]*", sequence["parameters"])
        count = min(int(number[0]), _WIDEST) if number and number[0] else 1
        if final == "D":
            self._column = max(0, self._column - max(1, count))
        elif final == "C":
            self._column = min(self._column + max(1, count), _WIDEST)
        elif final == "K" and sequence["parameters"] in ("", "0"):
            del self._line[self._column :]
        elif final and final not in _STAYS:
            self._begin()

    def end(self) -> list[str]:
        self._begin()
        return self._done

    def _put(self, character: str) -> None:
        self._line.extend(" " * (self._column - len(self._line)))
        self._line[self._column : self._column + 1] = character
        self._column += 1

    def _begin(self) -> None:
        if self._line:
            self._done.append("".join(self._line))
        self._line, self._column = [], 0
