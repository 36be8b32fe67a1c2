"""A number in a line that another program has printed: read whole, or refused. Pure.

docs/command.md, "How a number is read", states the rules.
"""

import re
from collections.abc import Callable

from pytest_dtfperf.errors import show_value

MOST_CHARACTERS = 64  # of a number: more is a cut or joined line
_PREFIXES = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}  # SI, and the K that people write
_SPACES = "\u00a0\u2007\u2009\u202f"  # those that are printed between thousands, and never between columns
_MINUS = "\u2212\u2013-"  # the last one last: these stand in sets
_UNKNOWN = "\ufffd"  # a byte that is not UTF-8: in Latin-1 it is the space between thousands, or an apostrophe
# What may be between the digits of one number, whether it makes sense there or not.
_BETWEEN = f".,'\u2019_\u066b\u066c\u00b7{_SPACES}{_UNKNOWN}"

# The separator of thousands is followed by three digits each time, and it is certain only beside a decimal point, where it is
# none of the two characters that are decimal points somewhere, or where it occurs twice before a decimal comma.
_VALUE = re.compile(
    rf"""(?P<sign>[+{_MINUS}]?)
    (?: (?P<plain>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)
      | (?P<grouped>[1-9][0-9]{{0,2}}(?P<by>['\u2019_\ {_SPACES}])[0-9]{{3}}(?:(?P=by)[0-9]{{3}})*(?:[.,][0-9]+)?)
      | (?P<point>[1-9][0-9]{{0,2}}(?:,[0-9]{{3}})+\.[0-9]+)
      | (?P<comma>[1-9][0-9]{{0,2}}(?:\.[0-9]{{3}}){{2,}},[0-9]+)
    )
    (?P<exponent>[eE][+-]?[0-9]+)?
    (?:[\ {_SPACES}]?(?P<prefix>[{"".join(_PREFIXES)}]))?""",
    re.VERBOSE,
)
_NEXT_DIGITS = re.compile(rf"(?:[{_BETWEEN}]?\d)*")
_EXPONENT = re.compile(r"\.?[eE][+-]?\d+")
_EXPONENT_BEFORE = re.compile(r"\d\.?[eE][+-]?$")

# Units of a rate that may be directly behind a number. Others must be in the pattern.
_COUNTED = (
    "img|imgs|image|images|pic|pics|picture|pictures|sample|samples|example|examples|ex|item|items|frame|frames|fps|it|its|ips"
)
_SCALED = re.compile(rf"([\ {_SPACES}]?)([{''.join(_PREFIXES)}])(?:(?:{_COUNTED})(?![^\W\d_])|(?![\w:=-]))")
_UNIT = re.compile(rf"(?:{_COUNTED}|steps?|batch(?:es)?|records?)(?![^\W\d_])", re.IGNORECASE)
_LETTERS = re.compile(r"[^\W\d]+")
_FORTRAN = re.compile(r"[dD][+-]?\d")
_SCALED_UNKNOWN = re.compile(r"[kKMGT][^\W\d_]{0,3}(?![^\W\d_])")
_TIME = r"(?:[mn\u00b5\u03bcu]?s|m?secs?|(?:milli|micro)?seconds?)"
_SUPERSCRIPTS = "\u2070-\u207f\u00b2\u00b3\u00b9"
_NUMBER_WORDS = "hundred|thousand|million|billion|trillion|mio|mln|mrd|bn|lakh|crore|dozen"
_LONGER = r"(?:/|\bper\s)\s?(?:[Mm]in(?:ute)?s?|h|[Hh]rs?|[Hh]ours?|[Dd]ays?)"  # than a second
_WRONG_AFTER = {
    re.compile(r"\s?[%\u2030]"): "a percentage",
    re.compile(rf"\s?(?:[x\u00d7*\u00b7\u22c5]\s?10\s?(?:\^|\*\*|[{_SUPERSCRIPTS}])|(?:\^|\*\*)\s?\d)"): "a power",
    re.compile(rf"\s?(?:{_NUMBER_WORDS})s?\b", re.IGNORECASE): "a number in words",
    re.compile(rf"\s?{_TIME}(?![^\W\d_])"): "a time",
    re.compile(rf"\s?[^\W\d_]*\s?{_LONGER}\b"): "not a rate per second",
}
_WRONG_BEFORE = {
    re.compile(rf"(?<![\w/])(?<!/\s)(?<!per\s){_TIME}\s?(?:/|per\s)\s?[^\W\d_]+\W{{0,5}}$"): "a time",
    re.compile(rf"{_LONGER}\W{{0,5}}$"): "not a rate per second",
}
_LABEL = 40  # characters before a number that may name it
_PUNCTUATION = (".", ",", ";", ":")
_GOES_ON = re.compile(rf"[.,'\u2019_+/:*^\u00d7\u00b7{_MINUS}]\d")
_CAME_FROM = re.compile(r"\d[/*^\u00d7\u00b7+]$")
_THREE_MORE = re.compile(r" \d{3}(?!\d)")
_THREE = re.compile(r"\d{3}(?!\d)")
_FEW_BEFORE = re.compile(r"(?<![\w.,])\d{1,3} $")


class UnclearNumber(Exception):
    """A text is no number, or may be several; the message has the reason. `position`: where it begins in its line."""

    position = 0


def parse(text: str) -> float:
    """Return the number that is all of a text: `1234.5`, `1,234.5`, `1'234.5`, `1.2345e3`, `1.2k`. Raises `UnclearNumber`."""
    found = _VALUE.fullmatch(text) if len(text) <= MOST_CHARACTERS else None
    if found is None:
        raise UnclearNumber(_describe_no_number(text))
    digits = found["plain"] or found["point"] or found["comma"] or found["grouped"]
    if found["comma"] or found["grouped"]:
        digits = digits.replace("." if found["comma"] else found["by"], "").replace(",", ".")
    value = float(digits.replace(",", "") + (found["exponent"] or ""))
    return (-1 if found["sign"] and found["sign"] in _MINUS else 1) * value * _PREFIXES.get(found["prefix"] or "", 1)


def _describe_no_number(text: str) -> str:
    if re.fullmatch(r"[0-9]+,[0-9]+|[0-9]{1,3}(?:,[0-9]{2,3})+", text):
        return f"{show_value(text)} may be one number with thousands, one with decimals, or several"
    if re.fullmatch(r"[0-9.,]+", text) and re.search("[0-9]", text):
        return f"{show_value(text)} may be one number or several"
    return f"{show_value(text)} is not a number"


def find(pattern: re.Pattern[str], line: str, *, begin: int = 0, end: int | None = None) -> str | None:
    """Return the last number in a line that the pattern's first group finds, as it is printed.

    None where there is none. Matches that begin before `begin`, or reach `end`, are not considered: the line is cut there.
    Raises `UnclearNumber` where the group has found a part of a number, or what may be a part.
    """
    end = len(line) if end is None else end
    found = [
        each for each in pattern.finditer(line) if each[1] is not None and begin <= each.start() and max(each.span(1)) <= end
    ]
    if not found:
        return None
    try:
        return _read_number(pattern, line, found[-1])
    except UnclearNumber as why:
        why.position = found[-1].start(1)
        raise


def _read_number(pattern: re.Pattern[str], line: str, match: re.Match[str]) -> str:
    text = match[1].strip()
    text = text[:-1] if text[-1:] in _PUNCTUATION else text  # of a sentence or a list
    start = match.start(1) + match[1].find(text)
    end = start + len(text)
    first = _find_first(line, start) if text[:1].isdecimal() or text[:1] == "." else start
    last = _find_last(line, end) if text[-1:].isdecimal() else end
    # What is beside its group the pattern describes, or leaves to us.
    before, after = match.start() < start, match.end() > match.end(1)
    if (first < start and before) or (last > end and after):
        _check_columns(pattern, line, (first, last), text)
        first, last = start, end
    if text.endswith(_PUNCTUATION):
        raise UnclearNumber(f"{show_value(match[1])} is not a number")
    parse(line[first:last])
    _check_before(line, first, last, is_in_pattern=before)
    last = _check_after(line, first, last, is_in_pattern=after)
    if _THREE_MORE.match(line, last) and re.fullmatch(r"\d{1,3}", line[first:last]):
        _check_space(pattern, line, last)
    if _THREE.match(line, first) and _FEW_BEFORE.search(line[max(0, first - 5) : first]):
        _check_space(pattern, line, first - 1)
    return re.sub(f"[{_SPACES}]", " ", line[first:last])


def _find_first(line: str, position: int) -> int:
    """Where a number begins of which one digit, or the decimal point, is at `at`."""
    while position:
        if line[position - 1].isdecimal():
            position -= 1
        elif position > 1 and line[position - 1] in _BETWEEN and line[position - 2].isdecimal():
            position -= 2
        else:
            return position - 1 if line[position - 1] == "." and line[position] != "." else position
    return position


def _find_last(line: str, position: int) -> int:
    """Where a number ends that goes on at `at`, or ends there."""
    if digits := _NEXT_DIGITS.match(line, position):
        position = digits.end()
    exponent = _EXPONENT.match(line, position)
    return exponent.end() if exponent else position


def _check_columns(pattern: re.Pattern[str], line: str, whole: tuple[int, int], text: str) -> None:
    """Raise `UnclearNumber` unless what is beside a group cannot belong to its number: columns, as in `7,512.3,0.21`."""
    first, last = whole
    joined = re.sub(rf"[{_BETWEEN}](?<!\.)", "", line[first:last])
    try:
        parse(line[first:last])
    except UnclearNumber:
        if not _finds(
            pattern, line[:first] + joined + line[last:], lambda begin, end: begin < first + len(joined) and end > first
        ):
            return
    raise UnclearNumber(f"the pattern's group takes {show_value(text)} of {show_value(line[first:last])}")


def _check_space(pattern: re.Pattern[str], line: str, position: int) -> None:
    """Raise `UnclearNumber` where the digits around a space may be one number: where the pattern would find that, too."""
    if _finds(pattern, line[:position] + line[position + 1 :], lambda begin, end: begin < position < end):
        around = f"{_find_token(line, position, position)} {_find_token(line, position + 1, position + 1)}"
        raise UnclearNumber(f"{show_value(around)} may be one number or two")


def _finds(pattern: re.Pattern[str], line: str, is_there: Callable[[int, int], bool]) -> bool:
    return any(each[1] is not None and is_there(*each.span(1)) for each in pattern.finditer(line))


def _check_before(line: str, first: int, last: int, *, is_in_pattern: bool) -> None:
    """Raise `UnclearNumber` where what is before a number is a part of it, or makes something else of it."""
    before, number = line[max(0, first - _LABEL) : first], show_value(line[first:last])
    end = before[-1:]
    if end and end in _MINUS:
        raise UnclearNumber(f"there is {end!r} before {number}: a negative number, or a range")
    is_word = end.isalpha() or end == "_"
    if (
        end.isnumeric()
        or end in (".", _UNKNOWN)
        or _EXPONENT_BEFORE.search(before)
        or (is_word and (not is_in_pattern or line[first] == "."))
        or (not is_in_pattern and _CAME_FROM.search(before))
    ):
        raise UnclearNumber(f"{number} is a part of {show_value(_find_token(line, first, last))}")
    for wrong, what in _WRONG_BEFORE.items():
        if wrong.search(before):
            raise UnclearNumber(f"{number} is {what}")


def _check_after(line: str, first: int, last: int, *, is_in_pattern: bool) -> int:
    """Return where the number ends: with its SI prefix, if it has one.

    Raises `UnclearNumber` where what is behind it is a part of it, or makes something else of it.
    """
    after, number = line[last : last + 1], show_value(line[first:last])
    if scaled := _SCALED.match(line, last):
        if is_in_pattern:
            raise UnclearNumber(f"the pattern's group takes {number} of {show_value(line[first : scaled.end(2)])}")
        return scaled.end(2)
    for wrong, what in _WRONG_AFTER.items():
        if wrong.match(line, last):
            raise UnclearNumber(f"{number} is {what}")
    if (
        after.isnumeric()
        or after == _UNKNOWN
        or line[last : last + 2] == ".."
        or _FORTRAN.match(line, last)
        or _SCALED_UNKNOWN.match(line, last)
        or (not is_in_pattern and _LETTERS.match(line, last) and not _UNIT.match(line, last))
        or (not is_in_pattern and _GOES_ON.match(line, last))
    ):
        raise UnclearNumber(f"{number} is a part of {show_value(_find_token(line, first, last))}")
    return last


def _find_token(line: str, first: int, last: int) -> str:
    """Return what is there between two blanks."""
    begin, end = re.search(r"\S*$", line[:first]), re.match(r"\S*", line[last:])
    return (begin[0] if begin else "") + line[first:last] + (end[0] if end else "")
