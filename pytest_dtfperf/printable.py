"""Text from elsewhere (a host, a batch system, somebody's file), made fit to be shown. Pure.

A terminal obeys escape sequences, a browser and an editor obey bidirectional controls, XML may not hold NUL at all, and a lone
surrogate cannot be written to any file. None of them is printable, as Unicode has it, and all are shown as Python writes them.
"""

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
