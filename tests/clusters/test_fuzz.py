"""clusters.toml is read, or refused in one line, for hundreds of damaged files, the same ones every time.

DTFPERF_FUZZ sets the number; the default is 500.
"""

import os
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_dtfperf.clusters import capacity, named
from pytest_dtfperf.clusters.protocol import Resources
from pytest_dtfperf.errors import AllocationError, UsageError
from pytest_dtfperf.spec import Spec

REPOSITORY = Path(__file__).parents[2]
SEED = 13
LONGEST = 3000  # signs of a message: all known names of keys are in some
PARTS = 10  # tests that share the files, so that one that fails is found soon

SOURCES = [
    (REPOSITORY / "perf_tests" / "clusters.toml").read_text(),
    *re.findall(r"```toml\n(.*?)```", (REPOSITORY / "docs" / "clusters.md").read_text(), re.DOTALL),
    *re.findall(r"```toml\n(.*?)```", (REPOSITORY / "docs" / "ec2.md").read_text(), re.DOTALL),
]

BACKENDS = list(named.BACKENDS)
KEYS = sorted({*named.KEYS, *(key for row in named.BACKENDS.values() for key in row.keys)})

# What may stand behind a `=`: sensible, of another type, and out of all bounds.
VALUES = [
    "0", "1", "2", "-1", "4.5", "-0.0", "1e400", "nan", "inf", "true", "false", '""', '"x"', '"5%"', '"20"', '"node[01-16]"',
    '"a[1"', '"node[1-999999999999]"', '"s3://b/c"', '"s3://"', '"module:function"', '"\\u0000"', '"\\U0001f600"', '"²"',
    "[]", "[1]", '["a"]', '["a", "a"]', '[["a"]]', "{}", "{ a = 1 }", '{ a = "b" }', "{ a = { b = { c = 1 } } }", "{ 8 = 8 }",
    "1979-05-27", "07:32:00", "0000-01-01", "1979-05-27T07:32:00Z", "9" * 19, "9" * 400, "9" * 5000, "0x" + "f" * 5000,
    "[" * 60 + "]" * 60, "[" * 2000 + "]" * 2000, "'''\n\n'''", '"10.0.0.0/8"', '"10.0.0.1/8"', '"::/0"', f'"{"x" * 10000}"',
    '"../../etc/passwd"', '"/proc/self/mem"', '"/dev/null"', '"."', '"00:12:00"', '"2h"', '"0h"', '"gpu:p100:4"', '"gpu:"',
    '["--time=3"]', '["ServerAliveInterval=3"]', '"uv"', '"ami-00000000"', '"local"',
]  # fmt: skip


OTHER_KEYS = ["margin", "repeats", "limits.ready_s", "training.steps", "a.b.c", '"ä b"', *Spec.__dataclass_fields__]
TABLES = ["x", '""', '"a\\nb"', "x.training", "x.models.mnist", "x.limits", "x.private_address", f"x.{'.'.join('y' * 200)}"]


def _any_line(chance: random.Random) -> str:
    return f"{chance.choice([*KEYS, *OTHER_KEYS])} = {chance.choice(VALUES)}"


def _replace_value(text: str, chance: random.Random) -> str:
    lines = text.splitlines()
    at = [number for number, line in enumerate(lines) if "=" in line]
    if at:
        number = chance.choice(at)
        lines[number] = f"{lines[number].partition('=')[0]}= {chance.choice(VALUES)}"
    return "\n".join(lines)


def _insert_line(text: str, chance: random.Random) -> str:
    lines = text.splitlines()
    lines.insert(chance.randint(0, len(lines)), _any_line(chance))
    return "\n".join(lines)


def _drop_line(text: str, chance: random.Random) -> str:
    lines = text.splitlines()
    if lines:
        del lines[chance.randrange(len(lines))]
    return "\n".join(lines)


def _add_table(text: str, chance: random.Random) -> str:
    name = chance.choice(TABLES)
    kind = f'backend = "{chance.choice(BACKENDS)}"\n' if "." not in name else ""
    lines = "\n".join(_any_line(chance) for _ in range(chance.randint(0, 4)))
    return f"{text}\n[{name}]\n{kind}{lines}\n"


def _change_sign(text: str, chance: random.Random) -> str:
    at = chance.randrange(len(text) + 1)
    return text[:at] + chance.choice('[]{}"=.,#\n\\\0\u00b2\ufeffé0') + text[at + chance.randint(0, 1) :]


def _cut(text: str, chance: random.Random) -> str:
    return text[: chance.randrange(len(text) + 1)]


DAMAGE: tuple[Callable[[str, random.Random], str], ...] = (
    _replace_value, _replace_value, _insert_line, _insert_line, _add_table, _add_table, _drop_line, _change_sign, _cut,
)  # fmt: skip


def make_damaged_file(number: int) -> bytes:
    """Return a damaged version of a valid file, the same for the same number."""
    chance = random.Random(f"{SEED}/{number}")
    text = chance.choice(["", *SOURCES])
    for _ in range(chance.randint(1, 4)):
        text = chance.choice(DAMAGE)(text, chance)
    content: bytes = text.encode()
    if chance.random() < 0.05:
        at = chance.randrange(len(content) + 1)
        content = content[:at] + bytes([chance.randrange(256)]) + content[at:]
    return content


def wrong_with(path: Path) -> str | None:
    """Return pytest's error for a file before a cluster is contacted; None if the file is valid."""
    try:
        for name in named.load(path):
            _, config = named.choose(name, path, [])
            capacity.count_devices(config), capacity.predict_device(config), capacity.predict_devices_per_worker(config)
            named.open_cluster(config)
            named.BACKENDS[config.backend].list_commands(config, Resources(1, session="s"))
    except (UsageError, AllocationError) as error:
        return str(error)
    return None


@pytest.mark.campaign
@pytest.mark.parametrize("part", range(PARTS))
def test_damaged_file_is_read_or_refused_in_lines(tmp_path: Path, part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged file is read or refused with one line of bounded length per mistake, and never with a traceback."""
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / "clusters.toml"
    refused = 0
    numbers = range(part, int(os.environ.get("DTFPERF_FUZZ", "500")), PARTS)
    for number in numbers:
        path.write_bytes(make_damaged_file(number))
        try:
            output = wrong_with(path)
        except Exception as error:
            pytest.fail(f"file {number}: {type(error).__name__}: {error}\n{make_damaged_file(number)[:3000]!r}")
        if output is not None:
            refused += 1
            for line in output.split("\n"):
                assert line.isprintable(), f"file {number}: {output}"
                assert len(line) < LONGEST, f"file {number}: {output}"
    assert 0 < refused < len(numbers)  # the damage is neither too small nor too large to find anything
