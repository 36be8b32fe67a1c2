"""Tests of a number in a program's output, which is read whole or refused with the reason."""

import random
import re

import pytest

from pytest_dtfperf.spec.command import RATE_PATTERN
from pytest_dtfperf.spec.printed_number import UnclearNumber, find, parse

WHOLE = {
    "1234.5": 1234.5,
    "1,234.56": 1234.56,
    "1,234,567.8": 1_234_567.8,
    "1.234.567,8": 1_234_567.8,
    "1'234.5": 1234.5,
    "1\u2019234\u2019567": 1_234_567,
    "1_234.5": 1234.5,
    "12\u00a0345.6": 12345.6,
    "12\u202f345,6": 12345.6,
    "1\u2009234": 1234,
    "1.23456e+04": 12345.6,
    "1.e+03": 1000,
    "1E3": 1000,
    "5e-1": 0.5,
    "1.2k": 1200,
    "1.2 k": 1200,
    "1.2K images/sec": 1200,
    "1.2kimg/s": 1200,
    "3M": 3e6,
    "1.": 1,
    ".5": 0.5,
    "512.3.": 512.3,
    "512, loss 0.5": 512,
    "512 +/- 0.1 (jitter = 0.5)\t7.6": 512,
    "512\u00b13": 512,
    "512;3": 512,
    "512(3)": 512,
    "512 images/sec per GPU": 512,
    "512 K-FAC": 512,
    "12.5it/s": 12.5,
    "512 12": 512,
    "10 total images/sec: 12": 12,
    "99 total images/sec: 1,5x total images/sec: 7": 7,
}
UNCLEAR = {
    "1,234": "'1,234' may be one number with thousands, one with decimals, or several",
    "123,45": "may be one number with thousands, one with decimals, or several",
    "1,234,567": "may be one number with thousands",
    "1,23,456": "may be one number with thousands",
    "1,23,456.7": "may be one number or several",
    "1.234,5": "may be one number or several",
    "1.2.3": "may be one number or several",
    "512.3,0.21": "may be one number or several",
    "12 345.6": "'12 345.6' may be one number or two",
    "1 234 567": "may be one number or two",
    "12'34": "is not a number",
    "1_23": "is not a number",
    "1'234_567": "is not a number",
    "12\u00a034": "is not a number",
    "12\ufffd345": "is not a number",
    "12\ufffd": "is a part of",
    "12\u0663": "is not a number",
    "12\u00bd": "is a part of",
    "1.5D+03": "'1.5' is a part of '1.5D+03'",
    "1.2x10^4": "is a power",
    "1.2 \u00d7 10\u2074": "is a power",
    "12^3": "is a power",
    "12Ki": "is a part of '12Ki'",
    "12MB/s": "is a part of",
    "12abc": "is a part of",
    "0x1F": "is a part of",
    "12 million": "is a number in words",
    "12%": "is a percentage",
    "12 ms/step": "is a time",
    "1.25s/it": "is a time",
    "0.5 sec": "is a time",
    "512 images/min": "is not a rate per second",
    "512 per hour": "is not a rate per second",
    "512-600": "is a part of '512-600'",
    "1:23": "is a part of '1:23'",
    "512/600": "is a part of",
    "1e5.3": "is a part of",
    "512...": "is not a number",
    "9" * 100: "may be one number or several",
    "7 total images/sec: 1,234": "'1,234' may be",
}  # fmt: skip


@pytest.mark.parametrize("printed, value", WHOLE.items(), ids=ascii)
def test_number_is_read_whole(printed: str, value: float) -> None:
    """Thousands, decimals, an exponent and an SI prefix belong to a number, and the last number of a line counts."""
    found = find(re.compile(RATE_PATTERN), f"total images/sec: {printed}")
    assert found is not None
    assert parse(found) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("printed, why", UNCLEAR.items(), ids=ascii)
def test_ambiguous_number_is_refused(printed: str, why: str) -> None:
    """A part of a number, an ambiguous number, and a number that is not one per second are refused with the reason."""
    with pytest.raises(UnclearNumber, match=re.escape(why)):
        find(re.compile(RATE_PATTERN), f"total images/sec: {printed}")


OWN = [
    (r"([\d.]+) images/sec", "at 1,234.5 images/sec", "1,234.5"),
    (r"rate ([\d.]+)", "rate 1e3 images", "1e3"),
    (r"rate: ([\d,.]+)", "rate: 1,234.5, loss 3", "1,234.5"),
    (r"rate: ([\d ]+)", "rate: 12 345", "12 345"),
    (r"rate: ([\d ,]+)", "rate: 12 345,6", "12 345,6"),
    (r"Step \d+ ([\d.]+) images", "Step 100 512.3 images", "512.3"),
    (r"^\d+,([\d.]+),", "100,512.3,0.21", "512.3"),
    (r"^\d+;([\d.]+)", "100;512.3", "512.3"),
    (r"(\d+k) img", "12k img", "12k"),
    (r"v([\d.]+)", "v1.2", "1.2"),
    (r"([\d.]+)tok/s", "12tok/s", "12"),
    (r"img/s/GPU: ([\d.]+)", "img/s/GPU: 512", "512"),
    (r"rate: (-?[\d.]+)", "rate: -5", "-5"),
    (r"(\d+) images|no", "no", None),
    (r"(.)|12", "", None),
]
CUT = [
    (r"([\d.]+) images", "rate 1e3 images", "'3' is a part of '1e3'"),
    (r"([\d.]+) images", "Step 100 512.3 images", "'100 512.3' may be one number or two"),
    (r".*?([\d.]+) images", "rate: 12 345.6 images", "may be one number or two"),
    (r".*([\d.]+) images", "rate: 345.6 images", "group takes '6' of '345.6'"),
    (r"([\d.]+).*", "1,234.5", "group takes '1' of '1,234.5'"),
    (r"([\d.]+).*", "512.3,0.21", "group takes '512.3' of '512.3,0.21'"),
    (r"^\d+,([\d.]+)$", "7,512.30", "group takes '512.30' of '7,512.30'"),
    (r"(\d+)\.\d+", "12.5", "group takes '12' of '12.5'"),
    (r"(\d+)k img", "12k img", "group takes '12' of '12k'"),
    (r"([\d.]+)D", "1.5D+03", "is a part of '1.5D+03'"),
    (r"\.(\d+)", "1.25", "group takes '25' of '1.25'"),
    (r"([\d.]+) ips", "v1.2 ips", "'1.2' is a part of 'v1.2'"),
    (r"e([\d.]+)", "1e5", "'5' is a part of '1e5'"),
    (r"([\d.]+) images", "10-20 images", "a negative number, or a range"),
    (r"rate: ?\D?([\d.]+)", "rate: \u22125", "a negative number, or a range"),
    (r"(\d+) images", "1/2 images", "is a part of '1/2'"),
    (r"(\d+) images", "gpu_2 images", "is a part of 'gpu_2'"),
    (r"(\d+) images", "approx.512 images", "is a part of"),
    (r"sec/step: ([\d.]+)", "sec/step: 0.5", "is a time"),
    (r"images/min: ([\d.]+)", "images/min: 512", "is not a rate per second"),
    (r"rate: (\S+)", "rate: nan", "'nan' is not a number"),
    (r"rate: (\S+)", "rate: inf", "'inf' is not a number"),
    (r"rate: (.*)", "rate: 512.3 img/s", "'512.3 img/s' is not a number"),
    (r"rate:()", "rate:", "'' is not a number"),
]


@pytest.mark.parametrize("pattern, line, found", OWN, ids=[f"{pattern} {line!a}" for pattern, line, _ in OWN])
def test_own_pattern_finds_a_whole_number(pattern: str, line: str, found: str | None) -> None:
    """A number is read beyond the end of the group, and columns in the pattern separate numbers."""
    assert find(re.compile(pattern), line) == found


@pytest.mark.parametrize("pattern, line, why", CUT, ids=[f"{pattern} {line!a}" for pattern, line, _ in CUT])
def test_own_pattern_that_cuts_a_number_is_refused(pattern: str, line: str, why: str) -> None:
    """A group that takes a part of a number, or something else than a number, is refused with the reason."""
    with pytest.raises(UnclearNumber, match=re.escape(why)):
        find(re.compile(pattern), line)


FORMATS = (
    "{:f}", "{:.1f}", "{:.0f}", "{:e}", "{:.3E}", "{:g}", "{:,.2f}", "{:_.1f}", "{:,.0f}", "{:n}", "{:+.2f}", "{:.4g}",
    "{:10.2f}", "{:<10.1f}|", "{:,.3f}", "{:%}",
)  # fmt: skip
TRANSLATIONS: tuple[dict[str, str], ...] = (
    {},
    {",": "'"},
    {",": "\u00a0", ".": ","},
    {",": ".", ".": ","},
    {",": " ", ".": ","},
    {".": ","},
)


def test_number_in_any_format_keeps_its_value() -> None:
    """Of 4000 values in many formats each is read with its value or refused, and more than 1000 are read."""
    chance = random.Random(7)
    pattern, read = re.compile(RATE_PATTERN), 0
    for _ in range(4000):
        value = 10 ** chance.uniform(-2, 8)
        form, translated = chance.choice(FORMATS), str.maketrans(chance.choice(TRANSLATIONS))
        text = form.format(value).translate(translated)
        if text.count(".") == 1 and "," not in text and "." not in form.format(value):
            continue  # 1.234 for 1,234
        try:
            found = find(pattern, f"total images/sec: {text}")
        except UnclearNumber:
            continue
        if found is not None:
            read += 1
            assert parse(found) == pytest.approx(value, rel=0.51 if value < 1 else 0.05, abs=0.51), text
    assert read > 1000
