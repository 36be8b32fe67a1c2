"""One file of baselines: read, made into what it would be today, checked. Whatever is wrong with it is one line."""

import json
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from pytest_dtfperf.baselines.upgrades import upgraded
from pytest_dtfperf.baselines.validation import load, validate
from pytest_dtfperf.errors import BaselineFileError, unknown_name
from pytest_dtfperf.node.files import read_text
from pytest_dtfperf.printable import printable
from pytest_dtfperf.spec import KEY_FIELDS, UNUSUAL_KEY_FIELDS

COUNTS = ("batch_size", "gpus", "num_ps")  # the numbers that every key has


def published_folder() -> Path:
    """Where the published references are: in the installed package, or in the checkout that it is imported from."""
    package = Path(__file__).parent / "published"
    checkout = Path(__file__).parents[2] / "baselines"
    found = next((folder for folder in (package, checkout) if folder.is_dir()), None)
    if found is None:
        raise BaselineFileError(f"{package}: the published references are missing; install pytest-dtfperf again")
    return found


@cache
def read_published_file(path: Path) -> dict[str, Any]:
    """One of the published folder, once: nobody writes there meanwhile, and to check them all takes a tenth of a second."""
    return read_baseline_file(path)


def read_baseline_file(path: Path) -> dict[str, Any]:
    """Read and check one file, of this version or an older one. Raises `BaselineFileError`, in one line."""
    try:
        text = read_text(path)
    except OSError as exc:
        raise BaselineFileError(f"{path}: cannot be read: {exc.strerror}") from exc
    return content_of(text, path)


def content_of(text: str, path: Path) -> dict[str, Any]:
    """What a file with this text says, under today's schema. Raises `BaselineFileError`, in one line."""
    data: dict[str, Any] = upgraded(load(text, str(path)), str(path))
    validate("baseline", data, str(path))
    if data["system"] != path.stem:
        raise BaselineFileError(
            f"{path}: system is {data['system']!r}, but the file's name says {path.stem!r}; they must agree"
        )
    for problem in _problems(data):
        raise BaselineFileError(f"{path}: {printable(problem)}")
    return data


def _problems(data: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong that JSON Schema cannot see."""
    for key, entries in data.get("entries", {}).items():
        where = f"entries[{json.dumps(key)}]"
        if problem := _about_key(key):
            yield f"{where}: {problem}"
        for number, entry in enumerate(entries):
            dates = {part: entry[part]["date"] for part in ("provenance", "noise") if part in entry}
            wrong = {part: date for part, date in dates.items() if not _is_date(date)}
            yield from (f"{where}[{number}].{part}.date: {date!r} is no date" for part, date in wrong.items())
    for number, series in enumerate(data.get("references", ())):
        if series["source"] not in data.get("sources", {}):
            yield f"references[{number}].source: {unknown_name('source', series['source'], data.get('sources', {}))}"
    seen: set[tuple[str, int]] = set()
    for number, row in enumerate(data.get("thresholds", {}).get("efficiency", ())):
        case = row["model"], row["gpus"]
        if case in seen:
            yield f"thresholds.efficiency[{number}]: {json.dumps(case[0])} on {case[1]} devices has a threshold already"
        seen.add(case)


def _about_key(key: str) -> str | None:
    """A key that no spec can have would never be found again, and nobody would be told."""
    pairs = [word.partition("=") for word in key.split(" ")]
    names = [name for name, _, _ in pairs]
    for name in names:
        if name not in (*KEY_FIELDS, *UNUSUAL_KEY_FIELDS):
            return unknown_name("field of a spec", name, (*KEY_FIELDS, *UNUSUAL_KEY_FIELDS))
    if names != [*KEY_FIELDS, *(name for name in UNUSUAL_KEY_FIELDS if name in names)]:
        return (
            f"a key is {' '.join(f'{name}=...' for name in KEY_FIELDS)}, then what is not as usual, "
            "in the order of the spec's fields"
        )
    for name, _, value in pairs:
        if not value or (name in COUNTS and not re.fullmatch("[0-9]+", value)):
            return f"{name} must be {'a whole number' if name in COUNTS else 'something'}, not {value!r}"
    return None


def _is_date(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True
