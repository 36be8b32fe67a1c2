"""JSON files for users and other programs: written in one canonical form, validated by their schemas.

A file that is rewritten without a change stays the same, and a change is a readable diff. An error of a file is one line.
jsonschema is imported when the first file is read: a session that reads none does not pay for it.
"""

import importlib
import json
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from pytest_dtfperf.baselines.entry import Entry
from pytest_dtfperf.baselines.json_schema import json_schema, name_definition
from pytest_dtfperf.codec import JsonData
from pytest_dtfperf.datamodel.fingerprint import COMPARED
from pytest_dtfperf.errors import BaselineFileError, describe_unknown_name
from pytest_dtfperf.formats import printable
from pytest_dtfperf.node.files import read_text
from pytest_dtfperf.spec import KEY_FIELDS, UNUSUAL_KEY_FIELDS

if TYPE_CHECKING:
    from jsonschema import ValidationError
    from jsonschema.protocols import Validator


SCHEMA: Literal[1] = 1  # of every stored file; increased when an older reader would misread it
LINE_LENGTH = 128


def canonical(data: Any) -> str:
    """Format JSON with sorted keys, two spaces, compact where it fits, ending in a newline. Refuses NaN and infinities."""
    return _write(data, indent=0, used=0) + "\n"


def _write(data: Any, indent: int, used: int) -> str:
    """Format a part; `used` is the number of characters on the line before it: the indentation and a key."""
    flat = json.dumps(data, sort_keys=True, ensure_ascii=False, allow_nan=False)
    if used + len(flat) < LINE_LENGTH or not data or not isinstance(data, dict | list | tuple):
        return flat
    inner = " " * (indent + 2)
    if isinstance(data, dict):
        keys = {key: f"{inner}{json.dumps(key, ensure_ascii=False)}: " for key in sorted(data)}
        lines = [lead + _write(data[key], indent + 2, len(lead)) for key, lead in keys.items()]
        opening, closing = "{}"
    else:
        lines = [inner + _write(item, indent + 2, indent + 2) for item in data]
        opening, closing = "[]"
    return f"{opening}\n" + ",\n".join(lines) + f"\n{' ' * indent}{closing}"


SCHEMA_FILE = Path(__file__).parent / "schema" / "baseline.json"  # the part that is not generated from the data model
FileContent = type[JsonData] | Literal["baseline"]  # the class of a file or a line, or a file in baselines/
_DRAFT = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
SHOWN = 60  # characters of an offending value
HALF_A_CHARACTER = re.compile(r"\\u[dD][89a-fA-F]")  # JSON may contain one, a text file may not
TOO_DEEP = "no file of ours: it is nested too deeply to be read"
IRI_GRAMMAR = "rfc3987_syntax"


def load(text: str, where: str) -> Any:
    """Parse JSON that can be written again. Raises `BaselineFileError` in one line that begins with `where`."""
    try:
        data = json.loads(
            text,
            parse_constant=_refuse_constant,
            parse_float=_finite,
            parse_int=_whole,
            object_pairs_hook=_refuse_duplicates,
        )
        if HALF_A_CHARACTER.search(text):
            json.dumps(data, ensure_ascii=False).encode()
    except ValueError as exc:
        raise BaselineFileError(f"{where}: no valid JSON: {exc}") from exc
    except RecursionError as exc:
        raise BaselineFileError(f"{where}: {TOO_DEEP}") from exc
    return data


def validate(content: FileContent, data: Any, where: str) -> None:
    """Validate data against the schema of its content. Raises `BaselineFileError` in one line that begins with `where`."""
    try:
        validator = _validator(content)  # type: ignore[arg-type]  # mypy asks instances of the class for __hash__
        errors = sorted(validator.iter_errors(data), key=lambda error: [str(step) for step in error.absolute_path])
        message = printable(_format_error(errors[0])) if errors else ""
    except RecursionError as exc:
        raise BaselineFileError(f"{where}: {TOO_DEEP}") from exc
    if errors:
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        raise BaselineFileError(f"{where}: {message}{more}")


def load_schema(content: FileContent) -> dict[str, Any]:
    """Return the schema of a file or of a line of it, with the definitions that are generated from the data model."""
    if content != "baseline":
        name, title = name_definition(content), (content.__doc__ or "").partition("\n")[0]
        return {**_DRAFT, "$id": f"{name}.json", "title": title, **json_schema(content)}
    schema = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    entry = json_schema(Entry)
    nested = entry.pop("$defs")
    del entry["properties"]["key"]
    entry["required"].remove("key")
    properties = nested["fingerprint"]["properties"]
    nested["fingerprint"]["properties"] = {part: properties[part] for part in COMPARED}
    return {**schema, "$defs": {**nested, **schema["$defs"], "entry": entry}}


@cache
def _validator(content: FileContent) -> "Validator":
    with grammar_awaited():
        from jsonschema import Draft202012Validator, validators

    # JSON Schema accepts 2.0 as an integer; code that counts runs does not.
    types = Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)
    extend: Any = validators.extend  # ships no types
    made: Validator = extend(Draft202012Validator, {"items": _items}, type_checker=types)(load_schema(content))
    return made


@contextmanager
def grammar_awaited() -> Iterator[None]:
    """Import jsonschema in a tenth of the time where JupyterLab is installed, too.

    jsonschema then imports the grammar of internationalised URIs, which takes 1.2 s of CPU. It does so at
    once (https://github.com/python-jsonschema/jsonschema/issues/1428), but no schema here has that format: validating one
    still imports it.
    """
    if IRI_GRAMMAR in sys.modules or not find_spec(IRI_GRAMMAR):
        yield
        return
    later: Any = ModuleType(IRI_GRAMMAR)
    later.is_valid_syntax = lambda *args, **named: importlib.import_module(IRI_GRAMMAR).is_valid_syntax(*args, **named)
    sys.modules[IRI_GRAMMAR] = later
    try:
        yield
    finally:
        if sys.modules.get(IRI_GRAMMAR) is later:
            del sys.modules[IRI_GRAMMAR]


def _items(validator: "Validator", rule: Any, instance: Any, schema: Any) -> Iterator["ValidationError"]:
    """Validate items like jsonschema, but fast for thousands of step times: bounds are only checked for the extremes."""
    from jsonschema import Draft202012Validator

    if isinstance(instance, list) and set(map(type, instance)) == {float}:
        extremes = min(instance), max(instance)
        if all(validator.evolve(schema=rule).is_valid(value) for value in extremes):
            return
    yield from Draft202012Validator.VALIDATORS["items"](validator, rule, instance, schema)


def _format_error(error: "ValidationError") -> str:
    rule: Any = error.validator_value
    schema: Any = error.schema
    return _path(error.absolute_path) + _message(str(error.validator), rule, schema, error.instance)


def _message(keyword: str, rule: Any, schema: Any, value: Any) -> str:
    match keyword:
        case "additionalProperties":
            unknown = next(name for name in value if name not in schema["properties"])
            return describe_unknown_name("key", unknown, schema["properties"])
        case "dependentRequired":
            given, needed = next((key, names) for key, names in rule.items() if key in value and not value.keys() >= set(names))
            return f"where there are {given}, there must be {', '.join(needed)}, too"
        case "required":
            return f"the key {next(name for name in rule if name not in value)!r} is missing"
        case "type":
            return f"must be of type {rule if isinstance(rule, str) else ' or '.join(rule)}, not {_show_value(value)}"
        case "enum":
            return f"must be one of {', '.join(map(json.dumps, rule))}, not {_show_value(value)}"
        case "const":
            return f"must be {json.dumps(rule)}, not {_show_value(value)}"
        case _:
            return f"{_show_value(value)} breaks {keyword} {json.dumps(rule)}"


def _path(steps: Iterable[str | int]) -> str:
    """Format `entries["model=..."][0].samples: `; empty at the top of a file."""
    text = ""
    for step in steps:
        plain = isinstance(step, str) and step.isidentifier()
        text += f".{step}" if plain else f"[{json.dumps(step)}]"
    return f"{text.removeprefix('.')}: " if text else ""


def _show_value(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN else text[: SHOWN - 4] + " ..."


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]}{'...' if len(text) > 20 else ''} is too large a number")
    return value


def _whole(text: str) -> int:
    _finite(text)  # whole numbers are compared with floats, too
    return int(text)


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a duplicate key, which comes from a failed merge; json would silently keep the last one."""
    data = dict(pairs)
    if len(data) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} stands twice")
    return data


COUNTS = ("batch_size", "gpus", "num_ps")  # the numbers that every key has


def published_folder() -> Path:
    """Return the folder of published references: in the installed package, or in its checkout."""
    package = Path(__file__).parent / "published"
    checkout = Path(__file__).parents[2] / "baselines"
    found = next((folder for folder in (package, checkout) if folder.is_dir()), None)
    if found is None:
        raise BaselineFileError(f"{package}: the published references are missing; install pytest-dtfperf again")
    return found


@cache
def read_published_file(path: Path) -> dict[str, Any]:
    """Read a file of the published folder, cached: it does not change, and validating all of them takes 0.1 s."""
    return read_baseline_file(path)


def read_baseline_file(path: Path) -> dict[str, Any]:
    """Read and validate one file, of this version or an older one. Raises `BaselineFileError`, in one line."""
    try:
        text = read_text(path)
    except OSError as exc:
        raise BaselineFileError(f"{path}: cannot be read: {exc.strerror}") from exc
    return content_of(text, path)


def check_schema_version(data: Any, where: str) -> None:
    """Raise `BaselineFileError` if a newer version of the package has written the file."""
    found = data.get("schema") if isinstance(data, dict) else None
    if type(found) is int and found > SCHEMA:
        raise BaselineFileError(
            f"{where}: written by a newer version of pytest-dtfperf (its schema is {found}, this version reads {SCHEMA}); "
            "install that: pip install --upgrade pytest-dtfperf"
        )


def content_of(text: str, path: Path) -> dict[str, Any]:
    """Return the content of a file with this text, converted to the current schema. Raises `BaselineFileError`, in one line."""
    data: dict[str, Any] = load(text, str(path))
    check_schema_version(data, str(path))
    validate("baseline", data, str(path))
    if data["system"] != path.stem:
        raise BaselineFileError(f"{path}: system is {data['system']!r}, but the file's name is {path.stem!r}: they must agree")
    for problem in _problems(data):
        raise BaselineFileError(f"{path}: {printable(problem)}")
    return data


def _problems(data: Mapping[str, Any]) -> Iterator[str]:
    """Yield problems that JSON Schema cannot express."""
    for key, entries in data.get("entries", {}).items():
        where = f"entries[{json.dumps(key)}]"
        if problem := _describe_impossible_key(key):
            yield f"{where}: {problem}"
        for number, entry in enumerate(entries):
            dates = {part: entry[part]["date"] for part in ("provenance", "noise") if part in entry}
            wrong = {part: date for part, date in dates.items() if not _is_date(date)}
            yield from (f"{where}[{number}].{part}.date: {date!r} is no date" for part, date in wrong.items())
    for number, series in enumerate(data.get("references", ())):
        if series["source"] not in data.get("sources", {}):
            yield f"references[{number}].source: {describe_unknown_name('source', series['source'], data.get('sources', {}))}"
    seen: set[tuple[str, int]] = set()
    for number, row in enumerate(data.get("thresholds", {}).get("efficiency", ())):
        case = row["model"], row["gpus"]
        if case in seen:
            yield f"thresholds.efficiency[{number}]: {json.dumps(case[0])} on {case[1]} devices has a threshold already"
        seen.add(case)


def _describe_impossible_key(key: str) -> str | None:
    """Return the problem of a key that no spec can have, because it would silently never be found."""
    pairs = [word.partition("=") for word in key.split(" ")]
    names = [name for name, _, _ in pairs]
    for name in names:
        if name not in (*KEY_FIELDS, *UNUSUAL_KEY_FIELDS):
            return describe_unknown_name("field of a spec", name, (*KEY_FIELDS, *UNUSUAL_KEY_FIELDS))
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
