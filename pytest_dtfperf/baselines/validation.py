"""Files that people edit and other programs read, held against their JSON Schemas.

jsonschema is imported when the first file is read, not before: a session that reads none does not pay for it.
"""

import importlib
import json
import math
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pytest_dtfperf.baselines import verdict
from pytest_dtfperf.errors import BaselineFileError, unknown_name
from pytest_dtfperf.printable import printable

if TYPE_CHECKING:
    from jsonschema import ValidationError
    from jsonschema.protocols import Validator

SCHEMAS = Path(__file__).parent / "schema"
KINDS = ("baseline", "measurement", "session")  # a file in baselines/, a line of measurements.jsonl, a session.json
SHOWN = 60  # characters of an offending value
HALF_A_CHARACTER = re.compile(r"\\u[dD][89a-fA-F]")  # JSON may write one, no text file may
TOO_DEEP = "no file of ours: it is nested too deeply to be read"
IRI_GRAMMAR = "rfc3987_syntax"


def parse(kind: str, text: str, where: str) -> Any:
    """Read JSON and hold it against the schema of its kind. Raises `BaselineFileError` in one line that begins with `where`."""
    data = load(text, where)
    validate(kind, data, where)
    return data


def load(text: str, where: str) -> Any:
    """Read JSON, and only what can be written again. Raises `BaselineFileError` in one line that begins with `where`."""
    try:
        data = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_refuse_duplicates)
        if HALF_A_CHARACTER.search(text):
            json.dumps(data, ensure_ascii=False).encode()
    except ValueError as exc:
        raise BaselineFileError(f"{where}: no valid JSON: {exc}") from exc
    except RecursionError as exc:
        raise BaselineFileError(f"{where}: {TOO_DEEP}") from exc
    return data


def validate(kind: str, data: Any, where: str) -> None:
    """Hold data against the schema of its kind. Raises `BaselineFileError` in one line that begins with `where`."""
    try:
        errors = sorted(_validator(kind).iter_errors(data), key=lambda error: [str(step) for step in error.absolute_path])
        message = printable(_sentence(errors[0])) if errors else ""
    except RecursionError as exc:
        raise BaselineFileError(f"{where}: {TOO_DEEP}") from exc
    if errors:
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        raise BaselineFileError(f"{where}: {message}{more}")


@cache
def _validator(kind: str) -> "Validator":
    with grammar_awaited():
        from jsonschema import Draft202012Validator, validators
    from referencing import Registry, Resource

    if kind not in KINDS:
        raise ValueError(unknown_name("kind of file", kind, KINDS))
    schemas = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in SCHEMAS.glob("*.json")}
    schemas["verdict.json"] = verdict.schema()
    resources: Iterable[tuple[str, Resource[Any]]] = ((name, Resource.from_contents(schemas[name])) for name in schemas)
    # JSON Schema takes 2.0 for an integer; whoever counts runs with it does not.
    types = Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)
    extend: Any = validators.extend  # ships no types
    made: Validator = extend(Draft202012Validator, {"items": _items}, type_checker=types)(
        schemas[f"{kind}.json"], registry=Registry().with_resources(resources)
    )
    return made


@contextmanager
def grammar_awaited() -> Iterator[None]:
    """Import jsonschema in a tenth of the time where JupyterLab is installed, too.

    That brings a package with the grammar of internationalised URIs, which takes 1.2 s of CPU to import. jsonschema does so at
    once (https://github.com/python-jsonschema/jsonschema/issues/1428), and nothing of ours is of that format: who has one
    checked imports it then.
    """
    if IRI_GRAMMAR in sys.modules or not find_spec(IRI_GRAMMAR):
        yield
        return
    later: Any = ModuleType(IRI_GRAMMAR)
    later.is_valid_syntax = lambda *words, **named: importlib.import_module(IRI_GRAMMAR).is_valid_syntax(*words, **named)
    sys.modules[IRI_GRAMMAR] = later
    try:
        yield
    finally:
        if sys.modules.get(IRI_GRAMMAR) is later:
            del sys.modules[IRI_GRAMMAR]


def _items(validator: "Validator", rule: Any, instance: Any, schema: Any) -> Iterator["ValidationError"]:
    """As jsonschema has it, but quick for thousands of step times: what bounds numbers holds for all if it does for two."""
    from jsonschema import Draft202012Validator

    if isinstance(instance, list) and set(map(type, instance)) == {float}:
        extremes = min(instance), max(instance)
        if all(validator.evolve(schema=rule).is_valid(value) for value in extremes):
            return
    yield from Draft202012Validator.VALIDATORS["items"](validator, rule, instance, schema)


def _sentence(error: "ValidationError") -> str:
    rule: Any = error.validator_value
    schema: Any = error.schema
    return _path(error.absolute_path) + _message(str(error.validator), rule, schema, error.instance)


def _message(keyword: str, rule: Any, schema: Any, value: Any) -> str:
    match keyword:
        case "additionalProperties":
            unknown = next(name for name in value if name not in schema["properties"])
            return unknown_name("key", unknown, schema["properties"])
        case "dependentRequired":
            given, needed = next((key, names) for key, names in rule.items() if key in value and not value.keys() >= set(names))
            return f"where there are {given}, there must be {', '.join(needed)}, too"
        case "required":
            return f"the key {next(name for name in rule if name not in value)!r} is missing"
        case "type":
            return f"must be of type {rule if isinstance(rule, str) else ' or '.join(rule)}, not {_shown(value)}"
        case "enum":
            return f"must be one of {', '.join(map(json.dumps, rule))}, not {_shown(value)}"
        case "const":
            return f"must be {json.dumps(rule)}, not {_shown(value)}"
        case _:
            return f"{_shown(value)} breaks {keyword} {json.dumps(rule)}"


def _path(steps: Iterable[str | int]) -> str:
    """`entries["model=..."][0].samples: `, or nothing at the top of a file."""
    text = ""
    for step in steps:
        plain = isinstance(step, str) and step.isidentifier()
        text += f".{step}" if plain else f"[{json.dumps(step)}]"
    return f"{text.removeprefix('.')}: " if text else ""


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN else text[: SHOWN - 4] + " ..."


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is too large a number")
    return value


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A key that stands twice is a merge gone wrong; json would silently keep the last."""
    data = dict(pairs)
    if len(data) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} stands twice")
    return data
