"""Text from elsewhere (a host, a batch system, somebody's file), made fit to be shown. Pure.

A terminal obeys escape sequences, a browser and an editor obey bidirectional controls, XML may not hold NUL at all, and a lone
surrogate cannot be written to any file. None of them is printable, as Unicode has it, and all are shown as Python writes them.

A stream whose encoding lacks a character (latin-1, ASCII) gets another one in its place, where it has `errors=DEGRADE`.
"""

import codecs

DEGRADE = "dtfperf.degrade"  # name of the error handler, as `open` and `reconfigure` take it

# One for one, so that columns stay beneath each other.
_LACKING = "─━╸╺╶╴│┃├└┌┐┘┤┬┴┼▁▂▃▄▅▆▇█\u2018\u2019\u201c\u201d\u2013\u2014•·±\u00b5\u03bc…→←↑↓\u00d7"
_INSTEAD = "------||+++++++++12345678''\"\"--**~uu.><^vx"
_SUBSTITUTES = dict(zip(_LACKING, _INSTEAD, strict=True))

_LONGEST = 2000  # characters of a line that people are shown


def printable(text: str) -> str:
    """One line, in which whatever is no sign that can be seen, tabs and ends of lines included, is written out: `\\x1b`."""
    return text if text.isprintable() else "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def printable_lines(text: str) -> str:
    """The same with its lines and tabs. A progress bar, which goes back to the beginning of its line, begins another."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return "\n".join(line if line.isprintable() else "\t".join(map(printable, line.split("\t"))) for line in lines)


def printable_bytes(line: bytes) -> str:
    """A line of bytes as people are shown it: a long one only in its beginning."""
    text = line[: 4 * _LONGEST].decode(errors="replace").rstrip("\r\n").expandtabs()
    return printable(text if len(text) <= _LONGEST and len(line) <= 4 * _LONGEST else f"{text[:_LONGEST]} ...")


def _degrade(error: UnicodeError) -> tuple[str, int]:
    """Return what takes the place of characters that an encoding lacks; of those without a substitute their numbers."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    escaped = (_SUBSTITUTES.get(each) or each.encode("ascii", "backslashreplace").decode("ascii") for each in missing)
    return "".join(escaped), error.end


codecs.register_error(DEGRADE, _degrade)
